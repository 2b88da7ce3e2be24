"""Snapshots: published with the trim offset in one change, kept while a reader holds them, then
removed.

The blob is written by a worker while appends go on, and published by one change that also moves
the trim offset. Everything is decided again when the blob is stored: the stream may have gone, or
another snapshot come first.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

from headrace.engine.reads import Reads
from headrace.engine.reclaim import Reclaimer
from headrace.engine.set_aside import SetAside
from headrace.engine.stored_bytes import StoredBytes
from headrace.engine.stream_runtime import Stream
from headrace.errors import Corrupt, HeadraceError, InvalidOffset, Overloaded, StreamDeleted
from headrace.limits import Limits
from headrace.protocol.offsets import Position
from headrace.protocol.snapshots import Publish, apply_publish, decide_publish
from headrace.protocol.stream import Snapshot
from headrace.storage.base import (
    CHECK_BYTES,
    Change,
    Check,
    CheckResult,
    Published,
    Storage,
    committing,
    ignore,
)
from headrace.storage.blobs import Blobs

logger = logging.getLogger(__name__)

STORING_BYTES_MAX: Final = 64 * 1024 * 1024  # what workers may have in hand

PublishReply = Callable[[Snapshot | HeadraceError], None]


class _PartCheck:
    """Some of the blob of a stream, read again."""

    def __init__(self, blobs: Blobs, stream: str, snapshot: Snapshot, start: int) -> None:
        self._blobs = blobs
        self._stream = stream
        self._snapshot = snapshot
        self._start = start
        self.is_sound = False

    def __call__(self) -> CheckResult:
        snapshot = self._snapshot
        try:
            data = self._blobs.read(snapshot.blob_id, snapshot.size_bytes, self._start, CHECK_BYTES)
        except Corrupt as damage:
            return CheckResult(0, [damage], self._stream)
        self.is_sound = True
        return CheckResult(len(data), [])


class Snapshots:
    def __init__(
        self,
        streams: Mapping[str, Stream],
        aside: SetAside,
        storage: Storage,
        reads: Reads,
        stored: StoredBytes,
        reclaimer: Reclaimer,
        limits: Limits,
        *,
        new_id: Callable[[], int],
        touch: Callable[[Stream], None],
    ) -> None:
        self._streams = streams
        self._aside = aside
        self._storage = storage
        self._reads = reads
        self._stored = stored
        self._reclaimer = reclaimer
        self._limits = limits
        self._new_id = new_id
        self._touch = touch
        # How many streams and readers need each blob.
        self._users: Counter[int] = Counter()
        self._storing_bytes = 0

    def recover(self) -> None:
        """Count the references to each blob; one without any was left by a crash."""
        for stream in self._streams.values():
            if stream.state.deleted:
                stream.visible_snapshot = None
            elif stream.visible_snapshot is not None:
                self._take(stream.visible_snapshot)
        if self._aside.has_unknown_blobs:
            logger.warning("unreferenced snapshots are kept until every stream can be recovered")
            return
        self._storage.blobs.remove_unreferenced(self._users.keys() | self._aside.blob_ids)

    # -- publishing ------------------------------------------------------------------------

    def publish(self, stream: Stream, command: Publish, reply: PublishReply) -> None:
        refusal = decide_publish(stream.state, command, self._limits)
        if refusal is not None:
            self._refuse(stream, refusal, reply)
            return
        if self._storage.refusal is not None:
            raise self._storage.refusal
        if self._storing_bytes > STORING_BYTES_MAX:
            raise Overloaded("bytes of snapshots being stored", STORING_BYTES_MAX)
        # Reserved now, released by `_give_up`: many uploads that wait for the disk at once must not
        # each find the same room.
        self._stored.reserve(len(command.body))

        def aligned(reached: Position | HeadraceError | None) -> None:
            if reached is None:
                where = f"The offset {command.offset} is not a boundary of this stream's messages."
                self._give_up(stream, command, InvalidOffset(where), reply)
            elif isinstance(reached, HeadraceError):
                self._give_up(stream, command, reached, reply)
            else:
                self._store(stream, command, reply)

        self._reads.seek(stream, command.offset, 1, aligned)

    def _store(self, stream: Stream, command: Publish, reply: PublishReply) -> None:
        blob_id = self._new_id()

        def stored(digest: bytes | HeadraceError) -> None:
            # Everything is decided again: while the blob was written the stream may have been
            # deleted, or a later snapshot published. The blob that lost is removed; nothing refers
            # to it.
            self._storing_bytes -= len(command.body)
            if isinstance(digest, HeadraceError):
                self._give_up(stream, command, digest, reply)
                return
            size = len(command.body)
            snapshot = Snapshot(command.offset, command.content_type, size, digest, blob_id)
            refusal = self._refusal_now(stream, command)
            if refusal is None:
                self._publish(stream, snapshot, reply)
            else:
                self._remove(blob_id)
                self._give_up(stream, command, refusal, reply)

        blobs = self._storage.blobs
        self._storing_bytes += len(command.body)
        self._storage.run_in_thread(partial(blobs.write, blob_id, command.body), stored)

    def _refusal_now(self, stream: Stream, command: Publish) -> HeadraceError | None:
        if stream.state.deleted:
            return StreamDeleted(stream.state.name)
        return decide_publish(stream.state, command, self._limits)

    def _publish(self, stream: Stream, snapshot: Snapshot, reply: PublishReply) -> None:
        def told(outcome: Change | HeadraceError) -> None:
            reply(outcome if isinstance(outcome, HeadraceError) else snapshot)

        with committing(self._storage):
            apply_publish(stream.state, snapshot)
            self._touch(stream)
            self._users[snapshot.blob_id] += 1  # its bytes were counted when they were reserved
            change = Published(stream.state, snapshot)
            self._storage.commit(stream.log, change, (stream, change, told))

    def _give_up(
        self, stream: Stream, command: Publish, refusal: HeadraceError, reply: PublishReply
    ) -> None:
        self._stored.release(len(command.body))
        self._refuse(stream, refusal, reply)

    def _refuse(self, stream: Stream, refusal: HeadraceError, reply: PublishReply) -> None:
        self._storage.when_durable(stream.log, lambda: reply(refusal), reply)

    def published(self, stream: Stream, snapshot: Snapshot) -> None:
        """It is durable: readers know it from now on, and what it replaces may go."""
        # Only now: until the change is durable a power cut would bring the replaced snapshot back,
        # and its blob must be there. A reader that holds it keeps it longer.
        replaced, stream.visible_snapshot = stream.visible_snapshot, snapshot
        stream.visible_trim_offset = snapshot.offset
        self.release(replaced)
        self._reclaimer.reclaim(stream)

    # -- references to blobs ----------------------------------------------------------------

    def inherit(self, snapshot: Snapshot | None) -> None:
        """A fork has the snapshot of its source."""
        if snapshot is not None:
            self._take(snapshot)

    def forget(self, stream: Stream) -> None:
        """A stream is gone for clients: a fork that needs its snapshot has taken it, too."""
        gone, stream.visible_snapshot = stream.visible_snapshot, None
        self.release(gone)

    def hold(self, snapshot: Snapshot) -> None:
        """Keep a blob until `release`, whatever is published meanwhile."""
        self._users[snapshot.blob_id] += 1

    def release(self, snapshot: Snapshot | None) -> None:
        if snapshot is None:
            return
        self._users[snapshot.blob_id] -= 1
        if not self._users[snapshot.blob_id]:
            del self._users[snapshot.blob_id]
            self._stored.release(snapshot.size_bytes)
            self._remove(snapshot.blob_id)

    def _take(self, snapshot: Snapshot) -> None:
        if snapshot.blob_id not in self._users:
            self._stored.add(snapshot.size_bytes)
        self._users[snapshot.blob_id] += 1

    def _remove(self, blob_id: int) -> None:
        self._storage.run_in_thread(partial(self._storage.blobs.remove, blob_id), ignore)

    def read(
        self,
        snapshot: Snapshot,
        start: int,
        count: int,
        reply: Callable[[bytes | HeadraceError], None],
    ) -> None:
        """Bytes of a snapshot that is held, from a multiple of the blobs' piece size on."""
        work = partial(
            self._storage.blobs.read, snapshot.blob_id, snapshot.size_bytes, start, count
        )
        self._storage.run_in_thread(work, reply)

    def checks(self) -> Iterator[Check]:
        """One pass over all blobs that streams have, as Storage.checks is over the rest."""
        if not self._storage.blobs.can_rot:
            return
        checked: set[int] = set()  # forks share the blob of their source
        for stream in list(self._streams.values()):
            snapshot = stream.visible_snapshot
            if snapshot is not None and snapshot.blob_id not in checked:
                checked.add(snapshot.blob_id)
                yield from self._checks_of(stream.state.name, snapshot)

    def _checks_of(self, stream: str, snapshot: Snapshot) -> Iterator[Check]:
        self.hold(snapshot)  # a file that goes because it was replaced is not lost
        # An empty blob has a file as well, which may be missing.
        for start in range(0, max(1, snapshot.size_bytes), CHECK_BYTES):
            part = _PartCheck(self._storage.blobs, stream, snapshot, start)
            yield part
            if not part.is_sound:
                break
        self.release(snapshot)
