"""The entries of the API description for streams, buckets and snapshots, and for their inspection.

`{root}` and `{buckets}` in a path are the mount points of the two surfaces. A status is listed
where the operation itself can answer with it; what any request may get is listed once, as
`default`. tests/http/test_openapi.py provokes each of them.
"""

from __future__ import annotations

from typing import Final

from headrace.http.openapi.components import ref
from headrace.http.openapi.operation import (
    ANY,
    EVENTS,
    FRAMED,
    Operation,
    Success,
    body_of,
    document_of,
    json_of,
    with_head,
)

_PRODUCER: Final = ("Producer-Id", "Producer-Epoch", "Producer-Seq")
_BOUNDS: Final = ("until", "max_messages", "max_bytes", "format")
_FORK: Final = ("Stream-Forked-From", "Stream-Fork-Offset", "Stream-Fork-Sub-Offset")
_TAIL: Final = ("Stream-Next-Offset", "Stream-Closed", "Cache-Control")
_READ: Final = (
    *("Stream-Up-To-Date", "Stream-Closed", "Stream-Cursor", "ETag", "Cache-Control"),
    *("Stream-SSE-Data-Encoding", "Stream-Content-Type", "Stream-Created-At-Ms"),
)


def _stream_operations(
    path: str, parameters: tuple[str, ...], prefix: str, tag: str, missing: tuple[str, ...]
) -> tuple[Operation, ...]:
    """The operations on one stream; `missing` are the types of a 404."""
    gone = (*missing, "stream-deleted")
    return (
        Operation(
            "put",
            path,
            f"create{prefix}",
            "Create a stream, or confirm that an equal one exists",
            tag,
            {
                200: Success("An equal stream exists.", ("Stream-Next-Offset", "Stream-Closed")),
                201: Success(
                    "It was created.", ("Location", "Stream-Next-Offset", "Stream-Closed")
                ),
            },
            (
                *("invalid-request", "invalid-name", "invalid-json", "invalid-offset", *missing),
                *("stream-exists", "name-taken", "source-deleted", "fork-too-deep"),
                *("content-type-mismatch", "body-too-large", "stream-full", "memory-full"),
            ),
            (
                *(*parameters, "Content-Type", "Stream-TTL", "Stream-Expires-At"),
                *("Stream-Closed", *_FORK),
            ),
            body_of(ANY, required=False),
        ),
        Operation(
            "post",
            path,
            f"append{prefix}",
            "Append, close, or both",
            tag,
            {
                200: Success("New data of a producer was appended.", _TAIL),
                204: Success("It was appended, or a repeat changed nothing.", ("Stream-Closed",)),
            },
            (
                *("invalid-request", "invalid-json", "invalid-name", "producer-fenced", *gone),
                *("stream-closed", "content-type-mismatch", "sequence-regression"),
                *("producer-gap", "too-many-producers", "body-too-large", "too-many-messages"),
                *("stream-full", "memory-full"),
            ),
            (*parameters, "Content-Type", "Stream-Closed", "Stream-Seq", *_PRODUCER),
            body_of(ANY, required=False),
        ),
        Operation(
            "get",
            path,
            f"read{prefix}",
            "Read from an offset, now or live",
            tag,
            {
                200: Success(
                    "Messages: bytes as appended, a JSON array, SSE events, or framed.",
                    _READ,
                    ANY | EVENTS | FRAMED,
                ),
                204: Success("Nothing came while a long-poll waited.", (*_TAIL, "Stream-Cursor")),
                304: Success("The client has this range.", ("ETag",)),
            },
            ("invalid-request", "invalid-offset", "invalid-name", *gone, "offset-trimmed"),
            (*parameters, "offset", "live", "cursor", *_BOUNDS, "If-None-Match"),
        ),
        Operation(
            "head",
            path,
            f"head{prefix}",
            "Content type, tail, closure and expiry",
            tag,
            {
                200: Success(
                    "The stream exists.",
                    (*_TAIL, "Stream-TTL", "Stream-Expires-At", "Stream-Snapshot-Offset"),
                )
            },
            ("invalid-name", *gone),
            parameters,
        ),
        Operation(
            "delete",
            path,
            f"delete{prefix}",
            "Delete a stream",
            tag,
            {204: Success("It was deleted.")},
            ("invalid-name", *gone),
            parameters,
        ),
    )


