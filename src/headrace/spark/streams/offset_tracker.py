"""Plans micro-batches: the tails of the selected streams, and how much of them one batch takes.

Theory of operation. For each batch Spark asks for its end, writes start and end into its offset
log, and only then asks for partitions:

    latestOffset(start)     `latest`: which streams moved (`pending`), wait at the tails if none
                            did, cut to the bounds (`_cut`), and make an offset of it (`plan.place`)
    offset log              the end of the batch is durable
    partitions(start, end)  `plan.spans_between`: from the two offsets alone
    read, commit            tasks read the ranges; then the sink's commit, then Spark's commit log

All that a batch depends on is in the offsets, in the form that `plan` describes. What a tracker
remembers (`_seen`, `_waiting_at`) only saves requests or finds losses earlier, so a driver that
crashed and was started again plans the same batch: the same ranges, in the same partitions.

What is found at a stream, by `failOnDataLoss`:

    found at the next request          true (default)    false
    nothing new                        wait              wait
    messages after what was read       read them         read them
    gone: deleted, expired             DataLoss          leave it out
    trimmed past what was read         DataLoss          continue at its first offset; with
                                                         fromSnapshot both continue with its
                                                         snapshot
    replaced: another stream, with     DataLoss          read the new one from its beginning
      the same name
    any other problem                  StreamProblem     StreamProblem

A replaced stream has another creation time than the one in the offsets (`created`), the one seen
last (`_seen`: read nothing of it yet, but saw messages), or the one in the target of a run that
takes only what is there. A stream without any message read or seen has lost nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from headrace.client.range_reads import Tail
from headrace.protocol.offsets import BEGINNING, START
from headrace.spark.streams.plan import (
    SNAPSHOT,
    OffsetRange,
    SparkOffset,
    StreamTail,
    created_of,
    initial,
    is_another,
    place,
    shares,
)
from headrace.spark.streams.selection import Selection
from headrace.spark.streams.stream_api import StreamApi
from headrace.spark.streams.stream_options import EARLIEST, LATEST, ReadOptions

# Problems of a stream, as the server names them, that mean that its messages are gone.
GONE: Final = frozenset({"stream-not-found", "stream-deleted", "bucket-not-found"})
TRIMMED: Final = "offset-trimmed"
REPLACED: Final = "It was deleted and created again."
_RETRY_SECS: Final = 0.2  # between two checks of a batch that is still too small


class DataLoss(RuntimeError):
    """Messages that a query had to read no longer exist."""


class StreamProblem(RuntimeError):
    """A stream cannot be read; the text says which and why."""


@dataclass(frozen=True, slots=True)
class BatchBounds:
    """What one batch may take; None means unbounded."""

    messages_max: int | None = None
    bytes_max: int | None = None


class Tracker:
    def __init__(self, options: ReadOptions, server: StreamApi, selection: Selection) -> None:
        self._options = options
        self._server = server
        self._selection = selection
        self._last_batch_secs = time.monotonic()
        self._seen: dict[str, StreamTail] = {}  # the tails at the last request
        # Where to wait at streams that lost what a query has read, and hold nothing new. At the
        # offset of the query they would count as moved, so a wait would return at once for ever.
        self._waiting_at: dict[str, str] = {}

    # -- where a query begins and ends -----------------------------------------------------------

    def initial(self) -> SparkOffset:
        starting = self._options.starting
        if starting == EARLIEST:
            return initial({})
        if isinstance(starting, dict):
            latest = {name for name, offset in starting.items() if offset == LATEST}
            self._check_selected(starting)
            given = {name: StreamTail(offset, None) for name, offset in starting.items()}
            return initial(given | self.tails(latest))
        return initial(self.tails())

    def ending(self) -> dict[str, StreamTail]:
        """Where each stream of a batch read ends."""
        ending = self._options.ending
        tails = self.tails()
        if isinstance(ending, dict):
            self._check_selected(ending)
            for name, offset in ending.items():
                if offset != LATEST:
                    tails[name] = StreamTail(offset, None)
        return tails

    def _check_selected(self, offsets: dict[str, str]) -> None:
        unknown = sorted(offsets.keys() - self._selection.names())
        if unknown:
            raise StreamProblem(f"An offset is given for {unknown[0]}, which is not read here.")

    def tails(self, names: Iterable[str] | None = None) -> dict[str, StreamTail]:
        if names is None:
            known = self._selection.tails()
            if known is not None:
                return known
            names = self._selection.names()
        found = self._server.tails({"stream": name} for name in sorted(names))
        for tail in found:
            if tail.problem is not None:
                self._refuse(tail)
        return _stands(found)

    def _refuse(self, tail: Tail) -> None:
        """Raise for a stream that cannot be read, unless it is a loss and losses are allowed."""
        if tail.problem not in (*GONE, TRIMMED):
            raise StreamProblem(f"{tail.stream}: {tail.detail}")
        if self._options.fail_on_data_loss:
            hint = "Set failOnDataLoss=false to continue without it"
            if tail.problem == TRIMMED:
                hint += ", or fromSnapshot=true to begin with the stream's snapshot"
            raise DataLoss(f"{tail.stream}: {tail.detail} {hint}.")

    # -- what is new -----------------------------------------------------------------------------

    def latest(
        self, start: SparkOffset, bounds: BatchBounds, target: dict[str, StreamTail] | None
    ) -> SparkOffset:
        """The end of the next batch: `start` itself if there is nothing for one.

        Spark polls, and takes an end that equals the start for "no new data". `target` is the end
        of a run that takes only what was there when it began (Trigger.AvailableNow); it is
        corrected for a stream that is replaced meanwhile.
        """
        spans = self.pending(start, target)
        if target is None and not self._is_batch(spans):
            # With too few messages, waits at the tails would return at once.
            if spans:
                time.sleep(_RETRY_SECS)
            else:
                self._selection.wait(start["at"] | self._waiting_at)
                spans = self.pending(start, None)
            if not self._is_batch(spans):
                return start
        if not spans:
            return start
        self._last_batch_secs = time.monotonic()
        return place(start, self._cut(spans, bounds))

    def _is_batch(self, spans: list[OffsetRange]) -> bool:
        """Whether the pending messages are a batch: enough of them, or pending for long enough."""
        least = self._options.messages_min
        if not spans or least is None or sum(span.messages for span in spans) >= least:
            return bool(spans)
        return time.monotonic() - self._last_batch_secs >= self._options.delay_max_secs

    def pending(
        self, start: SparkOffset, target: dict[str, StreamTail] | None
    ) -> list[OffsetRange]:
        """The ranges between `start` and the tails, or `target`."""
        at, created = start["at"], created_of(start)
        if target is None:
            # Also streams that left the selection with messages unread: deleted, most likely, which
            # the request reports as a loss. Without them it would go unnoticed.
            zero = START.token()
            asked = self._selection.changed(start) | {
                name
                for name, tail in self._seen.items()
                if max(at.get(name, zero), zero) < tail.offset
            }
        else:
            asked = {
                name
                for name, end in target.items()
                if at.get(name) != end.offset or is_another(end.created_at_ms, created.get(name))
            }
        found = self._server.tails(
            {"stream": name, "from": at.get(name, BEGINNING)} for name in sorted(asked)
        )
        seen, self._seen = self._seen, _stands(found)
        self._waiting_at = {}
        spans = []
        for tail in found:
            name = tail.stream
            read = StreamTail(at.get(name, BEGINNING), created.get(name))
            span = self._next_span(tail, read, seen.get(name), target)
            if span is not None:
                spans.append(replace(span, created_at_ms=tail.created_at_ms))
        return spans

    def _next_span(
        self,
        tail: Tail,
        read: StreamTail,
        seen: StreamTail | None,
        target: dict[str, StreamTail] | None,
    ) -> OffsetRange | None:
        """The range to read of one stream; the table at the top says what each problem leads to."""
        name, first = tail.stream, read.offset
        wanted = None if target is None else target[name]
        is_replaced = any(
            known is not None
            # Of an empty stream nothing can have been lost.
            and known.offset > START.token()
            and is_another(tail.created_at_ms, known.created_at_ms)
            for known in (read, seen, wanted)
        )
        if is_replaced:
            tail, first = self._in_its_place(tail), BEGINNING
            # The run takes what is there now of the new stream; if that is gone too, nothing.
            if target is not None:
                del target[name]
                target.update(self.tails([name]))
                wanted = target.get(name)
        span = self._span(tail, first, None if wanted is None else wanted.offset)
        # Nothing to read, yet the offset of the query is not the tail: see `_waiting_at`.
        if span is None and tail.problem == TRIMMED:
            self._waiting_at[name] = tail.earliest_offset
        elif span is None and is_replaced and tail.problem is None:
            self._waiting_at[name] = tail.next_offset
        return span

    def _in_its_place(self, tail: Tail) -> Tail:
        """All of the stream that replaced the one that was read."""
        if self._options.fail_on_data_loss:
            raise DataLoss(
                f"{tail.stream}: {REPLACED} "
                "Set failOnDataLoss=false to continue with the new one from its beginning."
            )
        return self._server.tails([{"stream": tail.stream, "from": BEGINNING}])[0]

    def _span(self, tail: Tail, first: str, end: str | None) -> OffsetRange | None:
        if tail.problem == TRIMMED:
            if not self._options.from_snapshot:
                self._refuse(tail)
            return self._kept(tail, end)
        if tail.problem is not None:
            self._refuse(tail)
            return None
        end = end or tail.next_offset
        if not tail.messages or end <= max(first, START.token()):
            return None
        return OffsetRange(tail.stream, first, end, tail.messages, tail.bytes)

    def _kept(self, tail: Tail, end: str | None) -> OffsetRange | None:
        """What is left of a trimmed stream, after its snapshot if the query reads snapshots."""
        earliest = tail.earliest_offset
        [kept] = self._server.tails([{"stream": tail.stream, "from": earliest}])
        # Between the two requests it may have been trimmed again, or deleted.
        if kept.problem is not None:
            self._refuse(kept)
            return None
        end = end or kept.next_offset
        if self._options.from_snapshot:
            first = f"{SNAPSHOT}{earliest}"
            return OffsetRange(
                tail.stream, first, max(end, earliest), kept.messages + 1, kept.bytes
            )
        if not kept.messages or end <= earliest:
            return None
        return OffsetRange(tail.stream, earliest, end, kept.messages, kept.bytes)

    # -- cutting ---------------------------------------------------------------------------------

    def _cut(self, spans: list[OffsetRange], bounds: BatchBounds) -> list[OffsetRange]:
        """The spans, shortened so that all together keep the bounds.

        Each stream gets its share by what it has pending, so none starves. Ranges are whole
        messages, and the server finds their ends: `max_bytes` ends with the message that reaches
        it.
        """
        # Only streams that must be cut are asked for; the ends of all others are known.
        messages = _shortages({s.stream: s.messages for s in spans}, bounds.messages_max)
        sizes = _shortages({s.stream: s.bytes for s in spans}, bounds.bytes_max)
        cut = [s for s in spans if s.stream in messages or s.stream in sizes]
        found = self._server.tails(_seek(s, messages, sizes) for s in cut)
        ends = {tail.stream: tail.until_offset for tail in found}
        return [replace(s, end=min(s.end, ends.get(s.stream) or s.end)) for s in spans]

    def split(self, span: OffsetRange, pieces: int) -> list[OffsetRange]:
        """One span as several, for a reader that wants more partitions than there are streams.

        Planned again after a crash it gives the same pieces: streams are append-only, so the same
        requests get the same answers.
        """
        if span.start.startswith(SNAPSHOT):
            return [span]
        size = max(1, span.bytes // pieces)
        parts: list[OffsetRange] = []
        first = span.start
        while len(parts) < pieces - 1:
            query = {"stream": span.stream, "from": first, "max_bytes": size}
            end = self._server.tails([query])[0].until_offset
            # The rest is less than a piece, or one message that is larger.
            if end is None or end >= span.end:
                break
            parts.append(replace(span, start=first, end=end, bytes=size))
            first = end
        return [*parts, replace(span, start=first, bytes=size)]


def _stands(tails: Iterable[Tail]) -> dict[str, StreamTail]:
    """The tails of the streams without a problem."""
    return {
        tail.stream: StreamTail(tail.next_offset, tail.created_at_ms)
        for tail in tails
        if tail.problem is None
    }


def _shortages(pending: dict[str, int], most: int | None) -> dict[str, int]:
    """The share of each stream that gets less than it has pending."""
    given = pending if most is None else shares(pending, most)
    return {name: given[name] for name in pending if given[name] < pending[name]}


def _seek(span: OffsetRange, messages: dict[str, int], sizes: dict[str, int]) -> dict[str, Any]:
    query: dict[str, Any] = {"stream": span.stream, "from": span.start.removeprefix(SNAPSHOT)}
    if span.stream in messages:
        query["max_messages"] = messages[span.stream]
    if span.stream in sizes:
        query["max_bytes"] = sizes[span.stream]
    return query
