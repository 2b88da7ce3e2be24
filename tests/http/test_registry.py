"""`__registry__`: who asks it knows which streams exist, and it does not grow for ever."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from headrace.testing.raw_http import RawConnection, request_bytes
from headrace.testing.server_process import ServerProcess
from headrace.testing.server_queries import catch_up, metric
from headrace.testing.sse_reader import open_events
from headrace.testing.waiting import DEADLINE_SECS
from tests.conftest import stop_cleanly

REGISTRY = "/v1/stream/__registry__"
ZERO = "0000000000000000_0000000000000000"
CHURN = 1_500  # streams created and deleted: enough for several compactions
PIPELINE = 100  # requests sent before their answers are read


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    process = ServerProcess(cwd=str(tmp_path_factory.mktemp("registry")))
    process.start()
    yield process
    stop_cleanly(process)


def announced(http: httpx.Client, offset: str = "-1") -> list[dict[str, Any]]:
    return [message for answer in catch_up(http, REGISTRY, offset) for message in answer.json()]


def tail(http: httpx.Client) -> str:
    offset: str = http.head(REGISTRY).headers["Stream-Next-Offset"]
    return offset


def replayed(messages: list[dict[str, Any]]) -> set[str]:
    """The streams that exist, by the registry's account."""
    names: set[str] = set()
    for message in messages:
        if message["headers"]["operation"] == "insert":
            names.add(message["key"])
        else:
            names.discard(message["key"])
    return names


def test_a_create_and_a_delete_are_announced_in_order(http: httpx.Client, stream: str) -> None:
    before = tail(http)
    http.put(stream, headers={"Content-Type": "text/plain; charset=utf-8"})
    http.delete(stream)
    created, deleted = announced(http, before)
    name = stream.removeprefix("/v1/stream/")
    assert (created["type"], created["key"]) == ("stream", name)
    assert created["value"]["path"] == name
    assert created["value"]["contentType"] == "text/plain; charset=utf-8"
    assert isinstance(created["value"]["createdAt"], int)
    assert created["headers"] == {"operation": "insert"}
    assert deleted == {"type": "stream", "key": name, "headers": {"operation": "delete"}}


def test_names_are_announced_decoded(http: httpx.Client, stream: str) -> None:
    before = tail(http)
    http.put(f"{stream}/caf%C3%A9%20%22x%22")
    assert announced(http, before)[0]["key"].endswith('/café "x"')


@pytest.mark.parametrize("repeat", ["PUT", "POST", "GET"])
def test_what_changes_no_existence_is_not_announced(
    http: httpx.Client, stream: str, repeat: str
) -> None:
    http.put(stream)
    before = tail(http)
    content = b"x" if repeat == "POST" else b""
    http.request(repeat, stream, content=content, headers={"Content-Type": "text/plain"})
    assert tail(http) == before


def test_a_refused_create_is_not_announced(http: httpx.Client, stream: str) -> None:
    before = tail(http)
    assert http.put(stream, headers={"Stream-TTL": "never"}).status_code == 400
    assert tail(http) == before


def test_a_live_reader_sees_streams_come_and_go(
    server: ServerProcess, http: httpx.Client, stream: str
) -> None:
    with open_events(server.port, f"{REGISTRY}?offset=now&live=sse") as events:
        events.batch()
        http.put(stream)
        assert '"insert"' in (events.batch().data or "")
        http.delete(stream)
        assert '"delete"' in (events.batch().data or "")


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("PUT", {"Content-Type": "application/json"}),
        ("POST", {"Content-Type": "application/json"}),
        ("POST", {"Stream-Closed": "true"}),
        ("DELETE", {}),
    ],
    ids=["create", "append", "close", "delete"],
)
@pytest.mark.parametrize("path", [REGISTRY, "/v1/stream/%5F_registry_%5f"])
def test_clients_cannot_write_it(
    http: httpx.Client, method: str, headers: dict[str, str], path: str
) -> None:
    before = tail(http)
    content = b"{}" if "Content-Type" in headers else b""
    answer = http.request(method, path, content=content, headers=headers)
    assert (answer.status_code, answer.headers["Allow"]) == (405, "GET, HEAD, OPTIONS")
    assert tail(http) == before


