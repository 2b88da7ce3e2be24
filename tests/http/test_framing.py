"""Where a request ends: smuggling, chunked uploads, trailers, Expect, half-closing clients.

The corpus of malformed requests is in test_malformed.py; here every doubtful request is followed
by one that would create a stream, and that one must never be run.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.testing.raw_http import RawConnection, RawResponse, request_bytes
from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import eventually
from tests.http.helpers import MIB, await_server_time, resident_bytes

LENGTH = b"Content-Length: %d\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
EMPTY_CHUNKED = b"0\r\n\r\n"


@pytest.fixture(scope="module")
def bystander(server: ServerProcess) -> Iterator[RawConnection]:
    """A connection that is open all along."""
    with RawConnection(server.port) as connection:
        yield connection


@pytest.fixture
def text(server: ServerProcess, bystander: RawConnection, stream: str) -> str:
    """The path of an empty text stream."""
    assert bystander.request("PUT", stream, Content_Type="text/plain").status == 201
    return stream


def answers(connection: RawConnection) -> list[RawResponse]:
    """Every answer until the server closes."""
    received = []
    while not connection.is_at_end():
        received.append(connection.response())
    return received


def append(path: str, lines: bytes, body: bytes = b"", version: bytes = b"1.1") -> bytes:
    head = b"POST %b HTTP/%b\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
    return head % (path.encode(), version) + lines + b"\r\n" + body


# What a front proxy might forward as one request and we might take for two: each is a complete
# append by one reading, and by another the beginning of the request that follows it.
DOUBTFUL = {
    "length-then-coding": (LENGTH % 5 + CHUNKED, EMPTY_CHUNKED),
    "coding-then-length": (CHUNKED + LENGTH % 5, EMPTY_CHUNKED),
    "zero-length-and-coding": (LENGTH % 0 + CHUNKED, EMPTY_CHUNKED),
    "same-length-twice": (LENGTH % 0 + LENGTH % 0, b""),
    "two-lengths": (LENGTH % 0 + LENGTH % 5, b""),
    "length-list": (b"Content-Length: 0, 0\r\n", b""),
    "length-with-sign": (b"Content-Length: +0\r\n", b""),
    "length-in-hex": (b"Content-Length: 0x0\r\n", b""),
    "length-with-inner-space": (b"Content-Length: 0 0\r\n", b""),
    "length-before-spaced-colon": (b"Content-Length : 0\r\n", b""),
    "length-folded": (b"Content-Length:\r\n 0\r\n", b""),
    "length-huge": (b"Content-Length: 18446744073709551616\r\n", b""),
    "coding-twice": (CHUNKED + CHUNKED, EMPTY_CHUNKED),
    "coding-chunked-chunked": (b"Transfer-Encoding: chunked, chunked\r\n", EMPTY_CHUNKED),
    "coding-identity": (b"Transfer-Encoding: identity\r\n", b""),
    "coding-gzip-chunked": (b"Transfer-Encoding: gzip, chunked\r\n", EMPTY_CHUNKED),
    "coding-chunked-identity": (b"Transfer-Encoding: chunked, identity\r\n", EMPTY_CHUNKED),
    "coding-misspelt": (b"Transfer-Encoding: xchunked\r\n", EMPTY_CHUNKED),
    "coding-vertical-tab": (b"Transfer-Encoding:\x0bchunked\r\n", EMPTY_CHUNKED),
    "coding-before-spaced-colon": (b"Transfer-Encoding : chunked\r\n", EMPTY_CHUNKED),
    "coding-folded": (b"Transfer-Encoding:\r\n chunked\r\n", EMPTY_CHUNKED),
    "coding-after-bare-lf": (b"X: y\nTransfer-Encoding: chunked\r\n", EMPTY_CHUNKED),
    "coding-after-bare-cr": (b"X: y\rTransfer-Encoding: chunked\r\n", EMPTY_CHUNKED),
    "chunk-size-with-bare-lf": (CHUNKED, b"1\na\r\n0\r\n\r\n"),
    "chunk-ended-by-bare-lf": (CHUNKED, b"1\r\na\n0\r\n\r\n"),
    "chunk-without-end": (CHUNKED, b"1\r\na0\r\n\r\n"),
    "chunk-longer-than-said": (CHUNKED, b"1\r\nab\r\n0\r\n\r\n"),
    "chunk-size-negative": (CHUNKED, b"-1\r\na\r\n0\r\n\r\n"),
    "chunk-size-overflow": (CHUNKED, b"10000000000000000\r\na\r\n0\r\n\r\n"),
    "chunk-size-prefixed": (CHUNKED, b"0x1\r\na\r\n0\r\n\r\n"),
    "chunk-extension-with-bare-lf": (CHUNKED, b"1;x=\ny\r\na\r\n0\r\n\r\n"),
    "chunk-extension-with-bare-cr": (CHUNKED, b"1;x\ry\r\na\r\n0\r\n\r\n"),
    "last-chunk-with-bare-lf": (CHUNKED, b"1\r\na\r\n0\n\n"),
    "trailer-repeats-length": (CHUNKED, b"1\r\na\r\n0\r\nContent-Length: 1\r\n\r\n"),
}


@pytest.mark.parametrize(("lines", "body"), DOUBTFUL.values(), ids=DOUBTFUL)
def test_nothing_behind_a_doubtful_request_is_run(
    server: ServerProcess, bystander: RawConnection, text: str, lines: bytes, body: bytes
) -> None:
    smuggled = f"{text}-smuggled"
    with RawConnection(server.port) as connection:
        connection.send(append(text, lines, body) + request_bytes("PUT", smuggled))
        [refusal] = answers(connection)
    assert refusal.status in (400, 501)
    assert refusal.headers["content-type"] == "application/problem+json"
    assert refusal.headers["connection"] == "close"
    assert bystander.request("HEAD", smuggled).status == 404
    assert bystander.request("GET", text).body == b"", "the doubtful append did not happen either"


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_nothing_is_run_after_a_request_that_closes(
    server: ServerProcess, bystander: RawConnection, text: str, version: bytes
) -> None:
    smuggled = f"{text}-smuggled"
    last = append(text, b"Connection: close\r\n" + LENGTH % 1, b"a", version)
    with RawConnection(server.port) as connection:
        connection.send(last + request_bytes("PUT", smuggled))
        [answer] = answers(connection)
    assert answer.status == 204
    assert bystander.request("HEAD", smuggled).status == 404


@pytest.mark.parametrize(
    ("lines", "body"),
    [(LENGTH % 3, b"abc"), (CHUNKED, b"3\r\nabc\r\n0\r\n\r\n")],
    ids=["length", "chunked"],
)
@pytest.mark.parametrize("protocol", ["h2c", "websocket"])
def test_an_offered_upgrade_is_ignored_and_the_body_is_appended(
    server: ServerProcess, text: str, protocol: str, lines: bytes, body: bytes
) -> None:
    """Java's HttpClient offers h2c with every first request, POST included."""
    offer = f"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: {protocol}\r\n".encode()
    with RawConnection(server.port) as connection:
        connection.send(append(text, offer + b"HTTP2-Settings: AAMAAABk\r\n" + lines, body))
        assert connection.response().status == 204
        assert connection.request("GET", text).body == b"abc"


