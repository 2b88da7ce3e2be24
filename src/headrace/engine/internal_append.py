"""Appending to a stream of the server's own: the registry, the feed of a bucket."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.engine.stream_runtime import Stream
from headrace.errors import HeadraceError
from headrace.limits import Limits
from headrace.protocol.json_mode import wire_bytes
from headrace.protocol.offsets import Position
from headrace.protocol.stream import Appended, apply_append
from headrace.storage.base import Change, Storage, Trimmed, committing, ignore


def announce(
    stream: Stream, messages: Sequence[bytes], storage: Storage, now_ms: int, limits: Limits
) -> None:
    """Append JSON messages without waiting for the commit."""
    state = stream.state
    data = wire_bytes(messages) if messages else b""
    end = Position(state.tail.messages + len(messages), state.tail.bytes + len(data))
    lengths = tuple(len(message) + 1 for message in messages)
    change = Appended(state.tail, end, data, lengths, False, None, None)
    with committing(storage):
        apply_append(state, change, now_ms, limits)
        storage.commit(stream.log, change, (stream, change, ignore))


def trim(
    stream: Stream,
    trim_offset: Position,
    storage: Storage,
    reply: Callable[[Change | HeadraceError], None] = ignore,
) -> None:
    """Give up what came before `trim_offset`."""
    change = Trimmed(stream.state, trim_offset)
    with committing(storage):
        stream.state.trim_offset = trim_offset
        storage.commit(stream.log, change, (stream, change, reply))
