"""SIGTERM while a client is still sending, or slow to take its answer.

Long-polls, event streams, idle connections and exit codes are in test_drain.py.
"""

from __future__ import annotations

import signal

import pytest

from headrace.testing.raw_http import RawConnection, request_bytes
from headrace.testing.waiting import eventually
from tests.conftest import Serve
from tests.http.helpers import KIB, MIB

TEXT = "text/plain"


@pytest.mark.parametrize("part", ["head", "body"])
def test_a_request_half_received_is_finished(serve: Serve, stream: str, part: str) -> None:
    """It is in flight: its client cannot know whether it happened, so it is given its answer."""
    server = serve()
    upload = request_bytes("POST", stream, b"x" * 10_000, Content_Type=TEXT)
    cut = 40 if part == "head" else len(upload) - 1
    with RawConnection(server.port) as connection, RawConnection(server.port) as idle:
        connection.request("PUT", stream, Content_Type=TEXT)
        connection.send(upload[:cut])
        assert idle.request("GET", "/healthz").status == 200
        server.signal(signal.SIGTERM)
        assert idle.is_at_end(), "the drain has begun"
        connection.send(upload[cut:])
        answer = connection.response()
        assert answer.status in (204, 503)
        assert answer.headers["connection"] == "close"
    assert server.wait() == 0


def test_a_client_that_never_finishes_sending_delays_the_exit_no_longer_than_allowed(
    serve: Serve, stream: str
) -> None:
    server = serve(DS_SERVER__DRAIN_SECS="1")
    with RawConnection(server.port) as connection:
        connection.send(request_bytes("POST", stream, b"x", Content_Type=TEXT)[:-1])
        server.signal(signal.SIGTERM)
        assert server.wait() == 0


def test_pipelined_requests_that_were_received_are_all_answered(serve: Serve, stream: str) -> None:
    """The client reads nothing before SIGTERM, so most of its requests are still to be run."""
    server = serve(DS_SERVER__DRAIN_SECS="60")
    with RawConnection(server.port, receive_buffer_bytes=64 * KIB) as connection:
        connection.request("PUT", stream, Content_Type=TEXT)
        connection.request("POST", stream, b"x" * MIB, Content_Type=TEXT)
        connection.send(request_bytes("GET", stream) * 20)
        first = connection.head()
        server.signal(signal.SIGTERM)
        body = connection.rest()
    assert int(first.headers["content-length"]) == MIB
    heads, bytes_left = body.count(b"HTTP/1.1 200 OK\r\n"), len(body) - MIB
    assert bytes_left >= heads * MIB, "no answer is cut off"
    assert server.wait() == 0


def test_a_stopped_server_leaves_its_port(serve: Serve) -> None:
    server = serve()
    port = server.port
    assert server.stop() == 0

    def is_refused() -> bool:
        try:
            RawConnection(port).close()
        except ConnectionRefusedError:
            return True
        return False

    eventually(is_refused, "nobody listens there any more")


def test_a_server_that_dies_of_a_signal_leaves_a_stack(serve: Serve) -> None:
    """A damaged page of LMDB is such a signal, and used to leave nothing to go by."""
    server = serve()
    server.signal(signal.SIGBUS)
    assert server.wait() == -signal.SIGBUS
    log = "".join(server.log)
    assert "Fatal Python error: Bus error" in log
    assert "headrace/http/server.py" in log
