"""Producer fencing: which appends are new, which are repeats, which are late.

Everything about epochs and sequence numbers is here. Nothing here knows about bytes, clocks or
storage.

Theory of operation. A producer numbers its appends to a stream: the epoch says which life of the
producer sends, the seq counts from 0 within the epoch. The stream remembers per producer id the
epoch, the last accepted seq, and the tails after its latest appends (the receipts). That decides
every append, and makes each (id, epoch, seq) take effect at most once:

    remembered       append                   verdict    remembered after   answer
    nothing          any epoch e, seq 0       new        (e, 0)             200
    nothing          seq > 0                  gap        nothing            409, expected 0
    nothing, full    seq 0                    too many   nothing            409
    (e, s)           epoch e,   seq s + 1     new        (e, s + 1)         200
    (e, s)           epoch e,   seq <= s      repeat     (e, s)             204, offset if known
    (e, s)           epoch e,   seq > s + 1   gap        (e, s)             409, expected s + 1
    (e, s)           epoch < e                fenced     (e, s)             403, epoch e
    (e, s)           epoch f > e, seq 0       new        (f, 0), receipts   200
                                                         of e dropped
    (e, s)           epoch > e,   seq > 0     invalid    (e, s)             400

`judge` is the table, `accept` the column "remembered after". An append that is refused for another
reason (a content type, Stream-Seq, no room) is never accepted, so it does not use up its seq.

Receipts are the tails after the appends s - n + 1 .. s of the current epoch, without gaps, so the
age of a seq is its index from the end. They are there for the answer only: a repeat is recognised
by epoch and seq, which are never forgotten, so an append older than the window is still a repeat.
Its answer then has no offset; the tail would be wrong, because the writer's data does not end
there.

Producers are not evicted. A stream that forgot one would take its late repeat of seq 0 for new
data; so a full table refuses strangers, and those it knows go on.

After a crash or restart: an append and what it makes of its producer are one record (a journal
frame, an LMDB transaction), so a stream has both or neither, and the producer's retry is judged
like before the crash. The engine delays the answers to repeats, gaps and fenced appends until the
append that they rest on is durable: otherwise a power cut could take back an append whose repeat
was acknowledged. A server that is restarted with a smaller window drops the oldest receipts.

A fork, and a stream created again under an old name, know no producer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from headrace.errors import InvalidRequest, ProducerFenced, ProducerGap, Refused, TooManyProducers
from headrace.protocol.offsets import Position


class ProducerHeaders(NamedTuple):
    """Producer-Id, Producer-Epoch and Producer-Seq of one request."""

    id: bytes
    epoch: int
    seq: int


_new = tuple.__new__


def with_seq(claim: ProducerHeaders, seq: int) -> ProducerHeaders:
    """The same producer and epoch with another seq. On the hot path, hence no `_replace`."""
    return _new(ProducerHeaders, (claim[0], claim[1], seq))


class ProducerState:
    """What a stream remembers of one producer: its epoch, its last seq, its latest receipts."""

    __slots__ = ("epoch", "receipts", "seq")

    def __init__(self, epoch: int, seq: int, receipts: list[Position]) -> None:
        self.epoch = epoch
        self.seq = seq
        self.receipts = receipts

    def receipt(self, seq: int) -> Position | None:
        """The tail after the append `seq` of the current epoch, while it is remembered."""
        age = self.seq - seq  # receipts have no gaps and the newest is last
        return self.receipts[-1 - age] if age < len(self.receipts) else None


@dataclass(frozen=True, slots=True)
class Repeat:
    """This append was accepted before."""

    epoch: int
    last_seq: int
    receipt: Position | None


def judge(
    known: dict[bytes, ProducerState] | None, claim: ProducerHeaders, producers_max: int
) -> Repeat | Refused | None:
    """None means the append is new and next in order."""
    state = known.get(claim.id) if known is not None else None
    if state is None:
        return _judge_stranger(known, claim, producers_max)
    # The most frequent case first: the next append of a known producer.
    if claim.epoch == state.epoch:
        if claim.seq == state.seq + 1:
            return None
        if claim.seq <= state.seq:
            return Repeat(state.epoch, state.seq, state.receipt(claim.seq))
        return ProducerGap(state.seq + 1, claim.seq)
    # An older life of the producer must not write any more. Its repeats are refused as well: the
    # seq of its epoch is forgotten, so they cannot be distinguished from new appends.
    if claim.epoch < state.epoch:
        return ProducerFenced(state.epoch, claim.epoch)
    if claim.seq == 0:
        return None
    return InvalidRequest("A new Producer-Epoch must start at Producer-Seq 0.")


def _judge_stranger(
    known: dict[bytes, ProducerState] | None, claim: ProducerHeaders, producers_max: int
) -> Refused | None:
    # Also a producer whose stream was deleted and created again: it has to start over.
    if claim.seq != 0:
        return ProducerGap(0, claim.seq)
    if known is not None and len(known) >= producers_max:
        return TooManyProducers(producers_max)
    return None


def accept(
    known: dict[bytes, ProducerState], claim: ProducerHeaders, tail: Position, receipts_max: int
) -> None:
    """Record an append that `judge` found new and that moved the tail to `tail`."""
    state = known.get(claim.id)
    # A new epoch starts from scratch: receipts are counted back from `seq`, so those of two epochs
    # in one list would answer a repeat with the offset of another append.
    if state is None or state.epoch != claim.epoch:
        state = known[claim.id] = ProducerState(claim.epoch, claim.seq, [])
    state.seq = claim.seq
    receipts = state.receipts
    receipts.append(tail)
    if len(receipts) > receipts_max:
        del receipts[0]


class AppendEnd(NamedTuple):
    """The message that ends at `end` is the last of this producer's append `seq`."""

    end: Position
    id: bytes
    epoch: int
    seq: int


def written_between(
    known: dict[bytes, ProducerState], start: Position, until: Position, closed_at: Position | None
) -> Iterator[AppendEnd]:
    """The known producers of messages that end after `start` and not after `until`.

    Receipts say where appends ended, so only the last message of an append is certain; the others
    are not reported. `closed_at` is the tail of a closed stream: a close may carry no data.
    """
    for id, producer in known.items():
        receipts = producer.receipts  # never empty, and never decreasing: tails only grow
        if receipts[-1] <= start or receipts[0] > until:
            continue
        for at in range(bisect_right(receipts, start), bisect_right(receipts, until)):
            end = receipts[at]
            if at and receipts[at - 1] == end:
                continue  # a close without data, after the append that wrote the message
            if end == closed_at and at + 1 == len(receipts):
                continue  # either the message's append, or a close after another producer's
            yield AppendEnd(end, id, producer.epoch, producer.seq - (len(receipts) - 1 - at))
