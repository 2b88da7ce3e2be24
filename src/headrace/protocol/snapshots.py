"""Snapshots: a blob that replaces everything before an offset, and the rules of publishing one.

A stream shows one snapshot, its latest. The snapshot's offset is the stream's trim offset: messages
before it can no longer be read, only the snapshot can.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Final

import msgspec

from headrace.errors import (
    InvalidOffset,
    OffsetBeyondTail,
    OffsetTrimmed,
    Refused,
    SnapshotMismatch,
    SnapshotTooLarge,
)
from headrace.limits import Limits
from headrace.protocol.headers import DEFAULT_CONTENT_TYPE, Headers, parse_content_type
from headrace.protocol.offsets import BEGINNING, NOW, Position, parse_token
from headrace.protocol.stream import Snapshot, StreamState

MATCH_BYTES_MAX: Final = 128


class Publish(msgspec.Struct, frozen=True):
    """PUT: a snapshot of everything before `offset`, if `match` names the one there is."""

    offset: Position
    body: bytes
    content_type: str = DEFAULT_CONTENT_TYPE
    match: str | None = None


def parse_snapshot_offset(text: str) -> Position:
    """The offset in a snapshot's URL: a token, never a sentinel."""
    if text in (BEGINNING, NOW):
        raise InvalidOffset(f"{text} is not a snapshot offset; use a Stream-Next-Offset.")
    return parse_token(text)


def parse_publish(headers: Headers, body: bytes, offset: Position) -> Publish:
    content_type = headers.get(b"content-type")
    match = headers.get(b"stream-snapshot-match")
    return Publish(
        offset,
        body,
        DEFAULT_CONTENT_TYPE if content_type is None else parse_content_type(content_type),
        None if match is None else match[:MATCH_BYTES_MAX].decode("latin-1"),
    )


def decide_publish(state: StreamState, command: Publish, limits: Limits) -> Refused | None:
    """Why this snapshot cannot be, as far as the stream's state can tell; None if it can."""
    if len(command.body) > limits.snapshot_bytes_max:
        return SnapshotTooLarge(limits.snapshot_bytes_max)
    offset = command.offset
    if offset.bytes < state.trim_offset.bytes or offset.messages < state.trim_offset.messages:
        return OffsetTrimmed(state.trim_offset.token())
    if offset.bytes > state.tail.bytes or offset.messages > state.tail.messages:
        return OffsetBeyondTail(offset.token(), state.tail.token())
    if command.match is not None and command.match not in names_of(state.snapshot):
        return SnapshotMismatch(command.match, names_of(state.snapshot)[0])
    return None


def names_of(snapshot: Snapshot | None) -> tuple[str, ...]:
    """What Stream-Snapshot-Match may call a snapshot, or the lack of one."""
    if snapshot is None:
        return (BEGINNING,)
    return (snapshot.offset.token(), repr_digest(snapshot))


def repr_digest(snapshot: Snapshot) -> str:
    """The value of a Repr-Digest header (RFC 9530)."""
    return f"sha-256=:{b64encode(snapshot.digest).decode()}:"


def apply_publish(state: StreamState, snapshot: Snapshot) -> None:
    state.snapshot = snapshot
    state.trim_offset = snapshot.offset
