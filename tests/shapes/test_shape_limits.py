"""Many shapes: which one goes when there are too many, and shapes that are deleted or mistaken."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest

from headrace.testing.server_process import ServerProcess
from tests.shapes.conftest import Follow
from tests.shapes.helpers import ITEMS, Follower, ShapesProcess

pytestmark = pytest.mark.slow


@pytest.fixture
def two_at_most(server: ServerProcess, database: str, tmp_path: Path) -> Iterator[ShapesProcess]:
    with psycopg.connect(database, autocommit=True) as db:
        db.execute(ITEMS.encode())
        db.execute("insert into items (title) values ('1'), ('2'), ('3')")
    process = ShapesProcess(database, server.url, tmp_path / "shapes.log", "--max-shapes", "2")
    process.start()
    yield process
    process.stop()


def of(process: ShapesProcess, user: int) -> Follower:
    return Follower(process.url, "items", where=f"title = '{user}'")


def test_the_shape_that_was_used_least_recently_makes_room(two_at_most: ShapesProcess) -> None:
    with of(two_at_most, 1) as one, of(two_at_most, 2) as two, of(two_at_most, 3) as three:
        assert [len(follower.catch_up()) for follower in (one, two)] == [1, 1]
        one.catch_up()
        assert len(three.catch_up()) == 1
        one.catch_up()
        two.step()
        assert [one.refetched, two.refetched] == [0, 1]
        assert [m["value"]["title"] for m in two.catch_up()] == ["2"], "it is made again"
        three.step()
        assert three.refetched == 1


def test_a_shape_that_nobody_waits_at_goes_first(two_at_most: ShapesProcess) -> None:
    with (
        of(two_at_most, 1) as one,
        of(two_at_most, 2) as two,
        of(two_at_most, 3) as three,
        httpx.Client(base_url=two_at_most.url, timeout=30) as http,
    ):
        one.catch_up()
        sse = one.query(live="true", live_sse="true")
        with http.stream("GET", "/v1/shape", params=sse):
            two.catch_up()
            three.catch_up()
            two.step()
        one.step()
        assert [one.refetched, two.refetched] == [0, 1]


def test_a_handle_of_another_shape_is_sent_to_the_right_one(follow: Follow) -> None:
    one, other = follow(), follow(where="id > 3")
    one.catch_up()
    other.catch_up()
    answer = one.ask(handle=other.handle)
    assert answer.status_code == 409
    assert answer.headers["electric-handle"] == one.handle


def test_a_shape_is_deleted_by_its_definition(follow: Follow, schema: str) -> None:
    one, other = follow(where="id > 3"), follow()
    one.catch_up()
    other.catch_up()
    params = {"table": f"{schema}.items", "where": "id > 3"}
    statuses = [one.http.delete("/v1/shape", params=params).status_code for _ in range(2)]
    assert statuses == [202, 404]
    one.step()
    other.step()
    assert [one.refetched, other.refetched] == [1, 0]
    bad = one.http.delete("/v1/shape", params={"table": "; drop"})
    assert bad.status_code == 400


def test_the_methods_of_a_shape_are_named(follow: Follow) -> None:
    answer = follow().http.options("/v1/shape")
    assert answer.status_code == 204
    assert answer.headers["allow"] == "GET, HEAD, POST, DELETE, OPTIONS"


def test_a_preflight_for_a_post_of_a_listed_origin_is_answered(
    shapes_database: str, server: ServerProcess, tmp_path: Path
) -> None:
    own = ("--cors-origins", "http://localhost:5173", "--slot", "posted", "--prefix", "posted")
    process = ShapesProcess(shapes_database, server.url, tmp_path / "shapes.log", *own)
    process.start()
    page = {"Origin": "http://localhost:5173", "Access-Control-Request-Method": "POST"}
    asked = {**page, "Access-Control-Request-Headers": "content-type"}
    answer = httpx.options(f"{process.url}/v1/shape", headers=asked)
    process.stop()
    assert answer.status_code == 200
    assert "POST" in answer.headers["access-control-allow-methods"]


def test_a_secret_is_asked_for_where_one_is_set(
    server: ServerProcess, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(database, autocommit=True) as db:
        db.execute(ITEMS.encode())
        db.execute("insert into items (title) values ('a')")
    monkeypatch.setenv("SHAPES_SECRET", "sésame")
    own = ShapesProcess(database, server.url, tmp_path / "shapes.log", "--allow-shape-deletion")
    own.start()
    with Follower(own.url, "items", secret="sésame") as one:
        assert len(one.catch_up()) == 1
        known = one.query(live="true")
        for secret in ({}, {"secret": ""}, {"secret": "other"}):
            params = {name: value for name, value in known.items() if name != "secret"} | secret
            answers = [
                one.http.request(method, "/v1/shape", params=params)
                for method in ("GET", "POST", "DELETE")
            ]
            assert [answer.status_code for answer in answers] == [401, 401, 401]
            assert answers[0].headers["cache-control"] == "no-store"
            assert "electric-handle" not in answers[0].headers
        assert one.step() == []
        assert one.refetched == 0
        legacy = {"table": "items", "offset": "-1", "api_secret": "sésame"}
        assert one.http.get("/v1/shape", params=legacy).status_code == 200
    own.stop()
