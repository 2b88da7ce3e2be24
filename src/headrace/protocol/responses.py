"""Outcomes as responses: the one place that knows status codes.

A response carries its own header lines as bytes; what every response of a server carries (date,
security, CORS) is added by the transport.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import orjson

from headrace import errors
from headrace.errors import HeadraceError
from headrace.protocol import framed as framed_body
from headrace.protocol.headers import format_time
from headrace.protocol.json_mode import response_body
from headrace.protocol.offsets import BEGINNING, Position
from headrace.protocol.snapshots import repr_digest
from headrace.protocol.stream import AlreadyClosed, Appended, Repeated, Snapshot, StreamState


class Response:
    """`headers` are complete lines, each ended by CRLF."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, headers: bytes, body: bytes = b"") -> None:
        self.status = status
        self.headers = headers
        self.body = body


REASONS: Final = {
    200: b"OK",
    201: b"Created",
    204: b"No Content",
    304: b"Not Modified",
    307: b"Temporary Redirect",
    308: b"Permanent Redirect",
    400: b"Bad Request",
    401: b"Unauthorized",
    403: b"Forbidden",
    404: b"Not Found",
    405: b"Method Not Allowed",
    408: b"Request Timeout",
    409: b"Conflict",
    410: b"Gone",
    413: b"Content Too Large",
    414: b"URI Too Long",
    421: b"Misdirected Request",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    501: b"Not Implemented",
    503: b"Service Unavailable",
    504: b"Gateway Timeout",
    507: b"Insufficient Storage",
}

OK: Final = 200
CREATED: Final = 201
NO_CONTENT: Final = 204
NOT_MODIFIED: Final = 304
TEMPORARY_REDIRECT: Final = 307
PERMANENT_REDIRECT: Final = 308
WITHOUT_BODY: Final = frozenset({NO_CONTENT, NOT_MODIFIED})


class Problem(NamedTuple):
    status: int
    name: str
    title: str


