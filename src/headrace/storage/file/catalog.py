"""The catalog: every stream and every document as of one point of the journal.

Theory of operation. A log of records, each the whole state of one stream or document; of each the
last record counts. `catalog/current` is the commit record: which log is in use, how many of its
bytes count, and the LSN up to which they are applied. It is replaced atomically.

    step            on disk afterwards                       a crash before the next step
    `add`           nothing: records are kept in memory      as if nothing was added
    `commit` writes records behind the counted bytes,        void: the next commit overwrites them,
      the log       synced                                   the journal replays from the old LSN
    `commit` and    counted; the journal may be recycled     the new state
      `current`
    compact         a second log with the live records only  void: the next compaction overwrites it
    compact and     the second log is in use                 the old log is left over, and ignored
      `current`

Bytes behind the counted ones are void whatever they are; anything wrong before them is damage, and
stops the start, as there is no other copy. A record's checksum covers its
position, so a record that was left at another place by an earlier use of the file is damage, too.

The log is compacted when more than half of it, and a MiB, is outdated. Of live records only their
positions are in memory, as one number each.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

import google_crc32c
import msgspec

from headrace.errors import DirectoryMismatch, StoredBytesDamaged
from headrace.storage.disk import Disk, DiskFile, is_transient_disk_error, suppress_transient
from headrace.storage.file import atomic_file
from headrace.storage.file.catalog_entries import (
    AnyEntry,
    CatalogEntry,
    Current,
    DocumentEntry,
    decode_entry,
)
from headrace.storage.file.throttle import UNTHROTTLED, Throttle

logger = logging.getLogger(__name__)

DIRECTORY: Final = "catalog"
CURRENT: Final = "catalog/current"
FORMAT: Final = 3
READABLE_FORMATS: Final = (2, 3)  # 2 has no packs
_RECORD = struct.Struct("<II")  # crc, length
_PLACE_SHIFT: Final = 32  # a record's place in the log, and below it its size
_SIZE_MASK: Final = (1 << _PLACE_SHIFT) - 1
STALE_BYTES_MIN: Final = 1024 * 1024
_SYNCED_BYTES: Final = 4 * 1024 * 1024
_WHOLE_SHARE: Final = 8  # to find more than one record in so many, the log is read whole


class CatalogContents(NamedTuple):
    """All that a catalog lists: streams by id, documents by name."""

    streams: dict[int, CatalogEntry]
    documents: dict[str, bytes]


def apply_documents(documents: dict[str, bytes], changes: Mapping[str, bytes | None]) -> None:
    for name, value in changes.items():
        if value is None:
            documents.pop(name, None)
        else:
            documents[name] = value


def _record_crc(position: int, payload: bytes) -> int:
    """The place is covered, too: an older record in the place of a newer one is damage."""
    crc: int = google_crc32c.value(struct.pack("<Q", position) + payload)
    return crc


def _payload(name: str, log: bytes, at: int, position: int) -> bytes:
    """The content of the record at `position` of the log, after checking its checksum."""
    begin = at + _RECORD.size
    if begin > len(log):
        raise StoredBytesDamaged(name, str(position))
    crc, length = _RECORD.unpack_from(log, at)
    payload = log[begin : begin + length]
    if len(payload) != length or _record_crc(position, payload) != crc:
        raise StoredBytesDamaged(name, str(position))
    return payload


def _key(entry: AnyEntry) -> int | str:
    return entry.name if isinstance(entry, DocumentEntry) else entry.id


def _order(key: int | str) -> tuple[bool, int | str]:
    return isinstance(key, str), key


def _is_gone(entry: AnyEntry) -> bool:
    return (entry.value if isinstance(entry, DocumentEntry) else entry.stream) is None


class Catalog:
    def __init__(self, disk: Disk, *, sync: bool = True) -> None:
        self._disk = disk
        self._sync = sync
        # The position and size of each live record, in one number: there are as many as streams.
        self._places: dict[int | str, int] = {}
        self._live_bytes = 0
        self._added: list[bytes] = []
        self._added_bytes = 0
        disk.make_directory(DIRECTORY)
        self.current = self._read_current()

    def _read_current(self) -> Current:
        payload = atomic_file.read(self._disk, CURRENT)
        if payload is None:
            return Current(FORMAT, 1, 0, 0)
        current = msgspec.msgpack.decode(payload, type=Current)
        if current.format not in READABLE_FORMATS:
            raise DirectoryMismatch(self._disk.name, f"format {current.format}", f"format {FORMAT}")
        return current

    def _log_name(self, number: int) -> str:
        return f"{DIRECTORY}/log-{number:016d}"

    def load(self, throttle: Throttle = UNTHROTTLED) -> CatalogContents:
        found = CatalogContents({}, {})
        for position, size, entry in throttle.each(self._entries()):
            self._note(entry, position, size)
            if isinstance(entry, DocumentEntry):
                apply_documents(found.documents, {entry.name: entry.value})
            elif entry.stream is None:
                found.streams.pop(entry.id, None)
            else:
                found.streams[entry.id] = entry
        return found

    def _note(self, entry: AnyEntry, position: int, size: int) -> None:
        """Keep track of where each record is, and how much of the log still counts."""
        key = _key(entry)
        # A key without a record yet subtracts 0.
        self._live_bytes -= self._places.pop(key, 0) & _SIZE_MASK
        if not _is_gone(entry):
            self._places[key] = position << _PLACE_SHIFT | size
            self._live_bytes += size

    def has(self, stream_id: int) -> bool:
        return stream_id in self._places

    @contextmanager
    def lookup(self, count: int) -> Iterator[Callable[[int], CatalogEntry]]:
        """A function that finds records, for about `count` streams, one after the other.

        For many it reads the whole log once, which is faster than a read for each.
        """
        name = self._log_name(self.current.log)
        file = self._disk.open(name) if self.current.log_bytes else None
        log = b""
        # A checkpoint looks each stream up before it adds it, so every place that is asked for is
        # in the log already: what `add` has taken is in memory only, until `commit`.
        if file is not None and count * _WHOLE_SHARE > len(self._places):
            log = self._read_log()

        def find(stream_id: int) -> CatalogEntry:
            position, size = divmod(self._places[stream_id], 1 << _PLACE_SHIFT)
            assert file is not None, "a stream that has a place has a log"
            if log:
                payload = _payload(name, log, position, position)
            else:
                payload = _payload(name, file.read(position, size), 0, position)
            entry = decode_entry(payload)
            assert isinstance(entry, CatalogEntry), "documents have names"
            return entry

        try:
            yield find
        finally:
            if file is not None:
                file.close()

    def _entries(self) -> Iterator[tuple[int, int, AnyEntry]]:
        """Every record, with its place and size."""
        if not self.current.log_bytes:
            return
        name, log = self._log_name(self.current.log), self._read_log()
        position = 0
        while position < self.current.log_bytes:
            payload = _payload(name, log, position, position)
            size = _RECORD.size + len(payload)
            yield position, size, decode_entry(payload)
            position += size

    def _read_log(self) -> bytes:
        file = self._disk.open(self._log_name(self.current.log))
        log = file.read(0, self.current.log_bytes)
        file.close()
        return log

    def add(self, entry: AnyEntry) -> None:
        """A changed stream or document; it counts with the next `commit`."""
        payload = msgspec.msgpack.encode(entry)
        position = self.current.log_bytes + self._added_bytes
        size = _RECORD.size + len(payload)
        self._added += (_RECORD.pack(_record_crc(position, payload), len(payload)), payload)
        self._added_bytes += size
        self._note(entry, position, size)

    def commit(self, applied_lsn: int, last_id: int = 0, throttle: Throttle = UNTHROTTLED) -> None:
        """Append and sync what was added; it counts once `current` says so."""
        last_id = max(last_id, self.current.last_id)
        log, log_bytes = self.current.log, self.current.log_bytes
        # Taken even if the write fails: the checkpoint's next run begins with `discard`, and adds
        # the same entries again.
        data = b"".join(self._added)
        self._added, self._added_bytes = [], 0
        file = self._disk.open(self._log_name(log), create=True)
        try:
            self._write(file, log_bytes, data)
        finally:
            file.close()
        if not log_bytes:  # the file is new: without its directory entry its bytes are lost
            self._disk.sync_directory(DIRECTORY)
        # The commit: before this line a crash leaves the old state, after it the new one.
        self._replace_current(Current(FORMAT, log, log_bytes + len(data), applied_lsn, last_id))
        # After the commit, and a shortage here does not fail it: a disk without room for a second
        # log must still get its journal recycled.
        if self.is_stale:
            try:
                self._compact(throttle)
            except OSError as error:
                if not is_transient_disk_error(error):
                    raise
                # The live records are durable; the next commit compacts.
                logger.warning("the catalog was not compacted: %s", error)

    def discard(self, throttle: Throttle = UNTHROTTLED) -> None:
        """Forget what was added and not committed: only committed records count."""
        self._added, self._added_bytes = [], 0
        self._places, self._live_bytes = {}, 0
        for position, size, entry in throttle.each(self._entries()):
            self._note(entry, position, size)

    def _write(self, file: DiskFile, offset: int, data: bytes) -> None:
        """In pieces: a sync of the journal has to wait for what the disk was given before it."""
        # At least one turn: a log that `current` names has to exist, with or without records.
        for begin in range(0, max(len(data), 1), _SYNCED_BYTES):
            file.write(offset + begin, data[begin : begin + _SYNCED_BYTES])
            if self._sync:
                file.sync()

    @property
    def is_stale(self) -> bool:
        return self.current.log_bytes > 2 * self._live_bytes + STALE_BYTES_MIN

    def _compact(self, throttle: Throttle) -> None:
        """Write a new log with the live records; remove the old one once the new one counts."""
        old = self.current
        data, places = self._live_records(throttle)
        number = old.log + 1
        file = self._disk.open(self._log_name(number), create=True)
        try:
            # A compaction that a crash interrupted may have left a longer file under this number.
            file.truncate(0)
            self._write(file, 0, data)
        except OSError:
            # Half a log holds room that the disk does not have.
            with suppress(OSError):
                self._disk.remove(self._log_name(number))
            raise
        finally:
            file.close()
        self._disk.sync_directory(DIRECTORY)
        self._replace_current(Current(FORMAT, number, len(data), old.applied_lsn, old.last_id))
        self._places = places
        with suppress_transient():
            self._disk.remove(self._log_name(old.log))

    def _live_records(self, throttle: Throttle) -> tuple[bytes, dict[int | str, int]]:
        """The live records, unchanged and in order, with their new positions.

        Streams in the order of their ids: a source has to be there before its forks.
        """
        name, log = self._log_name(self.current.log), self._read_log()
        parts: list[bytes] = []
        places: dict[int | str, int] = {}
        new_position = 0
        for key in throttle.each(sorted(self._places, key=_order)):
            position, size = divmod(self._places[key], 1 << _PLACE_SHIFT)
            payload = _payload(name, log, position, position)
            parts += (_RECORD.pack(_record_crc(new_position, payload), len(payload)), payload)
            places[key] = new_position << _PLACE_SHIFT | size
            new_position += size
        return b"".join(parts), places

    def _replace_current(self, current: Current) -> None:
        atomic_file.replace(self._disk, CURRENT, msgspec.msgpack.encode(current), sync=self._sync)
        self.current = current
