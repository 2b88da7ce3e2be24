"""Planning without input or output: offsets as Spark keeps them, budgets, partitions.

A Spark offset has a position per stream, `{"at": {stream: offset}}`. The end of a batch also
says, in `from`, where those streams begin that the batch reads for the first time: Spark asks for
the initial offset more than once, and only what is in the end of a batch is the same when the
batch is planned again. For the same reason it says into how many `partitions` the batch may be
cut. `created` says when the streams in `at` were created, where that is known: one of the same
name that was created at another time is another stream. Spark compares offsets as text, so keys
are sorted, and an end that says nothing new is the start itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pyspark.sql.datasource import InputPartition

from headrace.protocol.offsets import BEGINNING, START, parse_token

SNAPSHOT: Final = "snapshot:"
"""Prefix of an offset whose predecessors come from the snapshot there, not from messages."""
PARTITION_BYTES: Final = 2 * 1024 * 1024  # below this a task costs more than it saves: 30 ms
REQUEST_BYTES: Final = 64 * 1024  # what a request costs, in bytes that could be read instead

SparkOffset = dict[str, Any]


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """A range of one stream, and how much it holds as far as that is known."""

    stream: str
    start: str
    end: str
    messages: int = 0
    bytes: int = 0
    created_at_ms: int | None = None

    @property
    def weight(self) -> int:
        return self.bytes + REQUEST_BYTES


class StreamTail(NamedTuple):
    """Where a stream ended when it was asked, and which stream of that name it was."""

    offset: str
    created_at_ms: int | None


def is_another(created_at_ms: int | None, than_ms: int | None) -> bool:
    """Whether two streams of one name are not the same, as far as both are known."""
    return None not in (created_at_ms, than_ms) and created_at_ms != than_ms


class StreamPartition(InputPartition):
    """The ranges one task reads, in order."""

    def __init__(self, spans: list[OffsetRange]) -> None:
        self.spans = spans


def initial(stands: Mapping[str, StreamTail]) -> SparkOffset:
    """Where a query begins that has no checkpoint."""
    offset: SparkOffset = {
        "at": {name: stands[name].offset for name in sorted(stands)},
        "initial": True,
    }
    _note_created(offset, {name: stand.created_at_ms for name, stand in stands.items()})
    return offset


def place(start: SparkOffset, spans: Sequence[OffsetRange]) -> SparkOffset:
    """The end of a batch that reads `spans`."""
    known = {} if start.get("initial") else start["at"]
    ends = {span.stream: span.end for span in spans}
    begins = {span.stream: span.start for span in spans if known.get(span.stream) != span.start}
    end: SparkOffset = {"at": dict(sorted((start["at"] | ends).items()))}
    if begins:
        end["from"] = dict(sorted(begins.items()))
    _note_created(end, created_of(start) | {span.stream: span.created_at_ms for span in spans})
    return end


def _note_created(offset: SparkOffset, created: Mapping[str, int | None]) -> None:
    known = {name: created[name] for name in sorted(created) if created[name] is not None}
    if known:
        offset["created"] = known


def created_of(offset: SparkOffset) -> dict[str, int]:
    """When each stream was created that was read; a checkpoint from before does not say."""
    created: dict[str, int] = offset.get("created", {})
    return created


def cut_into(end: SparkOffset, least: int, most: int) -> SparkOffset:
    """Let the end of a batch say how many partitions it may have.

    A batch that runs again, perhaps on other cores, must be cut alike: sinks recognise what they
    have by partition.
    """
    return {**end, "partitions": [least, most]}


def cut_of(end: SparkOffset) -> tuple[int, int] | None:
    """As `cut_into` wrote it; None in a checkpoint from before it did."""
    least, most = end.get("partitions", (0, 0))
    return (least, most) if most else None


def spans_between(start: SparkOffset, end: SparkOffset) -> list[OffsetRange]:
    """What a batch reads: every stream whose offset in `end` is past that in `start`."""
    begins, created = end.get("from", {}), created_of(end)
    spans = []
    for stream, at in end["at"].items():
        first = begins.get(stream) or start["at"].get(stream, BEGINNING)
        # An initial offset is a new answer each time; a stream without a beginning in the end
        # of the first batch was not read by it.
        if first != at and not (start.get("initial") and stream not in begins):
            size = _size(first, at)
            spans.append(
                OffsetRange(stream, first, at, bytes=size, created_at_ms=created.get(stream))
            )
    return spans


def _size(start: str, end: str) -> int:
    """Bytes between two offsets, to balance partitions by."""
    first = start.removeprefix(SNAPSHOT)
    begin = START if first == BEGINNING else parse_token(first)
    return parse_token(end).bytes - begin.bytes


def shares(pending: Mapping[str, int], budget: int) -> dict[str, int]:
    """How much of `budget` each stream gets: in proportion to what is pending, at least one.

    What is left over goes to those that still wait, in the order of their names.
    """
    total = sum(pending.values())
    if total <= budget:
        return dict(pending)
    given = {name: max(1, count * budget // total) for name, count in pending.items()}
    rest = budget - sum(given.values())
    for name in sorted(given):
        more = max(0, min(rest, pending[name] - given[name]))
        given[name] += more
        rest -= more
    return given


def packed(spans: Iterable[OffsetRange], count: int) -> list[StreamPartition]:
    """Spans in at most `count` partitions of about equal weight; a span stays whole."""
    weights = [0] * count
    bins: list[list[OffsetRange]] = [[] for _ in range(count)]
    # The heaviest first into the lightest bin; then by name, so that a plan repeats itself.
    for span in sorted(spans, key=lambda span: (-span.weight, span.stream, span.start)):
        lightest = weights.index(min(weights))
        bins[lightest].append(span)
        weights[lightest] += span.weight
    return [StreamPartition(sorted(held, key=_in_order)) for held in bins if held]


def _in_order(span: OffsetRange) -> tuple[str, str]:
    return span.stream, span.start


def partition_count(spans: Iterable[OffsetRange], least: int, most: int) -> int:
    wanted = sum(span.weight for span in spans) // PARTITION_BYTES + 1
    return max(least, min(wanted, most))