PROBLEM_TYPE_PREFIX: Final = "urn:headrace:problem:"
PROBLEMS: Final[dict[type[HeadraceError], Problem]] = {
    errors.InvalidRequest: Problem(400, "invalid-request", "Invalid request"),
    errors.InvalidJson: Problem(400, "invalid-json", "Invalid JSON"),
    errors.InvalidOffset: Problem(400, "invalid-offset", "Invalid offset"),
    errors.InvalidName: Problem(400, "invalid-name", "Invalid stream name"),
    errors.MalformedHttp: Problem(400, "malformed-http", "Malformed HTTP"),
    errors.MisdirectedRequest: Problem(421, "misdirected-request", "Misdirected request"),
    errors.CrossOriginRequest: Problem(403, "cross-origin-request", "Cross-origin request"),
    errors.NotAuthenticated: Problem(401, "not-authenticated", "Not authenticated"),
    errors.Forbidden: Problem(403, "forbidden", "Forbidden"),
    errors.StreamNotFound: Problem(404, "stream-not-found", "Stream not found"),
    errors.BucketNotFound: Problem(404, "bucket-not-found", "Bucket not found"),
    errors.BucketExists: Problem(409, "bucket-exists", "Bucket exists"),
    errors.BucketNotEmpty: Problem(409, "bucket-not-empty", "Bucket not empty"),
    errors.RouteNotFound: Problem(404, "not-found", "Not found"),
    errors.StreamDeleted: Problem(410, "stream-deleted", "Stream deleted"),
    errors.OffsetTrimmed: Problem(410, "offset-trimmed", "History trimmed"),
    errors.OffsetBeyondTail: Problem(409, "offset-beyond-tail", "Offset beyond the tail"),
    errors.SnapshotNotFound: Problem(404, "snapshot-not-found", "Snapshot not found"),
    errors.SnapshotInUse: Problem(409, "snapshot-in-use", "Snapshot in use"),
    errors.SnapshotMismatch: Problem(409, "snapshot-mismatch", "Another snapshot"),
    errors.SnapshotTooLarge: Problem(413, "snapshot-too-large", "Snapshot too large"),
    errors.NameTaken: Problem(409, "name-taken", "Name still in use"),
    errors.SourceDeleted: Problem(409, "source-deleted", "Source deleted"),
    errors.ForkTooDeep: Problem(409, "fork-too-deep", "Fork too deep"),
    errors.ConfigurationMismatch: Problem(409, "stream-exists", "Stream exists"),
    errors.StreamClosed: Problem(409, "stream-closed", "Stream closed"),
    errors.ContentTypeMismatch: Problem(409, "content-type-mismatch", "Content type mismatch"),
    errors.SequenceRegression: Problem(409, "sequence-regression", "Sequence regression"),
    errors.ProducerGap: Problem(409, "producer-gap", "Producer sequence gap"),
    errors.TooManyProducers: Problem(409, "too-many-producers", "Too many producers"),
    errors.ProducerFenced: Problem(403, "producer-fenced", "Producer fenced"),
    errors.MethodNotAllowed: Problem(405, "method-not-allowed", "Method not allowed"),
    errors.RequestTimeout: Problem(408, "request-timeout", "Request timeout"),
    errors.BodyTooLarge: Problem(413, "body-too-large", "Body too large"),
    errors.TooManyMessages: Problem(413, "too-many-messages", "Too many messages"),
    errors.StreamFull: Problem(413, "stream-full", "Stream full"),
    errors.MemoryFull: Problem(413, "memory-full", "Memory full"),
    errors.UrlTooLong: Problem(414, "url-too-long", "URL too long"),
    errors.HeadersTooLarge: Problem(431, "headers-too-large", "Headers too large"),
    errors.RateLimited: Problem(429, "rate-limited", "Too many requests"),
    errors.InternalFault: Problem(500, "internal-fault", "Internal fault"),
    errors.AnswerTimeout: Problem(504, "answer-timeout", "No answer in time"),
    errors.StoredBytesDamaged: Problem(500, "stored-bytes-damaged", "Stored bytes damaged"),
    errors.StoredBytesUnreadable: Problem(500, "stored-bytes-unreadable", "Disk unreadable"),
    errors.StreamSetAside: Problem(500, "stream-set-aside", "Stream set aside"),
    errors.DirectoryMismatch: Problem(500, "directory-mismatch", "Directory mismatch"),
    errors.CommitFailed: Problem(500, "commit-failed", "Commit failed"),
    errors.CommitDelayed: Problem(500, "commit-delayed", "Commit delayed"),
    errors.InsufficientStorage: Problem(507, "insufficient-storage", "Disk full"),
    errors.StorageFailed: Problem(503, "storage-failed", "Storage failed"),
    errors.StorageReadOnly: Problem(503, "storage-read-only", "Storage read-only"),
    errors.DirectoryLocked: Problem(503, "directory-locked", "Directory in use"),
    errors.UnsupportedTransferCoding: Problem(
        501, "unsupported-transfer-coding", "Unsupported transfer coding"
    ),
    errors.Overloaded: Problem(503, "overloaded", "Overloaded"),
    errors.Draining: Problem(503, "draining", "Shutting down"),
}

_SNAPSHOT_OFFSET: Final = "Stream-Snapshot-Offset"
_NO_STORE: Final = b"Cache-Control: no-store\r\n"
# What anybody may have written is served from the origin of the stream browser: opened as a page
# it runs nothing and is of an origin of its own.
_SANDBOX: Final = b"Content-Security-Policy: sandbox; default-src 'none'\r\n"
_CLOSED: Final = b"Stream-Closed: true\r\n"
_UP_TO_DATE: Final = b"Stream-Up-To-Date: true\r\n"
_NEXT_OFFSET: Final = b"Stream-Next-Offset: %016d_%016d\r\n"
_APPENDED: Final = _NEXT_OFFSET + _NO_STORE
_APPENDED_BY_PRODUCER: Final = _APPENDED + b"Producer-Epoch: %d\r\nProducer-Seq: %d\r\n"


def line(name: str, value: str) -> bytes:
    return f"{name}: {value}\r\n".encode("latin-1")


