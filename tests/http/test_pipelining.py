"""Keep-alive and pipelining: one connection, many requests, answers in order."""

from __future__ import annotations

import pytest

from headrace.testing.raw_http import RawConnection, request_bytes
from headrace.testing.server_process import ServerProcess

TEXT = "text/plain"


def test_one_connection_serves_many_requests(server: ServerProcess, stream: str) -> None:
    with RawConnection(server.port) as connection:
        connection.request("PUT", stream, Content_Type=TEXT)
        for count in range(1, 200):
            assert connection.request("POST", stream, b"x", Content_Type=TEXT).status == 204
            assert len(connection.request("GET", stream).body) == count


def test_a_hundred_requests_in_one_packet_are_answered_in_order(
    server: ServerProcess, stream: str
) -> None:
    numbers = [b"%03d" % n for n in range(100)]
    with RawConnection(server.port) as connection:
        connection.request("PUT", stream, Content_Type=TEXT)
        connection.send(
            b"".join(request_bytes("POST", stream, n, Content_Type=TEXT) for n in numbers)
        )
        answers = [connection.response() for _ in numbers]
        assert connection.request("GET", stream).body == b"".join(numbers)
    assert {answer.status for answer in answers} == {204}
    offsets = [answer.headers["stream-next-offset"] for answer in answers]
    assert offsets == sorted(set(offsets))


def test_a_pipelined_read_sees_the_append_before_it_and_not_the_one_behind(
    server: ServerProcess, stream: str
) -> None:
    sent = [request_bytes("PUT", stream, Content_Type=TEXT)]
    for byte in (b"a", b"b", b"c"):
        sent += [
            request_bytes("POST", stream, byte, Content_Type=TEXT),
            request_bytes("GET", stream),
        ]
    with RawConnection(server.port) as connection:
        connection.send(b"".join(sent))
        answers = [connection.response() for _ in sent]
    assert [answer.body for answer in answers[2::2]] == [b"a", b"ab", b"abc"]


def test_requests_behind_a_long_poll_wait_for_its_answer(
    server: ServerProcess, stream: str
) -> None:
    """Appends that stand behind it cannot end it: they have not happened yet."""
    with RawConnection(server.port) as connection:
        connection.request("PUT", stream, Content_Type=TEXT)
        poll = request_bytes("GET", f"{stream}?offset=-1&live=long-poll")
        append = request_bytes("POST", stream, b"a", Content_Type=TEXT)
        connection.send(poll + append * 3)
        answers = [connection.response() for _ in range(4)]
        assert connection.request("GET", stream).body == b"aaa"
    assert answers[0].status == 204
    assert "stream-up-to-date" in answers[0].headers
    assert all("stream-up-to-date" not in answer.headers for answer in answers[1:])


def test_more_is_pipelined_than_fits_in_any_buffer(server: ServerProcess, stream: str) -> None:
    """8,000 requests go out before an answer is read: the server holds back and loses none."""
    append = request_bytes("POST", stream, b"x" * 50, Content_Type=TEXT)
    with RawConnection(server.port) as connection:
        connection.request("PUT", stream, Content_Type=TEXT)
        connection.send(append * 8_000)
        assert {connection.response().status for _ in range(8_000)} == {204}
        assert len(connection.request("GET", stream).body) == 400_000


def test_requests_behind_an_sse_read_are_not_run(server: ServerProcess, stream: str) -> None:
    with RawConnection(server.port) as connection:
        connection.request("PUT", stream, Content_Type=TEXT, Stream_Closed="true")
        events = request_bytes("GET", f"{stream}?offset=-1&live=sse")
        connection.send(events + request_bytes("DELETE", stream))
        assert connection.head().headers["connection"] == "close"
        connection.rest()
    with RawConnection(server.port) as connection:
        assert connection.request("HEAD", stream).status == 200


@pytest.mark.parametrize(
    ("version", "connection_header", "stays"),
    [
        ("1.1", "", True),
        ("1.1", "Connection: keep-alive\r\n", True),
        ("1.1", "Connection: close\r\n", False),
        ("1.1", "Connection: x, CLOSE\r\n", False),
        ("1.0", "", False),
        ("1.0", "Connection: close\r\n", False),
    ],
)
def test_a_connection_stays_open_as_its_client_asks(
    server: ServerProcess, version: str, connection_header: str, stays: bool
) -> None:
    request = f"GET /healthz HTTP/{version}\r\nHost: localhost\r\n{connection_header}\r\n"
    with RawConnection(server.port) as connection:
        connection.send(request.encode())
        answer = connection.response()
        assert (answer.headers.get("connection") != "close") is stays
        if stays:
            assert connection.request("GET", "/healthz").body == b"ok"
        else:
            assert connection.is_at_end()


def test_http_1_0_needs_no_host_and_gets_no_chunks(server: ServerProcess, stream: str) -> None:
    with RawConnection(server.port) as connection:
        connection.request("PUT", stream, b"hi", Content_Type=TEXT, Stream_Closed="true")
    with RawConnection(server.port) as connection:
        connection.send(f"GET {stream}?offset=-1&live=sse HTTP/1.0\r\n\r\n".encode())
        head = connection.head()
        assert head.status == 200
        assert "transfer-encoding" not in head.headers
        assert b"data:hi" in connection.rest().replace(b"data: ", b"data:")


@pytest.mark.parametrize(
    "target", ["http://localhost{}", "HTTP://localhost:80{}", "https://other{}"]
)
def test_an_absolute_target_is_its_path(server: ServerProcess, stream: str, target: str) -> None:
    with RawConnection(server.port) as connection:
        assert connection.request("PUT", target.format(stream)).status == 201
        assert connection.request("HEAD", stream).status == 200


def test_an_answer_to_a_good_refusal_keeps_the_connection(
    server: ServerProcess, stream: str
) -> None:
    """400, 404, 405 and 409 are about the request; the connection is fine."""
    refused = (
        request_bytes("GET", stream),
        request_bytes("PATCH", stream),
        request_bytes("PUT", stream, Content_Type=TEXT, Stream_TTL="soon"),
        request_bytes("PUT", stream, Content_Type=TEXT),
        request_bytes("POST", stream, b"{}", Content_Type="application/json"),
        request_bytes("GET", "/nowhere"),
    )
    with RawConnection(server.port) as connection:
        connection.send(b"".join(refused))
        statuses = [connection.response().status for _ in refused]
        assert connection.request("GET", "/healthz").body == b"ok"
    assert statuses == [404, 405, 400, 201, 409, 404]
