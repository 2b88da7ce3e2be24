"""HTTP by hand: any bytes out, responses taken apart strictly, a deadline on every wait.

For what a well-behaved client cannot send, and for checking exactly what was answered.
"""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from headrace.testing.waiting import DEADLINE_SECS

_WITHOUT_BODY = (204, 304)
_RECEIVE_BYTES = 64 * 1024


class EndOfConnection(Exception):
    """The server closed the connection where more was expected."""


@dataclass(frozen=True)
class RawResponse:
    """One response; header names are in lower case, repeated fields joined by a comma."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    version: str = "HTTP/1.1"

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class RawConnection:
    """A connection to a server on this machine; use it as a context manager."""

    port: int
    host: str = "127.0.0.1"
    source: str | None = None
    tls: ssl.SSLContext | None = None
    receive_buffer_bytes: int | None = None
    deadline_secs: float = DEADLINE_SECS
    _buffer: bytes = field(default=b"", init=False, repr=False)

    def __post_init__(self) -> None:
        sock = socket.socket()
        sock.settimeout(self.deadline_secs)
        if self.receive_buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.receive_buffer_bytes)
        if self.source is not None:
            sock.bind((self.source, 0))
        self.socket: socket.socket = sock
        try:
            sock.connect((self.host, self.port))
            if self.tls is not None:
                self.socket = self.tls.wrap_socket(sock, server_hostname="localhost")
        except BaseException:
            sock.close()
            raise

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    # -- sending ---------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def finish_sending(self) -> None:
        """Close our half: the server sees the end of what we send and may still answer."""
        self.socket.shutdown(socket.SHUT_WR)

    def request(self, method: str, target: str, body: bytes = b"", **headers: str) -> RawResponse:
        """One well-formed request and its answer; `Content_Type="x"` is a header."""
        self.send(request_bytes(method, target, body, **headers))
        return self.response(head_only=method == "HEAD")

    # -- receiving -------------------------------------------------------------------------

    def response(self, *, head_only: bool = False) -> RawResponse:
        """The next response, complete; an interim one (1xx) counts as a response."""
        head = self.head()
        if head_only or head.status < 200 or head.status in _WITHOUT_BODY:
            return head
        if "transfer-encoding" in head.headers:
            body = b"".join(self.chunks())
        elif "content-length" in head.headers:
            body = self._exactly(int(head.headers["content-length"]))
        else:
            body = self.rest()
        return RawResponse(head.status, head.headers, body, head.version)

    def head(self) -> RawResponse:
        """Status line and headers; the body stays to be read."""
        lines = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        version, status, _ = lines[0].split(" ", 2)
        headers: dict[str, str] = {}
        for line in lines[1:]:
            name, _, value = line.partition(": ")
            name = name.lower()
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        return RawResponse(int(status), headers, version=version)

    def chunks(self) -> Iterator[bytes]:
        """The pieces of a chunked body as they arrive, until its end."""
        while size := int(self._until(b"\r\n"), 16):
            yield self._exactly(size)
            assert self._exactly(2) == b"\r\n", "a chunk ends with CRLF"
        assert self._until(b"\r\n") == b"", "no trailers"

    def rest(self) -> bytes:
        """Everything until the server closes."""
        while self._receive():
            pass
        received, self._buffer = self._buffer, b""
        return received

    def is_at_end(self) -> bool:
        """Whether the server closes without another byte; waits for one or the other."""
        return not self._buffer and not self._receive()

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._buffer:
            self._need_more()
        found, _, self._buffer = self._buffer.partition(mark)
        return found

    def _exactly(self, count: int) -> bytes:
        pieces = [self._buffer]
        missing = count - len(self._buffer)
        while missing > 0:
            self._buffer = b""
            self._need_more()
            pieces.append(self._buffer)
            missing -= len(self._buffer)
        data = b"".join(pieces)
        self._buffer = data[count:]
        return data[:count]

    def _need_more(self) -> None:
        if not self._receive():
            raise EndOfConnection(f"after {self._buffer[:200]!r}")

    def _receive(self) -> bool:
        try:
            received = self.socket.recv(_RECEIVE_BYTES)
        except (ConnectionResetError, ssl.SSLEOFError):
            return False
        self._buffer += received
        return bool(received)


def request_bytes(method: str, target: str, body: bytes = b"", **headers: str) -> bytes:
    """A well-formed request; `Content_Type="x"` is a header, and so is another `Host`."""
    fields = {"Host": "localhost", **{k.replace("_", "-"): v for k, v in headers.items()}}
    if body or method in ("POST", "PUT"):
        fields.setdefault("Content-Length", str(len(body)))
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body