def append_answer(outcome: Appended | Repeated | AlreadyClosed | HeadraceError) -> Response:
    if type(outcome) is Appended:
        producer, end = outcome.producer, outcome.end
        if producer is None:
            headers, status = _APPENDED % end, NO_CONTENT
        else:
            facts = (end.messages, end.bytes, producer.epoch, producer.seq)
            headers = _APPENDED_BY_PRODUCER % facts
            status = OK if outcome.data else NO_CONTENT
        return Response(status, headers + _CLOSED if outcome.closes else headers)
    if isinstance(outcome, Repeated):
        return _repeated(outcome)
    if isinstance(outcome, AlreadyClosed):
        return Response(NO_CONTENT, _APPENDED % outcome.tail + _CLOSED)
    assert isinstance(outcome, HeadraceError)
    return problem(outcome)


def _repeated(outcome: Repeated) -> Response:
    repeat = outcome.repeat
    headers = b"Producer-Epoch: %d\r\nProducer-Seq: %d\r\n" % (repeat.epoch, repeat.last_seq)
    if repeat.receipt is not None:
        headers += _NEXT_OFFSET % repeat.receipt
    if outcome.closed:
        headers += _CLOSED
    return Response(NO_CONTENT, headers + _NO_STORE)


def stream_put(
    content_type: str, tail: Position, *, closed: bool, location: str | None
) -> Response:
    """Created when a location is given, confirmed when not."""
    headers = line("Content-Type", content_type) + _APPENDED % tail
    if closed:
        headers += _CLOSED
    if location is None:
        return Response(OK, headers)
    return Response(CREATED, headers + line("Location", location))


def deleted() -> Response:
    return Response(NO_CONTENT, _NO_STORE)


def metadata(
    state: StreamState, tail: Position, *, closed: bool, snapshot: Snapshot | None = None
) -> Response:
    """HEAD: content type, tail and closure of a stream."""
    headers = line("Content-Type", state.config.content_type) + _APPENDED % tail
    lifetime = state.config.lifetime
    if lifetime.ttl_secs is not None:
        headers += line("Stream-TTL", str(lifetime.ttl_secs))
    if lifetime.expires_at_ms is not None:
        headers += line("Stream-Expires-At", format_time(lifetime.expires_at_ms))
    if closed:
        headers += _CLOSED
    if snapshot is not None:
        headers += line(_SNAPSHOT_OFFSET, snapshot.offset.token())
    return Response(OK, headers)


def snapshot_published(snapshot: Snapshot) -> Response:
    return Response(NO_CONTENT, _snapshot_lines(snapshot))


def snapshot(snapshot: Snapshot, *, up_to_date: bool) -> Response:
    """The head of a snapshot; its bytes follow."""
    headers = line("Content-Type", snapshot.content_type) + _snapshot_lines(snapshot)
    return Response(OK, headers + _SANDBOX + _up_to_date(up_to_date))


def _snapshot_lines(snapshot: Snapshot) -> bytes:
    return (
        line(_SNAPSHOT_OFFSET, snapshot.offset.token())
        + line("Repr-Digest", repr_digest(snapshot))
        + _APPENDED % snapshot.offset
    )


def _up_to_date(value: bool) -> bytes:
    return _UP_TO_DATE if value else b"Stream-Up-To-Date: false\r\n"


def redirect(location: str, offset: Position) -> Response:
    headers = line("Location", location) + line(_SNAPSHOT_OFFSET, offset.token()) + _NO_STORE
    return Response(TEMPORARY_REDIRECT, headers)


def bootstrap(
    content_type: str, snapshot_offset: Position | None, tail: Position, *, closed: bool
) -> Response:
    """The head of a bootstrap, which ends at the tail it was begun at."""
    offset = BEGINNING if snapshot_offset is None else snapshot_offset.token()
    headers = line("Content-Type", content_type) + line(_SNAPSHOT_OFFSET, offset)
    headers += _APPENDED % tail + _UP_TO_DATE
    return Response(OK, headers + _CLOSED if closed else headers)


