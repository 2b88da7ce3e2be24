"""Catch-up and long-poll answers: a chunk of a stream with everything a cache must know."""

from __future__ import annotations

from headrace.engine.engine import Engine
from headrace.engine.reads import Chunk
from headrace.engine.stream_runtime import Stream
from headrace.http.exchange import Request
from headrace.protocol import caching, responses
from headrace.protocol import framed as frames
from headrace.protocol.expiry import FOREVER
from headrace.protocol.responses import Response


def is_private(request: Request) -> bool:
    """Whether the answer may differ per client, so that no shared cache may keep it."""
    return b"authorization" in request.headers or b"x-jwt-sub" in request.headers


def chunk_response(
    engine: Engine,
    stream: Stream,
    chunk: Chunk,
    *,
    private: bool,
    cursor: int | None = None,
    framed: bool = False,
) -> Response:
    state = stream.state
    return responses.read(
        state,
        chunk.end,
        chunk.data,
        etag=chunk_etag(stream, chunk),
        cache_control=caching.cache_control(
            below_tail=not chunk.up_to_date,
            private=private,
            lifetime_left_ms=_lifetime_left_ms(engine, stream),
        ),
        up_to_date=chunk.up_to_date,
        closed=chunk.closed,
        cursor=cursor,
        frame=_frame(stream, chunk) if framed else None,
    )


def _frame(stream: Stream, chunk: Chunk) -> bytes:
    separator_bytes = 1 if stream.state.is_json else 0
    return frames.encode(chunk.start, chunk.lengths, separator_bytes, chunk.data)


def chunk_etag(stream: Stream, chunk: Chunk) -> str:
    return caching.range_etag(stream.state.id, chunk.start, chunk.end, closed=chunk.closed)


def tail_response(stream: Stream) -> Response:
    """`offset=now`: no data, and nothing a cache could keep."""
    return responses.read(
        stream.state,
        stream.visible,
        b"",
        etag=None,
        cache_control=caching.NO_STORE,
        up_to_date=True,
        closed=stream.visible_closed,
    )


def _lifetime_left_ms(engine: Engine, stream: Stream) -> int | None:
    state = stream.state
    lifetime = state.config.lifetime
    return None if lifetime is FOREVER else lifetime.left_ms(state.touched_ms, engine.now())
