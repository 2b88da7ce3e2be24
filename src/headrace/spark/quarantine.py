"""Records that cannot go where they should: kept in a stream, with the reason.

Sent before the batch they came in is committed, under a producer of that batch, so that they are
neither lost nor doubled when the batch comes again.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.client import Client, ProducerStamp, Settings, Stream
from headrace.errors import StreamNotFound
from headrace.postgres.ledger import Claim
from headrace.postgres.sink import Rejected

_ROWS_PER_APPEND = 200
_APPEND_BYTES_MAX = 1024 * 1024


@dataclass(frozen=True)
class Quarantine:
    """The stream bad records go to."""

    settings: Settings
    stream: str

    def of(self, claim: Claim | None) -> Aside:
        """What is set aside of one partition of one batch."""
        return Aside(self, claim)


@dataclass
class Aside:
    _quarantine: Quarantine
    _claim: Claim | None
    _sifted: list[Rejected] = field(default_factory=list)
    sent: int = 0

    def sift(self, batch: pa.RecordBatch, reason_column: str) -> pa.RecordBatch:
        """The rows without a reason against them; the others are remembered."""
        if not reason_column:
            return batch
        reasons = batch.column(reason_column)
        rest = batch.drop_columns([reason_column])
        if reasons.null_count == len(reasons):
            return rest
        is_bad = pc.is_valid(reasons)
        rows, why = rest.filter(is_bad).to_pylist(), reasons.filter(is_bad).to_pylist()
        self._sifted += [Rejected(row, reason) for row, reason in zip(rows, why, strict=True)]
        return rest.filter(pc.invert(is_bad))

    def send(self, rejected: list[Rejected]) -> None:
        """Append what was sifted and what Postgres refused."""
        records = [_record(bad) for bad in (*self._sifted, *rejected)]
        self.sent = len(records)
        if not records:
            return  # a client is made only where it is needed: most batches are good
        with Client(settings=self._quarantine.settings) as client:
            stream = client.stream(self._quarantine.stream)
            for seq, chunk in enumerate(_chunks(records)):
                self._append(stream, b"[" + b",".join(chunk) + b"]", seq)

    def _append(self, stream: Stream, body: bytes, seq: int) -> None:
        stamp = None
        if self._claim is not None:
            claim = self._claim
            # With the checkpoint's id: another one counts its batches from 0 again.
            producer = f"quarantine-{claim.writer}-{claim.query}-{claim.partition}"
            stamp = ProducerStamp(producer, claim.batch, seq)
        try:
            stream.append(body, producer=stamp)
        except StreamNotFound:
            stream.create("application/json")
            stream.append(body, producer=stamp)


def _chunks(records: list[bytes]) -> Iterator[list[bytes]]:
    """By fixed rules, so that a batch that comes again is cut alike."""
    chunk: list[bytes] = []
    size = 0
    for record in records:
        if chunk and (len(chunk) == _ROWS_PER_APPEND or size + len(record) > _APPEND_BYTES_MAX):
            yield chunk
            chunk, size = [], 0
        chunk.append(record)
        size += len(record)
    if chunk:
        yield chunk


def _record(bad: Rejected) -> bytes:
    return msgspec.json.encode({"reason": bad.reason, "record": bad.row}, enc_hook=_plain)


def _plain(value: Any) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
