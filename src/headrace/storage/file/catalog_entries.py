"""The entries of the catalog: the records of streams and documents, and which log counts."""

from __future__ import annotations

import msgspec

from headrace.protocol.stream import StreamState
from headrace.storage.file.stream_files import Sizes
from headrace.storage.records import (
    HeadRecord,
    ProducerRecords,
    StreamRecord,
    head_of,
    producer_records,
    restore_producers,
    restore_state,
    stream_record,
)


class CatalogEntry(msgspec.Struct, array_like=True, tag=1):
    """One stream; `stream` None says that it is gone."""

    id: int
    stream: StreamRecord | None
    head: HeadRecord | None = None
    producers: ProducerRecords = []
    blocks: int = 0
    lengths_bytes: int = 0
    first_block: int = 0
    packed: bytes = b""

    @property
    def base_bytes(self) -> int:
        """Where the stream's own bytes begin."""
        assert self.stream is not None, "a stream that exists has a record"
        return 0 if self.stream.fork is None else self.stream.fork.point[1]


class DocumentEntry(msgspec.Struct, array_like=True, tag=2):
    """One document; `value` None says that it is gone."""

    name: str
    value: bytes | None


class Current(msgspec.Struct, array_like=True):
    format: int
    log: int
    log_bytes: int
    applied_lsn: int
    last_id: int = 0  # the highest id used up to that frame, of streams that are gone, too


AnyEntry = CatalogEntry | DocumentEntry
decode_entry = msgspec.msgpack.Decoder(AnyEntry).decode


def entry_of(state: StreamState, sizes: Sizes) -> CatalogEntry:
    return CatalogEntry(
        state.id,
        stream_record(state),
        head_of(state),
        producer_records(state),
        sizes.blocks,
        sizes.lengths_bytes,
        sizes.first_block,
        sizes.packed,
    )


def note_sizes(entry: CatalogEntry, sizes: Sizes) -> None:
    entry.blocks, entry.lengths_bytes, entry.first_block, entry.packed = sizes


def sizes_of(entry: CatalogEntry) -> Sizes:
    return Sizes(entry.blocks, entry.lengths_bytes, entry.first_block, entry.packed)


def state_of(entry: CatalogEntry) -> StreamState:
    assert entry.stream is not None, "a stream that exists has a record"
    assert entry.head is not None, "and has a head"
    state = restore_state(entry.id, entry.stream, entry.head)
    restore_producers(state, entry.producers)
    return state
