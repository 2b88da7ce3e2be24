"""The Shape API over real Postgres and a real server, asked in plain HTTP."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from headrace.testing.raw_http import RawConnection
from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import eventually
from tests.shapes.conftest import Follow
from tests.shapes.helpers import ITEMS, Follower, ShapesProcess

pytestmark = pytest.mark.slow


def test_a_second_process_does_not_take_the_slot_of_the_first(
    shapes: ShapesProcess, follow: Follow, db: psycopg.Connection, schema: str
) -> None:
    follower = follow()
    follower.catch_up()
    second = shapes.started_again()
    while second.poll() is None:  # each change makes the first reply, which shows that it is alive
        db.execute("insert into items (title) values ('more')")
        until(follower, 1)
    assert second.returncode == 1
    _, said = second.communicate()
    assert "reads the slot" in said
    assert "replication connection ended" not in shapes.log


def operations(messages: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    return [(m["headers"]["operation"], m["value"]) for m in messages]


def until(follower: Follower, count: int) -> list[dict[str, Any]]:
    """The next `count` changes, live."""
    found: list[dict[str, Any]] = []
    while len(found) < count:
        found += follower.live()
    return found


def test_a_shape_is_its_rows_and_then_its_changes(
    follow: Follow, db: psycopg.Connection, schema: str
) -> None:
    db.execute("insert into items (title, amount, done, tags) values ('a', 1.50, true, '{x,y}')")
    follower = follow()
    (first,) = follower.catch_up()
    assert first["key"] == f'"{schema}"."items"/"1"'
    assert first["value"] == {
        "id": "1",
        "title": "a",
        "body": None,
        "amount": "1.50",
        "done": "t",
        "tags": "{x,y}",
        "meta": None,
    }
    db.execute("insert into items (title) values ('b')")
    db.execute("update items set body = 'new' where id = 1")
    db.execute("delete from items where id = 2")
    found = until(follower, 3)
    assert operations(found)[1:] == [
        ("update", {"id": "1", "body": "new"}),
        ("delete", {"id": "2"}),
    ]
    assert found[0]["value"]["title"] == "b"
    assert found[0]["headers"]["txids"]


def test_the_schema_tells_a_client_how_to_read_values(follow: Follow) -> None:
    answer = follow().ask()
    schema = json.loads(answer.headers["electric-schema"])
    assert schema["id"] == {"type": "int4", "not_null": True, "pk_index": 0}
    assert schema["tags"] == {"type": "text", "dims": 1}
    assert schema["meta"] == {"type": "jsonb"}


def test_where_moves_rows_in_and_out_as_postgres_understands_it(
    follow: Follow, db: psycopg.Connection
) -> None:
    db.execute("insert into items (title, amount) values ('cheap', 1), ('dear', 100)")
    follower = follow(where="amount > $1 and title like 'd%'", **{"params[1]": "9"})
    assert [m["value"]["title"] for m in follower.catch_up()] == ["dear"]
    db.execute("update items set amount = 5 where title = 'dear'")  # leaves
    db.execute("update items set amount = 50, title = 'dog' where title = 'cheap'")  # comes
    db.execute("insert into items (title, amount) values ('door', 10), ('cat', 10)")
    found = until(follower, 3)
    assert [m["headers"]["operation"] for m in found] == ["delete", "insert", "insert"]
    assert found[1]["value"]["title"] == "dog"
    assert found[2]["value"]["title"] == "door"


def test_where_reads_documents_and_arrays(follow: Follow, db: psycopg.Connection) -> None:
    where = "meta->>'color' = 'red' and 'x' = any(tags)"
    follower = follow(where=where)
    assert follower.catch_up() == []
    db.execute("""insert into items (title, meta, tags) values
        ('yes', '{"color": "red"}', '{x}'), ('no', '{"color": "red"}', '{y}')""")
    assert [m["value"]["title"] for m in until(follower, 1)] == ["yes"]


def test_columns_narrow_values_and_a_change_of_others_is_none(
    follow: Follow, db: psycopg.Connection
) -> None:
    db.execute("insert into items (title, body) values ('a', 'long')")
    follower = follow(columns="id,title")
    assert [m["value"] for m in follower.catch_up()] == [{"id": "1", "title": "a"}]
    db.execute("update items set body = 'other'")
    db.execute("update items set title = 'b'")
    assert operations(until(follower, 1)) == [("update", {"id": "1", "title": "b"})]


def test_replica_full_sends_whole_rows_and_what_they_were(
    follow: Follow, db: psycopg.Connection
) -> None:
    db.execute("insert into items (title, body) values ('a', 'kept')")
    follower = follow(columns="id,title,body", replica="full")
    follower.catch_up()
    db.execute("update items set title = 'b'")
    db.execute("delete from items")
    update, delete = until(follower, 2)
    assert update["value"] == {"id": "1", "title": "b", "body": "kept"}
    assert update["old_value"] == {"title": "a"}
    assert delete["value"] == {"id": "1", "title": "b", "body": "kept"}


def test_a_key_that_changes_is_a_delete_and_an_insert(
    follow: Follow, db: psycopg.Connection, schema: str
) -> None:
    db.execute("insert into items (title) values ('a')")
    follower = follow()
    follower.catch_up()
    db.execute("update items set id = 7")
    gone, come = until(follower, 2)
    assert gone["headers"]["key_change_to"] == f'"{schema}"."items"/"7"'
    assert come["headers"]["key_change_from"] == f'"{schema}"."items"/"1"'


def test_a_clause_that_fails_on_a_row_ends_its_own_shape_only(
    follow: Follow, db: psycopg.Connection
) -> None:
    other = follow()
    other.catch_up()
    follower = follow(where="title::int > 5")
    follower.catch_up()
    db.execute("insert into items (title) values ('no number')")
    assert [m["value"]["title"] for m in until(other, 1)] == ["no number"]
    answer = follower.ask(live="true")
    if answer.status_code == 409:  # it waited when the shape ended, and is sent for another
        answer = follower.ask()
    assert answer.status_code == 400
    assert "invalid input syntax" in answer.text


def test_a_truncate_ends_the_shape_and_its_readers_fetch_anew(
    follow: Follow, db: psycopg.Connection
) -> None:
    db.execute("insert into items (title) values ('a')")
    follower = follow()
    follower.catch_up()
    handle = follower.handle
    db.execute("truncate items")
    while not follower.refetched:
        follower.live()
    assert follower.catch_up() == []
    assert follower.handle != handle


def test_another_column_ends_the_shape(follow: Follow, db: psycopg.Connection) -> None:
    follower = follow()
    follower.catch_up()
    db.execute("alter table items add column extra text")
    db.execute("insert into items (title, extra) values ('a', 'e')")
    while not follower.refetched:
        follower.live()
    assert [m["value"]["extra"] for m in follower.catch_up()] == ["e"]


def test_no_row_is_missed_or_doubled_while_a_shape_is_made(
    follow: Follow, shapes_database: str, schema: str
) -> None:
    """Writers go on while the snapshot is taken; each row is in it or comes after it."""
    stop = threading.Event()
    counts: list[int] = []

    def write() -> None:
        written = 0
        options = f"-c search_path={schema}"
        with psycopg.connect(shapes_database, autocommit=True, options=options) as connection:
            while not stop.is_set() and written < 300:
                connection.execute("insert into items (title) values ('w')")
                written += 1
        counts.append(written)

    writers = [threading.Thread(target=write) for _ in range(3)]
    for writer in writers:
        writer.start()
    followers = []
    for number in range(4):
        follower = follow(where=f"id > -{number + 1}")
        follower.catch_up()
        followers.append(follower)
    stop.set()
    for writer in writers:
        writer.join()
    for follower in followers:
        while len(follower.messages) < sum(counts):
            follower.live()
        keys = [m["key"] for m in follower.messages]
        assert len(set(keys)) == len(keys) == sum(counts)


def test_the_log_is_a_stream_and_survives_a_kill(
    server: ServerProcess, database: str, tmp_path: Path
) -> None:
    process = ShapesProcess(database, server.url, tmp_path / "shapes.log")
    with psycopg.connect(database, autocommit=True) as db:
        db.execute(ITEMS.encode())
        db.execute("insert into items (title) values ('before')")
        process.start()
        follower = Follower(process.url, "items")
        follower.catch_up()
        handle = follower.handle
        log = httpx.get(f"{server.url}/v1/stream/{process.prefix}/{handle}").json()
        assert [entry["value"]["title"] for entry in log[:-1]] == ["before"]
        process.kill()
        db.execute("insert into items (title) values ('while it was away')")
        process.start()
        db.execute("insert into items (title) values ('after')")
        found = until(follower, 2)
        process.stop()
    follower.close()
    assert [m["value"]["title"] for m in found] == ["while it was away", "after"]
    assert (follower.refetched, follower.handle) == (0, handle)


def test_live_readers_are_answered_when_the_server_stops(
    server: ServerProcess, database: str, tmp_path: Path
) -> None:
    process = ShapesProcess(database, server.url, tmp_path / "shapes.log")
    with psycopg.connect(database, autocommit=True) as db:
        db.execute(ITEMS.encode())
    process.start()
    follower = Follower(process.url, "items")
    follower.catch_up()
    live = follower.http.build_request("GET", "/v1/shape", params=follower.query(live="true"))
    sse = follower.query(live="true", live_sse="true")
    with (
        RawConnection(int(process.url.rpartition(":")[2])) as long_poll,
        follower.http.stream("GET", "/v1/shape", params=sse) as events,
    ):
        long_poll.send(b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % live.url.raw_path)
        assert follower.http.get("/v1/health").status_code == 200, "the request is there by now"
        process.stop()
        assert long_poll.response().status == 200
        events.read()
    assert process.log == ""
    follower.close()


def test_answers_say_how_long_caches_may_keep_them(follow: Follow, db: psycopg.Connection) -> None:
    db.execute("insert into items (title) values ('a')")
    follower = follow()
    first = follower.ask()
    assert "max-age=604800" in first.headers["cache-control"]
    again = httpx.get(first.url, headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 304
    follower.step()
    assert follower.ask().headers["cache-control"].startswith("public, max-age=60")
    follower.step()
    db.execute("insert into items (title) values ('b')")
    live = follower.ask(live="true")
    assert live.headers["cache-control"].startswith("public, max-age=5")
    assert live.headers["electric-cursor"].isdigit()
    later = follower.ask(live="true", cursor=live.headers["electric-cursor"])
    assert int(later.headers["electric-cursor"]) > int(live.headers["electric-cursor"])


def test_a_page_of_another_origin_reads_and_drops_nothing(follow: Follow, schema: str) -> None:
    follower = follow()
    follower.catch_up()
    page = {"Origin": "https://evil.example"}
    params = {"table": f"{schema}.items", "offset": "-1"}
    answer = follower.http.get("/v1/shape", params=params, headers=page)
    assert answer.status_code == 200
    assert "access-control-allow-origin" not in answer.headers
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    asked = {**page, "Access-Control-Request-Method": "DELETE"}
    preflight = follower.http.options("/v1/shape", headers=asked)
    assert "access-control-allow-origin" not in preflight.headers
    dropped = follower.http.delete("/v1/shape", params={"handle": follower.handle}, headers=page)
    assert dropped.status_code == 403
    assert follower.ask().status_code == 200


def test_a_rebound_page_gets_nothing(follow: Follow, schema: str) -> None:
    params = {"table": f"{schema}.items", "offset": "-1"}
    for host, status in (("evil.example:3001", 421), ("localhost:3001", 200)):
        answer = follow().http.get("/v1/shape", params=params, headers={"Host": host})
        assert answer.status_code == status


def test_one_setting_lets_pages_of_listed_origins_read(
    shapes_database: str, server: ServerProcess, tmp_path: Path
) -> None:
    own = ("--cors-origins", "http://localhost:5173", "--slot", "opened", "--prefix", "opened")
    process = ShapesProcess(shapes_database, server.url, tmp_path / "shapes.log", *own)
    try:
        process.start()
        with httpx.Client(base_url=process.url) as http:
            page = {"Origin": "http://localhost:5173"}
            answer = http.get("/v1/health", headers=page)
            assert answer.headers["access-control-allow-origin"] == page["Origin"]
            exposed = answer.headers["access-control-expose-headers"]
            assert "electric-handle" in exposed.lower()
            other = http.get("/v1/health", headers={"Origin": "https://evil.example"})
            assert "access-control-allow-origin" not in other.headers
    finally:
        process.stop()


@pytest.mark.parametrize(
    ("params", "name"),
    [
        ({"offset": "-1"}, "table"),
        ({"table": "items"}, "offset"),
        ({"table": "items", "offset": "x"}, "offset"),
        ({"table": "items", "offset": "1_0"}, "handle"),
        ({"table": "items", "offset": "-1", "live": "true"}, "live"),
        ({"table": "nowhere", "offset": "-1"}, "table"),
        ({"table": "items; drop table items", "offset": "-1"}, "table"),
        ({"table": "pg_catalog.pg_authid", "offset": "-1"}, "table"),
        ({"table": "headrace.ledger", "offset": "-1"}, "table"),
        ({"table": "items", "offset": "-1", "columns": "id,nope"}, "columns"),
        ({"table": "items", "offset": "-1", "columns": "title"}, "columns"),
        ({"table": "items", "offset": "-1", "where": "nope = 1"}, "where"),
        ({"table": "items", "offset": "-1", "where": "id = "}, "where"),
        ({"table": "items", "offset": "-1", "where": "title > 5"}, "where"),
        ({"table": "items", "offset": "-1", "where": "id = $1"}, "params"),
        ({"table": "items", "offset": "-1", "replica": "half"}, "replica"),
    ],
)
def test_a_bad_request_names_the_parameter(
    shapes: ShapesProcess, db: psycopg.Connection, schema: str, params: dict[str, str], name: str
) -> None:
    if params.get("table") == "items":
        params = {**params, "table": f"{schema}.items"}
    answer = httpx.get(f"{shapes.url}/v1/shape", params=params)
    assert answer.status_code == 400, answer.text
    assert list(answer.json()["errors"]) == [name]


def test_an_unknown_handle_is_sent_back(follow: Follow) -> None:
    one = follow()
    one.catch_up()
    lost = one.ask(handle="1-1")
    assert lost.status_code == 409
    assert lost.headers["electric-handle"] == one.handle


def test_a_deleted_shape_sends_its_readers_back(follow: Follow, db: psycopg.Connection) -> None:
    follower = follow()
    follower.catch_up()
    gone = follower.http.delete("/v1/shape", params={"handle": follower.handle})
    assert gone.status_code == 202
    follower.live()
    eventually(lambda: follower.refetched == 1, "the reader was sent back")
