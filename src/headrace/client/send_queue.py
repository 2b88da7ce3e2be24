"""What an idempotent producer has in hand: messages, batches, and the numbers they are sent under.

The rules that make a retry harmless are here, without threads, tasks or sockets:

- A batch keeps its stamp (epoch, seq) through every retry, so the stream takes it once.
- The first batch of an epoch is sent alone; then several may be in flight. One that overtakes
  another is refused as a gap and sent again when those before it are through. Requests that
  overtake each other once would do so again and again, so a gap narrows the window to one batch;
  batches in order widen it, more slowly after every gap.
- When a newer epoch has fenced this producer, it stops. If it may claim (`auto_claim`, or its
  very first batch where it chose the epoch itself), it numbers what was surely not accepted anew.
- The first failure ends it: nothing behind a lost batch is sent.
"""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, TypedDict

from headrace.client.effects import Steps, Wait
from headrace.client.encoding import check_texts
from headrace.client.requests import (
    Appended,
    ProducerStamp,
    Target,
    append,
    may_repeat,
    pause,
    retry_of,
)
from headrace.client.stream_ops import StreamOps
from headrace.errors import HeadraceError, Indeterminate, ProducerFenced, ProducerGap
from headrace.limits import INTEGER_MAX
from headrace.protocol.headers import is_json

_TURN_SECS = 0.002  # how often a batch that must wait for those before it looks again
_WIDEN_AFTER = 16  # batches in order before one more may be in flight, doubled by every gap
_WIDEN_AFTER_MAX = 4096


@dataclass(eq=False)
class ProducerOverlap(Indeterminate):
    """The stream has this stamp already, and it was not sent twice from here."""

    producer: str
    epoch: int
    seq: int

    @property
    def detail(self) -> str:
        return (
            f"The stream already has seq {self.seq} of producer {self.producer!r} in epoch "
            f"{self.epoch}: another instance has used this epoch. Start with a higher one."
        )


@dataclass(eq=False)
class ProducerBroken(Indeterminate):
    """A defect, of ours or of a function that makes headers, ended the producer."""

    reason: str

    @property
    def detail(self) -> str:
        return f"The producer stopped on an error that it does not know: {self.reason}"


