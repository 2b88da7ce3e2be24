"""What the operations of the API description share: headers, parameters, schemas, tags."""

from __future__ import annotations

from typing import Any, Final

Schema = dict[str, Any]

TAGS: Final = {
    "streams": "Create, append, read, close and delete streams.",
    "buckets": "Buckets, their listings, and the streams in them.",
    "snapshots": "A snapshot replaces the beginning of a stream in a bucket.",
    "subscriptions": "Workers that are called when streams change.",
    "inspection": "What streams are, besides their messages. Additions of Headrace.",
    "server": "Health, metrics, the stream browser, this description.",
}

_OFFSET: Final[Schema] = {
    "type": "string",
    "description": "An opaque position in a stream.",
    "examples": ["0000000000000002_0000000000000018"],
}
_STRING: Final[Schema] = {"type": "string"}
_FLAG: Final[Schema] = {"type": "string", "enum": ["true", "false"]}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}


def _header(description: str, schema: Schema, *, required: bool = False) -> Schema:
    return {"description": description, "required": required, "schema": schema}


# Headers of responses. Those that are required are in every response that names them.
HEADERS: Final[dict[str, Schema]] = {
    "Stream-Next-Offset": _header("Where to read on.", _OFFSET, required=True),
    "Stream-Closed": _header("`true` if the stream accepts no more appends.", _FLAG),
    "Stream-Up-To-Date": _header("`true` if the response reaches the tail.", _FLAG),
    "Stream-Cursor": _header("Send it back as `cursor` with the next live read.", _STRING),
    "Stream-TTL": _header("Seconds without a read or write until the stream expires.", _STRING),
    "Stream-Expires-At": _header("When the stream expires.", _STRING),
    "Stream-Snapshot-Offset": _header("The offset of the latest snapshot.", _STRING),
    "Stream-SSE-Data-Encoding": _header("`base64` if SSE data is encoded so.", _STRING),
    "Stream-Content-Type": _header("The stream's content type, of a framed body.", _STRING),
    "Stream-Created-At-Ms": _header("When the stream was created.", _STRING),
    "Repr-Digest": _header("SHA-256 of the snapshot (RFC 9530).", _STRING, required=True),
    "Producer-Epoch": _header("The epoch of the producer.", _STRING),
    "Producer-Seq": _header("The last sequence number of the producer.", _STRING),
    "Location": _header("The URL of the resource.", _STRING, required=True),
    "ETag": _header("Identifies this content.", _STRING),
    "Cache-Control": _header("Whether it may be cached.", _STRING),
}


def _parameter(
    name: str, where: str, description: str, schema: Schema = _STRING, *, required: bool = False
) -> Schema:
    return {
        "name": name,
        "in": where,
        "description": description,
        "required": required or where == "path",
        "schema": schema,
    }


def _path(name: str, description: str, **schema: Any) -> Schema:
    return _parameter(name, "path", description, {"type": "string", "minLength": 1, **schema})


def _query(name: str, description: str, **schema: Any) -> Schema:
    return _parameter(name, "query", description, {"type": "string", **schema})


def _field(name: str, description: str, **schema: Any) -> Schema:
    return _parameter(name, "header", description, {"type": "string", **schema})


_INTEGER: Final = {"type": "integer", "minimum": 0, "maximum": 2**53 - 1}