def read(
    state: StreamState,
    next_offset: Position,
    data: bytes,
    *,
    etag: str | None,
    cache_control: str,
    up_to_date: bool,
    closed: bool,
    cursor: int | None = None,
    frame: bytes | None = None,
) -> Response:
    """A range of a stream; `etag` None marks an answer that names no fixed range.

    `frame` is the body of a reader that asked for it framed.
    """
    headers = (
        _identity(state, framed=frame is not None)
        + _NEXT_OFFSET % next_offset
        + _SANDBOX
        + line("Cache-Control", cache_control)
    )
    if etag is not None:
        headers += line("ETag", etag)
    headers += _position_flags(up_to_date=up_to_date, closed=closed, cursor=cursor)
    if frame is not None:
        return Response(OK, headers, frame)
    return Response(OK, headers, response_body(data) if state.is_json else data)


def _identity(state: StreamState, *, framed: bool) -> bytes:
    """What the body is; of a framed one also which stream it is from."""
    content_type = state.config.content_type
    if not framed:
        return line("Content-Type", content_type)
    return (
        line("Content-Type", framed_body.MEDIA_TYPE)
        + line("Stream-Content-Type", content_type)
        + line("Stream-Created-At-Ms", str(state.created_at_ms))
    )


def _position_flags(*, up_to_date: bool, closed: bool, cursor: int | None) -> bytes:
    flags = _UP_TO_DATE if up_to_date else b""
    if closed:
        flags += _CLOSED
    if cursor is not None:
        flags += b"Stream-Cursor: %d\r\n" % cursor
    return flags


def not_modified(response: Response) -> Response:
    """The same answer to a client that holds it already."""
    return Response(NOT_MODIFIED, response.headers)


def moved(location: str) -> Response:
    """This resource has another address, for good."""
    headers = line("Location", location) + line("Cache-Control", "no-cache")
    return Response(PERMANENT_REDIRECT, headers)


def see_elsewhere(location: str, *, vary: str) -> Response:
    """For now, and for requests like this one, the answer is at another address."""
    headers = line("Location", location) + line("Vary", vary) + line("Cache-Control", "no-cache")
    return Response(TEMPORARY_REDIRECT, headers)


def nothing_new(tail: Position, *, closed: bool, cursor: int | None) -> Response:
    """Long-poll: the wait ended without data."""
    flags = _position_flags(up_to_date=True, closed=closed, cursor=cursor)
    return Response(NO_CONTENT, _APPENDED % tail + flags)


def event_stream(state: StreamState) -> Response:
    """SSE: the head of an answer whose body follows as events."""
    headers = (
        b"Content-Type: text/event-stream\r\nCache-Control: no-cache\r\nX-Accel-Buffering: no\r\n"
    )
    if not state.is_text:
        headers += b"Stream-SSE-Data-Encoding: base64\r\n"
    return Response(OK, headers)


def json_document(status: int, value: Any, content_type: str = "application/json") -> Response:
    return json_text(status, orjson.dumps(value), content_type)


def json_text(status: int, text: bytes, content_type: str = "application/json") -> Response:
    """A document that is JSON already."""
    return Response(status, line("Content-Type", content_type) + _NO_STORE, text)


def problem(error: HeadraceError) -> Response:
    """An error as an RFC 9457 problem document."""
    status, name, title = PROBLEMS[type(error)]
    document = {
        "type": PROBLEM_TYPE_PREFIX + name,
        "title": title,
        "status": status,
        "detail": error.detail,
        **error.facts(),
    }
    headers = b"Content-Type: application/problem+json\r\n" + _NO_STORE + _error_headers(error)
    return Response(status, headers, orjson.dumps(document))


def _error_headers(error: HeadraceError) -> bytes:
    match error:
        case errors.StreamClosed(next_offset=next_offset):
            return line("Stream-Next-Offset", next_offset) + _CLOSED
        case errors.OffsetTrimmed(earliest_offset=earliest):
            return line("Stream-Next-Offset", earliest)
        case errors.ProducerFenced(current_epoch=epoch):
            return line("Producer-Epoch", str(epoch))
        case errors.ProducerGap(expected_seq=expected, received_seq=received):
            return line("Producer-Expected-Seq", str(expected)) + line(
                "Producer-Received-Seq", str(received)
            )
        case errors.NotAuthenticated():
            return line("WWW-Authenticate", "Bearer")
        case errors.MethodNotAllowed(allow=allow):
            return line("Allow", allow)
        case errors.Unavailable():
            return line("Retry-After", str(error.retry_after_secs))
    return b""
