"""The data source `headrace`: rows read, parsed and written, over one stream or many."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from bench.pipelines.measuring import BoundedRow, Done, Work
from bench.pipelines.place import SCHEMA, Place, thrown_away
from headrace.client import Settings
from headrace.protocol.offsets import BEGINNING
from headrace.spark.streams.stream_api import StreamApi

APPEND_ROWS = 5000  # as the sink does it
CONNECTIONS = 2  # as many as the tasks have
JSON = "application/json"


def rows(place: Place) -> Iterator[BoundedRow]:
    for count in place.sizes.streams:
        streams = _Streams(place, count)
        yield BoundedRow(
            f"read-s{count}",
            Work(streams.read, streams.fill),
            {"requests alone": Work(streams.plain_read, streams.fill)},
        )
        yield BoundedRow(
            f"read-parse-s{count}",
            Work(streams.read_and_parse, streams.fill),
            {"from_json alone": Work(streams.parse, streams.fill)},
        )
        yield BoundedRow(
            f"write-s{count}",
            Work(streams.write, streams.empty),
            {"requests alone": Work(streams.plain_write, streams.empty)},
        )
        streams.drop()


class _Streams:
    """So many streams, with all the messages shared out between them."""

    def __init__(self, place: Place, count: int) -> None:
        self._place = place
        self._count = count
        self._rows = place.sizes.rows // count * count
        self._names = [f"bench/{count}/{number}" for number in range(count)]
        self._settings = Settings(url=place.server.url)
        self._is_filled = False
        self._generation = 0
        self._targets: list[str] = []

    # --- setting up ---

    @cached_property
    def _messages(self) -> DataFrame:
        """What is written, in memory: `stream` and `value`."""
        number = (F.col("id") % self._count).cast("string")
        stream = F.concat(F.lit(f"bench/{self._count}/"), number).alias("stream")
        return self._place.held(self._place.messages(self._rows).select(stream, "value"))

    def fill(self) -> None:
        if not self._is_filled:
            self._each(self._create, self._names)
            self._save(self._messages)
            self._is_filled = True

    def empty(self) -> None:
        """New streams to write to, and none of the last time."""
        self._each(self._delete, self._targets)
        self._generation += 1
        self._targets = [f"{name}/{self._generation}" for name in self._names]
        self._each(self._create, self._targets)

    def drop(self) -> None:
        self._each(self._delete, self._targets)
        self._each(self._delete, self._names if self._is_filled else [])
        self._place.spark.catalog.clearCache()

    def _create(self, server: StreamApi, name: str) -> None:
        server.create(name, JSON)

    def _delete(self, server: StreamApi, name: str) -> None:
        self._place.client.stream(name).delete()

    # --- what is measured ---

    def read(self) -> Done:
        thrown_away(self._loaded())
        return Done(self._rows)

    def read_and_parse(self) -> Done:
        thrown_away(_parsed(self._loaded()))
        return Done(self._rows)

    def write(self) -> Done:
        suffix = F.lit(f"/{self._generation}")
        self._save(self._messages.withColumn("stream", F.concat("stream", suffix)))
        return Done(self._rows)

    def _loaded(self) -> DataFrame:
        reader = self._place.spark.read.format("headrace").option("url", self._place.server.url)
        return reader.option("subscribe", ",".join(self._names)).load()

    def _save(self, messages: DataFrame) -> None:
        writer = messages.write.format("headrace").option("url", self._place.server.url)
        writer.mode("append").save()

    # --- what bounds it ---

    def parse(self) -> Done:
        thrown_away(_parsed(self._messages))
        return Done(self._rows)

    def plain_read(self) -> Done:
        """The same bodies over as many connections, looked at by nobody."""
        self._each(self._read_one, self._names)
        return Done(self._rows)

    def _read_one(self, server: StreamApi, name: str) -> None:
        for _ in server.read_on(name, BEGINNING):
            pass

    def plain_write(self) -> Done:
        """The same appends over as many connections, the bodies made beforehand."""
        per_stream = self._rows // self._count
        whole, rest = divmod(per_stream, APPEND_ROWS)
        bodies = [self._body(APPEND_ROWS)] * whole + ([self._body(rest)] if rest else [])

        def write_one(server: StreamApi, name: str) -> None:
            for body in bodies:
                server.append(name, body, JSON, None)

        self._each(write_one, self._targets)
        return Done(self._rows)

    def _body(self, count: int) -> bytes:
        one: str = self._messages.first()["value"]  # type: ignore[index]
        return b"[%b]" % b",".join([one.encode()] * count)

    def _each(self, work: Callable[[StreamApi, str], None], names: list[str]) -> None:
        """`work` on every stream, over so many connections side by side."""

        def some(first: int) -> None:
            server = StreamApi(self._settings)
            for name in names[first::CONNECTIONS]:
                work(server, name)
            server.close()

        with ThreadPoolExecutor(CONNECTIONS) as pool:
            list(pool.map(some, range(CONNECTIONS)))


def _parsed(messages: DataFrame) -> DataFrame:
    return messages.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("found"))