_STREAM: Final = "{root}/{name}"
_BUCKET: Final = "{buckets}/{bucket}"
_BUCKETED: Final = f"{_BUCKET}/{{stream}}"
_IN_BUCKET: Final = ("bucket", "stream")
_MISSING: Final = ("stream-not-found", "bucket-not-found")
_SNAPSHOT: Final = ("Stream-Snapshot-Offset", "Repr-Digest", "Stream-Next-Offset")

_BUCKETS: Final = (
    Operation(
        "put",
        _BUCKET,
        "createBucket",
        "Create a bucket",
        "buckets",
        {201: Success("It was created.", ("Location",), json_of("Bucket"))},
        ("invalid-name", "bucket-exists"),
        ("bucket",),
    ),
    *with_head(
        document_of(
            _BUCKET,
            "describeBucket",
            "Describe a bucket",
            "buckets",
            "Bucket",
            problems=("invalid-name", "bucket-not-found"),
            parameters=("bucket",),
        )
    ),
    Operation(
        "delete",
        _BUCKET,
        "deleteBucket",
        "Delete an empty bucket",
        "buckets",
        {204: Success("It was deleted.")},
        ("invalid-name", "bucket-not-found", "bucket-not-empty"),
        ("bucket",),
    ),
    *with_head(
        Operation(
            "get",
            f"{_BUCKET}/streams",
            "listBucket",
            "List the streams of a bucket, or read which of them changed",
            "buckets",
            {
                200: Success(
                    "A page of streams; with `changes_from`, changes.",
                    ("Stream-Up-To-Date", "Stream-Cursor"),
                    {
                        "application/json": {
                            "schema": {
                                "oneOf": [
                                    ref("BucketListing"),
                                    {"type": "array", "items": ref("StreamChange")},
                                ]
                            }
                        },
                        **EVENTS,
                    },
                ),
                204: Success("No stream changed while a long-poll waited.", _TAIL),
            },
            (
                *("invalid-request", "invalid-name", "invalid-offset", "bucket-not-found"),
                "offset-trimmed",
            ),
            ("bucket", "prefix", "after", "limit", "changes_from", "live", "cursor"),
        )
    ),
)

_SNAPSHOTS: Final = (
    *with_head(
        Operation(
            "get",
            f"{_BUCKETED}/snapshot",
            "findSnapshot",
            "Where the latest snapshot is",
            "snapshots",
            {307: Success("It is there.", ("Location", "Stream-Snapshot-Offset"))},
            ("invalid-name", *_MISSING, "snapshot-not-found", "stream-deleted"),
            _IN_BUCKET,
        )
    ),
    Operation(
        "put",
        f"{_BUCKETED}/snapshot/{{snapshot}}",
        "publishSnapshot",
        "Publish a snapshot, and trim what it replaces",
        "snapshots",
        {204: Success("It is published.", _SNAPSHOT)},
        (
            *("invalid-request", "invalid-name", "invalid-offset", *_MISSING),
            *("offset-beyond-tail", "snapshot-mismatch", "stream-deleted", "offset-trimmed"),
            "snapshot-too-large",
        ),
        (*_IN_BUCKET, "snapshot", "Content-Type", "Stream-Snapshot-Match"),
        body_of(ANY, required=False),
    ),
    *with_head(
        Operation(
            "get",
            f"{_BUCKETED}/snapshot/{{snapshot}}",
            "readSnapshot",
            "Read a snapshot",
            "snapshots",
            {200: Success("Its bytes.", (*_SNAPSHOT, "Stream-Up-To-Date"), ANY)},
            ("invalid-offset", "invalid-name", *_MISSING, "snapshot-not-found", "stream-deleted"),
            (*_IN_BUCKET, "snapshot"),
        )
    ),
    Operation(
        "delete",
        f"{_BUCKETED}/snapshot/{{snapshot}}",
        "deleteSnapshot",
        "Refused: the latest snapshot is in use, and others are gone",
        "snapshots",
        {},
        (
            *("invalid-offset", "invalid-name", *_MISSING, "snapshot-not-found"),
            *("snapshot-in-use", "stream-deleted"),
        ),
        (*_IN_BUCKET, "snapshot"),
    ),
    *with_head(
        Operation(
            "get",
            f"{_BUCKETED}/bootstrap",
            "bootstrap",
            "The latest snapshot and all messages after it",
            "snapshots",
            {
                200: Success(
                    "Parts: the snapshot, then each message.",
                    ("Stream-Snapshot-Offset", "Stream-Next-Offset", "Stream-Closed"),
                    {"multipart/mixed": {}},
                )
            },
            ("invalid-request", "invalid-name", *_MISSING, "stream-deleted"),
            _IN_BUCKET,
        )
    ),
)

