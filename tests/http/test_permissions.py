"""Permissions of the ASGI application: every operation asks before it looks anything up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import httpx
import pytest

from headrace.http.asgi import Action, Scope, create_app
from headrace.testing.sse_reader import open_events
from headrace.testing.waiting import DEADLINE_SECS
from tests.http.api_description import operations
from tests.http.uvicorn import MOUNT, Uvicorn, assert_clean

ROOMS = f"{MOUNT}/v1/stream/rooms"
ANN, EVE = {"Authorization": "Bearer ann-token"}, {"Authorization": "Bearer eve-token"}
JSON = {"Content-Type": "application/json"}
# What needs no user: the description, health, the browser's files, keys, and what a wake's own
# token protects.
PUBLIC = {
    *("isAlive", "isReady", "describeApi", "listKeys", "leadToBrowser", "findBrowser"),
    *("readBrowser", "callBack", "acknowledge", "releaseWork"),
}
PUBLIC |= {f"head{id[0].upper()}{id[1:]}" for id in PUBLIC}
Asked = list[tuple[Any, Action, str]]


@pytest.fixture(scope="module")
def rooms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Uvicorn]:
    process = Uvicorn(tmp_path_factory.mktemp("rooms") / "log", app="examples.permissions:app")
    yield process
    assert_clean(process, process.stop())


@pytest.fixture
def http(rooms: Uvicorn) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=rooms.url, timeout=DEADLINE_SECS) as client:
        yield client


def test_members_read_and_write_and_nobody_else_does(http: httpx.Client, rooms: Uvicorn) -> None:
    garden = f"{ROOMS}/garden"
    assert http.put(garden, headers=ANN | JSON).status_code == 201
    assert http.post(garden, headers=ANN | JSON, content=b'{"say": "hi"}').status_code == 204
    assert http.get(garden, headers=ANN).json() == [{"say": "hi"}]
    for method in ("GET", "POST", "DELETE", "PUT"):
        refused = http.request(method, garden, headers=EVE | JSON, content=b"1")
        assert refused.status_code == 403, method
        assert refused.json()["type"] == "urn:headrace:problem:forbidden"
        assert refused.json()["stream"] == "rooms/garden"
    nobody = http.get(garden)
    assert (nobody.status_code, nobody.headers["www-authenticate"]) == (401, "Bearer")
    assert http.get(f"{ROOMS}/nowhere", headers=EVE).status_code == 403, "as if it were there"
    assert http.delete(garden, headers=ANN).status_code == 403, "the example allows no deletes"
    with open_events(rooms.port, f"{garden}?offset=-1&live=sse", **ANN) as events:
        assert events.batch().data == '[{"say": "hi"}]'


def test_what_names_other_streams_asks_for_each_of_them(http: httpx.Client) -> None:
    http.put(f"{ROOMS}/board", headers=ANN | JSON)
    root = f"{MOUNT}/v1/stream"
    fork = {**JSON, "Stream-Forked-From": f"{root}/rooms/board"}
    bob = {"Authorization": "Bearer bob-token"}
    assert http.put(f"{ROOMS}/garden", headers=bob | fork).status_code == 403
    tails = {"streams": ["rooms/garden", {"stream": "rooms/board"}]}
    assert http.post(f"{root}/__ds/tails", headers=ANN, json=tails).status_code == 200
    refused = http.post(f"{root}/__ds/tails", headers=bob, json=tails)
    assert (refused.status_code, refused.json()["stream"]) == (403, "rooms/board")
    assert http.get(f"{root}/__registry__?offset=-1", headers=ANN).status_code == 403
    assert http.get(f"{MOUNT}/metrics", headers=ANN).status_code == 403


async def answers(
    ask: Callable[[httpx.AsyncClient], Awaitable[httpx.Response]], can: Any, user: Any
) -> httpx.Response:
    app = create_app(can=can, user=user)
    try:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://a") as http:
            return await ask(http)
    finally:
        await app.aclose()


@pytest.mark.parametrize("id", sorted(operations()))
def test_an_operation_is_public_or_refused_to_whom_nothing_is_allowed(id: str) -> None:
    path, method, _ = operations()[id]
    filled = path.replace("{bucket}", "some").replace("{", "").replace("}", "")
    asked: Asked = []

    def can(user: Any, action: Action, stream: str) -> bool:
        asked.append((user, action, stream))
        return False

    async def user(scope: Scope) -> str:
        return "somebody"

    bodies = {"tails": b'{"streams": ["a"]}', "trim": b'{"stream": "a", "before": "now"}'}
    body = bodies.get(filled.rpartition("/")[2], b"")
    query = "?name=a" if filled.endswith("__ds/streams") else ""
    found = asyncio.run(
        answers(lambda http: http.request(method, filled + query, content=body), can, user)
    )
    if id in PUBLIC:
        assert not asked
        assert found.status_code != 403
    else:
        assert found.status_code == 403, (found.status_code, found.text)
        assert [who for who, _, _ in asked] == ["somebody"]


@pytest.mark.faults
def test_a_policy_that_raises_allows_nothing() -> None:
    def can(user: Any, action: Action, stream: str) -> bool:
        raise KeyError(stream)

    found = asyncio.run(answers(lambda http: http.get("/v1/stream/a"), can, lambda scope: "x"))
    assert found.status_code == 500
    assert found.json()["type"] == "urn:headrace:problem:internal-fault"