PARAMETERS: Final[dict[str, Schema]] = {
    "name": _path("name", "Name of a stream; it may contain slashes.", maxLength=4096),
    "bucket": _path("bucket", "Id of a bucket.", pattern="^[a-z0-9_-]{4,64}$"),
    "stream": _path("stream", "Id of a stream in a bucket: UTF-8 without slashes.", maxLength=117),
    "snapshot": _path("snapshot", "A Stream-Next-Offset that the stream returned."),
    "subscription": _path("subscription", "Id of a subscription.", maxLength=256),
    "file": _path("file", "A file of the stream browser."),
    "offset": _query("offset", "`-1` for the beginning, `now` for the tail, or an offset."),
    "live": _query("live", "Wait for what is appended.", enum=["long-poll", "sse"]),
    "live_poll": _query("live", "Wait until one of the streams moves.", enum=["long-poll"]),
    "cursor": _query("cursor", "The Stream-Cursor of the previous live response."),
    "until": _query("until", "End at this offset at the latest. Not with `live`."),
    "max_messages": _parameter(
        "max_messages",
        "query",
        "At most so many messages.",
        {
            "type": "integer",
            "minimum": 1,
        },
    ),
    "max_bytes": _parameter(
        "max_bytes",
        "query",
        "At most so many bytes, but one message.",
        {
            "type": "integer",
            "minimum": 1,
        },
    ),
    "format": _query("format", "Each message with its length.", enum=["framed"]),
    "prefix": _query("prefix", "Only ids that begin so."),
    "after": _query("after", "Begin after this id."),
    "limit": _parameter(
        "limit",
        "query",
        "Entries of a page.",
        {
            "type": "integer",
            "minimum": 1,
            "maximum": 1000,
        },
    ),
    "changes_from": _query("changes_from", "Read the feed of the bucket from this offset."),
    "names": _parameter(
        "name",
        "query",
        "A stream to describe; repeat it for more.",
        {
            "type": "array",
            "items": _STRING,
            "minItems": 1,
            "maxItems": 200,
        },
        required=True,
    ),
    "writers_from": _query("writers_from", "With `writers_until`: who wrote what is between."),
    "writers_until": _query("writers_until", "At most 1000 messages after `writers_from`."),
    "Content-Type": _field("Content-Type", "What the stream holds."),
    "Stream-TTL": _field("Stream-TTL", "Seconds without a read or write until it expires."),
    "Stream-Expires-At": _field("Stream-Expires-At", "When it expires (RFC 3339)."),
    "Stream-Closed": _field("Stream-Closed", "`true` closes the stream for good."),
    "Stream-Seq": _field("Stream-Seq", "Must be greater, byte by byte, than any before."),
    "Stream-Forked-From": _field("Stream-Forked-From", "Path of the stream to fork."),
    "Stream-Fork-Offset": _field("Stream-Fork-Offset", "Where to fork; the tail by default."),
    "Stream-Fork-Sub-Offset": _field("Stream-Fork-Sub-Offset", "Messages or bytes further."),
    "Stream-Snapshot-Match": _field(
        "Stream-Snapshot-Match", "Offset or digest of the snapshot to replace; `-1` for none."
    ),
    "Producer-Id": _field("Producer-Id", "With epoch and sequence: append exactly once."),
    "Producer-Epoch": _parameter("Producer-Epoch", "header", "A new one fences.", _INTEGER),
    "Producer-Seq": _parameter("Producer-Seq", "header", "From 0, without gaps.", _INTEGER),
    "If-None-Match": _field("If-None-Match", "The ETag that the client has."),
}


def _object(required: str, **properties: Schema) -> Schema:
    """An object that may have other members: the server may get new ones."""
    return {"type": "object", "required": required.split(), "properties": properties}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _or_null(schema: Schema) -> Schema:
    return {"oneOf": [schema, {"type": "null"}]}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


