"""A small Shape API to test against: one shape, its log in memory, and levers to pull."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

SCHEMA = {"id": {"type": "int4", "pk_index": 0}, "title": {"type": "text"}, "ok": {"type": "bool"}}
_LIVE_SECS = 5.0
_CHUNK = 2


class ShapeServer:
    """`rows` are the snapshot; `change` appends to the log; `forget` gives the shape up (409)."""

    def __init__(self, *rows: dict[str, str | None]) -> None:
        self._changed = threading.Condition()
        self._generation = 0
        self._log: list[tuple[tuple[int, int], dict[str, Any]]] = []
        self.forget(*rows)
        self.failures = 0  # answers to spoil with 503
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.answer(self)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)

    def __enter__(self) -> ShapeServer:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    @property
    def handle(self) -> str:
        return f"shape-{self._generation}"

    def forget(self, *rows: dict[str, str | None]) -> None:
        with self._changed:
            self._generation += 1
            self._log = [
                ((0, n), {"key": str(n), "value": row, "headers": {"operation": "insert"}})
                for n, row in enumerate(rows)
            ]
            self._changed.notify_all()

    def change(self, operation: str, value: dict[str, str | None], lsn: int) -> None:
        with self._changed:
            position = sum(1 for at, _ in self._log if at[0] == lsn)
            headers = {
                "operation": operation,
                "lsn": str(lsn),
                "op_position": position,
                "txids": [lsn],
            }
            self._log.append(((lsn, position), {"key": "k", "value": value, "headers": headers}))
            self._changed.notify_all()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        query = {name: values[0] for name, values in parse_qs(urlsplit(request.path).query).items()}
        if self.failures:
            self.failures -= 1
            _send(request, 503, {}, [])
            return
        if query.get("handle", self.handle) != self.handle:
            _send(request, 409, {"electric-handle": self.handle}, [_control("must-refetch")])
            return
        start = _offset(query["offset"])
        with self._changed:
            if query.get("live") == "true":
                asked = self.handle
                self._changed.wait_for(
                    lambda: self._after(start) or self.handle != asked, _LIVE_SECS
                )
            if query.get("handle", self.handle) != self.handle:
                _send(request, 409, {"electric-handle": self.handle}, [])
                return
            found = self._after(start)
        chunk = found[:_CHUNK]
        end = chunk[-1][0] if chunk else (start if start != (-1, 0) else (0, 0))
        headers = {
            "electric-handle": self.handle,
            "electric-offset": f"{end[0]}_{end[1]}",
            "electric-schema": json.dumps(SCHEMA),
            "electric-cursor": "1",
        }
        messages = [message for _, message in chunk]
        if len(found) <= _CHUNK:
            headers["electric-up-to-date"] = ""
            messages.append(_control("up-to-date"))
        _send(request, 200, headers, messages)

    def _after(self, start: tuple[int, int]) -> list[tuple[tuple[int, int], dict[str, Any]]]:
        return [entry for entry in self._log if entry[0] > start]


def _offset(text: str) -> tuple[int, int]:
    if text == "-1":
        return (-1, 0)
    lsn, position = text.split("_")
    return int(lsn), int(position)


def _control(name: str) -> dict[str, Any]:
    return {"headers": {"control": name}}


def _send(
    request: BaseHTTPRequestHandler, status: int, headers: dict[str, str], body: list[Any]
) -> None:
    data = json.dumps(body).encode()
    request.send_response(status)
    for name, value in headers.items():
        request.send_header(name, value)
    request.send_header("Content-Type", "application/json")
    request.send_header("Content-Length", str(len(data)))
    request.end_headers()
    request.wfile.write(data)
