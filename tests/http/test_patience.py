"""Clients that send in pieces, read slowly, finish early or leave: nobody loses an answer."""

from __future__ import annotations

import pytest

from headrace.testing.raw_http import RawConnection, request_bytes
from headrace.testing.server_process import ServerProcess
from tests.http.helpers import MIB


def put(path: str, body: bytes = b"") -> bytes:
    return request_bytes("PUT", path, body, Content_Type="text/plain")


def get(path: str) -> bytes:
    return request_bytes("GET", path)


@pytest.mark.parametrize("size", [1, 7, 64])
def test_a_request_may_arrive_in_any_pieces(server: ServerProcess, stream: str, size: int) -> None:
    sent = put(stream, b"hello") + get(stream) + request_bytes("DELETE", stream)
    with RawConnection(server.port) as connection:
        for start in range(0, len(sent), size):
            connection.send(sent[start : start + size])
        answers = [connection.response() for _ in range(3)]
        assert [answer.status for answer in answers] == [201, 200, 204]
        assert answers[1].body == b"hello"


def test_a_client_that_has_finished_sending_gets_all_its_large_answers_and_then_the_end(
    server: ServerProcess, stream: str
) -> None:
    body = b"x" * MIB
    with RawConnection(server.port) as connection:
        connection.send(put(stream, body) + 20 * get(stream))
        connection.finish_sending()
        assert connection.response().status == 201
        for _ in range(20):
            assert connection.response().body == body
        assert connection.is_at_end()


def test_a_client_that_leaves_in_the_middle_of_its_answers_disturbs_nobody(
    server: ServerProcess, stream: str
) -> None:
    with RawConnection(server.port) as other:
        with RawConnection(server.port) as connection:
            connection.send(put(stream, b"x" * MIB) + 20 * get(stream))
        assert other.request("GET", "/healthz").status == 200


def test_large_answers_to_pipelined_requests_are_complete_for_a_slow_client(
    server: ServerProcess, stream: str
) -> None:
    body = bytes(range(256)) * 4096
    with RawConnection(server.port, receive_buffer_bytes=8192) as connection:
        connection.send(put(stream, body) + 8 * get(stream))
        assert connection.response().status == 201
        assert all(connection.response().body == body for _ in range(8))
        assert connection.request("GET", "/healthz").body == b"ok"
