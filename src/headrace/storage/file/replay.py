"""Applies a journal frame to a stream's state: the one interpretation of the journal.

Recovery, checkpoints, `headrace verify` and imports apply frames with these two functions. A
frame holds the outcome of a decision and not the command, so nothing is decided again and nothing
can be refused: the same frames lead to the same state under any limits or version.

A checkpoint has a short cut for appends without a producer (`StreamChanges`), which nearly all
frames are; `tests/storage/test_stream_changes.py` compares it with `apply`.

    frame          changes                                   from
    CreateFrame    a new state, at the fork point if a fork  PUT; content comes in `initial`
    AppendFrame    tail, closed, Stream-Seq, producer        POST, close; has its time of the append
    RemoveFrame    deleted (soft if not `whole`)             DELETE, expiry
    TrimFrame      trim offset                               the registry, feeds of buckets
    PublishFrame   snapshot and trim offset                  PUT of a snapshot
    ReclaimFrame   first stored position                     `Reclaimer`
    AdoptFrame     everything                                imports

Appends must be contiguous: each begins where its stream ends. That is the only check here, and it
catches a lost or a repeated frame. A frame that fails it, or any other, sets its stream aside and
leaves the others alone.
"""

from __future__ import annotations

from headrace.limits import Limits
from headrace.protocol.offsets import Position
from headrace.protocol.snapshots import apply_publish
from headrace.protocol.stream import Appended, StreamState, apply_append
from headrace.storage.file.frames import (
    AdoptFrame,
    AppendFrame,
    CreateFrame,
    ReclaimFrame,
    RemoveFrame,
    StreamFrame,
    TrimFrame,
)
from headrace.storage.records import new_state, snapshot_of


class OutOfOrder(Exception):
    """An append that does not begin where its stream ends: a frame before it is missing."""


def created_state(frame: CreateFrame) -> StreamState:
    """A stream as it was when it was created, before its first content."""
    state = new_state(frame.stream_id, frame.stream)
    state.tail = Position(*frame.initial.start)  # START, or the point of a fork
    # Of a fork: where its source began when it was created, and the snapshot that the source had,
    # whose blob they share. Frames of earlier versions have the snapshot only, which says both.
    state.trim_offset = Position(*frame.trim_offset)
    inherited = snapshot_of(frame.snapshot)
    if inherited is not None:
        apply_publish(state, inherited)
    return state


def apply(state: StreamState, frame: StreamFrame, limits: Limits) -> Appended | None:
    """Change `state` as the frame says; returns what an append added. Raises OutOfOrder."""
    if isinstance(frame, AppendFrame):
        change = frame.change()
        if change.start != state.tail:
            raise OutOfOrder(f"it ends at {state.tail}, the next append begins at {change.start}")
        apply_append(state, change, frame.now_ms, limits)
        return change
    if isinstance(frame, RemoveFrame):
        state.deleted = True  # also if whole: the caller then drops the state
    elif isinstance(frame, AdoptFrame):
        frame.restore(state)
    elif isinstance(frame, TrimFrame):
        state.trim_offset = Position(*frame.trim_offset)
    elif isinstance(frame, ReclaimFrame):
        state.retained_from = Position(*frame.retained_from)
    else:
        snapshot = snapshot_of(frame.snapshot)
        assert snapshot is not None, "a frame that publishes has a snapshot"
        apply_publish(state, snapshot)
    return None
