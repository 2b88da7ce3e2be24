"""The registry of shapes: what it says after any number of shapes, and after a crash."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.client import Client
from headrace.errors import HeadraceError
from headrace.shapes import registry
from headrace.shapes.registry import Registry
from tests.conftest import Serve


@pytest.fixture
def client(serve: Serve) -> Iterator[Client]:
    with Client(serve(DS_LIMITS__MAX_STREAM_BYTES="20000").url) as opened:
        yield opened


def item(number: int) -> registry.Item:
    return {"handle": str(number), "definition": "x" * 100}


def recovered(client: Client) -> list[str]:
    found = Registry(client, "registry")
    found.recover()
    return sorted(found.shapes, key=int)


def test_shapes_that_come_and_go_for_ever_leave_room(client: Client) -> None:
    one = Registry(client, "registry")
    one.recover()
    for number in range(400):
        one.add(item(number))
        if number >= 5:
            one.remove(str(number - 5))
    assert recovered(client) == ["395", "396", "397", "398", "399"]


def test_most_of_it_is_never_out_of_date(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "STALE_MAX", 10)
    one = Registry(client, "registry")
    one.recover()
    one.add(item(-1))
    for number in range(40):
        one.add(item(number))
        one.remove(str(number))
    streams = [client.stream(name) for name in ("registry", "registry.2")]
    lengths = []
    for stream in streams:
        try:
            lengths.append(len(list(stream.read_json())))
        except HeadraceError:
            lengths.append(0)
    assert min(lengths) == 0
    assert max(lengths) < 20
    assert recovered(client) == ["-1"]


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([], ["1", "2"]),
        ([{"operation": "begin", "generation": 1}], ["1", "2"]),
        (
            [{"operation": "begin", "generation": 1}, {"operation": "create", **item(2)}],
            ["1", "2"],
        ),
        (
            [
                {"operation": "begin", "generation": 1},
                {"operation": "create", **item(2)},
                {"operation": "complete"},
            ],
            ["2"],
        ),
    ],
)
def test_a_crash_while_it_is_written_anew_loses_nothing(
    client: Client, entries: list[registry.Item], expected: list[str]
) -> None:
    one = Registry(client, "registry")
    one.recover()
    one.add(item(1))
    one.add(item(2))
    other = client.stream("registry.2")
    other.create("application/json")
    if entries:
        other.append_json(*entries)
    assert recovered(client) == expected
    assert recovered(client) == expected, "and the other one is gone"


def test_a_registry_that_the_server_lost_is_written_anew(client: Client) -> None:
    one = Registry(client, "registry")
    one.recover()
    one.add(item(1))
    client.stream("registry").delete()
    one.add(item(2))
    assert recovered(client) == ["1", "2"]
