"""Request bodies in flight share a budget, and whoever is done gives its part back."""

from __future__ import annotations

import select
from contextlib import ExitStack, suppress

import pytest

from headrace.http.connections.reader import BodyBudget
from headrace.testing.raw_http import RawConnection
from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import eventually
from tests.conftest import Serve
from tests.http.helpers import KIB, MIB

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


@pytest.mark.slow
def test_uploads_that_trickle_make_room_for_others(serve: Serve, stream: str) -> None:
    """Just above the least rate, they would hold three quarters of the budget for 40 seconds."""
    server = serve(DS_LIMITS__MAX_INFLIGHT_BODY_BYTES=str(16 * MIB))
    length = f"Content-Length: {7 * MIB}"
    wanted = head("PUT", stream, EXPECT, f"Content-Length: {9 * MIB}")
    with ExitStack() as stack:
        uploads = [stack.enter_context(RawConnection(server.port)) for _ in range(4)]
        for number, upload in enumerate(uploads):
            upload.send(head("PUT", f"{stream}-{number}", length) + b"x" * (3 * MIB))
        eventually(lambda: announce(server, wanted) == 503, "they hold three quarters of it")

        def has_room() -> bool:
            for upload in uploads:
                with suppress(OSError):  # it was cut off
                    upload.send(b"x" * 10 * KIB)
            return announce(server, wanted) == 100

        eventually(has_room, "there is room for another", poll_secs=0.1)
        answered = [upload for upload in uploads if select.select([upload.socket], [], [], 0)[0]]
        assert [upload.response().status for upload in answered] == [503] * len(answered)
        assert 1 <= len(answered) < len(uploads), "until half of it is free"


def test_the_slowest_uploads_are_cut_while_others_find_no_room_until_half_is_free() -> None:
    budget = BodyBudget(100)
    fast, slow, slowest = (Held(budget, paid_until) for paid_until in (95.0, 60.0, 50.0))
    budget.choose_slowest(100.0)
    assert not any(map(budget.is_chosen, (fast, slow, slowest)))
    budget.has_room(41)
    budget.choose_slowest(100.0)
    assert list(map(budget.is_chosen, (fast, slow, slowest))) == [False, False, True]


class Held:
    """An upload of which 20 bytes have come."""

    held_bytes = 20

    def __init__(self, budget: BodyBudget, paid_until: float) -> None:
        self.paid_until = paid_until
        budget.reserve(self.held_bytes)
        budget.begin(self)
