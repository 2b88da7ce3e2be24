"""Durable sessions through real Envoy, Postgres and Spark: the reference's scenarios, and more.

One stack of the dev profile serves all of it; every test uses keys of its own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import httpx
import psycopg
import pytest

from headrace.postgres.changes import ChangeFeed
from headrace.postgres.slots import Slot
from headrace.stack.lifecycle import live_health
from headrace.testing.server_queries import metric
from headrace.testing.sse_reader import open_events
from headrace.testing.stack_process import StackProcess
from headrace.testing.waiting import DEADLINE_SECS, eventually
from tests.stack.helpers import JSON, SYNC_SECS, event, read_all

pytestmark = [pytest.mark.slow, pytest.mark.sync]


@pytest.fixture
def signed(dev: StackProcess) -> Iterator[httpx.Client]:
    url, headers = dev.address("envoy"), {**JSON, **dev.authorization()}
    with httpx.Client(base_url=url, timeout=DEADLINE_SECS, headers=headers) as client:
        yield client


@pytest.fixture
def db(postgres_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def session(signed: httpx.Client, stream: str) -> str:
    assert signed.put(stream).status_code == 201
    return stream


def stamp(producer: str, seq: int) -> dict[str, str]:
    return {"Producer-Id": producer, "Producer-Epoch": "0", "Producer-Seq": str(seq)}


# --- the session itself ---


def test_a_session_is_created_and_its_events_read_back(signed: httpx.Client, session: str) -> None:
    present = event("user:alice", "presence", status="online")
    assert signed.post(session, json=[present]).status_code == 204
    assert signed.get(session).json() == [present]


def test_several_producers_are_kept_in_order_of_arrival(signed: httpx.Client, session: str) -> None:
    turns = [("user-alice", 0), ("ai", 0), ("user-alice", 1), ("ai", 1)]
    for producer, seq in turns:
        said = event(f"{producer}:{seq}", text="...")
        answer = signed.post(session, json=[said], headers=stamp(producer, seq))
        assert answer.status_code == 200
    keys = [said["key"] for said in signed.get(session).json()]
    assert keys == [f"{producer}:{seq}" for producer, seq in turns]


def test_a_subscriber_gets_each_event_as_it_comes(
    dev: StackProcess, signed: httpx.Client, session: str
) -> None:
    port = httpx.URL(dev.address("envoy")).port
    assert port is not None
    with open_events(port, f"{session}?offset=-1&live=sse", **dev.authorization()) as events:
        events.batch()
        signed.post(session, json=[event("msg:1", text="hello")])
        (got,) = json.loads(events.batch().data or "[]")
    assert got["value"] == {"text": "hello"}


def test_a_session_is_recovered_from_an_offset(signed: httpx.Client, session: str) -> None:
    signed.post(session, json=[event("msg:1")])
    saved = signed.get(session).headers["stream-next-offset"]
    signed.post(session, json=[event("msg:2"), event("msg:3")])
    later = signed.get(session, params={"offset": saved}).json()
    assert [said["key"] for said in later] == ["msg:2", "msg:3"]


def test_a_producer_that_retries_is_not_written_twice(signed: httpx.Client, session: str) -> None:
    for seq, status in ((0, 200), (0, 204), (1, 200)):
        answer = signed.post(session, json=[event(f"msg:{seq}")], headers=stamp("tab-1", seq))
        assert answer.status_code == status
    assert len(signed.get(session).json()) == 2


# --- both directions ---


def wait_for_item(signed: httpx.Client, title: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = []

    def arrived() -> bool:
        found[:] = [row for row in read_all(signed, "pg-items") if row["title"] == title]
        return bool(found)

    eventually(arrived, f"{title} is in pg-items", SYNC_SECS)
    assert len(found) == 1
    return found[0]


def wait_for_event(db: psycopg.Connection, key: str) -> tuple[Any, ...]:
    rows: list[tuple[Any, ...]] = []
    query = (
        "select stream_name, event_type, operation, payload from session_events"
        " where event_key = %s"
    )

    def arrived() -> bool:
        rows[:] = db.execute(query, (key,)).fetchall()
        return bool(rows)

    eventually(arrived, f"{key} is in session_events", SYNC_SECS)
    assert len(rows) == 1
    return rows[0]


def test_a_row_inserted_into_postgres_appears_in_the_stream(
    signed: httpx.Client, db: psycopg.Connection
) -> None:
    title = f"item {uuid4()}"
    db.execute("insert into items (title, body) values (%s, 'from SQL')", (title,))
    assert wait_for_item(signed, title)["body"] == "from SQL"


def test_an_event_appended_to_the_stream_appears_in_postgres(
    signed: httpx.Client, db: psycopg.Connection
) -> None:
    said = event(f"msg:{uuid4()}", text="hi")
    assert signed.post("/v1/stream/session-events", json=[said]).status_code == 204
    row = wait_for_event(db, said["key"])
    assert row == ("session-events", "message", "set", said)


def test_a_row_goes_round_through_both_directions(
    signed: httpx.Client, db: psycopg.Connection
) -> None:
    title = f"round {uuid4()}"
    db.execute("insert into items (title) values (%s)", (title,))
    seen = wait_for_item(signed, title)
    answer = event(f"reply:{title}", id=seen["id"])
    signed.post("/v1/stream/session-events", json=[answer])
    assert wait_for_event(db, answer["key"])[3]["value"] == {"id": seen["id"]}


def test_what_the_sync_wrote_is_not_fed_back(
    signed: httpx.Client, db: psycopg.Connection, postgres_url: str
) -> None:
    """A feed of session_events, as the sync would read it, holds what people write there only."""
    slot = Slot(postgres_url, "loop_test", ["session_events"], snapshot=False)
    feed = ChangeFeed(slot)
    try:
        at = feed.begin()
        synced = event(f"synced:{uuid4()}")
        signed.post("/v1/stream/session-events", json=[synced])
        wait_for_event(db, synced["key"])
        own = f"own:{uuid4()}"
        db.execute(
            "insert into session_events (stream_name, event_key, payload) values ('-', %s, '{}')",
            (own,),
        )
        keys: list[str] = []
        deadline = time.monotonic() + DEADLINE_SECS
        while own not in keys and time.monotonic() < deadline:
            batch = feed.next_batch(at, rows_max=100, bytes_max=1 << 20, wait_secs=1)
            at = batch.end
            keys += [json.loads(change.value or "{}").get("event_key") for change in batch.changes]
        assert keys == [own]
    finally:
        feed.close()
        slot.drop()


# --- the dev profile ---


def test_the_heartbeat_is_on_both_sides(signed: httpx.Client, db: psycopg.Connection) -> None:
    def beats(query: str) -> int:
        row = db.execute(query.encode()).fetchone()
        return int(row[0]) if row else 0

    eventually(
        lambda: beats("select count(*) from items where title like 'heartbeat%'") > 0, "in items"
    )
    eventually(
        lambda: beats("select count(*) from session_events where event_type = 'heartbeat'") > 0,
        "in session_events",
        SYNC_SECS,
    )
    eventually(
        lambda: any(row["title"].startswith("heartbeat") for row in read_all(signed, "pg-items")),
        "in pg-items",
        SYNC_SECS,
    )


def test_every_part_answers_and_the_lag_is_measured(
    dev: StackProcess, signed: httpx.Client, db: psycopg.Connection
) -> None:
    eventually(
        lambda: set(live_health(dev.record.services).values()) == {"ok"}, "every service is well"
    )
    wait_for_event(db, _appended(signed))
    with httpx.Client(base_url=dev.address("monitor")) as monitor:

        def caught_up() -> bool:
            names = ("headrace_sync_lag_seconds", "headrace_sync_lag_rows")
            directions = ("postgres-to-stream", "stream-to-postgres")
            samples = [f'{n}{{direction="{d}"}}' for n in names for d in directions]
            # The heartbeat writes every five seconds: a beat may be on its way.
            return all(metric(monitor, sample) <= 10 for sample in samples)

        eventually(caught_up, "both directions have caught up", SYNC_SECS)
        assert metric(monitor, "headrace_sync_monitor_up") == 1
        slot = f"headrace_{db.info.dbname}"
        assert metric(monitor, f'headrace_slot_active{{slot="{slot}"}}') == 1
        assert monitor.get("/warnings").json() == []


def test_both_pipelines_publish_their_progress(signed: httpx.Client) -> None:
    def told() -> dict[str, Any]:
        answer = signed.get("/pipelines/progress", params={"offset": "-1"})
        messages = answer.json() if answer.status_code == 200 else []
        return {message["key"]: message["value"] for message in messages}

    both = {"postgres-to-stream", "stream-to-postgres"}
    eventually(lambda: both <= set(told()), "both have said a word", SYNC_SECS)
    eventually(
        lambda: {told()[name]["state"] for name in both} == {"running"}, "both run", SYNC_SECS
    )
    assert all(isinstance(told()[name]["lag_secs"], float) for name in both)


def _appended(signed: httpx.Client) -> str:
    said = event(f"msg:{uuid4()}")
    signed.post("/v1/stream/session-events", json=[said])
    return str(said["key"])


def test_the_pages_are_served(dev: StackProcess) -> None:
    page = next(service.page for service in dev.record.services if service.page)
    browser = httpx.get(page, follow_redirects=True)
    assert browser.status_code == 200
    assert browser.url.path == "/ui/"
    assert "<html" in browser.text.lower()
    database = httpx.get(dev.address("adminer"), follow_redirects=True)
    assert database.status_code == 200
    assert "Adminer" in database.text or "Tables" in database.text
    shape = httpx.get(f"{dev.address('shapes')}/v1/shape?table=items&offset=-1")
    assert shape.status_code == 200


def test_no_page_of_the_stack_answers_under_a_name_that_was_made_to_lead_here(
    dev: StackProcess,
) -> None:
    """DNS rebinding: to its browser such a page is of one origin with whatever it asks."""
    page = next(service.page for service in dev.record.services if service.page)
    for url in (
        f"{dev.address('server')}/healthz",
        f"{page}/healthz",
        f"{dev.address('monitor')}/healthz",
        f"{dev.address('adminer')}/",
        f"{dev.address('shapes')}/v1/health",
    ):
        for host in ("localhost", f"127.0.0.1:{httpx.URL(url).port}"):
            assert httpx.get(url, headers={"Host": host}).status_code == 200, (url, host)
        answer = httpx.get(url, headers={"Host": f"evil.example:{httpx.URL(url).port}"})
        assert answer.status_code == 421, url
        foreign = httpx.get(url, headers={"Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in foreign.headers, url
