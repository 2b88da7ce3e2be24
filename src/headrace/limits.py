"""Bounds that the protocol rules enforce. Each has a unit, a reason and a precedent.

Operators set the ones that appear in `headrace.config`; the rest are constants of the format.
"""

from __future__ import annotations

from dataclasses import dataclass

INTEGER_MAX = 2**53 - 1  # the protocol's own bound: exact in a JavaScript number
STREAM_NAME_BYTES_MAX = 4096  # half of the URL limit; Linux PATH_MAX
PRODUCER_ID_BYTES_MAX = 512  # a UUID is 36; leaves room for composed ids
STREAM_SEQ_BYTES_MAX = 1024  # opaque; a ULID is 26
CONTENT_TYPE_BYTES_MAX = 255  # RFC 6838 allows 127 + 1 + 127
JSON_DEPTH_MAX = 1024  # orjson's own recursion limit
TTL_SECS_MAX = INTEGER_MAX // 1000  # so that milliseconds stay exact


@dataclass(frozen=True, slots=True)
class Limits:
    """What one decision about one stream may use."""

    stream_bytes_max: int = 10 * 1024 * 1024  # the reference server's default
    json_body_bytes_max: int = 16 * 1024 * 1024  # upstream's clients batch up to 14 MiB
    append_messages_max: int = 200_000  # an eighth of a second; 16 MiB of messages of 80 bytes
    producers_max: int = 10_000  # ~200 bytes each: 2 MB per stream at worst
    producer_receipts_max: int = 64  # retries in flight per producer; TypeScript client: 5
    snapshot_bytes_max: int = 16 * 1024 * 1024  # one request body
    fork_depth_max: int = 64  # a read looks for its bytes in so many logs; git packs: 50 deltas
    read_chunk_bytes: int = 1024 * 1024  # one window of memory per catch-up read
    accept_offset_plus_one: bool = False  # y-durable-streams adds one to offsets it was given