class ProducerKeywords(TypedDict, total=False):
    """The keywords of `Stream.producer`: the fields of `ProducerOptions`."""

    epoch: int | None
    auto_claim: bool
    batch_items_max: int
    batch_bytes_max: int
    linger_ms: float
    in_flight_max: int
    buffer_bytes_max: int


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """How a producer gathers and sends; every field is a keyword of `Stream.producer`."""

    epoch: int | None = None
    """None: the time in milliseconds, so that a later instance fences an earlier one."""
    auto_claim: bool = False
    """Claim a higher epoch whenever fenced, instead of stopping."""
    batch_items_max: int = 10_000
    batch_bytes_max: int = 1024 * 1024  # one window of the server's read side
    linger_ms: float = 5.0
    """How long a batch that is not full waits for more."""
    in_flight_max: int = 5  # as upstream's clients
    buffer_bytes_max: int = 32 * 1024 * 1024
    """Bytes accepted by `append` and not yet by the server; beyond them `append` waits."""

    def __post_init__(self) -> None:
        if self.epoch is not None and not 0 <= self.epoch <= INTEGER_MAX:
            raise ValueError(f"epoch must be between 0 and {INTEGER_MAX}.")
        for name in ("batch_items_max", "batch_bytes_max", "in_flight_max", "buffer_bytes_max"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1.")
        if self.linger_ms < 0:
            raise ValueError("linger_ms must not be negative.")


class SendBatch:
    """Messages that are sent together, and the stamp they are sent under."""

    __slots__ = ("closes", "in_doubt", "messages", "result", "size", "stamp")

    def __init__(self, messages: list[bytes], size: int, closes: bool = False) -> None:
        self.messages = messages
        self.size = size
        self.closes = closes
        self.stamp: ProducerStamp | None = None
        self.in_doubt = False
        self.result: Appended | None = None

    def body(self, is_json: bool) -> bytes | None:
        if not self.messages:
            return None
        return b"[%b]" % b",".join(self.messages) if is_json else b"".join(self.messages)


class Window:
    """How many batches may be in flight: as many as arrive in the order they were sent in."""

    __slots__ = ("_in_order", "_max", "_widen_after", "size")

    def __init__(self, batches_max: int) -> None:
        self.size = batches_max
        self._max = batches_max
        self._widen_after = _WIDEN_AFTER
        self._in_order = 0

    def arrived_in_order(self) -> None:
        if self.size == self._max:
            return
        self._in_order += 1
        if self._in_order >= self._widen_after:
            self.size += 1
            self._in_order = 0

    def overtaken(self) -> None:
        self._in_order = 0
        if self.size > 1:  # else it was in flight already when the window was narrowed
            self.size = 1
            self._widen_after = min(self._widen_after * 2, _WIDEN_AFTER_MAX)


class SendQueue:
    """Not safe between threads by itself: its owner serialises the calls."""

    def __init__(self, producer_id: str, options: ProducerOptions, now_ms: int) -> None:
        if not producer_id:
            raise ValueError("A producer needs an id.")
        self.id = producer_id
        self.options = options
        self.epoch = now_ms if options.epoch is None else options.epoch
        self.error: HeadraceError | None = None
        self.unaccepted_bytes = 0
        self._may_claim = options.auto_claim or options.epoch is None
        self._next_seq = 0
        self._established = False
        self._open: list[bytes] = []
        self._open_bytes = 0
        self._open_since = 0.0
        self._sealed: deque[SendBatch] = deque()
        self._in_flight: list[SendBatch] = []
        self._window = Window(options.in_flight_max)
        self.has_values = False
        """Whether JSON values were added, which only a JSON stream keeps apart."""
        self.has_texts = False
        """Whether text or bytes were added, which a JSON stream takes if each is one value."""

    # -- gathering ------------------------------------------------------------------------------

    def has_room(self, size: int) -> bool:
        """Whether so many bytes may be added; one message always may."""
        unaccepted = self.unaccepted_bytes
        return not unaccepted or unaccepted + size <= self.options.buffer_bytes_max

    def add(self, message: bytes, now: float) -> bool:
        """Take one message; True if a sender should look."""
        size = len(message)
        options = self.options
        if self._open and self._open_bytes + size > options.batch_bytes_max:
            self.seal()
        first = not self._open
        if first:
            self._open_since = now
        self._open.append(message)
        self._open_bytes += size
        self.unaccepted_bytes += size
        full = self._open_bytes >= options.batch_bytes_max
        if full or len(self._open) >= options.batch_items_max:
            self.seal()
            return True
        return first

    def seal(self, *, closes: bool = False) -> SendBatch | None:
        """What is gathered becomes a batch; the last batch there is."""
        if self._open or closes:
            self._sealed.append(SendBatch(self._open, self._open_bytes, closes))
            self._open, self._open_bytes = [], 0
        behind = self._sealed or self._in_flight
        return behind[-1] if behind else None

    # -- sending --------------------------------------------------------------------------------

    def take(self, now: float) -> SendBatch | None:
        """The next batch to send, if one is due."""
        if self.error is not None or not self._may_send():
            return None
        if not self._sealed and self._open and self.due_in(now) <= 0:
            self.seal()
        if not self._sealed:
            return None
        batch = self._sealed.popleft()
        self._stamp(batch)
        self._in_flight.append(batch)
        return batch

    def due_in(self, now: float) -> float:
        """Seconds until what is gathered should go although it is not full."""
        return self._open_since + self.options.linger_ms / 1000 - now

    @property
    def is_gathering(self) -> bool:
        return bool(self._open)

    @property
    def waiting(self) -> int:
        """How many batches, full or not, are still to be sent."""
        return len(self._sealed) + bool(self._open)

    def _may_send(self) -> bool:
        if not self._in_flight:
            return True
        # A batch of the new epoch that overtook one of the old would have it fenced by ourselves.
        one_epoch = all(
            b.stamp is not None and b.stamp.epoch == self.epoch for b in self._in_flight
        )
        return self._established and one_epoch and len(self._in_flight) < self._window.size

    def _stamp(self, batch: SendBatch) -> None:
        batch.stamp = ProducerStamp(self.id, self.epoch, self._next_seq)
        self._next_seq += 1

    # -- answers --------------------------------------------------------------------------------

    def accepted(self, batch: SendBatch, result: Appended) -> None:
        batch.result = result
        self._in_flight.remove(batch)
        self._window.arrived_in_order()
        self.unaccepted_bytes -= batch.size
        self._established = True
        # Having chosen its own epoch, a producer may claim until it has one; from then on a fence
        # means that a newer instance took over.
        self._may_claim = self.options.auto_claim

    def overtook(self) -> None:
        """A batch arrived before one that was sent earlier, and was refused."""
        self._window.overtaken()

    def failed(self, batch: SendBatch, error: HeadraceError) -> None:
        """End it; the batch goes back in front, so that `unaccepted` is in order."""
        if self.error is None:
            self.error = error
        if batch in self._in_flight:
            self._in_flight.remove(batch)
            self._sealed.appendleft(batch)

    def unaccepted(self) -> list[bytes]:
        """What was appended and is not known to be in the stream, in order."""
        batches = sorted(
            (*self._in_flight, *self._sealed),
            key=lambda b: b.stamp[1:] if b.stamp is not None else (INTEGER_MAX + 1, 0),
        )
        return [message for batch in batches for message in batch.messages] + self._open

    def is_through(self, batch: SendBatch) -> bool:
        """Whether this batch and everything before it was accepted.

        Its own answer does not say so: the answers to those before it may still be under way.
        """
        if batch.result is None:
            return False
        assert batch.stamp is not None, "an accepted batch has a stamp"
        own = batch.stamp[1:]
        # A failed batch has gone back to the sealed ones, with its stamp.
        return all(
            other.stamp is None or other.stamp[1:] > own
            for other in (*self._in_flight, *self._sealed)
        )

    def is_first(self, batch: SendBatch) -> bool:
        """Whether every batch before this one is answered."""
        return self._in_flight[0] is batch

    def claim(self, batch: SendBatch, fenced_by: int) -> None:
        """Number a fenced batch anew; the first to come claims the epoch."""
        assert batch.stamp is not None, "a batch that was sent has a stamp"
        if batch.stamp.epoch == self.epoch:
            self.epoch = fenced_by + 1
            self._next_seq = 0
            self._established = False
        self._stamp(batch)

    def may_claim(self, batch: SendBatch) -> bool:
        assert batch.stamp is not None, "a batch that was sent has a stamp"
        return self._may_claim or batch.stamp.epoch != self.epoch


def send_batch(
    queue: SendQueue, batch: SendBatch, handle: StreamOps, guard: AbstractContextManager[Any]
) -> Steps[Appended]:
    """Send one batch until the stream has it; the answer. Raises what ends the producer.

    The queue is changed under `guard`.
    """
    content_type = yield from (handle.learn_json() if queue.has_values else handle.learn_type())
    target = handle.target
    # Retrying is done here and not in `append`: a producer must know whether it is in doubt.
    once = _without_retries(target)
    as_json = is_json(content_type)
    if as_json and queue.has_texts:
        check_texts(batch.messages)
    body = batch.body(as_json)
    failures = 0
    while True:
        stamp = batch.stamp
        assert stamp is not None, "a batch in flight has a stamp"
        # Read before sending: when a gap is reported, the batch that fills it may already be in.
        alone = queue.is_first(batch)
        try:
            result = yield from append(once, body, content_type, producer=stamp, close=batch.closes)
        except ProducerGap:
            if alone:
                raise
            with guard:
                queue.overtook()
            yield from _turn(queue, batch)
        except ProducerFenced as fenced:
            # Those before it were fenced as well, and are numbered anew first: the order of the
            # numbers is that of the messages.
            yield from _turn(queue, batch)
            # In doubt, it may be in the stream under its old number; under a new one it would be
            # there twice.
            if batch.in_doubt or not queue.may_claim(batch):
                raise
            with guard:
                queue.claim(batch, fenced.current_epoch)
        except HeadraceError as error:
            failures += 1
            batch.in_doubt = batch.in_doubt or isinstance(error, Indeterminate)
            repeatable = target.request("POST")
            if not may_repeat(error, repeatable) or not retry_of(target.settings, error).allows(
                failures
            ):
                raise
            yield pause(target.settings, failures, error)
        else:
            if result.duplicate and not batch.in_doubt:
                raise ProducerOverlap(*stamp)
            return result


def _turn(queue: SendQueue, batch: SendBatch) -> Steps[None]:
    """Wait until every batch before this one is answered."""
    while not queue.is_first(batch):
        if queue.error is not None:
            raise queue.error
        yield Wait(_TURN_SECS)


def _without_retries(target: Target) -> Target:
    retry = replace(target.settings.retry, retries_max=0)
    return replace(target, settings=replace(target.settings, retry=retry))
