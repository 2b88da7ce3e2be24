"""How late the pipelines are: append to row, and commit to message, at rest and beside a load.

Each probe is sent when the last one has arrived, after a pause that keeps no step with the
pipeline. The bound is a trigger of Spark that moves one row of its own from nowhere to nowhere.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from uuid import uuid4

import psycopg
from pyspark.sql.streaming.query import StreamingQuery

from bench.meter import percentile
from bench.pipelines.measuring import P50, P99, BoundedRow, Done, Work
from bench.pipelines.place import Place
from headrace.client import Client
from headrace.errors import StreamNotFound
from headrace.spark.pipelines import postgres_to_stream, stream_to_postgres
from headrace.spark.pipelines.base import Run
from headrace.testing.waiting import eventually

STREAM = "bench/live"
TABLE = "bench_live"
COLUMNS = "id serial primary key, title text"
PAUSE_SECS_MAX = 0.2
POLL_SECS = 0.002
ARRIVAL_SECS = 300.0
BURSTS_PER_SEC = 20
WARMUP_PROBES = 10

Probe = Callable[[], None]
Load = Callable[[Place, threading.Event], None]


def rows(place: Place) -> Iterator[BoundedRow]:
    trigger = Work(lambda: _empty_triggers(place))
    directions = (
        ("append-to-row", _to_postgres, _append_probe, _append_load),
        ("commit-to-message", _from_postgres, _insert_probe, _insert_load),
    )
    for name, start, probe, load in directions:
        for suffix, loads in (("rest", []), (f"load-{place.sizes.rate}", [load])):
            yield BoundedRow(
                f"{name}-{suffix}",
                Work(_probing(place, start, probe, loads)),
                {"empty trigger": trigger},
                metrics=(P50, P99),
                unit="probe",
                has_warmup=False,
            )
    place.drop_slot(TABLE, TABLE)


def _probing(
    place: Place,
    start: Callable[[Place], StreamingQuery],
    probe: Callable[[Place], AbstractContextManager[Probe]],
    loads: Sequence[Load],
) -> Callable[[], Done]:
    def run() -> Done:
        query = start(place)
        try:
            with probe(place) as once:
                for _ in range(WARMUP_PROBES):
                    once()
                with _loaded(place, loads):
                    return _delays([_timed(once) for _ in range(place.sizes.probes)])
        finally:
            query.stop()

    return run


def _timed(probe: Probe) -> float:
    time.sleep(random.uniform(0, PAUSE_SECS_MAX))
    began = time.perf_counter()
    probe()
    return (time.perf_counter() - began) * 1000


def _delays(found_ms: list[float]) -> Done:
    figures = {"p50_ms": percentile(found_ms, 0.5), "p99_ms": percentile(found_ms, 0.99)}
    return Done(len(found_ms), figures)


# --- append to row ---


def _to_postgres(place: Place) -> StreamingQuery:
    # From the beginning of a new stream: where a query that has just been started finds the
    # latest offset is not known, and a probe before it would never arrive.
    with suppress(StreamNotFound):
        place.client.stream(STREAM).delete()
    place.client.stream(STREAM).create("application/json")
    config = stream_to_postgres.Config(
        server=place.server.url,
        streams=(STREAM,),
        postgres=place.postgres.url,
        writer=f"live-{uuid4()}",
    )
    run = Run(False, place.directory("append-to-row"))
    return stream_to_postgres.start(place.spark, config, run)


@contextmanager
def _append_probe(place: Place) -> Iterator[Probe]:
    """One that looks at the table all the time."""
    stream = place.client.stream(STREAM)
    query = "select 1 from session_events where id > %s and event_key = %s"
    with psycopg.connect(place.postgres.url, autocommit=True) as connection:
        last = connection.execute("select coalesce(max(id), 0) from session_events").fetchone()
        after = last[0] if last else 0

        def probe() -> None:
            key = f"probe:{uuid4()}"
            stream.append_json({"key": key}, repeat_in_doubt=True)
            deadline = time.monotonic() + ARRIVAL_SECS
            while connection.execute(query, (after, key)).fetchone() is None:
                assert time.monotonic() < deadline, "a probe has not arrived"
                time.sleep(POLL_SECS)

        yield probe


def _append_load(place: Place, stop: threading.Event) -> None:
    each = max(1, place.sizes.rate // BURSTS_PER_SEC)
    events = [{"key": "load", "type": "load", "operation": "set"}] * each
    with Client(place.server.url) as client:
        while not stop.wait(1 / BURSTS_PER_SEC):
            client.stream(STREAM).append_json(*events, repeat_in_doubt=True)


# --- commit to message ---


def _from_postgres(place: Place) -> StreamingQuery:
    # A new slot and a new table, whose snapshot holds the probes that came before the slot.
    place.execute(f"create table if not exists {TABLE} ({COLUMNS})")
    place.drop_slot(TABLE, TABLE)
    place.execute(f"create table {TABLE} ({COLUMNS})")
    config = postgres_to_stream.Config(
        server=place.server.url,
        postgres=place.postgres.url,
        tables=(TABLE,),
        slot=TABLE,
        producer=f"live-{uuid4()}",
    )
    run = Run(False, place.directory("commit-to-message"))
    return postgres_to_stream.start(place.spark, config, run)


@contextmanager
def _insert_probe(place: Place) -> Iterator[Probe]:
    """One that watches the stream all the time, as a client does."""
    seen: set[str] = set()
    arrived = threading.Condition()
    stream = place.client.stream(f"pg-{TABLE}")
    stream.create("application/json")
    reader = stream.read(stream.head().next_offset, live="sse")

    def watch() -> None:
        for row in reader.json():
            with arrived:
                seen.add(row["title"])
                arrived.notify_all()

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    insert = f"insert into {TABLE} (title) values (%s)".encode()
    try:
        with psycopg.connect(place.postgres.url, autocommit=True) as connection:

            def probe() -> None:
                name = f"probe-{uuid4()}"
                connection.execute(insert, (name,))
                with arrived:
                    is_there = arrived.wait_for(lambda: name in seen, ARRIVAL_SECS)
                assert is_there, "a probe has not arrived"

            yield probe
    finally:
        reader.close()
        watching.join(ARRIVAL_SECS)


def _insert_load(place: Place, stop: threading.Event) -> None:
    each = max(1, place.sizes.rate // BURSTS_PER_SEC)
    query = f"insert into {TABLE} (title) select 'load' from generate_series(1, {each})".encode()
    with psycopg.connect(place.postgres.url, autocommit=True) as connection:
        while not stop.wait(1 / BURSTS_PER_SEC):
            connection.execute(query)


# --- beside ---


@contextmanager
def _loaded(place: Place, loads: Sequence[Load]) -> Iterator[None]:
    stop = threading.Event()
    threads = [threading.Thread(target=load, args=(place, stop)) for load in loads]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _empty_triggers(place: Place) -> Done:
    """Triggers with a checkpoint and one row, and nothing to wait for outside the JVM."""
    query = (
        place.spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", 1)
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(place.directory("empty")))
        .trigger(processingTime="0 seconds")
        .start()
    )
    wanted = WARMUP_PROBES + place.sizes.probes
    try:
        eventually(lambda: len(query.recentProgress) >= wanted, "triggers", ARRIVAL_SECS)
        triggers = query.recentProgress[WARMUP_PROBES:]
    finally:
        query.stop()
    return _delays([float(each["durationMs"]["triggerExecution"]) for each in triggers])
