"""The sync half of the client is what its async half makes of it."""

from __future__ import annotations

import ast

import pytest

from tools import generate_sync_client
from tools.generate_sync_client import CLIENT, sync_form

# Written twice by hand (decision 0070), with what only the sync half has.
HAND_WRITTEN = {"producer": "Producer", "driver": "Driver"}
ONLY_SYNC = {
    "Producer.flush(timeout_secs: float | None=None)",  # a task is cancelled instead
    "Driver.__init__(tls: ssl.SSLContext | None=None)",  # loaded once for all drivers
    "Driver.run(line: CancelHandle | None=None)",  # stops the request from another thread
}

Signatures = dict[str, tuple[list[str], str]]


def signatures(module: str, name: str) -> Signatures:
    """Each public method of a class: its parameters and its result, as source."""
    tree = ast.parse((CLIENT / f"{module}.py").read_text("utf-8"))
    [found] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    return {
        f"{name}.{method.name}": (
            _parameters(method),
            ast.unparse(method.returns or ast.Constant(None)),
        )
        for method in found.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
        and (method.name == "__init__" or not method.name.startswith("_"))
    }


def _parameters(method: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    return ast.unparse(method.args).split(", ")[1:]


def as_sync(found: Signatures) -> Signatures:
    return {
        sync_form(name): ([sync_form(one) for one in parameters], sync_form(result))
        for name, (parameters, result) in found.items()
    }


def without_extras(found: Signatures) -> Signatures:
    return {
        name: ([one for one in parameters if f"{name}({one})" not in ONLY_SYNC], result)
        for name, (parameters, result) in found.items()
    }


def test_the_sync_client_is_what_the_generator_writes() -> None:
    outdated = generate_sync_client.outdated()
    assert not outdated, f"{outdated}: run python -m tools.generate_sync_client"


@pytest.mark.parametrize("name", generate_sync_client.MODULES)
def test_nothing_async_is_left_in_a_sync_module(name: str) -> None:
    text = (generate_sync_client.CLIENT / f"sync_{name}.py").read_text("utf-8")
    code = text.replace(f"`client.async_{name}`", "")
    for word in ("async", "await", "Async", "aclose", "__aenter__", "any task"):
        assert word not in code, word


@pytest.mark.parametrize("module", HAND_WRITTEN)
def test_what_is_written_twice_by_hand_has_the_same_signatures(module: str) -> None:
    name = HAND_WRITTEN[module]
    sync = signatures(f"sync_{module}", name)
    assert without_extras(sync) == as_sync(signatures(f"async_{module}", f"Async{name}"))
    extras = {f"{method}({one})" for method, (all_of, _) in sync.items() for one in all_of}
    assert {extra for extra in ONLY_SYNC if extra.startswith(f"{name}.")} <= extras, "still there"


def test_a_method_of_one_half_alone_is_noticed() -> None:
    sync = signatures("sync_producer", "Producer")
    del sync["Producer.detach"]
    assert without_extras(sync) != as_sync(signatures("async_producer", "AsyncProducer"))