def test_it_cannot_be_forked(http: httpx.Client, stream: str) -> None:
    assert http.put(stream, headers={"Stream-Forked-From": REGISTRY}).status_code == 400


# -- compaction --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def churned(server: ServerProcess) -> str:
    """A stream that stays, among many that came and went; the offset of its announcement."""
    with httpx.Client(base_url=server.url, timeout=DEADLINE_SECS) as http:
        http.put("/v1/stream/stays")
        offset = tail(http)
    with RawConnection(server.port) as client:
        for first in range(0, CHURN, PIPELINE):
            paths = [f"/v1/stream/churn/{n}" for n in range(first, first + PIPELINE)]
            for method, status in (("PUT", 201), ("DELETE", 204)):
                client.send(b"".join(request_bytes(method, path) for path in paths))
                assert {client.response().status for _ in paths} == {status}
    return offset


@pytest.mark.usefixtures("churned")
def test_it_stays_short_after_many_streams_came_and_went(http: httpx.Client) -> None:
    streams = metric(http, "headrace_streams")
    assert len(announced(http)) <= 2 * (streams + 1) + 1_000 + 1


@pytest.mark.usefixtures("churned")
def test_what_is_left_of_it_still_tells_which_streams_exist(http: httpx.Client) -> None:
    names = replayed(announced(http))
    assert "stays" in names
    assert not [name for name in names if name.startswith("churn/")]
    assert len(names) == metric(http, "headrace_streams") - 1


@pytest.mark.parametrize("mode", ["", "long-poll", "sse"])
@pytest.mark.parametrize("where", ["beginning", "before"])
def test_a_reader_before_its_trim_offset_gets_the_offset_to_continue_at(
    http: httpx.Client, churned: str, mode: str, where: str
) -> None:
    offset = ZERO if where == "beginning" else churned
    params = {"offset": offset} | ({"live": mode} if mode else {})
    answer = http.get(REGISTRY, params=params)
    assert answer.status_code == 410
    assert answer.json()["type"] == "urn:headrace:problem:offset-trimmed"
    earliest = answer.headers["Stream-Next-Offset"]
    assert answer.json()["earliest_offset"] == earliest > offset
    assert "stays" in replayed(announced(http, earliest))


@pytest.mark.usefixtures("churned")
def test_the_beginning_is_what_it_still_has(http: httpx.Client) -> None:
    earliest = http.get(REGISTRY, params={"offset": ZERO}).headers["Stream-Next-Offset"]
    assert announced(http) == announced(http, earliest)


def test_a_reader_that_keeps_up_sees_every_change_through_compactions(
    server: ServerProcess, http: httpx.Client
) -> None:
    with (
        open_events(server.port, f"{REGISTRY}?offset=now&live=sse") as events,
        RawConnection(server.port) as client,
    ):
        events.batch()
        seen: list[tuple[str, str]] = []
        for first in range(0, 700, PIPELINE):
            paths = [f"/v1/stream/kept-up/{n}" for n in range(first, first + PIPELINE)]
            for method in ("PUT", "DELETE"):
                client.send(b"".join(request_bytes(method, path) for path in paths))
                assert all(client.response().status < 300 for _ in paths)
                at = tail(http)
                while True:
                    batch = events.batch()
                    seen += _changes(batch.data)
                    if batch.control["streamNextOffset"] == at:
                        break
    expected = {(f"kept-up/{n}", operation) for n in range(700) for operation in _OPERATIONS}
    assert expected <= set(seen)
    trim_offset = http.get(REGISTRY, params={"offset": ZERO}).headers["Stream-Next-Offset"]
    assert trim_offset > ZERO


_OPERATIONS = ("insert", "delete")


def _changes(data: str | None) -> list[tuple[str, str]]:
    messages = json.loads(data) if data else []
    return [(message["key"], message["headers"]["operation"]) for message in messages]
