"""A token that is revoked while a query runs: an error that says so, and nothing lost with a new
one. The gate stands before the server as a proxy does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pyarrow as pa
import pytest

from headrace.client import Unauthorized
from headrace.spark.streams.appender import Appender, TaskProducer
from headrace.spark.streams.offset_tracker import StreamProblem
from headrace.spark.streams.stream_options import write_options
from tests.spark.helpers import next_batch, post, put, stop_readers, stored, stream_reader

_PASSED_ON = ("content-type", "producer-id", "producer-epoch", "producer-seq")


class Gate(ThreadingHTTPServer):
    """Lets through what bears the token of the day."""

    daemon_threads = True

    def __init__(self, server: httpx.Client) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.upstream = server
        self.token = "first"
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _pass_on(self) -> None:
        gate = self.server
        assert isinstance(gate, Gate)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, headers, content = 401, {"Content-Type": "text/plain"}, b"Jwt is expired"
        if self.headers.get("Authorization") == f"Bearer {gate.token}":
            named = {k: v for k, v in self.headers.items() if k.lower() in _PASSED_ON}
            accept = {"Accept": self.headers.get("Accept", "*/*"), "Accept-Encoding": "identity"}
            url = self.path
            answer = gate.upstream.request(self.command, url, content=body, headers=named | accept)
            status, content = answer.status_code, answer.content
            hop = ("content-length", "transfer-encoding", "connection")
            headers = {k: v for k, v in answer.headers.items() if k.lower() not in hop}
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_HEAD = _pass_on  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def gate(http: httpx.Client) -> Iterator[Gate]:
    with Gate(http) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        stop_readers()
        running.shutdown()
        thread.join()


def test_reading_goes_on_with_a_new_token(http: httpx.Client, gate: Gate) -> None:
    put(http, "revoked/read", b"1", b"2")
    with httpx.Client(base_url=gate.url) as front:
        reader = stream_reader(front, subscribe="revoked/read", token="first")
        end, rows = next_batch(reader, reader.initialOffset())
        assert [row["value"] for row in rows] == [b"1", b"2"]
        post(http, "revoked/read", b"3")
        gate.token = "second"
        with pytest.raises((Unauthorized, StreamProblem), match="valid token"):
            next_batch(reader, end)
        better = stream_reader(front, subscribe="revoked/read", token="second")
        assert [row["value"] for row in next_batch(better, end)[1]] == [b"3"]


def test_writing_goes_on_with_a_new_token(http: httpx.Client, gate: Gate) -> None:
    put(http, "revoked/write")

    def append(token: str, *chunks: bytes) -> int:
        given = {"url": gate.url, "token": token, "stream": "revoked/write", "chunkRows": "1"}
        with Appender(write_options(given), TaskProducer("p-0", 5)) as task:
            task.write("revoked/write", pa.array(chunks, pa.binary()))
            task.flush()
        return task.repeated

    assert append("first", b"1") == 0
    gate.token = "second"
    with pytest.raises(StreamProblem, match=r"revoked/write: .*valid token"):
        append("first", b"1", b"2")
    assert append("second", b"1", b"2") == 1
    assert stored(http, "revoked/write") == [1, 2]
