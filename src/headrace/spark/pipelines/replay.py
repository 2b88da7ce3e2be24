"""`replay`: a lake table that `archive` wrote, back into streams, each in its order.

What is replayed is one version of the table, noted before the first message is written, together
with where it goes. Every append is stamped with that version, so a replay that is interrupted goes
on where it was. Streams that hold something already are not touched.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace.client.settings import Settings
from headrace.errors import InvalidOffset
from headrace.protocol.offsets import START, parse_token
from headrace.spark.lake.archives import Archive, ArchivedRange, find_archive
from headrace.spark.pipelines.base import ConfigError, Pipeline, PipelineConfig, Run
from headrace.spark.pipelines.batch_job import Job, started
from headrace.spark.places import Place, place_of, write_whole
from headrace.spark.streams.appender import Appender, TaskProducer
from headrace.spark.streams.stream_api import StreamApi
from headrace.spark.streams.stream_options import WriteOptions

VERSION_FILE = "replay.json"
ROWS_HELD = 50_000  # of one stream, by a task
BYTES_HELD = 32 * 1024 * 1024


class Config(PipelineConfig, frozen=True, kw_only=True):
    table: str = "data/lake/messages"
    streams: tuple[str, ...] = ()  # as they are named in the table; none are all of them
    to: str = "{stream}"  # what they are called where they go
    producer: str = "replay"

    def __post_init__(self) -> None:
        super().__post_init__()
        place_of("table", self.table)


@dataclass(frozen=True)
class Replayed:
    """One stream of the table, the files it is in, and where it goes."""

    stream: str
    target: str
    files: tuple[str, ...]


def start(spark: SparkSession, config: Config, run: Run) -> StreamingQuery:
    return started(Job(lambda job: replay(spark, config, run.state_dir)))


def replay(spark: SparkSession, config: Config, state_dir: Place) -> int:
    """Write every stream; how many messages."""
    archive = open_archive(config.table)
    version = _noted_version(state_dir, config)
    if version is None:
        version = archive.version()
        streams = plan(archive, version, config)
        refuse_used(config, streams)
        state_dir.mkdir(parents=True, exist_ok=True)
        noted = {"version": version} | _course(config)
        write_whole(state_dir / VERSION_FILE, json.dumps(noted))
    else:
        streams = plan(archive, version, config)
    if not streams:
        return 0
    settings = Settings(url=config.server, token=config.token or None)
    write = _Write(settings, config.producer, archive, version)
    slices = min(len(streams), spark.sparkContext.defaultParallelism)
    return int(spark.sparkContext.parallelize(streams, slices).map(write).sum())


def open_archive(path: str) -> Archive:
    found = find_archive(path)
    if found is None:
        place = place_of("table", path).absolute()
        raise ConfigError(
            f"{place} is not a Delta table and holds no Iceberg table; archive writes either."
        )
    return found


def plan(archive: Archive, version: int, config: Config) -> list[Replayed]:
    """The streams of a table that are wanted."""
    files = archive.streams(version)
    missing = [name for name in config.streams if name not in files]
    if missing:
        raise ConfigError(f"streams: the table {config.table} holds no stream {missing[0]!r}.")
    wanted = [name for name in files if not config.streams or name in config.streams]
    found = [Replayed(name, config.to.replace("{stream}", name), files[name]) for name in wanted]
    if len({each.target for each in found}) < len(found):
        raise ConfigError(
            f"Several streams would become one: to is {config.to!r}. Name it with {{stream}}, or "
            "name one stream to replay."
        )
    return found


def refuse_used(config: Config, streams: list[Replayed]) -> None:
    """A stream that holds something would get its past after its present."""
    server = StreamApi(Settings(url=config.server, token=config.token or None))
    try:
        found = server.tails({"stream": each.target, "from": "-1"} for each in streams)
    finally:
        server.close()
    used = [tail.stream for tail in found if tail.messages or tail.problem == "offset-trimmed"]
    if used:
        raise ConfigError(f"The stream {used[0]} holds messages already. Replay to another name.")


def _course(config: Config) -> dict[str, object]:
    """What has to stay as it is for appends to be the same when they come again."""
    return {
        "server": config.server,
        "table": str(place_of("table", config.table).absolute()),
        "streams": sorted(config.streams),
        "to": config.to,
        "producer": config.producer,
    }


def _noted_version(state_dir: Place, config: Config) -> int | None:
    try:
        noted = json.loads((state_dir / VERSION_FILE).read_text("utf-8"))
    except FileNotFoundError:
        return None
    except ValueError:
        noted = {}
    if not {"version", *_course(config)} <= set(noted):
        raise ConfigError(
            f"{state_dir / VERSION_FILE} was written by an earlier version, or is damaged: it does "
            "not say where the replay goes. To begin anew, use another --state and, since a stream "
            "that holds messages is refused, another to; streams that were replayed whole stay."
        )
    for key, now in _course(config).items():
        if noted.get(key) != now:
            raise ConfigError(
                f"{state_dir} is the state of a replay with another {key}: {noted.get(key)!r}, not "
                f"{now!r}. Set it back, or use another --state."
            )
    return int(noted["version"])


@dataclass(frozen=True)
class _Write:
    """The work of a task: one stream, whole and in order."""

    settings: Settings
    producer: str
    archive: Archive
    version: int

    def __call__(self, replayed: Replayed) -> int:
        parts = self._parts(replayed)
        first = next(parts)
        content_type = first.column("content_type")[0].as_py()
        options = WriteOptions(
            self.settings, None, None, 5000, 4 * 1024 * 1024, True, content_type, True
        )
        # Appends do not depend on the parts: the appender cuts what it is given by its own bounds.
        with Appender(options, TaskProducer(f"{self.producer}-{self.version}", 0)) as appender:
            for part in chain([first], parts):
                for values in part.column("value").chunks:
                    appender.write(replayed.target, values.cast(pa.binary()))
            appender.flush()
        return appender.rows

    def _parts(self, replayed: Replayed) -> Iterator[pa.Table]:
        """The messages in their order, few enough at a time to hold them."""
        stream, files = replayed.stream, replayed.files
        offsets = self.archive.offsets(stream, files, self.version).to_pylist()
        for part in cut(sorted(offsets)):
            yield self.archive.messages(stream, files, self.version, part).sort_by("offset")


def cut(offsets: list[str]) -> Iterator[ArchivedRange]:
    """Ranges of about as many messages, and bytes as far as offsets tell, as may be held."""
    after = before = ""
    rows = size_bytes = 0
    for offset in offsets:
        size = _size_bytes(before, offset)
        is_full = rows >= ROWS_HELD or (rows and size_bytes + size > BYTES_HELD)
        if is_full and offset != before:
            yield ArchivedRange(after, before)
            after, rows, size_bytes = before, 0, 0
        before, rows, size_bytes = offset, rows + 1, size_bytes + size
    yield ArchivedRange(after, before)


def _size_bytes(before: str, offset: str) -> int:
    """Of the message that ends at `offset`, if the one before it ends at `before`."""
    try:
        end, start = parse_token(offset), parse_token(before) if before else START
    except InvalidOffset:
        return 0  # of another server: the number of messages is all there is to go by
    return max(0, end.bytes - start.bytes)


PIPELINE = Pipeline("replay", "a lake table back into streams", Config, start, True)

if __name__ == "__main__":
    from headrace.spark.pipelines.runner import main

    main(PIPELINE)
