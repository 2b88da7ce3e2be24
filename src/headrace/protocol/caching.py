"""Caching: the identity of one range of a stream, and how long it may be kept."""

from __future__ import annotations

from typing import Final

from headrace.protocol.offsets import Position

NO_STORE: Final = "no-store"
MAX_AGE_SECS: Final = 60
STALE_SECS: Final = 300


def range_etag(stream_id: int, start: Position, end: Position, *, closed: bool) -> str:
    return f'"{stream_id:x}:{start}:{end}{":c" if closed else ""}"'


def matches(if_none_match: bytes | None, etag: str) -> bool:
    """Whether an If-None-Match header names `etag` (weak comparison, as RFC 9110 asks)."""
    if if_none_match is None:
        return False
    wanted = etag.encode()
    candidates = (tag.strip().removeprefix(b"W/") for tag in if_none_match.split(b","))
    return any(tag in (wanted, b"*") for tag in candidates)


def cache_control(*, below_tail: bool, private: bool, lifetime_left_ms: int | None) -> str:
    """A range wholly below the tail never changes; it may be kept while its stream lives."""
    if not below_tail:
        return NO_STORE
    max_age_secs = MAX_AGE_SECS
    if lifetime_left_ms is not None:
        max_age_secs = min(max_age_secs, max(0, lifetime_left_ms // 1000))
    scope = "private" if private else "public"
    if max_age_secs < MAX_AGE_SECS:
        return f"{scope}, max-age={max_age_secs}"
    return f"{scope}, max-age={max_age_secs}, stale-while-revalidate={STALE_SECS}"
