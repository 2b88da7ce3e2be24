"""`compact`: folds a stream of keyed changes into its state, and publishes that as its snapshot.

Readers then begin with the state and the changes since; the history before is given back. Both
vocabularies of docs/state.md fold. Tasks fold streams, each from its last snapshot on; publishing
names the snapshot that was there, so two of these never undo each other.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace.client.settings import Settings
from headrace.client.state import STATE_MEDIA_TYPE, State
from headrace.errors import HeadraceError, OffsetTrimmed, SnapshotMismatch
from headrace.protocol import framed
from headrace.protocol.headers import JSON, media_type
from headrace.protocol.json_mode import response_body
from headrace.protocol.offsets import BEGINNING, START
from headrace.spark.pipelines.base import ConfigError, Pipeline, Run
from headrace.spark.pipelines.batch_job import Job, started
from headrace.spark.pipelines.stream_source import StreamsConfig, selection
from headrace.spark.streams.selection import selection_of
from headrace.spark.streams.stream_api import StreamApi
from headrace.spark.streams.stream_options import read_options


class Config(StreamsConfig, frozen=True, kw_only=True):
    messages_min: int = 1000  # compact a stream once so many messages follow its snapshot
    bytes_min: int = 1024 * 1024  # or so many bytes
    every_secs: float = 60.0  # how often a continuous run looks
    drop_others: bool = False  # compact streams that also hold messages that are not changes

    def check_run(self, run: Run) -> None:
        has_names = not (self.bucket or self.pattern)
        if has_names and not all(name.startswith("/") for name in self.streams):
            raise ConfigError(
                "[compact] Snapshots are for streams in buckets: set bucket, or /bucket/stream."
            )


@dataclass(frozen=True)
class Due:
    """A stream to compact: from its snapshot's offset, or its beginning, to its tail."""

    stream: str
    start: str
    end: str

    @property
    def snapshot(self) -> str:
        """What `Stream-Snapshot-Match` calls the snapshot there is."""
        return BEGINNING if self.start == START.token() else self.start


@dataclass(frozen=True)
class Folded:
    """What became of one stream; `refusal` says why it was left as it is."""

    stream: str
    messages: int = 0
    refusal: str = ""


def start(spark: SparkSession, config: Config, run: Run) -> StreamingQuery:
    config.check_run(run)
    if run.once:
        return started(Job(lambda job: compact(spark, config)))
    told: set[str] = set()

    def tell(refusals: list[str]) -> None:
        """Go on with the others. What stays wrong is reported once, and again if it comes back."""
        for sentence in refusals:
            if sentence not in told:
                print(f"compact: {sentence}", file=sys.stderr, flush=True)
        told.intersection_update(refusals)
        told.update(refusals)

    return started(Job(lambda job: compact(spark, config, tell), config.every_secs))


def refuse(refusals: list[str]) -> None:
    if refusals:
        raise ConfigError("; ".join(refusals))


def compact(
    spark: SparkSession, config: Config, report: Callable[[list[str]], None] = refuse
) -> int:
    """Compact every stream that is due; how many messages were folded.

    `report` is given why some could not be, when the others are done.
    """
    found, refusals = due_streams(config)
    folded: list[Folded] = []
    if found:
        fold = Fold(Settings(url=config.server, token=config.token or None), config.drop_others)
        slices = min(len(found), spark.sparkContext.defaultParallelism)
        folded = spark.sparkContext.parallelize(found, slices).map(fold).collect()
    report([*refusals, *(f"{each.stream}: {each.refusal}" for each in folded if each.refusal)])
    return sum(each.messages for each in folded)


def due_streams(config: Config) -> tuple[list[Due], list[str]]:
    """The streams to compact, and sentences about those that are named and cannot be."""
    options = read_options(selection(config))
    server = StreamApi(options.settings)
    try:
        names = sorted(selection_of(options, server).names())
        tails = server.tails({"stream": name} for name in names)
        known = [tail for tail in tails if tail.problem is None]
        kept = server.tails({"stream": t.stream, "from": t.earliest_offset} for t in known)
    finally:
        server.close()
    refusals = [
        f"{tail.stream} cannot be compacted: {tail.detail}"
        for tail in tails
        if tail.problem is not None and options.subscribe
    ]
    due = [
        Due(tail.stream, tail.earliest_offset, tail.next_offset)
        for tail in kept
        if tail.problem is None
        and media_type(tail.content_type) == JSON
        and (tail.messages >= config.messages_min or tail.bytes >= config.bytes_min)
    ]
    return due, refusals


@dataclass(frozen=True)
class Fold:
    """The work of a task: one stream."""

    settings: Settings
    drop_others: bool

    def __call__(self, due: Due) -> Folded:
        server = StreamApi(self.settings)
        try:
            return self._fold(server, due)
        except (OffsetTrimmed, SnapshotMismatch):
            # Someone else has compacted it meanwhile: then that is the snapshot.
            return Folded(due.stream)
        except RecursionError:
            return Folded(due.stream, 0, "its JSON is nested deeper than this Python can read")
        except (HeadraceError, ValueError, msgspec.MsgspecError) as error:
            # Of one stream: deleted meanwhile, or a snapshot that is not a state. The others go on.
            return Folded(due.stream, 0, str(error))
        finally:
            server.close()

    def _fold(self, server: StreamApi, due: Due) -> Folded:
        state, count, is_open = State(), 0, False
        if due.snapshot != BEGINNING:
            snapshot = server.snapshot(due.stream, due.start)
            if media_type(snapshot.content_type) != STATE_MEDIA_TYPE:
                return Folded(due.stream, 0, f"its snapshot is {snapshot.content_type}")
            state.load(snapshot.body)
        for chunk in server.read_range(due.stream, due.start, due.end):
            data = bytes(framed.decode(chunk.body).data)
            for message in msgspec.json.decode(response_body(data)):
                state.apply(message)
                is_open = _is_open(message, is_open)
                count += 1
        if is_open:
            return Folded(due.stream)  # inside a set of rows that is still being sent
        if state.ignored and not self.drop_others:
            return Folded(
                due.stream,
                0,
                f"{state.ignored} of its messages are not keyed changes and would be lost. Set "
                "drop_others = true to compact it all the same.",
            )
        body = state.dump(due.end)
        server.publish_snapshot(due.stream, due.end, body, STATE_MEDIA_TYPE, due.snapshot)
        return Folded(due.stream, count)


def _is_open(message: object, before: bool) -> bool:
    """Whether a message leaves a State Protocol snapshot begun and not ended."""
    headers = message.get("headers") if isinstance(message, dict) else None
    control = headers.get("control") if isinstance(headers, dict) else None
    return before if control is None else control == "snapshot-start"


PIPELINE = Pipeline("compact", "keyed changes into a snapshot of their state", Config, start, True)

if __name__ == "__main__":
    from headrace.spark.pipelines.runner import main

    main(PIPELINE)
