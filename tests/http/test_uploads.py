"""Request bodies in flight share a budget, and whoever is done gives its part back."""

from __future__ import annotations

from contextlib import ExitStack

from headrace.testing.raw_http import RawConnection
from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import eventually
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
        first, second = (stack.enter_context(RawConnection(server.port)) for _ in range(2))
        for connection in (first, second):
            connection.send(announced)
            assert connection.response().status == 100
            connection.send(b"x" * (MIB - 1))
        eventually(lambda: announce(server, announced) == 503, "what has come takes the room")
        first.send(b"x")
        assert first.response().status == 201
        assert announce(server, announced) == 100, "an answered request gives its room back"


def announce(server: ServerProcess, announced: bytes) -> int:
    """What the server says to a client that waits to be told."""
    with RawConnection(server.port) as connection:
        connection.send(announced)
        answer = connection.response()
        if answer.status == 503:
            assert int(answer.headers["retry-after"]) >= 1
        return answer.status


def test_what_is_only_announced_takes_no_room(serve: Serve, stream: str) -> None:
    """Ten clients announce ten times what there is room for, and send nothing of it."""
    server = serve(DS_LIMITS__MAX_BODY_BYTES=str(MIB), DS_LIMITS__MAX_INFLIGHT_BODY_BYTES=str(MIB))
    announced = head("PUT", stream, EXPECT, f"Content-Length: {MIB}")
    with ExitStack() as stack:
        for _ in range(10):
            silent = stack.enter_context(RawConnection(server.port))
            silent.send(announced)
            assert silent.response().status == 100
        with RawConnection(server.port) as other:
            body = b"x" * MIB
            assert other.request("PUT", stream, body, Content_Type="text/plain").status == 201


def test_a_body_that_meets_the_end_of_the_room_is_refused_and_gives_back_its_own(
    serve: Serve, stream: str
) -> None:
    server = serve(DS_LIMITS__MAX_BODY_BYTES=str(MIB), DS_LIMITS__MAX_INFLIGHT_BODY_BYTES=str(MIB))
    announced = head("PUT", stream, EXPECT, f"Content-Length: {MIB}")
    with RawConnection(server.port) as first, RawConnection(server.port) as second:
        for connection in (first, second):
            connection.send(announced)
            assert connection.response().status == 100
        first.send(b"x" * (MIB * 3 // 4))
        rest = head("PUT", stream, EXPECT, f"Content-Length: {MIB // 4 + 1}")
        eventually(lambda: announce(server, rest) == 503, "all of it has come")
        second.send(b"x" * (MIB // 2))
        assert second.response().status == 503
        first.send(b"x" * (MIB // 4))
        assert first.response().status == 201


def test_a_client_that_leaves_gives_its_room_back(serve: Serve, stream: str) -> None:
    server = serve(DS_LIMITS__MAX_BODY_BYTES=str(MIB), DS_LIMITS__MAX_INFLIGHT_BODY_BYTES=str(MIB))
    announced = head("PUT", stream, EXPECT, f"Content-Length: {MIB}")
    for _ in range(5):
        with RawConnection(server.port) as connection:
            connection.send(announced)
            assert connection.response().status == 100
            connection.send(b"x" * (MIB - 1))
            connection.finish_sending()
            assert connection.is_at_end()


def test_chunked_bodies_count_as_they_arrive(serve: Serve, stream: str) -> None:
    server = serve(DS_LIMITS__MAX_BODY_BYTES=str(MIB), DS_LIMITS__MAX_INFLIGHT_BODY_BYTES=str(MIB))
    with RawConnection(server.port) as first, RawConnection(server.port) as second:
        first.send(head("PUT", stream, CHUNKED) + chunk(b"x" * (MIB - 4096)))
        announced = head("PUT", stream, EXPECT, "Content-Length: 5000")
        eventually(lambda: announce(server, announced) == 503, "it has come")
        second.send(head("PUT", stream, CHUNKED) + chunk(b"x" * 5000))
        assert second.response().status == 503
