"""Buckets: which identifiers they and their streams may have, and the names both go by inside.

To the engine a stream of a bucket is `/bucket/stream`, and the bucket itself `/bucket`. A name of
the base surface has no empty segment, so the two surfaces never meet.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from headrace.errors import InvalidName, InvalidRequest
from headrace.protocol.names import CONTROL_PREFIX, REGISTRY_NAME, path_of

LISTING: Final = "streams"
STREAM_ID_BYTES_MAX: Final = 122  # the draft's own bound, alone and with the bucket
_BUCKET_ID = re.compile(r"[a-z0-9_-]{4,64}")


def bucket_name(bucket_id: str) -> str:
    return f"/{bucket_id}"


def stream_name(bucket_id: str, stream_id: str) -> str:
    return f"/{bucket_id}/{stream_id}"


def is_bucketed(name: str) -> bool:
    """Whether a name of the engine's is a bucket's or that of a stream in one."""
    return name.startswith("/")


def is_own(name: str) -> bool:
    """Whether a stream is the server's own: the registry, or a bucket itself."""
    return name == REGISTRY_NAME or (is_bucketed(name) and "/" not in name[1:])


def ids_of(name: str) -> tuple[str, str]:
    """Bucket id and stream id behind a name; the stream id of a bucket itself is empty."""
    bucket_id, _, stream_id = name[1:].partition("/")
    return bucket_id, stream_id


def check_bucket_id(bucket_id: str) -> None:
    if _BUCKET_ID.fullmatch(bucket_id) is None or bucket_id.startswith(CONTROL_PREFIX):
        raise InvalidName(
            f"{bucket_id[:64]!r} is not a bucket id: use 4 to 64 of a-z, 0-9, _ and -, not "
            f"starting with {CONTROL_PREFIX}."
        )


def check_stream_id(bucket_id: str, stream_id: str) -> None:
    if not stream_id:
        raise InvalidName("The URL does not name a stream.")
    if "/" in stream_id or "\0" in stream_id or ".." in stream_id:
        raise InvalidName("The id of a stream in a bucket must not contain '/', NUL or '..'.")
    if stream_id == LISTING:
        raise InvalidName(f"The stream id {LISTING!r} is reserved: it lists the bucket.")
    if stream_id.startswith(CONTROL_PREFIX):
        raise InvalidName(
            f"Stream ids that begin with {CONTROL_PREFIX} are reserved. Subscriptions follow "
            "streams of the base surface only."
        )
    # The bucket and its slash count, too, so this is the tighter of the draft's two bounds.
    if len(f"{bucket_id}/{stream_id}".encode()) > STREAM_ID_BYTES_MAX:
        raise InvalidName(
            f"Bucket and stream id together, as bucket/stream, must not exceed "
            f"{STREAM_ID_BYTES_MAX} bytes."
        )


def decode_segment(raw: bytes) -> str:
    """One segment of a URL path; a slash that was percent-encoded is part of it."""
    try:
        return (unquote_to_bytes(raw) if b"%" in raw else raw).decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidName("The URL is not UTF-8 once percent-decoded.") from None


def encode_segment(text: str) -> str:
    # A client that resolves dot segments would take a bare one out of the path.
    return "%2E" if text == "." else quote(text, safe="-._~!$'()*+,:;=@")


def decode_source(value: str, root: str, bucket_id: str) -> str:
    """The name behind a Stream-Forked-From path; forks stay within their bucket."""
    segments = path_of(value).removeprefix(f"{root}/").split("/")
    if not path_of(value).startswith(f"{root}/{bucket_id}/") or len(segments) != 2:
        raise InvalidRequest(
            f"Stream-Forked-From must be a stream of the same bucket, such as "
            f"{root}/{bucket_id}/source."
        )
    stream_id = decode_segment(segments[1].encode("latin-1"))
    check_stream_id(bucket_id, stream_id)
    return stream_name(bucket_id, stream_id)
