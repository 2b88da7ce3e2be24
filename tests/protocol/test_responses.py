"""Every error has one row in the table, and a document that can be written."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Iterator

import pytest

from headrace import errors
from headrace.errors import HeadraceError, Unavailable
from headrace.protocol.responses import PROBLEM_TYPE_PREFIX, PROBLEMS, REASONS, problem

SAMPLES: dict[str, object] = {
    "str": "a'\"\\é\x7f",
    "int": 2**53 - 1,
    "float": 0.25,
    "bool": True,
}
ROOTS = {"Refused", "Unavailable", "Indeterminate", "Corrupt"}


def concrete(kind: type[HeadraceError] = HeadraceError) -> Iterator[type[HeadraceError]]:
    """Errors of the protocol; those of other rooms may be loaded, too, and are said elsewhere."""
    for child in kind.__subclasses__():
        if child.__name__ not in ROOTS and child.__module__ == errors.__name__:
            yield child
        yield from concrete(child)


CLASSES = sorted(set(concrete()), key=lambda kind: kind.__name__)


def sample(kind: type[HeadraceError]) -> HeadraceError:
    """An instance whose fields hold values that are awkward to write down."""
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]  # every concrete error is one
    return kind(*(SAMPLES[str(field.type)] for field in fields))


def test_the_classes_are_those_of_the_module() -> None:
    declared = {name for name, _ in inspect.getmembers(errors, inspect.isclass)} - ROOTS
    assert declared >= {kind.__name__ for kind in CLASSES}
    assert len(CLASSES) >= 30


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_has_a_row(kind: type[HeadraceError]) -> None:
    assert kind in PROBLEMS


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_is_a_problem_document_with_its_facts(kind: type[HeadraceError]) -> None:
    error = sample(kind)
    response = problem(error)
    document = json.loads(response.body)
    row = PROBLEMS[kind]
    assert document == {
        "type": PROBLEM_TYPE_PREFIX + row.name,
        "title": row.title,
        "status": row.status,
        "detail": error.detail,
        **error.facts(),
    }
    assert response.status == row.status
    assert document["detail"].endswith((".", SAMPLES["str"]))


@pytest.mark.parametrize("kind", CLASSES)
def test_the_headers_of_an_error_are_whole_lines(kind: type[HeadraceError]) -> None:
    lines = problem(sample(kind)).headers.decode("latin-1").split("\r\n")
    assert lines.pop() == ""
    assert "Content-Type: application/problem+json" in lines
    assert "Cache-Control: no-store" in lines
    assert all(": " in line and "\n" not in line for line in lines)


@pytest.mark.parametrize("kind", [kind for kind in CLASSES if issubclass(kind, Unavailable)])
def test_what_may_succeed_later_says_when(kind: type[HeadraceError]) -> None:
    assert b"\r\nRetry-After: " in problem(sample(kind)).headers


def test_every_status_has_a_reason_phrase() -> None:
    assert {row.status for row in PROBLEMS.values()} <= set(REASONS)


def test_problem_types_are_unique() -> None:
    assert len({row.name for row in PROBLEMS.values()}) == len(PROBLEMS)