@pytest.mark.parametrize("options", ["Upgrade, close", "close, Upgrade", "Upgrade , Close"])
def test_an_offered_upgrade_does_not_hide_that_the_connection_is_to_close(
    server: ServerProcess, options: str
) -> None:
    with RawConnection(server.port) as connection:
        connection.send(
            f"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: {options}\r\n"
            "Upgrade: h2c\r\n\r\n".encode()
        )
        assert connection.response().headers["connection"] == "close"
        assert connection.rest() == b""


def test_an_offered_upgrade_does_not_make_http_1_1_of_1_0(server: ServerProcess) -> None:
    with RawConnection(server.port) as connection:
        connection.send(b"GET /healthz HTTP/1.0\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
        assert connection.response().headers["connection"] == "close"


def test_connect_is_answered_once(server: ServerProcess) -> None:
    with RawConnection(server.port) as connection:
        connection.send(b"CONNECT localhost:443 HTTP/1.1\r\nHost: localhost:443\r\n\r\n")
        [answer] = answers(connection)
    assert answer.status in (400, 405, 501)


def test_a_refused_head_request_is_answered_without_a_body(server: ServerProcess) -> None:
    with RawConnection(server.port) as connection:
        connection.send(b"HEAD /healthz HTTP/1.1\r\n\r\n")
        assert connection.head().status == 400
        assert connection.rest() == b""


# -- chunked uploads -------------------------------------------------------------------------


def test_a_chunked_upload_may_be_split_at_every_byte(
    server: ServerProcess, bystander: RawConnection, text: str
) -> None:
    upload = append(text, CHUNKED, b"3;ext=1\r\nabc\r\n0a\r\n0123456789\r\n0\r\nX-Sum: 1\r\n\r\n")
    for cut in range(1, len(upload)):
        with RawConnection(server.port) as connection:
            connection.send(upload[:cut])
            # An answer on another connection: the first part has been read by now, or will be
            # read on its own because the second is not sent yet.
            assert bystander.request("GET", "/healthz").status == 200
            connection.send(upload[cut:])
            assert connection.response().status == 204, f"split after {cut} bytes"
    assert bystander.request("GET", text).body == b"abc0123456789" * (len(upload) - 1)


def test_a_chunked_upload_may_come_byte_by_byte(server: ServerProcess, text: str) -> None:
    with RawConnection(server.port) as connection:
        for byte in append(text, CHUNKED, b"3\r\nabc\r\n0\r\n\r\n"):
            connection.send(bytes((byte,)))
        assert connection.response().status == 204
        assert connection.request("GET", text).body == b"abc"


@pytest.mark.parametrize(
    "trailer",
    [b"Stream-Closed: true", b"Content-Type: application/json", b"Host: elsewhere"],
    ids=["stream-closed", "content-type", "host"],
)
def test_a_trailer_is_not_taken_for_a_header(
    server: ServerProcess, text: str, trailer: bytes
) -> None:
    """RFC 9110 6.5.1: a trailer field is never merged into the headers unasked."""
    with RawConnection(server.port) as connection:
        connection.send(append(text, CHUNKED, b"1\r\na\r\n0\r\n" + trailer + b"\r\n\r\n"))
        assert connection.response().status in (204, 400)
    with RawConnection(server.port) as connection:
        assert "stream-closed" not in connection.request("HEAD", text).headers
        assert connection.request("POST", text, b"b", Content_Type="text/plain").status == 204


@pytest.mark.parametrize(
    "trailers",
    [b"X: " + b"a" * MIB, b"".join(b"X-%d: y\r\n" % n for n in range(10_000))],
    ids=["one-large", "many"],
)
def test_trailers_are_bounded_like_headers(
    server: ServerProcess, text: str, trailers: bytes
) -> None:
    with RawConnection(server.port) as connection:
        connection.send(append(text, CHUNKED, b"1\r\na\r\n0\r\n" + trailers + b"\r\n\r\n"))
        assert connection.response().status in (400, 431)


def test_a_body_in_tiny_chunks_costs_about_its_size(
    server: ServerProcess, bystander: RawConnection, text: str
) -> None:
    """4 MiB in chunks of two bytes: what is held must not be a multiple of what was budgeted."""
    idle_bytes = resident_bytes(server.pid)
    tiny = b"2\r\nab\r\n" * (128 * 1024)
    with RawConnection(server.port) as connection:
        connection.send(append(text, CHUNKED))
        for _ in range(16):
            connection.send(tiny)
        assert bystander.request("GET", "/healthz").status == 200
        grown_bytes = resident_bytes(server.pid) - idle_bytes
        connection.send(EMPTY_CHUNKED)
        assert connection.response().status == 204
    assert grown_bytes < 32 * MIB


# -- Expect: 100-continue --------------------------------------------------------------------

EXPECT = b"Expect: 100-continue\r\n"


def test_expect_is_answered_by_100_before_the_body(server: ServerProcess, text: str) -> None:
    with RawConnection(server.port) as connection:
        connection.send(append(text, EXPECT + LENGTH % 3))
        assert connection.response().status == 100
        connection.send(b"abc")
        assert connection.response().status == 204


def test_expect_behind_a_pipelined_request_is_answered_in_its_turn(
    server: ServerProcess, text: str
) -> None:
    """The request before it is a long-poll: its answer comes first, however late."""
    poll = request_bytes("GET", f"{text}?offset=-1&live=long-poll")
    with RawConnection(server.port) as connection:
        connection.send(poll + append(text, EXPECT + LENGTH % 3))
        assert [connection.response().status for _ in range(2)] == [204, 100]
        connection.send(b"abc")
        assert connection.response().status == 204
        assert connection.request("GET", text).body == b"abc"


def test_expect_with_a_body_already_sent_needs_no_100(server: ServerProcess, text: str) -> None:
    with RawConnection(server.port) as connection:
        connection.send(append(text, EXPECT + LENGTH % 3, b"abc"))
        assert connection.response().status == 204


def test_expect_with_a_body_that_will_be_refused_gets_no_100(
    server: ServerProcess, text: str
) -> None:
    with RawConnection(server.port) as connection:
        connection.send(append(text, EXPECT + LENGTH % 99_999_999))
        [refusal] = answers(connection)
    assert refusal.status == 413


def test_expect_in_http_1_0_is_ignored(server: ServerProcess, text: str) -> None:
    """RFC 9110 10.1.1: such a client does not know what 100 is."""
    with RawConnection(server.port) as connection:
        connection.send(append(text, EXPECT + LENGTH % 3, b"", b"1.0"))
        await_server_time(server, 1)
        connection.send(b"abc")
        assert [answer.status for answer in answers(connection)] == [204]


# -- half-closing clients --------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 50])
def test_a_client_that_has_finished_sending_gets_every_answer(
    server: ServerProcess, text: str, count: int
) -> None:
    with RawConnection(server.port) as connection:
        connection.send(request_bytes("POST", text, b"a", Content_Type="text/plain") * count)
        connection.finish_sending()
        assert [answer.status for answer in answers(connection)] == [204] * count


def test_a_client_that_has_finished_sending_gets_a_large_answer(
    server: ServerProcess, text: str
) -> None:
    body = bytes(range(256)) * 4096
    with RawConnection(server.port, receive_buffer_bytes=4096) as connection:
        for _ in range(8):
            connection.request("POST", text, body, Content_Type="text/plain")
        connection.send(request_bytes("GET", text) * 8)
        connection.finish_sending()
        assert [len(answer.body) for answer in answers(connection)] == [MIB] * 8


def test_an_upload_that_is_cut_off_leaves_nothing_behind(
    server: ServerProcess, bystander: RawConnection, text: str
) -> None:
    for lines, body in ((LENGTH % 10, b"half"), (CHUNKED, b"a\r\nhalf")):
        with RawConnection(server.port) as connection:
            connection.send(append(text, lines, body))
            connection.finish_sending()
            assert answers(connection) == []
    eventually(lambda: bystander.request("GET", text).body == b"", "nothing was appended")
