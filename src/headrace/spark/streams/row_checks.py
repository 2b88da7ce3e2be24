"""Checks rows by the server's own rules: which of them it would reject, and why.

A server refuses an append as a whole. Here its rows are checked one by one, so that one bad row
does not hold up the others. Sends nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from headrace.errors import BodyTooLarge, InvalidJson, InvalidName
from headrace.protocol.buckets import check_bucket_id, check_stream_id, ids_of, is_bucketed
from headrace.protocol.headers import JSON, media_type
from headrace.protocol.json_mode import log_form
from headrace.protocol.names import CONTROL_PREFIX, REGISTRY_NAME, check_name, is_reserved
from headrace.spark.streams.chunking import Chunker


class RejectedRow(NamedTuple):
    value: bytes | None
    reason: str


class CheckedRows(NamedTuple):
    """The rows of one append: those the server accepts, and the rejected ones."""

    rows: pa.Array
    refused: list[RejectedRow]


def name_refusal(stream: str | None) -> str | None:
    """Why a stream cannot have this name; None if it can."""
    if not stream:
        return "The row names no stream."
    try:
        if is_bucketed(stream):
            bucket_id, stream_id = ids_of(stream)
            check_bucket_id(bucket_id)
            check_stream_id(bucket_id, stream_id)
        else:
            check_name(stream)
    except InvalidName as error:
        return error.reason
    if is_reserved(stream):
        return f"Stream names that begin with {CONTROL_PREFIX} are reserved."
    return f"{REGISTRY_NAME} is the server's own stream." if stream == REGISTRY_NAME else None


def all_rejected(values: pa.Array, reason: str) -> list[RejectedRow]:
    return [RejectedRow(value, reason) for value in values.to_pylist()]


def by_row(values: pa.Array, refused: list[RejectedRow]) -> list[RejectedRow]:
    """The rejected ones of `values`, in their order. Equal values have the same reason."""
    reasons = dict(refused)
    found = values.to_pylist()
    return [RejectedRow(value, reasons[value]) for value in found if value in reasons]


def check_rows(content_type: str, values: pa.Array, bytes_max: int | None = None) -> CheckedRows:
    """Separate the rows; `bytes_max` is the limit of one body, if the server has reported it."""
    is_json = media_type(content_type) == JSON
    found = values.to_pylist()
    reasons = [_refusal(value, is_json, bytes_max) for value in found]
    takes = pa.array([reason is None for reason in reasons], pa.bool_())
    pairs = zip(found, reasons, strict=True)
    refused = [RejectedRow(value, reason) for value, reason in pairs if reason is not None]
    return CheckedRows(values.filter(takes), refused)


def _refusal(value: bytes | None, is_json: bool, bytes_max: int | None) -> str | None:
    if not value:
        return "The row has no value, so it cannot be a message."
    length = len(value) + 2 * is_json  # an array of one
    if bytes_max is not None and length > bytes_max:
        return (
            f"The message takes {length} bytes, and the server accepts {bytes_max} in one append "
            "(limits.max_body_bytes)."
        )
    return _json_refusal(value) if is_json else None


def _json_refusal(value: bytes) -> str | None:
    # Alone it gives the reason; as the element that it is sent as, it nests one level deeper.
    for body in (value, b"[%b]" % value):
        try:
            log_form(body, len(body))
        except InvalidJson as error:
            return error.reason.replace("The body", "The message", 1)
    return None


def bytes_max_of(error: Exception) -> int | None:
    """How large a body may be, if that is what `error` is about."""
    return error.limit_bytes if isinstance(error, BodyTooLarge) else None


def parts(values: pa.Array, bytes_max: int | None) -> Iterator[pa.Array]:
    """The rows in appends that fit: a server may take less in one than a chunk holds."""
    if bytes_max is None:
        yield values
        return
    chunker = Chunker(max(len(values), 1), bytes_max - 1)  # the first bracket; commas count already
    yield from chunker.add("", values)
    for _, rest in chunker.rest():
        yield rest
