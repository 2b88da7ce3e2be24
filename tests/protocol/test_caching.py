"""The identity of a range, and how long it may be kept."""

from __future__ import annotations

import pytest

from headrace.protocol.caching import cache_control, matches, range_etag
from headrace.protocol.offsets import Position

ETAG = range_etag(26, Position(0, 0), Position(2, 9), closed=False)


def test_an_etag_differs_by_stream_range_and_closure() -> None:
    start, middle, end = Position(0, 0), Position(1, 4), Position(2, 9)
    etags = {
        range_etag(1, start, end, closed=False),
        range_etag(2, start, end, closed=False),
        range_etag(1, middle, end, closed=False),
        range_etag(1, start, middle, closed=False),
        range_etag(1, start, end, closed=True),
    }
    assert len(etags) == 5


@pytest.mark.parametrize("held", [ETAG, f"W/{ETAG}", f'"other", {ETAG}', f'  W/"x" ,{ETAG}  ', "*"])
def test_if_none_match_finds_the_etag(held: str) -> None:
    assert matches(held.encode(), ETAG)


@pytest.mark.parametrize("held", [None, b"", b'""', b'"other"', ETAG.strip('"').encode()])
def test_if_none_match_names_another_etag(held: bytes | None) -> None:
    assert not matches(held, ETAG)


@pytest.mark.parametrize("private", [True, False])
def test_what_reaches_the_tail_is_not_stored(private: bool) -> None:
    assert cache_control(below_tail=False, private=private, lifetime_left_ms=None) == "no-store"


@pytest.mark.parametrize(("private", "scope"), [(True, "private"), (False, "public")])
@pytest.mark.parametrize("left_ms", [None, 60_000, 10**9])
def test_history_is_kept_a_minute_by_shared_caches_unless_it_is_private(
    private: bool, scope: str, left_ms: int | None
) -> None:
    control = cache_control(below_tail=True, private=private, lifetime_left_ms=left_ms)
    assert control == f"{scope}, max-age=60, stale-while-revalidate=300"


@pytest.mark.parametrize(("left_ms", "secs"), [(59_999, 59), (1500, 1), (999, 0), (0, 0), (-5, 0)])
def test_nothing_is_kept_longer_than_its_stream_lives(left_ms: int, secs: int) -> None:
    control = cache_control(below_tail=True, private=False, lifetime_left_ms=left_ms)
    assert control == f"public, max-age={secs}"
