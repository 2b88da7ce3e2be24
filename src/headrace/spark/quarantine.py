"""The quarantine: a stream for the records that a sink rejects, each with the reason.

They are sent before their batch is committed, under a producer of that batch, so that they are
neither lost nor duplicated when the batch is repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.changes.rejected import Rejected
from headrace.client import Client, ProducerStamp, Settings, Stream
from headrace.errors import BodyTooLarge, StreamFull, StreamNotFound
from headrace.postgres.ledger import Claim
from headrace.spark.streams.append_errors import refusal
from headrace.spark.streams.offset_tracker import StreamProblem

_ROWS_PER_APPEND = 200
_APPEND_BYTES_MAX = 1024 * 1024
_CUT_APPEND_BYTES_MAX = 64 * 1024  # of records that the server does not take whole
_CUT_CHARS_MIN = 512  # a stream's name and an offset stay whole
_JSON_BYTES_PER_CHAR_MAX = 6  # \u0000


@dataclass(frozen=True)
class Quarantine:
    """The stream that rejected records go to."""

    settings: Settings
    stream: str

    def of(self, claim: Claim | None) -> QuarantineBatch:
        """The rejected records of one partition of one batch."""
        return QuarantineBatch(self, claim)


@dataclass
class QuarantineBatch:
    """Collects the rejected records of one partition of one batch, and sends them."""

    _quarantine: Quarantine
    claim: Claim | None  # of the batch, before anything is sent
    _split_off: list[Rejected] = field(default_factory=list)
    sent: int = 0

    def split(self, batch: pa.RecordBatch, reason_column: str) -> pa.RecordBatch:
        """The rows without a reason in `reason_column`; the others are kept to be sent."""
        if not reason_column:
            return batch
        reasons = batch.column(reason_column)
        rest = batch.drop_columns([reason_column])
        if reasons.null_count == len(reasons):
            return rest
        is_bad = pc.is_valid(reasons)
        rows, why = rest.filter(is_bad).to_pylist(), reasons.filter(is_bad).to_pylist()
        self._split_off += [Rejected(row, reason) for row, reason in zip(rows, why, strict=True)]
        return rest.filter(pc.invert(is_bad))

    def send(self, rejected: list[Rejected]) -> None:
        """Append what was split off and what the sink rejected."""
        bad = [*self._split_off, *rejected]
        self.sent = len(bad)
        if not bad:
            return  # a client is made only where it is needed: most batches are good
        with Client(settings=self._quarantine.settings) as client:
            stream = client.stream(self._quarantine.stream)
            try:
                for seq, chunk in enumerate(_chunks(bad)):
                    self._append_chunk(stream, chunk, seq)
            except StreamFull as error:
                raise StreamProblem(refusal(self._quarantine.stream, error)) from error

    def _append_chunk(self, stream: Stream, chunk: list[Rejected], seq: int) -> None:
        try:
            self._append(stream, _array(_record(bad) for bad in chunk), seq)
        except BodyTooLarge:
            # Under the same seq: whichever of the two is stored, the chunk is stored once.
            share = _CUT_APPEND_BYTES_MAX // len(chunk)
            self._append(stream, _array(_cut_record(bad, share) for bad in chunk), seq)

    def _append(self, stream: Stream, body: bytes, seq: int) -> None:
        stamp = None
        if self.claim is not None:
            claim = self.claim
            # With the checkpoint's id: another one counts its batches from 0 again.
            producer = f"quarantine-{claim.writer}-{claim.query}-{claim.partition}"
            stamp = ProducerStamp(producer, claim.batch, seq)
        try:
            stream.append(body, producer=stamp)
        except StreamNotFound:
            stream.create("application/json")
            stream.append(body, producer=stamp)


def _chunks(records: list[Rejected]) -> Iterator[list[Rejected]]:
    """By fixed rules, so that a repeated batch is cut alike."""
    chunk: list[Rejected] = []
    size = 0
    for record in records:
        length = len(_record(record))
        if chunk and (len(chunk) == _ROWS_PER_APPEND or size + length > _APPEND_BYTES_MAX):
            yield chunk
            chunk, size = [], 0
        chunk.append(record)
        size += length
    if chunk:
        yield chunk


def _array(records: Iterable[bytes]) -> bytes:
    return b"[" + b",".join(records) + b"]"


def _cut_record(bad: Rejected, bytes_max: int) -> bytes:
    """A record with its long values truncated; `cut` has their full lengths in bytes."""
    share = bytes_max // _JSON_BYTES_PER_CHAR_MAX // (len(bad.row) + 1)
    chars_max = max(share, _CUT_CHARS_MIN)
    row, lengths = dict(bad.row), {}
    for name, value in bad.row.items():
        text = value if isinstance(value, str) else _json(value).decode()
        if len(text) > chars_max:
            row[name], lengths[name] = text[:chars_max], len(text.encode())
    return _json({"reason": bad.reason[:chars_max], "record": row, "cut": lengths})


def _record(bad: Rejected) -> bytes:
    return _json({"reason": bad.reason, "record": bad.row})


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value, enc_hook=str)  # bytes are base64
