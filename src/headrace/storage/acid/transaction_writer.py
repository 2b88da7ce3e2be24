"""Turns one batch of changes into the puts and deletes of one LMDB transaction."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from headrace.protocol.offsets import Position
from headrace.protocol.producers import ProducerHeaders
from headrace.protocol.stream import Appended, StreamState
from headrace.storage.acid import schema
from headrace.storage.base import Adopted, Change, Created, Documents, Reclaimed, Removed
from headrace.storage.records import HeadRecord, encode_head, encode_stream

CHUNK_BYTES_MAX: Final = 256 * 1024  # one value, and so one window of a read
DELETES_PER_TRANSACTION_MAX = 250  # appends of the same batch wait for so many deletes at most
RECEIPT_SLOTS: Final = 256  # the most that limits.producer_receipts may ask for


class StreamChange(NamedTuple):
    """One change, and where it left its stream: by the time it is written, that has gone on."""

    state: StreamState
    change: Change
    head: HeadRecord


class TrimJob(NamedTuple):
    """Chunks of a stream that end at or before a byte and are to go, as many at once as is good."""

    stream_id: int
    before: int


class PurgeJob(NamedTuple):
    """Everything of a stream that is gone, as much at once as is good."""

    stream_id: int


class ReservedId(NamedTuple):
    """An id up to which all were used elsewhere."""

    id: int


DeleteBacklog = deque[TrimJob | PurgeJob]
Work = StreamChange | Documents | ReservedId


class TransactionWriter:
    """Puts one batch into one transaction."""

    def __init__(
        self, transaction: Any, databases: dict[bytes, Any], backlog: DeleteBacklog
    ) -> None:
        self._transaction = transaction
        self._databases = databases
        self._pieces: dict[int, list[Appended]] = {}
        self._gone: set[int] = set()
        self._backlog = backlog
        self._deletes_left = DELETES_PER_TRANSACTION_MAX

    def write(self, batch: list[Work]) -> None:
        """All of the batch, and some of the backlog: what is to go waits for others' turns."""
        heads: dict[int, HeadRecord] = {}
        for work in batch:
            if isinstance(work, ReservedId):
                continue
            if not isinstance(work, StreamChange):
                self._put_documents(work)
                continue
            state, change = work.state, work.change
            # The last one wins: one put for each stream, however many appends a batch has of it.
            heads[state.id] = work.head
            if isinstance(change, Appended):
                self._append(state, change)
            elif isinstance(change, Created):
                self._finish_purge_of(state.id)
                self._put(b"streams", schema.stream_key(state.id), encode_stream(state))
                self._append(state, change.initial)
            elif isinstance(change, Reclaimed):
                self._flush(state.id)
                self._backlog.append(TrimJob(state.id, change.retained_from.bytes))
            elif isinstance(change, Adopted):
                self._adopt_producers(state)
            elif isinstance(change, Removed) and change.whole:
                # What this very batch appended before the delete is in no database yet.
                self._pieces.pop(state.id, None)
                self._remove(state.id)
                self._gone.add(state.id)
        for stream_id in list(self._pieces):
            self._flush(stream_id)
        for stream_id, head in heads.items():
            if stream_id not in self._gone:
                self._put(b"heads", schema.stream_key(stream_id), encode_head(head))
        # A bound on jobs as well: one that finds nothing to delete costs a look-up all the same.
        for _ in range(DELETES_PER_TRANSACTION_MAX):
            if not self._backlog or not self._run_job(self._backlog[0]):
                break
            self._backlog.popleft()

    def _put_documents(self, documents: Documents) -> None:
        for name, value in documents.items():
            key = schema.document_key(name)
            if value is None:
                self._transaction.delete(key, db=self._databases[b"documents"])
            else:
                self._put(b"documents", key, schema.encode_document(name, value))

    def _append(self, state: StreamState, change: Appended) -> None:
        if change.data:
            self._pieces.setdefault(state.id, []).append(change)
        producer = change.producer
        if producer is not None:
            self._put_producer(state.id, producer, [change.end])

    def _put_producer(
        self, stream_id: int, producer: ProducerHeaders, receipts: Sequence[Position]
    ) -> None:
        """`receipts` are those of its last appends, the newest last."""
        key = schema.producer_key(stream_id, producer.id)
        value = schema.encode_producer(producer.id, producer.epoch, producer.seq)
        self._put(b"producers", key, value)
        for seq, end in enumerate(receipts, producer.seq - len(receipts) + 1):
            # A ring: a new receipt overwrites the one of RECEIPT_SLOTS appends before, so that none
            # has to be found and deleted.
            slot = key + bytes((seq % RECEIPT_SLOTS,))
            self._put(b"receipts", slot, schema.encode_receipt(producer.epoch, seq, end))

    def _adopt_producers(self, state: StreamState) -> None:
        for name, producer in (state.producers or {}).items():
            headers = ProducerHeaders(name, producer.epoch, producer.seq)
            self._put_producer(state.id, headers, producer.receipts)

    def _flush(self, stream_id: int) -> None:
        """What the batch adds to one stream, as few values of bounded size."""
        pieces = self._pieces.pop(stream_id, [])
        start, lengths, data = None, [], bytearray()
        for piece in pieces:
            offset = 0
            position = piece.start
            for length in piece.lengths:
                # A message is never cut, so a chunk is longer than this if its one message is.
                if start is not None and len(data) + length > CHUNK_BYTES_MAX:
                    self._put_chunk(stream_id, start, lengths, bytes(data))
                    start, lengths, data = None, [], bytearray()
                if start is None:
                    start = position
                lengths.append(length)
                data += piece.data[offset : offset + length]
                offset += length
                position = Position(position.messages + 1, position.bytes + length)
        if start is not None:
            self._put_chunk(stream_id, start, lengths, bytes(data))

    def _put_chunk(self, stream_id: int, start: Position, lengths: list[int], data: bytes) -> None:
        key = schema.data_key(stream_id, start.bytes)
        self._put(b"data", key, schema.encode_chunk(start, lengths, data))

    def _put(self, database: bytes, key: bytes, payload: bytes) -> None:
        self._transaction.put(key, schema.with_checksum(key, payload), db=self._databases[database])

    def _remove(self, stream_id: int) -> None:
        """A stream is gone with this transaction; its data follows at once, if it is little."""
        key = schema.stream_key(stream_id)
        for name in schema.STATE_DATABASES:
            self._transaction.delete(key, db=self._databases[name])
        if not self._purge(stream_id):
            # After a crash, this is what says that there is something to delete.
            self._put(b"removed", key, b"")
            self._backlog.append(PurgeJob(stream_id))

    def _finish_purge_of(self, stream_id: int) -> None:
        """Ids are not used twice. If one were, what is left of the first must not go with it."""
        key, removed = schema.stream_key(stream_id), self._databases[b"removed"]
        if self._backlog and self._transaction.delete(key, db=removed):
            self._backlog.remove(PurgeJob(stream_id))
            room, self._deletes_left = self._deletes_left, sys.maxsize
            self._purge(stream_id)
            self._deletes_left = room

    def _run_job(self, work: TrimJob | PurgeJob) -> bool:
        if isinstance(work, TrimJob):
            return self._trim(work)
        if not self._purge(work.stream_id):
            return False
        key = schema.stream_key(work.stream_id)
        self._transaction.delete(key, db=self._databases[b"removed"])
        return True

    def _trim(self, job: TrimJob) -> bool:
        """Whether all that was to go is gone; if not, there was no room for more."""

        def is_deletable(cursor: Any) -> bool:
            return schema.chunk_end(cursor.key(), cursor.value()) <= job.before

        return self._delete_some(b"data", schema.stream_key(job.stream_id), is_deletable)

    def _purge(self, stream_id: int) -> bool:
        prefix = schema.stream_key(stream_id)
        return all(
            self._delete_some(name, prefix, lambda _: True) for name in schema.CONTENT_DATABASES
        )

    def _delete_some(self, name: bytes, prefix: bytes, is_deletable: Callable[[Any], bool]) -> bool:
        cursor = self._transaction.cursor(self._databases[name])
        found = cursor.set_range(prefix)
        while found and cursor.key().startswith(prefix) and is_deletable(cursor):
            if not self._deletes_left:
                return False
            self._deletes_left -= 1
            found = cursor.delete()
        return True
