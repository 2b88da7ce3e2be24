"""The tails of many streams in one request: what is asked, and what each stream answers.

An addition of this server. A client that follows many streams learns with one request which of
them have more, how much that is, and where a batch of bounded size would end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
import orjson

from headrace.errors import BodyTooLarge, HeadraceError, InvalidRequest, OffsetTrimmed
from headrace.protocol.bounds import parse_bound
from headrace.protocol.buckets import check_bucket_id, check_stream_id, ids_of, is_bucketed
from headrace.protocol.names import check_name
from headrace.protocol.offsets import BEGINNING, NOW, START, Position, parse_token
from headrace.protocol.responses import PROBLEMS
from headrace.protocol.stream import StreamState

STREAMS_MAX: Final = 10_000
# 400 bytes for each of them: 100 of a query, and a name. What is longer takes several requests.
BODY_BYTES_MAX: Final = 4 * 1024 * 1024
QUERY_BYTES_MAX: Final = 16 * 1024
_FIELDS: Final = frozenset({"stream", "from", "max_messages", "max_bytes"})


class TailQuery(msgspec.Struct, frozen=True, gc=False):
    """One stream of a request; `name` is the engine's, `asked` the client's own spelling."""

    asked: str
    name: str
    start: Position | None = None
    messages_max: int | None = None
    bytes_max: int | None = None

    @property
    def seeks(self) -> bool:
        return self.messages_max is not None or self.bytes_max is not None


def engine_name(name: str) -> str:
    """The engine's name of a stream as documents write it: `a/b`, or `/bucket/stream`."""
    if is_bucketed(name):
        bucket_id, stream_id = ids_of(name)
        check_bucket_id(bucket_id)
        check_stream_id(bucket_id, stream_id)
    else:
        check_name(name)
    return name


class _Document(msgspec.Struct):
    """Only the text of each stream is decoded, and no other field."""

    streams: list[msgspec.Raw]


_decode = msgspec.json.Decoder(_Document).decode


def parse_tails(body: bytes) -> list[msgspec.Raw]:
    """The streams that a request asks for, each as `parse_tail_query` takes it."""
    if len(body) > BODY_BYTES_MAX:
        raise BodyTooLarge(BODY_BYTES_MAX)
    try:
        streams = _decode(body).streams
    except msgspec.ValidationError:
        shape = 'The body must be {"streams": [...]}: names, or objects with one.'
        raise InvalidRequest(shape) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"The body is not JSON: {error}.") from None
    if len(streams) > STREAMS_MAX:
        raise InvalidRequest(f"A request may name at most {STREAMS_MAX} streams.")
    return streams


def parse_tail_query(raw: msgspec.Raw, name_of: Callable[[str], str]) -> TailQuery:
    if len(memoryview(raw)) > QUERY_BYTES_MAX:
        raise InvalidRequest(f"An entry of streams is longer than {QUERY_BYTES_MAX} bytes.")
    try:
        value = orjson.loads(memoryview(raw))
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"The body is not JSON: {error.msg}.") from None
    if isinstance(value, str):
        return TailQuery(value, name_of(value))
    if not isinstance(value, dict) or not isinstance(value.get("stream"), str):
        raise InvalidRequest('Each entry of streams must be a name or {"stream": name, ...}.')
    unknown = value.keys() - _FIELDS
    if unknown:
        raise InvalidRequest(f"Unknown field {sorted(unknown)[0][:64]!r} in an entry of streams.")
    return TailQuery(
        value["stream"],
        name_of(value["stream"]),
        _parse_from(value.get("from")),
        parse_bound("max_messages", value.get("max_messages")),
        parse_bound("max_bytes", value.get("max_bytes")),
    )


def _parse_from(value: Any) -> Position | None:
    if value is None or value == NOW:
        return None
    if not isinstance(value, str):
        raise InvalidRequest("from must be -1, now, or a Stream-Next-Offset.")
    return START if value == BEGINNING else parse_token(value, "-1, now, or ")


def describe(
    query: TailQuery, state: StreamState, visible: Position, *, closed: bool
) -> dict[str, Any]:
    """Where a stream ends and begins, and how much lies between the client and its tail."""
    start = visible if query.start is None else query.start
    return {
        "stream": query.asked,
        "next_offset": visible.token(),
        "earliest_offset": state.trim_offset.token(),
        "content_type": state.config.content_type,
        "created_at_ms": state.created_at_ms,
        "closed": closed,
        "messages": visible.messages - start.messages,
        "bytes": visible.bytes - start.bytes,
    }


def describe_problem(
    query: TailQuery, error: HeadraceError, state: StreamState | None = None
) -> dict[str, Any]:
    """A stream with a problem, among others without; `state` is its state, if it exists."""
    described: dict[str, Any] = {
        "stream": query.asked,
        "problem": PROBLEMS[type(error)].name,
        "detail": error.detail,
    }
    if state is not None:
        described["created_at_ms"] = state.created_at_ms
    if isinstance(error, OffsetTrimmed):
        described["earliest_offset"] = error.earliest_offset
    return described
