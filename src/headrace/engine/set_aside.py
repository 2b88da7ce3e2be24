"""Streams that a start could not recover: set aside, so that the rest is served.

What is stored of them is left alone, and so is what they need: the source of such a fork is kept
whole, its snapshot stays. Their names stay taken, and requests for them answer 500 with the reason.
A fork of a stream that is set aside is set aside with it.

Documents that cannot be decoded are listed here as well. What that costs is for their owners to
decide: a subscription, or what is known of one window.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from headrace.engine.expiry_queue import ExpiryQueue
from headrace.engine.stored_bytes import StoredBytes
from headrace.engine.stream_runtime import Stream
from headrace.errors import HeadraceError, StreamSetAside
from headrace.protocol.buckets import stream_name
from headrace.protocol.stream import Snapshot
from headrace.storage.base import Orphaned, Unrecovered, reason_of

logger = logging.getLogger(__name__)


class SetAside:
    def __init__(
        self, streams: dict[str, Stream], expiring: ExpiryQueue, stored: StoredBytes
    ) -> None:
        self._streams = streams
        self._expiring = expiring
        self._stored = stored
        self._reasons: dict[str, str] = {}
        self.ids: set[int] = set()
        self.blob_ids: set[int] = set()
        self.has_unknown_blobs = False
        self.documents: dict[str, str] = {}
        """Documents that could not be decoded, and why."""

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, name: object) -> bool:
        return name in self._reasons

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Names and reasons."""
        return iter(self._reasons.items())

    def check(self, name: str) -> None:
        """Raises StreamSetAside if the stream of that name is."""
        if name in self._reasons:
            raise StreamSetAside(name, self._reasons[name])

    def is_any_in(self, bucket_id: str) -> bool:
        prefix = stream_name(bucket_id, "")
        return any(name.startswith(prefix) for name in self._reasons)

    # -- at the start ----------------------------------------------------------------------

    def attempt(self, stream: Stream, step: Callable[[Stream], None]) -> None:
        """Do something for a stream that was recovered; one that cannot take it is set aside."""
        try:
            step(stream)
        except (MemoryError, OSError):
            raise
        except Exception as error:
            self.take_out(stream, error)

    def take_out(self, stream: Stream, error: Exception) -> None:
        """Set a stream aside that was recovered, and all that was forked from it."""
        if stream.state.id in self.ids:
            return
        # Its needs cannot be known any more, so its source gives up nothing.
        if stream.source is not None:
            stream.source.keep_for(stream)
        pending = [(stream, error)]
        while pending:
            leaving, why = pending.pop()
            self._take_out(leaving)
            self._note(leaving.state.id, leaving.state.name, why)
            self._keep_blob(leaving.state.snapshot)
            orphaned = Orphaned(f"Its source, {leaving.state.name!r}, is missing or set aside.")
            pending += [(fork, orphaned) for fork in leaving.fork_set or ()]

    def _take_out(self, stream: Stream) -> None:
        name = stream.state.name
        self._expiring.discard(stream)
        if self._streams.get(name) is stream:
            del self._streams[name]
            self._stored.release_stream(stream)

    def leave_out(self, found: Unrecovered, source: Stream | None) -> None:
        """Set a stream aside that storage could not recover, or the engine not take in."""
        if source is not None:
            source.keep_for(None)
        self._note(found.id, found.name, found.error)
        self._keep_blob(found.snapshot)
        self.has_unknown_blobs = self.has_unknown_blobs or not found.is_known

    def leave_out_document(self, name: str, error: Exception) -> str:
        """Note that a document cannot be decoded; the reason, in a sentence."""
        reason = self.documents[name] = reason_of(error)
        logger.error("a stored document cannot be read: %s", reason, extra={"document": name})
        return reason

    def _keep_blob(self, snapshot: Snapshot | None) -> None:
        if snapshot is not None:
            self.blob_ids.add(snapshot.blob_id)

    def _note(self, stream_id: int, name: str, error: Exception) -> None:
        reason = reason_of(error)
        self.ids.add(stream_id)
        if name and name not in self._streams:
            self._reasons[name] = reason
        logger.error(
            "a stream cannot be recovered and is set aside; its stored bytes are kept: %s",
            reason,
            extra={"stream": name or f"{stream_id:016x}"},
            exc_info=None if isinstance(error, HeadraceError | Orphaned) else error,
        )
