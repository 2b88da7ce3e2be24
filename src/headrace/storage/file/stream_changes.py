"""What a checkpoint makes of the frames of one stream: its record, and what is new in its files."""

from __future__ import annotations

from headrace.limits import Limits
from headrace.protocol.offsets import Position
from headrace.protocol.stream import StreamState
from headrace.storage.file.catalog_entries import CatalogEntry, entry_of, sizes_of, state_of
from headrace.storage.file.frames import AppendFrame, RemoveFrame, StreamFrame
from headrace.storage.file.pack_allocator import MessageRun
from headrace.storage.file.replay import apply
from headrace.storage.records import head_after_appends


class StreamChanges:
    """A stream while a checkpoint changes it.

    Most frames are appends without a producer, and change a few fields of its record. At the first
    of another kind it is restored, and from then on its record is made of `_state`.
    """

    __slots__ = (
        "_closes", "_data", "_last", "_lengths", "_limits", "_start", "_state", "_stream_seq",
        "entry", "is_gone", "sizes",
    )  # fmt: skip

    def __init__(self, entry: CatalogEntry, limits: Limits) -> None:
        self.entry = entry
        self.sizes = sizes_of(entry)
        self.is_gone = False
        self._limits = limits
        self._state: StreamState | None = None
        self._start: tuple[int, int] = (0, 0)
        self._lengths: list[int] = []
        self._data: list[bytes] = []
        self._last: AppendFrame | None = None
        self._stream_seq: bytes | None = None
        self._closes = False

    def apply(self, frame: StreamFrame) -> None:
        if isinstance(frame, AppendFrame):
            self._add(frame)
            # Not once the state was restored: from then on the record is made of it, and an append
            # that went past it would be missing.
            if frame.producer is None and self._state is None:
                self._last = frame
                if frame.stream_seq is not None:
                    self._stream_seq = frame.stream_seq
                self._closes = self._closes or frame.closes
                return
        elif isinstance(frame, RemoveFrame):
            self.is_gone = frame.whole
        apply(self._restored(), frame, self._limits)

    def _add(self, frame: AppendFrame) -> None:
        if frame.data:
            if not self._data:
                self._start = frame.start
            self._lengths += frame.lengths
            self._data.append(frame.data)

    def _restored(self) -> StreamState:
        if self._state is None:
            self._note_appends()
            self._state = state_of(self.entry)
        return self._state

    def _note_appends(self) -> None:
        last = self._last
        if last is not None:
            assert self.entry.head is not None, "a stream that exists has a head"
            end = (last.start[0] + len(last.lengths), last.start[1] + len(last.data))
            self.entry.head = head_after_appends(
                self.entry.head, end, last.now_ms, self._stream_seq, closes=self._closes
            )

    @property
    def last_id(self) -> int:
        """The highest id that its frames can have brought: its own, or that of its snapshot."""
        snapshot = None if self._state is None else self._state.snapshot
        return self.entry.id if snapshot is None else max(self.entry.id, snapshot.blob_id)

    def take_run(self) -> MessageRun | None:
        """Once every frame is applied: what is new, and `entry` says what became of the stream."""
        if self._state is None:
            self._note_appends()
        else:
            self.entry = entry_of(self._state, self.sizes)
        if not self._data:
            return None
        return MessageRun(Position(*self._start), self._lengths, b"".join(self._data))
