"""What a query costs that follows a bucket in which nothing happens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from bench.pipelines.measuring import BoundedRow, Done, Work, own_cpu_seconds
from bench.pipelines.place import Place
from bench.rows.base import Metric
from headrace.client import Settings
from headrace.errors import BucketExists
from headrace.spark.streams.stream_api import StreamApi
from headrace.testing.waiting import eventually

BUCKET = "bench-idle"
SETTLED_SECS = 300.0
WATCHED_SECS = 20.0
CONNECTIONS = 8
SHARE = Metric("cpu_percent", "% of one core, all processes", higher_is_better=False)


def rows(place: Place) -> Iterator[BoundedRow]:
    count = place.sizes.idle_streams
    yield BoundedRow(
        f"idle-{count}",
        Work(lambda: _following(place, _watch), lambda: _fill(place, count)),
        {"no query": Work(_watch)},
        metrics=(SHARE,),
        unit="second",
        has_warmup=False,
    )


def _watch() -> Done:
    before = own_cpu_seconds()
    time.sleep(WATCHED_SECS)
    spent = sum(secs - before.get(pid, 0.0) for pid, secs in own_cpu_seconds().items())
    return Done(int(WATCHED_SECS), {"cpu_percent": spent / WATCHED_SECS * 100})


def _following(place: Place, watch: Callable[[], Done]) -> Done:
    """Watch once the query has read all there is and waits."""
    query = (
        place.spark.readStream.format("headrace")
        .option("url", place.server.url)
        .option("bucket", BUCKET)
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(place.directory("idle")))
        .start()
    )
    try:
        wanted = place.sizes.idle_streams
        eventually(
            lambda: sum(each["numInputRows"] for each in query.recentProgress) >= wanted,
            "every stream is read",
            SETTLED_SECS,
        )
        return watch()
    finally:
        query.stop()


def _fill(place: Place, count: int) -> None:
    try:
        place.client.bucket(BUCKET).create()
    except BucketExists:
        return  # an earlier round has filled it

    def some(first: int) -> None:
        server = StreamApi(Settings(url=place.server.url))
        for number in range(first, count, CONNECTIONS):
            stream = f"/{BUCKET}/{number}"
            server.create(stream, "application/json")
            server.append(stream, b"[1]", "application/json", None)
        server.close()

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(some, range(CONNECTIONS)))
