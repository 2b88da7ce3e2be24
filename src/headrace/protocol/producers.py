"""Producer fencing: which appends are new, which are repeats, which are late.

Everything about epochs and sequence numbers is here. Nothing here knows about bytes, clocks or
storage. A producer keeps the receipts of its last appends, so that a repeat is answered with the
offset its original was answered with.
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
    """What the same producer sends with another append; made for every append that is repeated."""
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
        age = self.seq - seq
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
    if claim.epoch == state.epoch:
        if claim.seq == state.seq + 1:
            return None
        if claim.seq <= state.seq:
            return Repeat(state.epoch, state.seq, state.receipt(claim.seq))
        return ProducerGap(state.seq + 1, claim.seq)
    if claim.epoch < state.epoch:
        return ProducerFenced(state.epoch, claim.epoch)
    if claim.seq == 0:
        return None
    return InvalidRequest("A new Producer-Epoch must start at Producer-Seq 0.")


def _judge_stranger(
    known: dict[bytes, ProducerState] | None, claim: ProducerHeaders, producers_max: int
) -> Refused | None:
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
    if state is None or state.epoch != claim.epoch:
        state = known[claim.id] = ProducerState(claim.epoch, claim.seq, [])
    state.seq = claim.seq
    receipts = state.receipts
    receipts.append(tail)
    if len(receipts) > receipts_max:
        del receipts[0]


class Written(NamedTuple):
    """The message that ends at `end` is the last of this producer's append `seq`."""

    end: Position
    id: bytes
    epoch: int
    seq: int


def written_between(
    known: dict[bytes, ProducerState], start: Position, until: Position, closed_at: Position | None
) -> Iterator[Written]:
    """Which messages that end behind `start`, at `until` at the latest, are known to be whose.

    Receipts say where appends ended, so of an append of several messages the last is certain and
    the others are not reported. `closed_at` is the tail of a closed stream: a close may carry
    nothing.
    """
    for id, producer in known.items():
        receipts = producer.receipts
        if receipts[-1] <= start or receipts[0] > until:
            continue
        for at in range(bisect_right(receipts, start), bisect_right(receipts, until)):
            end = receipts[at]
            if at and receipts[at - 1] == end:
                continue  # the close, behind the append that is the message's
            if end == closed_at and at + 1 == len(receipts):
                continue  # the message's append, or a close behind somebody else's
            yield Written(end, id, producer.epoch, producer.seq - (len(receipts) - 1 - at))
