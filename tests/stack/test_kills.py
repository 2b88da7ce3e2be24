"""kill -9 of any part of the stack at random, under load: nothing is lost and nothing doubled."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any
from uuid import uuid4

import httpx
import psycopg
import pytest

from headrace.client import Client, ProducerStamp, Retry
from headrace.stack.supervisor import last_lines
from headrace.testing.stack_process import StackProcess
from headrace.testing.waiting import DEADLINE_SECS, eventually
from tests.stack.helpers import JSON, event, read_all

pytestmark = [pytest.mark.slow, pytest.mark.sync]
KILL_SECS = float(os.environ.get("HEADRACE_KILL_SECS", "120"))
KILL_PAUSE_SECS = (0.5, 5.0)
WRITE_PAUSE_SECS = 0.02
PEOPLE = ("alice", "bob")
EVENTS = "select payload from session_events where stream_name = 'session-events' order by id"
RECOVERY_SECS = 400.0  # a killed pipeline starts Spark anew, on a machine that does much else


def test_nothing_is_lost_or_doubled_when_parts_are_killed_at_random(dev: StackProcess) -> None:
    """And at the end the supervisor itself: the next `up` ends what it left, and goes on."""
    run = uuid4().hex[:8]
    # As often as it takes: what a producer sends again is recognised.
    retry = Retry(retries_max=None, delay_max_ms=500)
    with Client(dev.address("envoy"), token=dev.token(), retry=retry) as client:
        writing = [
            Writing(inserting(dev, f"{run}-row")),
            *(Writing(appending(client, f"{run}-{who}")) for who in PEOPLE),
        ]
        killed = kill_at_random(dev, random.Random(run), KILL_SECS)
        rows, *events = (writer.stop() for writer in writing)
    left = [service.identity for service in dev.record.services]
    dev.send(signal.SIGKILL)
    dev.wait()
    dev.start()
    assert not any(identity.is_alive for identity in left if identity is not None)
    assert killed.total() > 0
    print(f"run {run}: killed {dict(killed)}; {rows} rows, {events} events; {dev.state.path}")
    try:
        compare(dev, run, rows, events)
    except AssertionError:
        print(last_words(dev))
        raise


def kill_at_random(dev: StackProcess, chance: random.Random, secs: float) -> Counter[str]:
    """Every service in turn, in an order that is shuffled each round."""
    victims = [service.name for service in dev.record.services if service.name != "prepare"]
    deadline = time.monotonic() + secs
    killed: Counter[str] = Counter()
    pause = threading.Event()
    while time.monotonic() < deadline:
        chance.shuffle(victims)
        for victim in victims:
            if time.monotonic() < deadline:
                killed[victim] += dev.kill_service(victim)
                pause.wait(chance.uniform(*KILL_PAUSE_SECS))
    return killed


class Writing:
    """Writes number after number until told to stop; what was begun is finished."""

    def __init__(self, write: Callable[[int], None]) -> None:
        self._stop = threading.Event()
        self._write = write
        self._error: BaseException | None = None
        self._written = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            for number in count():
                self._write(number)
                self._written = number + 1
                if self._stop.wait(WRITE_PAUSE_SECS):
                    return
        except BaseException as error:
            self._error = error

    def stop(self) -> int:
        """How many were written."""
        self._stop.set()
        self._thread.join(RECOVERY_SECS)
        assert not self._thread.is_alive()
        assert self._error is None, self._error
        return self._written


def inserting(dev: StackProcess, name: str) -> Callable[[int], None]:
    """Inserts a row; where the answer was lost, looks before it tries again."""
    query = (
        "insert into items (title) select %(title)s"
        " where not exists (select 1 from items where title = %(title)s)"
    )
    url = database_url(dev)

    def insert(number: int) -> None:
        def attempt() -> bool:
            try:
                with psycopg.connect(url, connect_timeout=5) as connection:
                    connection.execute(query.encode(), {"title": f"{name}-{number}"})
            except psycopg.OperationalError:
                return False
            return True

        eventually(attempt, f"Postgres takes {name}-{number}", RECOVERY_SECS)

    return insert


def appending(client: Client, name: str) -> Callable[[int], None]:
    stream = client.stream("session-events")

    def append(number: int) -> None:
        stamp = ProducerStamp(name, 0, number)
        stream.append_json(event(f"{name}-{number}"), producer=stamp)

    return append


def database_url(dev: StackProcess) -> str:
    return dev.address("postgres").replace("postgres@", "postgres:password@")


def compare(dev: StackProcess, run: str, rows: int, events: list[int]) -> None:
    """Everything written is in its place, and each place holds what the other does, once."""
    url, headers = dev.address("envoy"), {**JSON, **dev.authorization()}
    with httpx.Client(base_url=url, timeout=DEADLINE_SECS, headers=headers) as client:
        sent = read_all(client, "session-events")
        appended = Counter(said["key"] for said in sent if said["key"].startswith(run))
        totals = dict(zip(PEOPLE, events, strict=True))
        assert appended == Counter(f"{run}-{who}-{n}" for who in PEOPLE for n in range(totals[who]))
        items = select(dev, "select id, title from items")
        inserted = Counter(title for _, title in items if title.startswith(run))
        assert inserted == Counter(f"{run}-row-{n}" for n in range(rows))
        ids = {item[0] for item in items}
        arrived: list[dict[str, Any]] = []

        def has_every_row() -> bool:
            arrived[:] = read_all(client, "pg-items")
            return ids <= {row["id"] for row in arrived}

        eventually(has_every_row, "every row of items is in pg-items", RECOVERY_SECS)
    assert Counter(row["id"] for row in arrived if row["id"] in ids) == Counter(ids)
    mine = [row["title"] for row in arrived if row["title"].startswith(run)]
    assert mine == [f"{run}-row-{n}" for n in range(rows)], "in the order of their commits"

    stored: list[tuple[Any, ...]] = []

    def has_every_event() -> bool:
        stored[:] = select(dev, EVENTS)
        return len(stored) >= len(sent)

    eventually(has_every_event, "every message is in session_events", RECOVERY_SECS)
    assert [payload for (payload,) in stored][: len(sent)] == sent


def select(dev: StackProcess, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(database_url(dev)) as connection:
        return connection.execute(query.encode()).fetchall()


def last_words(dev: StackProcess) -> str:
    names = [service.name for service in dev.record.services]
    return "\n".join(
        "\n".join([f"--- {name}", *last_lines(dev.state.log(name), 15)]) for name in names
    )
