"""Snapshots and bootstrap of one stream: publish, find, read, and begin from the latest."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping

from headrace.engine.engine import Engine
from headrace.engine.range_reads import read_bounded
from headrace.engine.reads import ReadOutcome
from headrace.engine.stream_runtime import Stream
from headrace.errors import (
    HeadraceError,
    InvalidRequest,
    MethodNotAllowed,
    SnapshotInUse,
    SnapshotNotFound,
)
from headrace.http.exchange import Exchange, Request
from headrace.http.handlers.streamed_bodies import PIECE_BYTES, PieceReply, StreamedBodies
from headrace.http.url_schemes import BucketUrls
from headrace.protocol import multipart, responses
from headrace.protocol.bounds import ReadBounds
from headrace.protocol.headers import DEFAULT_CONTENT_TYPE
from headrace.protocol.offsets import Position
from headrace.protocol.requests import parse_query
from headrace.protocol.snapshots import parse_publish, parse_snapshot_offset
from headrace.protocol.stream import Snapshot

Handler = Callable[[Request, Exchange, Stream, Position], None]
MESSAGES_MAX = 4096  # in one piece: tiny messages are mostly delimiters


class SnapshotRoutes:
    def __init__(self, engine: Engine, bodies: StreamedBodies, urls: BucketUrls) -> None:
        self._engine = engine
        self._bodies = bodies
        self._urls = urls
        self._handlers: Mapping[bytes, Handler] = {
            b"GET": self._read,
            b"HEAD": self._read,
            b"PUT": self._publish,
            b"DELETE": self._delete,
        }

    def latest(self, request: Request, exchange: Exchange, stream: Stream) -> None:
        """`.../snapshot`: where the latest one is."""
        request.operation = "snapshot"
        if request.method not in (b"GET", b"HEAD"):
            raise MethodNotAllowed("GET, HEAD, OPTIONS")
        snapshot = stream.visible_snapshot
        if snapshot is None:
            raise SnapshotNotFound(stream.state.name)
        url = f"{self._urls.url(request, stream.state.name)}/snapshot/{snapshot.offset}"
        exchange.respond(responses.redirect(url, snapshot.offset))

    def one(self, request: Request, exchange: Exchange, stream: Stream, offset: str) -> None:
        """`.../snapshot/{offset}`."""
        request.operation = "snapshot"
        handler = self._handlers.get(request.method)
        if handler is None:
            raise MethodNotAllowed("GET, HEAD, PUT, DELETE, OPTIONS")
        handler(request, exchange, stream, parse_snapshot_offset(offset))

    def _publish(
        self, request: Request, exchange: Exchange, stream: Stream, offset: Position
    ) -> None:
        command = parse_publish(request.headers, request.body, offset)

        def told(outcome: Snapshot | HeadraceError) -> None:
            if isinstance(outcome, HeadraceError):
                exchange.respond(responses.problem(outcome))
            else:
                exchange.respond(responses.snapshot_published(outcome))

        self._engine.snapshots.publish(stream, command, told)

    def _read(self, request: Request, exchange: Exchange, stream: Stream, offset: Position) -> None:
        snapshot = stream.visible_snapshot
        if snapshot is None or snapshot.offset != offset:
            raise SnapshotNotFound(stream.state.name)
        head = responses.snapshot(snapshot, up_to_date=stream.visible == offset)
        if request.method == b"HEAD":
            exchange.respond(head)
        else:
            self._engine.touch(stream)
            self._bodies.send(head, SnapshotPieces(self._engine, snapshot), exchange)

    def _delete(
        self, request: Request, exchange: Exchange, stream: Stream, offset: Position
    ) -> None:
        snapshot = stream.visible_snapshot
        if snapshot is None or snapshot.offset != offset:
            raise SnapshotNotFound(stream.state.name)
        raise SnapshotInUse(stream.state.name)

    def bootstrap(self, request: Request, exchange: Exchange, stream: Stream, query: bytes) -> None:
        """`.../bootstrap`: the latest snapshot and everything after it, as of now."""
        request.operation = "bootstrap"
        if request.method not in (b"GET", b"HEAD"):
            raise MethodNotAllowed("GET, HEAD, OPTIONS")
        if "live" in parse_query(query.decode("latin-1")):
            raise InvalidRequest(
                "Bootstrap happens once: follow the stream from its Stream-Next-Offset."
            )
        framing = multipart.Framing(f"headrace-{secrets.token_hex(multipart.BOUNDARY_BYTES)}")
        snapshot = stream.visible_snapshot
        head = responses.bootstrap(
            framing.content_type,
            None if snapshot is None else snapshot.offset,
            stream.visible,
            closed=stream.visible_closed,
        )
        if request.method == b"HEAD":
            exchange.respond(head)
        else:
            self._engine.touch(stream)
            self._bodies.send(head, BootstrapPieces(self._engine, stream, framing), exchange)


class SnapshotPieces:
    """A snapshot's bytes; they stay where they are until `close`, whatever is published."""

    def __init__(self, engine: Engine, snapshot: Snapshot) -> None:
        self._snapshots = engine.snapshots
        self._snapshot = snapshot
        self._at = 0
        self._snapshots.hold(snapshot)

    def next(self, reply: PieceReply) -> None:
        if self._at >= self._snapshot.size_bytes:
            reply(None)
            return
        start = self._at
        self._at += PIECE_BYTES
        self._snapshots.read(self._snapshot, start, PIECE_BYTES, reply)

    def close(self) -> None:
        self._snapshots.release(self._snapshot)


class BootstrapPieces:
    """Snapshot and messages as parts: what was visible when this was made, and nothing else."""

    def __init__(self, engine: Engine, stream: Stream, framing: multipart.Framing) -> None:
        self._engine = engine
        self._stream = stream
        self._framing = framing
        self._held = self._position = engine.reclaimer.hold(stream)
        self._end = stream.visible
        self._separator = framing.next(stream.state.config.content_type)
        snapshot = stream.visible_snapshot
        self._blob = None if snapshot is None else SnapshotPieces(engine, snapshot)
        first_type = DEFAULT_CONTENT_TYPE if snapshot is None else snapshot.content_type
        self._opening: bytes | None = framing.first(first_type)
        self._reading_blob = self._blob is not None
        self._ended = False

    def next(self, reply: PieceReply) -> None:
        if self._opening is not None:
            opening, self._opening = self._opening, None
            reply(opening)
        elif self._reading_blob and self._blob is not None:
            self._blob.next(lambda piece: self._take_blob(piece, reply))
        elif self._position != self._end:
            bounds = ReadBounds(self._end, MESSAGES_MAX, PIECE_BYTES)
            read_bounded(
                self._engine,
                self._stream,
                self._position,
                bounds,
                lambda found: reply(self._take_messages(found)),
            )
        elif not self._ended:
            self._ended = True
            reply(self._framing.end())
        else:
            reply(None)

    def _take_blob(self, piece: bytes | HeadraceError | None, reply: PieceReply) -> None:
        if piece is None:
            self._reading_blob = False
            self.next(reply)
        else:
            reply(piece)

    def _take_messages(self, found: ReadOutcome) -> bytes | HeadraceError:
        if isinstance(found, HeadraceError):
            return found
        self._position = found.end
        trim = 1 if self._stream.state.is_json else 0
        return multipart.parts(self._separator, found.data, found.lengths, trim=trim)

    def close(self) -> None:
        self._engine.reclaimer.release(self._stream, self._held)
        if self._blob is not None:
            self._blob.close()
