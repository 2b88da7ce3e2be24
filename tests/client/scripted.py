"""A server that answers what a test tells it to, in order, and remembers what it was asked."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import parse_qsl, urlsplit


@dataclass(frozen=True)
class Reply:
    """One answer; `hang_up` closes the connection without one, `cut` before its body is whole."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    hang_up: bool = False
    cut: bool = False
    wait: threading.Event | None = None


@dataclass(frozen=True)
class ReceivedRequest:
    method: str
    path: str
    params: dict[str, str]
    headers: dict[str, str]
    body: bytes


class ScriptedServer:
    """Answers each request with the next reply; the last one is repeated."""

    def __init__(self, *replies: Reply) -> None:
        self.asked: list[ReceivedRequest] = []
        self.connections: set[object] = set()
        self._replies = list(replies)
        self._lock = threading.Lock()
        script = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                script.answer(self)

            do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _answer  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), daemon=True
        )
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        parts = urlsplit(handler.path)
        headers = {name.lower(): value for name, value in handler.headers.items()}
        with self._lock:
            self.connections.add(handler.client_address)
            params = dict(parse_qsl(parts.query))
            self.asked.append(ReceivedRequest(handler.command, parts.path, params, headers, body))
            reply = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
        if reply.wait is not None:
            reply.wait.wait(30)
        if reply.hang_up:
            handler.close_connection = True
            return
        handler.send_response(reply.status)
        for name, value in reply.headers.items():
            handler.send_header(name, value)
        if reply.status != 204:
            handler.send_header("Content-Length", str(len(reply.body) + 10 * reply.cut))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(reply.body)
        handler.close_connection = reply.cut

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(30)
