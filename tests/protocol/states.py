"""Streams as values, for tests that need one but no engine."""

from __future__ import annotations

from headrace.protocol.expiry import FOREVER, Lifetime
from headrace.protocol.stream import StreamConfig, StreamState
from headrace.testing.virtual_clock import START_MS


def new_state(content_type: str = "text/plain", lifetime: Lifetime = FOREVER) -> StreamState:
    return StreamState(7, "a/b", StreamConfig(content_type, lifetime), START_MS)
