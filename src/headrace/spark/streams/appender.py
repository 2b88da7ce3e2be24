"""The appends of one task: streams side by side, each stream in its order.

A stream belongs to one lane, a thread with a connection. A server that stores syncs once for all
appends that wait, so several lanes cost it little more than one. Where a body is one message,
many are sent before the first is answered.

With a quarantine stream, the rows of a refused append are checked one by one, and those that the
server accepts are sent under the same seq. A server refuses or recognises a repeat before it checks
its rows, so a repeat's rows are checked in the same way before they are compared.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final

import pyarrow as pa

from headrace.client.range_reads import Tail
from headrace.client.requests import Appended, ProducerStamp
from headrace.errors import (
    BodyTooLarge,
    HeadraceError,
    InvalidJson,
    InvalidName,
    InvalidOffset,
    InvalidRequest,
    OffsetTrimmed,
    Refused,
    UrlTooLong,
)
from headrace.protocol import framed
from headrace.protocol.headers import JSON, media_type
from headrace.protocol.json_mode import Logged, log_form
from headrace.protocol.offsets import START, Position, parse_token
from headrace.spark.streams.append_errors import refusal
from headrace.spark.streams.chunking import BadRow, Chunker, bodies_of
from headrace.spark.streams.offset_tracker import StreamProblem
from headrace.spark.streams.plan import StreamTail
from headrace.spark.streams.row_checks import (
    RejectedRow,
    all_rejected,
    by_row,
    bytes_max_of,
    check_rows,
    name_refusal,
    parts,
)
from headrace.spark.streams.stream_api import StreamApi
from headrace.spark.streams.stream_options import WriteOptions
from headrace.spark.streams.target_note import Targets

LANES_MAX: Final = 4
_WAITING_MAX: Final = 2  # chunks a lane has before it; what it holds in memory
_IN_FLIGHT_MAX: Final = 128  # messages sent before the first is answered
_IN_FLIGHT_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class TaskProducer:
    """The producer of one task; None if repeats need not be recognised."""

    id: str
    epoch: int

    def stamp(self, seq: int) -> ProducerStamp:
        return ProducerStamp(self.id, self.epoch, seq)


class Appender:
    """Use it as a context manager: when it is left, everything is in or an error says why not.

    `noted` is where the streams ended after the last batch: one that has lost messages since is
    not written to.
    """

    def __init__(
        self, options: WriteOptions, producer: TaskProducer | None, noted: Targets | None = None
    ) -> None:
        self._options = options
        self._producer = producer
        self._targets = noted or Targets()
        self._created: dict[str, int | None] = {}
        self._chunker = Chunker(options.chunk_rows, options.chunk_bytes)
        self._content_types: dict[str, str] = {}
        self._lanes: list[_Lane] = []
        self._lane_of: dict[str, _Lane] = {}
        self._misnamed: dict[str, list[RejectedRow]] = {}

    def __enter__(self) -> Appender:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for lane in self._lanes:
            lane.end()
        if kind is None:
            self._raise_failure()

    def expect(self, streams: Iterable[str]) -> None:
        """Learn in one request what lanes would ask for stream by stream."""
        unknown = [
            stream
            for stream in streams
            if stream not in self._content_types and not self._name_refusal(stream)
        ]
        if not unknown:
            return
        found = self._tails(unknown)
        for tail in found:
            self._targets.check(tail)
        self._created |= {tail.stream: tail.created_at_ms for tail in found if not tail.problem}
        wanted = self._options.content_type if self._options.create else None
        self._content_types |= {
            tail.stream: tail.content_type
            for tail in found
            if tail.problem is None and wanted in (None, tail.content_type)
        }

    def _tails(self, streams: Sequence[str]) -> list[Tail]:
        """What is known of streams in one request; of a server without it, one by one."""
        server = StreamApi(self._options.settings)
        try:
            return server.tails({"stream": stream} for stream in streams)
        except Refused:  # a lane says which stream is meant
            return [server.tail(stream) for stream in streams if stream in self._targets.streams]
        finally:
            server.close()

    def ends(self) -> dict[str, StreamTail]:
        """Where each stream ended after what was appended to it. Once all is in."""
        ends = {stream: end for lane in self._lanes for stream, end in lane.ends.items()}
        fresh = [stream for stream in ends if stream not in self._created]
        if fresh:
            self._created |= {tail.stream: tail.created_at_ms for tail in self._tails(fresh)}
        found = {name: StreamTail(end, self._created.get(name)) for name, end in ends.items()}
        return {name: tail for name, tail in found.items() if tail.offset}

    def write(self, stream: str, values: pa.Array) -> None:
        """Take values; what makes a whole chunk goes out."""
        if reason := self._name_refusal(stream):
            self._misnamed.setdefault(stream, []).extend(all_rejected(values, reason))
            return
        for chunk in self._chunker.add(stream, values):
            self._append(stream, chunk)

    def flush(self) -> None:
        """Send what is left, too."""
        for stream, chunk in self._chunker.rest():
            self._append(stream, chunk)

    def refused(self) -> list[tuple[str, RejectedRow]]:
        """The rejected rows, ordered by stream and row. Call it when all lanes have ended."""
        found = self._misnamed | {
            stream: rows for lane in self._lanes for stream, rows in lane.refused.items()
        }
        return [(stream, row) for stream in sorted(found) for row in found[stream]]

    def _name_refusal(self, stream: str) -> str | None:
        return name_refusal(stream) if self._options.quarantines_rows else None

    def _append(self, stream: str, values: pa.Array) -> None:
        self._raise_failure()
        lane = self._lane_of.get(stream)
        if lane is None:
            # For good: two lanes would send the numbers of one stream out of order.
            lane = self._lane_of[stream] = self._next_lane()
        lane.put(stream, values)

    def _next_lane(self) -> _Lane:
        if len(self._lanes) < LANES_MAX:
            self._lanes.append(_Lane(self._options, self._producer, self._content_types))
        return self._lanes[len(self._lane_of) % len(self._lanes)]

    def _raise_failure(self) -> None:
        for lane in self._lanes:
            if lane.failure is not None:
                raise lane.failure

    @property
    def rows(self) -> int:
        return sum(lane.rows for lane in self._lanes)

    @property
    def appends(self) -> int:
        return sum(lane.appends for lane in self._lanes)

    @property
    def repeated(self) -> int:
        return sum(lane.repeated for lane in self._lanes)


class _Lane:
    """One thread with one connection, and the streams that are its own.

    Its thread writes its figures; the task reads `failure` at any time, and the others once `end`
    has joined the thread. After a failure it drops what it is given: nothing may be written behind
    what is missing, and the whole task runs again.
    """

    def __init__(
        self, options: WriteOptions, producer: TaskProducer | None, content_types: dict[str, str]
    ) -> None:
        self._options = options
        self._producer = producer
        self._server = StreamApi(options.settings)
        self._content_types = content_types  # what is known of any lane's streams
        self._next_seq: dict[str, int] = {}
        self._waiting: queue.Queue[tuple[str, pa.Array] | None] = queue.Queue(_WAITING_MAX)
        self.rows = self.appends = self.repeated = 0
        self.refused: dict[str, list[RejectedRow]] = {}
        self.ends: dict[str, str] = {}
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="append", daemon=True)
        self._thread.start()

    def put(self, stream: str, values: pa.Array) -> None:
        self._waiting.put((stream, values))

    def end(self) -> None:
        """Return when what was put is in, or cannot be."""
        self._waiting.put(None)
        self._thread.join()
        self._server.close()

    def _run(self) -> None:
        while (work := self._waiting.get()) is not None:
            if self.failure is not None:
                continue  # drained, so that `put` does not block
            try:
                self._append(*work)
            except Exception as error:  # the task raises it, in its own thread
                self.failure = error

    def _append(self, stream: str, values: pa.Array) -> None:
        try:
            content_type = self._content_types.get(stream)
            if content_type is None:
                content_type = self._content_types[stream] = self._content_type(stream)
            if self._options.quarantines_rows:
                self._append_good(stream, content_type, values)
                return
            for bodies in _in_flight(bodies_of(stream, content_type, values)):
                self._send(stream, bodies, content_type)
        except HeadraceError as error:
            if self._options.quarantines_rows and isinstance(error, InvalidName | UrlTooLong):
                self._reject(stream, all_rejected(values, str(error)))
                return
            raise StreamProblem(refusal(stream, error)) from error
        self.rows += len(values)

    def _append_good(self, stream: str, content_type: str, values: pa.Array) -> None:
        refused: list[RejectedRow] = []
        for rows in _bodies_apart(content_type, values):
            refused += self._append_or_check(stream, content_type, rows)
        if refused:
            self._reject(stream, by_row(values, refused))

    def _append_or_check(self, stream: str, content_type: str, rows: pa.Array) -> list[RejectedRow]:
        """Append rows that are one body, or what the server takes of them; the others."""
        seq = self._next_seq.get(stream, 0)
        stamp = self._producer.stamp(seq) if self._producer else None
        try:
            [body] = bodies_of(stream, content_type, rows)
            appended = self._server.append(stream, body, content_type, stamp)
        except InvalidName:
            raise
        except (BadRow, InvalidRequest, BodyTooLarge) as error:
            return self._append_checked(stream, content_type, rows, error)
        if appended.duplicate and not self._is_stored(stream, content_type, body, appended):
            return self._append_checked(stream, content_type, rows, self._other_rows(stream))
        self._next_seq[stream] = seq + 1
        self._note_end(stream, appended)
        self.appends += 1
        self.repeated += appended.duplicate
        self.rows += len(rows)
        return []

    def _append_checked(
        self, stream: str, content_type: str, rows: pa.Array, error: Exception
    ) -> list[RejectedRow]:
        """Append the good ones of rows that were refused together; returns the others."""
        bytes_max = bytes_max_of(error)
        checked = check_rows(content_type, rows, bytes_max)
        several = list(parts(checked.rows, bytes_max)) if len(checked.rows) else []
        if not checked.refused and len(several) == 1:
            raise error  # the rows are not why
        refused = checked.refused
        for part in several:
            refused += self._append_or_check(stream, content_type, part)
        return refused

    def _reject(self, stream: str, refused: list[RejectedRow]) -> None:
        self.refused.setdefault(stream, []).extend(refused)

    def _send(self, stream: str, bodies: Sequence[bytes], content_type: str) -> None:
        first = self._next_seq.get(stream, 0)
        producer = self._producer
        stamps = [producer.stamp(first + n) if producer else None for n in range(len(bodies))]
        done = self._server.append_all(stream, bodies, content_type, stamps)
        for body, appended in zip(bodies, done, strict=True):
            self._check_repeat(stream, content_type, body, appended)
            self._note_end(stream, appended)
        self._next_seq[stream] = first + len(bodies)
        self.appends += len(done)
        self.repeated += sum(appended.duplicate for appended in done)

    def _note_end(self, stream: str, appended: Appended) -> None:
        """A server no longer knows where an old repeat ended."""
        self.ends[stream] = max(self.ends.get(stream, ""), appended.next_offset or "")

    def _check_repeat(
        self, stream: str, content_type: str, body: bytes, appended: Appended
    ) -> None:
        if appended.duplicate and not self._is_stored(stream, content_type, body, appended):
            raise self._other_rows(stream)

    def _is_stored(self, stream: str, content_type: str, body: bytes, appended: Appended) -> bool:
        if appended.next_offset is None:
            return True  # unknown
        return is_stored(self._server, stream, content_type, body, appended.next_offset)

    def _other_rows(self, stream: str) -> StreamProblem:
        assert self._producer is not None, "only what a producer sends can be a repeat"
        return StreamProblem(
            f"{stream}: The producer {self._producer.id} has already written different rows for "
            "this batch. Either its checkpoint was lost or two queries use its name. "
            "Check what it wrote, then set another producerId (in a pipeline: producer)."
        )

    def _content_type(self, stream: str) -> str:
        if self._options.create:
            return self._server.create(stream, self._options.content_type)
        return self._server.content_type(stream)


def _bodies_apart(content_type: str, values: pa.Array) -> Iterator[pa.Array]:
    """Rows that are one body each time.

    Not several at once: behind one that is refused, the next has a number of what is in.
    """
    if media_type(content_type) == JSON:
        yield values
        return
    for number in range(len(values)):
        yield values.slice(number, 1)


def _in_flight(bodies: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """The bodies in groups that may be under way together."""
    first = size = 0
    for number, body in enumerate(bodies):
        size += len(body)
        if number > first and (number - first >= _IN_FLIGHT_MAX or size > _IN_FLIGHT_BYTES):
            yield bodies[first:number]
            first, size = number, len(body)
    yield bodies[first:]


def is_stored(server: StreamApi, stream: str, content_type: str, body: bytes, end: str) -> bool:
    """Whether the messages before `end` are those of `body`, or can no longer be read.

    A server knows an append by its producer and seq. After a lost checkpoint the same numbers come
    with different rows, which would count as written; a comparison with what is stored shows that.
    """
    wanted = Logged(body, (len(body),))
    if media_type(content_type) == JSON:
        try:
            wanted = log_form(body, len(body))
        except InvalidJson:
            return False  # a server knows a repeat by its number, before it looks at the body
    tail = parse_token(end)
    start = Position(tail.messages - len(wanted.lengths), tail.bytes - len(wanted.data))
    if start < START:
        return False
    try:
        chunks = server.read_range(stream, start.token(), end)
        return b"".join(bytes(framed.decode(chunk.body).data) for chunk in chunks) == wanted.data
    except OffsetTrimmed:
        return True
    except InvalidOffset:
        return False  # not where a message ends
