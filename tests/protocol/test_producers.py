"""Which appends are new, which are repeats, which are late."""

from __future__ import annotations

import pytest

from headrace.errors import (
    HeadraceError,
    InvalidRequest,
    ProducerFenced,
    ProducerGap,
    TooManyProducers,
)
from headrace.protocol.offsets import Position
from headrace.protocol.producers import ProducerHeaders, ProducerState, Repeat, accept, judge

PRODUCERS_MAX = 2
RECEIPTS_MAX = 3
ID = b"writer"


def after(*claims: tuple[int, int]) -> dict[bytes, ProducerState]:
    """What is known once these (epoch, seq) of one producer were accepted, 10 bytes each."""
    known: dict[bytes, ProducerState] = {}
    for count, (epoch, seq) in enumerate(claims, start=1):
        claim = ProducerHeaders(ID, epoch, seq)
        assert judge(known, claim, PRODUCERS_MAX) is None
        accept(known, claim, Position(count, 10 * count), RECEIPTS_MAX)
    return known


def verdict(known: dict[bytes, ProducerState] | None, epoch: int, seq: int) -> object:
    return judge(known, ProducerHeaders(ID, epoch, seq), PRODUCERS_MAX)


@pytest.mark.parametrize("epoch", [0, 7])
def test_a_stranger_starts_at_sequence_0_of_any_epoch(epoch: int) -> None:
    assert verdict(None, epoch, 0) is None
    assert verdict({}, epoch, 0) is None


def test_a_stranger_elsewhere_leaves_a_gap() -> None:
    refusal = verdict(None, 0, 2)
    assert isinstance(refusal, ProducerGap)
    assert (refusal.expected_seq, refusal.received_seq) == (0, 2)


def test_the_next_sequence_is_new() -> None:
    assert verdict(after((0, 0), (0, 1)), 0, 2) is None


def test_a_later_sequence_leaves_a_gap() -> None:
    refusal = verdict(after((0, 0), (0, 1)), 0, 4)
    assert isinstance(refusal, ProducerGap)
    assert (refusal.expected_seq, refusal.received_seq) == (2, 4)


@pytest.mark.parametrize("seq", [0, 1, 2])
def test_a_repeat_has_the_receipt_of_its_original_and_the_highest_sequence(seq: int) -> None:
    known = after((0, 0), (0, 1), (0, 2))
    assert verdict(known, 0, seq) == Repeat(0, 2, Position(seq + 1, 10 * (seq + 1)))


def test_a_repeat_older_than_the_receipts_has_none() -> None:
    known = after(*((0, seq) for seq in range(5)))
    assert verdict(known, 0, 1) == Repeat(0, 4, None)
    assert verdict(known, 0, 2) == Repeat(0, 4, Position(3, 30))


def test_an_older_epoch_is_fenced() -> None:
    refusal = verdict(after((3, 0), (5, 0)), 4, 0)
    assert isinstance(refusal, ProducerFenced)
    assert (refusal.current_epoch, refusal.received_epoch) == (5, 4)


def test_a_newer_epoch_starts_at_sequence_0() -> None:
    known = after((3, 0), (3, 1))
    assert verdict(known, 4, 0) is None
    assert isinstance(verdict(known, 4, 2), InvalidRequest)


def test_a_new_epoch_forgets_the_receipts_of_the_last() -> None:
    assert verdict(after((0, 0), (0, 1), (1, 0)), 1, 0) == Repeat(1, 0, Position(3, 30))


def test_a_stream_knows_so_many_producers_and_refuses_more() -> None:
    known = after((0, 0))
    accept(known, ProducerHeaders(b"other", 0, 0), Position(9, 90), RECEIPTS_MAX)
    refusal = judge(known, ProducerHeaders(b"third", 0, 0), PRODUCERS_MAX)
    assert isinstance(refusal, TooManyProducers)
    assert refusal.limit == PRODUCERS_MAX
    assert not isinstance(verdict(known, 0, 1), HeadraceError)
