"""Stream to Postgres and Postgres to stream: rows a second, each beside its parts alone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from uuid import uuid4

import psycopg
from msgspec.structs import replace
from psycopg import sql
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from bench.pipelines.measuring import BoundedRow, Done, Work
from bench.pipelines.place import SCHEMA, Place, thrown_away
from headrace.postgres.changes import ChangeFeed
from headrace.postgres.slots import Slot
from headrace.spark.pipelines import postgres_to_stream, stream_to_postgres
from headrace.spark.pipelines.base import Run

STREAM = "bench/load"
ITEMS = "create table if not exists {} (id int primary key, title text, at timestamptz)"
INSERT = "insert into {} select n, 'the title of ' || n, now() from generate_series(1, {}) n"
_COPIED_PARTS = 64
COLUMNS = ("stream_name", "event_key", "event_type", "operation", "payload", "ds_offset")


def rows(place: Place) -> Iterator[BoundedRow]:
    there = _ToPostgres(place)
    yield BoundedRow(
        "stream-to-postgres",
        Work(there.pipeline, there.empty),
        {
            "COPY alone": Work(there.copy, there.empty),
            "from_json alone": Work(there.parse),
        },
    )
    place.spark.catalog.clearCache()
    back = _FromPostgres(place)
    yield BoundedRow(
        "postgres-to-stream",
        Work(back.pipeline, back.insert),
        {"decoding alone": Work(back.decode, back.insert_decoded)},
    )
    back.drop()


class _ToPostgres:
    """All the messages of one stream into session_events, from the beginning every time."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._rows = place.sizes.rows
        self._run = Run(True, place.home)

    @cached_property
    def _messages(self) -> DataFrame:
        return self._place.messages(self._rows)

    @cached_property
    def _copied(self) -> bytes:
        """The rows as COPY takes them, made beforehand."""
        where = f"{0:016d}_{0:016d}"
        parts = self._messages.selectExpr(
            f"concat_ws('\\t', '{STREAM}', concat('msg:', id), 'message', 'set', value, '{where}')"
        )
        # In small parts: what a task returns must find room beside the messages that are held.
        some = parts.repartition(_COPIED_PARTS)
        return "".join(f"{row[0]}\n" for row in some.toLocalIterator()).encode()

    @cached_property
    def _config(self) -> stream_to_postgres.Config:
        stream = self._place.client.stream(STREAM)
        stream.create("application/json")
        writer = self._messages.select("value").coalesce(1).write.format("headrace")
        writer.option("url", self._place.server.url).option("stream", STREAM).mode("append").save()
        return stream_to_postgres.Config(
            server=self._place.server.url, streams=(STREAM,), postgres=self._place.postgres.url
        )

    def empty(self) -> None:
        """No rows, no checkpoint, and a writer that the ledger has not heard of."""
        stream_to_postgres.create_table(self._config)
        self._place.execute("truncate session_events")
        self._run = Run(True, self._place.directory("to-postgres"))
        assert self._copied

    def pipeline(self) -> Done:
        config = replace(self._config, writer=f"bench-{uuid4()}")
        query = stream_to_postgres.start(self._place.spark, config, self._run)
        query.awaitTermination()
        return Done(self._rows)

    def copy(self) -> Done:
        into = sql.SQL("copy session_events ({}) from stdin").format(
            sql.SQL(", ").join(map(sql.Identifier, COLUMNS))
        )
        with (
            psycopg.connect(self._place.postgres.url) as connection,
            connection.cursor().copy(into) as copy,
        ):
            copy.write(self._copied)
        return Done(self._rows)

    def parse(self) -> Done:
        thrown_away(self._messages.select(F.from_json("value", SCHEMA).alias("found")))
        return Done(self._rows)


class _FromPostgres:
    """So many inserts, seen through a slot that was there before them."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._rows = place.sizes.rows
        self._run = Run(True, place.directory("from-postgres"))
        self._is_new = True
        self._config = postgres_to_stream.Config(
            server=place.server.url,
            postgres=place.postgres.url,
            tables=("bench_items",),
            slot="bench",
            snapshot="never",
        )
        self._feed: ChangeFeed | None = None

    def insert(self) -> None:
        if self._is_new:
            self._place.execute(ITEMS.format("bench_items"))
            self.pipeline()  # makes the slot
            self._is_new = False
        self._fill("bench_items")

    def pipeline(self) -> Done:
        query = postgres_to_stream.start(self._place.spark, self._config, self._run)
        query.awaitTermination()
        return Done(self._rows)

    def insert_decoded(self) -> None:
        self._place.execute(ITEMS.format("decoded"))
        if self._feed is None:
            slot = Slot(self._place.postgres.url, "decoded", ["decoded"], snapshot=False)
            self._feed = ChangeFeed(slot)
            self._at = self._feed.begin()
        self._fill("decoded")

    def decode(self) -> Done:
        assert self._feed is not None
        taken = 0
        while taken < self._rows:
            batch = self._feed.next_batch(
                self._at, rows_max=50_000, bytes_max=1 << 26, wait_secs=30
            )
            self._at = batch.end
            taken += batch.changes.columns["op"].to_pylist().count("insert")
        return Done(self._rows)

    def drop(self) -> None:
        if self._feed is not None:
            self._feed.close()
        self._place.drop_slot("decoded", "decoded")
        self._place.drop_slot("bench", "bench_items")

    def _fill(self, table: str) -> None:
        self._place.execute(f"truncate {table}")
        self._place.execute(INSERT.format(table, self._rows))
