"""What events and answers say of a log that ends, is broken, or goes on while it is sent."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from headrace.shapes import api
from headrace.shapes.service import Shapes
from headrace.testing.server_process import ServerProcess
from tests.conftest import Serve
from tests.shapes.conftest import Follow
from tests.shapes.helpers import ITEMS, Follower, ShapesProcess

pytestmark = pytest.mark.slow


def controls(answer: httpx.Response) -> list[str]:
    """The control messages among the events of an answer."""
    lines = (line.removeprefix("data: ") for line in answer.text.splitlines() if line)
    found: list[dict[str, Any]] = [json.loads(line)["headers"] for line in lines if line[0] == "{"]
    return [headers["control"] for headers in found if "control" in headers]


def test_a_log_that_is_gone_ends_its_shape_for_readers_of_events_too(
    follow: Follow, shapes: ShapesProcess, server: ServerProcess, db: psycopg.Connection
) -> None:
    db.execute("insert into items (title) select n from generate_series(1, 9) n")
    follower = follow()
    follower.catch_up()
    log = f"{server.url}/v1/stream/{shapes.prefix}/{follower.handle}"
    assert httpx.delete(log).status_code == 204
    follower.offset = "0_0"
    answer = follower.ask(live="true", live_sse="true")
    assert controls(answer) == ["must-refetch"]
    follower.step()
    assert follower.refetched == 1
    assert len(follower.catch_up()) == 9


def test_an_offset_behind_the_end_of_a_log_ends_its_shape(
    follow: Follow, db: psycopg.Connection
) -> None:
    """As after a crash of a server that had not yet written what it acknowledged."""
    db.execute("insert into items (title) values ('a')")
    follower = follow()
    follower.catch_up()
    handle = follower.handle
    follower.offset = f"{1 << 60}_0"  # a reader of events goes on from such places
    assert follower.step() == []
    assert follower.refetched == 0
    follower.offset = f"{1 << 60}_1"
    follower.step()
    assert follower.refetched == 1
    assert len(follower.catch_up()) == 1
    assert follower.handle != handle


def test_events_end_with_the_word_that_they_are_whole(
    serve: Serve, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long they take: a client keeps nothing of what comes before that."""
    monkeypatch.setattr(api, "SSE_SECS", 0.05)
    with psycopg.connect(database, autocommit=True) as db:
        db.execute(ITEMS.encode())
        db.execute(
            "insert into items (title, body)"
            " select n, repeat('x', 10000) from generate_series(1, 2000) n"
        )

    server = serve()

    async def events() -> httpx.Response:
        slot = "events_" + database.rpartition("/")[2]
        shapes = Shapes(database, server.url, slot=slot, prefix=slot)
        app = api.ShapeApi(shapes).application()
        await shapes.start()
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            params = {"table": "items", "offset": "-1"}
            first = await http.get("/v1/shape", params=params)
            params |= {"offset": "0_0", "handle": first.headers["electric-handle"]}
            live = {"live": "true", "live_sse": "true"}
            found = await http.get("/v1/shape", params=params | live)
        await shapes.stop()
        return found

    answer = asyncio.run(events())
    assert controls(answer) == ["snapshot-end", "up-to-date"]
    assert answer.text.count('"insert"') == 1999


def test_a_server_that_is_away_ends_events_without_a_word(database: str, tmp_path: Path) -> None:
    with psycopg.connect(database, autocommit=True) as db:
        db.execute(ITEMS.encode())
        db.execute("insert into items (title) select n from generate_series(1, 9) n")
    with ServerProcess(cwd=str(tmp_path)) as away:
        process = ShapesProcess(database, away.url, tmp_path / "shapes.log")
        process.start()
        with Follower(process.url, "items") as follower:
            follower.catch_up()
            away.kill()
            follower.offset = "0_0"
            assert follower.ask().status_code == 503
            assert follower.ask(live="true", live_sse="true").text == ""
            follower.offset = "-1"
            assert follower.ask().status_code == 503
        process.kill()
        assert "Traceback" not in process.log, process.log


def test_an_answer_that_was_the_whole_is_another_once_more_follows(
    follow: Follow, db: psycopg.Connection
) -> None:
    """A reader that has it in a cache must not take it for the whole any more."""
    insert = "insert into items (title, body) values ('wide', repeat('x', 1200000))"
    follower = follow()
    follower.catch_up()
    db.execute(insert)
    follower.live()
    follower.offset = "0_0"
    whole = follower.ask()
    db.execute(insert)
    follower.offset = whole.headers["electric-offset"]
    follower.live()
    follower.offset = "0_0"
    url = follower.ask().url
    part = httpx.get(url, headers={"If-None-Match": whole.headers["etag"]})
    assert part.headers["electric-offset"] == whole.headers["electric-offset"]
    assert (part.status_code, "electric-up-to-date" in part.headers) == (200, False)
