"""Request bodies in flight share a budget, and whoever is done gives its part back."""

from __future__ import annotations

from contextlib import ExitStack

from headrace.testing.raw import RawConnection
from tests.conftest import Serve
from tests.http.helpers import MIB

CHUNKED = "Transfer-Encoding: chunked"
EXPECT = "Expect: 100-continue"


def head(method: str, path: str, *lines: str) -> bytes:
    """A request up to its body."""
    fields = ["Host: localhost", "Content-Type: text/plain", *lines]
    return "\r\n".join([f"{method} {path} HTTP/1.1", *fields, "", ""]).encode()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def test_bodies_in_flight_share_a_budget(serve: Serve, stream: str) -> None:
    server = serve(
        DS_LIMITS__MAX_BODY_BYTES=str(MIB), DS_LIMITS__MAX_INFLIGHT_BODY_BYTES=str(2 * MIB)
    )
    announced = head("PUT", stream, EXPECT, f"Content-Length: {MIB}")
    with ExitStack() as stack:
        first, second, third = (stack.enter_context(RawConnection(server.port)) for _ in range(3))
        for connection in (first, second):
            connection.send(announced)
            assert connection.response().status == 100, "room is reserved"
        third.send(announced)
        refusal = third.response()
        assert refusal.status == 503
        assert int(refusal.headers["retry-after"]) >= 1
        first.send(b"x" * MIB)
        assert first.response().status == 201
        with RawConnection(server.port) as fourth:
            fourth.send(announced)
            assert fourth.response().status == 100, "an answered request gives its room back"


def test_a_client_that_leaves_gives_its_room_back(serve: Serve, stream: str) -> None:
    server = serve(DS_LIMITS__MAX_BODY_BYTES=str(MIB), DS_LIMITS__MAX_INFLIGHT_BODY_BYTES=str(MIB))
    announced = head("PUT", stream, EXPECT, f"Content-Length: {MIB}")
    for _ in range(5):
        with RawConnection(server.port) as connection:
            connection.send(announced)
            assert connection.response().status == 100
            connection.send(b"x" * 1000)
            connection.finish_sending()
            assert connection.is_at_end()


def test_chunked_bodies_count_as_they_arrive(serve: Serve, stream: str) -> None:
    server = serve(DS_LIMITS__MAX_BODY_BYTES=str(MIB), DS_LIMITS__MAX_INFLIGHT_BODY_BYTES=str(MIB))
    with RawConnection(server.port) as first, RawConnection(server.port) as second:
        first.send(head("PUT", stream, EXPECT, f"Content-Length: {MIB}"))
        assert first.response().status == 100
        second.send(head("PUT", stream, CHUNKED) + chunk(b"x" * 5000))
        assert second.response().status == 503
