"""HTTP/1.1 as a load generator needs it: requests as prebuilt bytes, responses counted exactly.

One request is outstanding per connection, so the bytes after a request belong to one response.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

OCTETS = "application/octet-stream"
TEXT = "text/plain"
SEPARATOR = b"\r\n\r\n"
BODILESS = frozenset({204, 304})
CHUNK_SIZE_LINE_BYTES_MAX = 64


class WireError(Exception):
    """The peer broke HTTP framing or the connection; what it was doing did not complete."""


def request(method: str, target: str, headers: Mapping[str, str], body: bytes = b"") -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: 127.0.0.1"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body or method in ("POST", "PUT"):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + SEPARATOR + body


def stream_path(name: str) -> str:
    return f"/v1/stream/{name}"


def create(name: str, content_type: str) -> bytes:
    return request("PUT", stream_path(name), {"Content-Type": content_type})


def append(name: str, content_type: str, body: bytes) -> bytes:
    return request("POST", stream_path(name), {"Content-Type": content_type}, body)


def read(name: str, offset: str, live: str = "") -> bytes:
    query = f"?offset={offset}" + (f"&live={live}" if live else "")
    return request("GET", stream_path(name) + query, {})


class Response:
    """One response, fed as it arrives. The body is counted, and kept only if asked."""

    __slots__ = (
        "_body",
        "_last_chunk",
        "_left",
        "_line",
        "_state",
        "body_bytes",
        "chunked",
        "headers",
        "status",
    )

    def __init__(self, keep_body: bool = False) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body_bytes = 0
        self.chunked = False
        self._body: list[bytes] | None = [] if keep_body else None
        self._line = b""
        self._left = 0
        self._last_chunk = False
        # A plain function, not a bound method: no reference cycle, the generator runs without gc.
        self._state: Callable[[Response, memoryview], memoryview] = Response._feed_head

    @property
    def body(self) -> bytes:
        return b"".join(self._body or ())

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    def feed(self, data: memoryview) -> bool:
        """True once the response is complete. An empty `data` means the peer closed."""
        if not data:
            raise WireError("connection closed inside a response")
        while data:
            data = self._state(self, data)
            if self._state is Response._done:
                if data:
                    raise WireError(f"{len(data)} bytes after the response")
                return True
        return False

    def _feed_head(self, data: memoryview) -> memoryview:
        seen = len(self._line)
        self._line += bytes(data)
        end = self._line.find(SEPARATOR)
        if end < 0:
            return data[len(data) :]
        status_line, *fields = self._line[:end].decode("latin-1").split("\r\n")
        self._line = b""
        self.status = int(status_line.split(" ", 2)[1])
        for line in fields:
            name, _, value = line.partition(":")
            self.headers[name.lower()] = value.strip()
        self._begin_body()
        return data[end + len(SEPARATOR) - seen :]

    def _begin_body(self) -> None:
        self.chunked = self.headers.get("transfer-encoding", "").lower() == "chunked"
        if self.status in BODILESS:
            self._state = Response._done
        elif self.chunked:
            self._state = Response._feed_chunk_size
        elif "content-length" in self.headers:
            self._left = int(self.headers["content-length"])
            self._state = Response._feed_body if self._left else Response._done
        else:
            raise WireError("a response without a length would end the connection")

    def _feed_body(self, data: memoryview) -> memoryview:
        piece = data[: self._left]
        self.body_bytes += len(piece)
        if self._body is not None:
            self._body.append(bytes(piece))
        if self._take(piece):
            self._left = 2
            self._state = Response._feed_chunk_end if self.chunked else Response._done
        return data[len(piece) :]

    def _feed_chunk_size(self, data: memoryview) -> memoryview:
        piece = bytes(data[:CHUNK_SIZE_LINE_BYTES_MAX])
        end = piece.find(b"\n")
        if end < 0:
            self._line += piece
            return data[len(piece) :]
        size = int((self._line + piece[:end]).split(b";")[0], 16)
        self._line = b""
        self._last_chunk = not size
        self._left = size or 2
        self._state = Response._feed_body if size else Response._feed_chunk_end
        return data[end + 1 :]

    def _feed_chunk_end(self, data: memoryview) -> memoryview:
        """The CRLF after a chunk; after the last one too, since neither server sends trailers."""
        piece = data[: self._left]
        if self._take(piece):
            self._state = Response._done if self._last_chunk else Response._feed_chunk_size
        return data[len(piece) :]

    def _take(self, piece: memoryview) -> bool:
        self._left -= len(piece)
        return not self._left

    def _done(self, data: memoryview) -> memoryview:
        return data