_ADDED: Final = "{root}/__ds"
_INSPECTION: Final = (
    Operation(
        "post",
        f"{_ADDED}/tails",
        "readTails",
        "The tails of many streams, now or once one of them moves",
        "inspection",
        {200: Success("In the order of the request.", (), json_of("Tails"))},
        ("invalid-request", "invalid-name", "invalid-offset"),
        ("live_poll",),
        body_of(
            {
                "application/json": {
                    "schema": {
                        "type": "object",
                        "required": ["streams"],
                        "properties": {
                            "streams": {
                                "type": "array",
                                "items": ref("TailQuery"),
                                "maxItems": 10_000,
                            }
                        },
                    }
                }
            }
        ),
    ),
    Operation(
        "post",
        f"{_ADDED}/trim",
        "trimStream",
        "Delete the beginning of a stream",
        "inspection",
        {200: Success("Where the stream begins and ends.", (), json_of("Trimmed"))},
        (
            *("invalid-request", "invalid-name", "invalid-offset", "stream-not-found"),
            *("stream-deleted", "offset-beyond-tail", "snapshot-in-use", "body-too-large"),
        ),
        (),
        body_of({"application/json": {"schema": ref("Trim")}}),
    ),
    *with_head(
        document_of(
            f"{_ADDED}/streams",
            "describeStreams",
            "Those of the named streams that exist",
            "inspection",
            "StreamSummaries",
            problems=("invalid-request",),
            parameters=("names",),
        )
    ),
    *with_head(
        document_of(
            f"{_ADDED}/streams/{{name}}",
            "describeStream",
            "What a stream is besides its messages, or who wrote some of them",
            "inspection",
            "StreamDescription",
            problems=("invalid-request", "invalid-name", "stream-not-found", "stream-deleted"),
            parameters=("name", "writers_from", "writers_until"),
        )
    ),
    *with_head(
        document_of(
            f"{_ADDED}/buckets",
            "listBuckets",
            "The buckets, at most 10,000",
            "inspection",
            "Buckets",
        )
    ),
    *with_head(
        document_of(
            f"{_ADDED}/buckets/{{bucket}}/{{stream}}",
            "describeBucketStream",
            "What a stream in a bucket is besides its messages",
            "inspection",
            "StreamDescription",
            problems=("invalid-request", "invalid-name", *_MISSING, "stream-deleted"),
            parameters=(*_IN_BUCKET, "writers_from", "writers_until"),
        )
    ),
    *with_head(
        document_of(
            f"{_ADDED}/set-aside",
            "listSetAside",
            "Streams that the last start could not recover",
            "inspection",
            "SetAside",
        )
    ),
)

STREAM_OPERATIONS: Final[tuple[Operation, ...]] = (
    *_stream_operations(_STREAM, ("name",), "Stream", "streams", ("stream-not-found",)),
    *_BUCKETS,
    *_stream_operations(_BUCKETED, _IN_BUCKET, "BucketStream", "buckets", _MISSING),
    *_SNAPSHOTS,
    *_INSPECTION,
)
