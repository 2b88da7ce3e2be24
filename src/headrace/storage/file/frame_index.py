"""The positions of journal frames by stream, so that a segment is in memory only once."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final

from headrace.storage.file.batch_body import frame_at, frame_offsets, stream_id_at
from headrace.storage.file.frames import DocumentsFrame, Frame

_BODY_SHIFT: Final = 32  # a frame is found by the number of its body, and below it its place there
_PLACE_MASK: Final = (1 << _BODY_SHIFT) - 1


class FrameIndex:
    """Takes the bodies of batches; `applied_lsn` is the last frame it has."""

    def __init__(self, applied_lsn: int) -> None:
        self.applied_lsn = applied_lsn
        self.documents: dict[str, bytes | None] = {}
        self._places: dict[int, array[int]] = {}
        self._bodies: list[bytes] = []

    def __len__(self) -> int:
        """How many streams there are frames of."""
        return len(self._places)

    def add(self, first_lsn: int, body: bytes) -> None:
        """The frames of a body that are not applied yet."""
        number = len(self._bodies) << _BODY_SHIFT
        self._bodies.append(body)
        for lsn, place in enumerate(frame_offsets(body), first_lsn):
            # Otherwise an earlier checkpoint has applied it, and a crash kept the segment from
            # being recycled.
            if lsn > self.applied_lsn:
                self._note(body, place, number | place)
                self.applied_lsn = lsn

    def _note(self, body: bytes, place: int, found_at: int) -> None:
        stream_id = stream_id_at(body, place)
        if stream_id is None:
            frame = frame_at(body, place)
            assert isinstance(frame, DocumentsFrame), "all others belong to a stream"
            self.documents.update(frame.documents)
            return
        places = self._places.get(stream_id)
        if places is None:
            places = self._places[stream_id] = array("Q")
        places.append(found_at)

    @property
    def last_id(self) -> int:
        """The highest id of a stream that there are frames of."""
        return max(self._places, default=0)

    def include(self, stream_id: int) -> None:
        """A stream that is to be listed though there may be no frames of it."""
        if stream_id not in self._places:
            self._places[stream_id] = array("Q")

    def streams(self) -> Iterator[int]:
        """In the order of their first frames: a source comes before its forks."""
        return iter(self._places)

    def places_of(self, stream_id: int) -> array[int]:
        return self._places[stream_id]

    def frame_at(self, found_at: int) -> Frame:
        return frame_at(self._bodies[found_at >> _BODY_SHIFT], found_at & _PLACE_MASK)