SCHEMAS: Final[dict[str, Schema]] = {
    "Problem": _object(
        "type title status detail",
        type={"type": "string", "pattern": "^urn:headrace:problem:"},
        title=_STRING,
        status={"type": "integer", "minimum": 400, "maximum": 599},
        detail={"type": "string", "description": "What to do, for people."},
        error=_object("code message", code=_STRING, message=_STRING),
    ),
    "Bucket": _object(
        "bucket_id streams created_at_ms", bucket_id=_STRING, streams=_COUNT, created_at_ms=_COUNT
    ),
    "BucketListing": _object(
        "bucket_id prefix stream_count streams next_cursor has_more",
        bucket_id=_STRING,
        prefix=_STRING,
        stream_count=_COUNT,
        streams=_list(ref("ListedStream")),
        next_cursor=_or_null(_STRING),
        has_more={"type": "boolean"},
    ),
    "ListedStream": _object(
        "stream_id status content_type tail_offset next_offset created_at_ms last_write_at_ms",
        stream_id=_STRING,
        status={"type": "string", "enum": ["Open", "Closed"]},
        content_type=_STRING,
        tail_offset=_COUNT,
        next_offset=_OFFSET,
        created_at_ms=_COUNT,
        last_write_at_ms=_COUNT,
    ),
    "StreamChange": _object(
        "stream_id",
        stream_id=_STRING,
        next_offset=_OFFSET,
        created_at_ms=_COUNT,
        closed={"type": "boolean"},
        deleted={"type": "boolean"},
    ),
    "TailQuery": {
        "oneOf": [
            _STRING,
            {
                **_object("stream", stream=_STRING),
                "properties": {
                    "stream": _STRING,
                    "from": _OFFSET,
                    "max_messages": {"type": "integer", "minimum": 1},
                    "max_bytes": {"type": "integer", "minimum": 1},
                },
            },
        ]
    },
    "Trim": {
        "description": "One of `before`, an offset or `now`, and `keep_messages`.",
        **_object("stream", stream=_STRING),
        "properties": {
            "stream": _STRING,
            "before": _STRING,
            "keep_messages": {"type": "integer", "minimum": 1},
        },
    },
    "Trimmed": _object(
        "stream earliest_offset next_offset",
        stream=_STRING,
        earliest_offset=_OFFSET,
        next_offset=_OFFSET,
    ),
    "Tails": _object("streams", streams=_list(ref("Tail"))),
    "Tail": _object(
        "stream",
        stream=_STRING,
        next_offset=_OFFSET,
        earliest_offset=_OFFSET,
        until_offset=_OFFSET,
        content_type=_STRING,
        created_at_ms=_COUNT,
        closed={"type": "boolean"},
        messages=_COUNT,
        bytes=_COUNT,
        problem=_STRING,
        detail=_STRING,
    ),
    "StreamSummary": _object(
        "stream content_type created_at_ms earliest_offset tail_offset closed ttl_secs "
        "expires_at_ms live_readers forked_from fork_count",
        stream=_STRING,
        content_type=_STRING,
        created_at_ms=_COUNT,
        earliest_offset=_OFFSET,
        tail_offset=_OFFSET,
        closed={"type": "boolean"},
        ttl_secs=_or_null(_COUNT),
        expires_at_ms=_or_null(_COUNT),
        live_readers=_COUNT,
        forked_from=_or_null(ref("ForkPoint")),
        fork_count=_COUNT,
    ),
    "ForkPoint": _object("stream offset", stream=_STRING, offset=_OFFSET),
    "StreamSummaries": _object(
        "now_ms streams", now_ms=_COUNT, streams=_list(ref("StreamSummary"))
    ),
    "StreamDescription": {
        "anyOf": [
            {
                "allOf": [
                    ref("StreamSummary"),
                    _object(
                        "now_ms stream_seq producer_count producers forks subscription_count "
                        "subscriptions",
                        now_ms=_COUNT,
                        stream_seq=_or_null(_STRING),
                        producer_count=_COUNT,
                        producers=_list(_object("id epoch seq", id=_STRING)),
                        forks=_list(ref("ForkPoint")),
                        subscription_count=_COUNT,
                        subscriptions=_list(_object("id type status", id=_STRING)),
                    ),
                ]
            },
            _object(
                "stream writers",
                stream=_STRING,
                writers=_list(_object("next_offset id epoch seq", next_offset=_OFFSET)),
            ),
        ]
    },
    "Buckets": _object(
        "buckets bucket_count",
        buckets=_list(_object("bucket_id", bucket_id=_STRING)),
        bucket_count=_COUNT,
    ),
    "SetAside": _object(
        "set_aside set_aside_count",
        set_aside=_list(_object("stream reason", stream=_STRING, reason=_STRING)),
        set_aside_count=_COUNT,
    ),
    "SubscriptionConfig": {
        **_object("type", type={"type": "string", "enum": ["webhook", "pull-wake"]}),
        "properties": {
            "type": {"type": "string", "enum": ["webhook", "pull-wake"]},
            "pattern": _or_null(_STRING),
            "streams": {"type": "array", "items": _STRING, "maxItems": 10_000},
            "webhook": {**_object("url", url=_STRING), "additionalProperties": False},
            "wake_stream": _STRING,
            "lease_ttl_ms": {"type": "integer", "minimum": 1000, "maximum": 600_000},
            "description": _or_null({"type": "string", "maxLength": 4096}),
        },
        "additionalProperties": False,
    },
    "Subscription": _object(
        "id type pattern stream_count webhook wake_stream lease_ttl_ms created_at generation "
        "status",
        id=_STRING,
        type={"type": "string", "enum": ["webhook", "pull-wake"]},
        pattern=_or_null(_STRING),
        stream_count=_COUNT,
        streams=_list(_object("path link_type acked_offset", path=_STRING, acked_offset=_STRING)),
        lease_ttl_ms=_COUNT,
        created_at=_STRING,
        generation=_COUNT,
        status={"type": "string", "enum": ["active", "failed", "degraded"]},
    ),
    "Subscriptions": _object(
        "prefix subscription_count subscriptions next_cursor has_more",
        prefix=_STRING,
        subscription_count=_COUNT,
        subscriptions=_list(ref("Subscription")),
        next_cursor=_or_null(_STRING),
        has_more={"type": "boolean"},
    ),
    "StreamNames": {
        **_object("streams", streams={**_list(_STRING), "minItems": 1, "maxItems": 10_000}),
        "additionalProperties": False,
    },
    "Worker": _object("worker", worker={"type": "string", "minLength": 1, "maxLength": 256}),
    "Wake": _object(
        "wake_id generation token streams lease_ttl_ms",
        wake_id=_STRING,
        generation=_COUNT,
        token=_STRING,
        streams=_list(
            _object("path acked_offset tail_offset has_pending", path=_STRING, tail_offset=_OFFSET)
        ),
        lease_ttl_ms=_COUNT,
    ),
    "Acknowledgement": _object(
        "wake_id generation",
        wake_id=_STRING,
        generation=_COUNT,
        acks=_list(_object("stream offset", stream=_STRING, offset=_OFFSET)),
        done={"type": "boolean"},
    ),
    "Acknowledged": _object("ok", ok={"type": "boolean"}, next_wake={"type": "boolean"}),
    "Keys": _object("keys", keys=_list(_object("kty crv kid x", kid=_STRING, x=_STRING))),
}
