"""A webhook receiver on this machine: a real HTTP server in a thread, and what it was sent."""

from __future__ import annotations

import base64
import json
import queue
import re
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from headrace.testing.waiting import DEADLINE_SECS


@dataclass(frozen=True)
class Webhook:
    """One request as it arrived; header names in lower case."""

    path: str
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.raw)
        return document


@dataclass(frozen=True)
class Reply:
    status: int = 200
    body: bytes = b"{}"
    headers: tuple[tuple[str, str], ...] = ()


DONE = Reply(body=b'{"done": true}')
ACCEPTED = Reply()
BROKEN = Reply(500)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # the standard 5 drops connections when many come at once


class Receiver:
    """Answers each webhook as `reply` says, and keeps what it was sent; a context manager."""

    def __init__(
        self,
        reply: Callable[[Webhook], Reply] | Reply = ACCEPTED,
        tls: ssl.SSLContext | None = None,
        port: int = 0,
    ) -> None:
        self.reply = reply
        self._arrived: queue.Queue[Webhook] = queue.Queue()
        self._server = _Server(("127.0.0.1", port), self._handler())
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def port(self) -> int:
        return self._server.server_port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    @property
    def count(self) -> int:
        """Webhooks that arrived and were not taken by `next`."""
        return self._arrived.qsize()

    def next(self, secs: float = DEADLINE_SECS) -> Webhook:
        """The next webhook, in the order of arrival."""
        return self._arrived.get(timeout=secs)

    def __enter__(self) -> Receiver:
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
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                headers = {name.lower(): value for name, value in self.headers.items()}
                webhook = Webhook(self.path, headers, self.rfile.read(length))
                receiver._arrived.put(webhook)
                reply = receiver.reply(webhook) if callable(receiver.reply) else receiver.reply
                self.send_response(reply.status)
                for name, value in (*reply.headers, ("Content-Length", str(len(reply.body)))):
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(reply.body)

            def handle(self) -> None:
                # A sender that gives up is what some tests are about.
                try:
                    super().handle()
                except (ConnectionError, ssl.SSLError):
                    self.close_connection = True

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler


def verify_signature(body: bytes, header: str, jwks: dict[str, Any]) -> int:
    """What a receiver does, from the protocol's text alone; the timestamp, or InvalidSignature."""
    parts = re.fullmatch(r"t=(\d+),kid=([^,]+),ed25519=([A-Za-z0-9_-]+)", header)
    assert parts is not None, header
    (jwk,) = (key for key in jwks["keys"] if key["kid"] == parts[2])
    key = Ed25519PublicKey.from_public_bytes(_base64url(jwk["x"]))
    key.verify(_base64url(parts[3]), parts[1].encode() + b"." + body)
    return int(parts[1])


def _base64url(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
