"""Every wait for a client has a deadline: heads, bodies, idle connections, unread answers."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest

from headrace.testing.raw_http import RawConnection, RawResponse, request_bytes
from headrace.testing.server_process import ServerProcess
from headrace.testing.server_queries import metric
from headrace.testing.waiting import eventually
from tests.conftest import Serve, stop_cleanly
from tests.http.helpers import KIB, MIB, client_of

TEXT = "text/plain"


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that waits a second for a request, and as long for its answer to be taken."""
    env = {
        "DS_HTTP__HEADER_TIMEOUT_SECS": "1",
        "DS_HTTP__BODY_TIMEOUT_SECS": "1",
        "DS_LIMITS__READ_CHUNK_BYTES": str(64 * KIB),
    }
    process = ServerProcess(env, cwd=str(tmp_path_factory.mktemp("impatient")))
    process.start()
    yield process
    stop_cleanly(process)


@pytest.fixture(scope="module")
def brisk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that keeps idle connections for a second."""
    env = {"DS_HTTP__KEEP_ALIVE_SECS": "1"}
    process = ServerProcess(env, cwd=str(tmp_path_factory.mktemp("brisk")))
    process.start()
    yield process
    stop_cleanly(process)


@pytest.fixture
def text(impatient: ServerProcess, stream: str) -> str:
    with RawConnection(impatient.port) as connection:
        assert connection.request("PUT", stream, Content_Type=TEXT).status == 201
    return stream


def await_seconds(server: ServerProcess, count: int) -> None:
    """Wait until the server's clock has ticked so often; each look is a connection of its own."""
    dates = set()

    def have_passed() -> bool:
        with RawConnection(server.port) as connection:
            dates.add(connection.request("GET", "/healthz").headers["date"])
        return len(dates) > count

    eventually(have_passed, f"{count} seconds on the server's clock")


def check_timeout(connection: RawConnection) -> None:
    answer: RawResponse = connection.response()
    assert answer.status == 408
    assert answer.headers["connection"] == "close"
    assert answer.headers["content-type"] == "application/problem+json"
    assert connection.is_at_end()


UNFINISHED = {
    "request-line": lambda path: b"GET /hea",
    "headers": lambda path: b"GET /healthz HTTP/1.1\r\nHost: loc",
    "no-empty-line": lambda path: b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n",
    "body": lambda path: request_bytes("POST", path, b"0123456789", Content_Type=TEXT)[:-1],
    "no-body": lambda path: request_bytes("POST", path, Content_Type=TEXT, Content_Length="9"),
    "large-body": lambda path: (
        request_bytes("POST", path, Content_Type=TEXT, Content_Length=str(129 * KIB)) + b"begun"
    ),
    "chunk": lambda path: (
        request_bytes("GET", path, Content_Type=TEXT, Transfer_Encoding="chunked") + b"5\r\nhel"
    ),
}


@pytest.mark.parametrize("unfinished", UNFINISHED.values(), ids=UNFINISHED)
def test_a_request_that_does_not_end_is_408(
    impatient: ServerProcess, text: str, unfinished: Callable[[str], bytes]
) -> None:
    with RawConnection(impatient.port) as connection:
        connection.send(unfinished(text))
        check_timeout(connection)
    with RawConnection(impatient.port) as connection:
        assert connection.request("GET", text).body == b""


@pytest.mark.parametrize("part", ["head", "body"])
def test_a_request_that_comes_a_byte_at_a_time_is_408(
    impatient: ServerProcess, text: str, part: str
) -> None:
    """Slowloris: every byte is in time, the request is not."""
    head = b"GET /healthz HTTP/1.1\r\nX: "
    if part == "body":
        head = request_bytes("POST", text, Content_Type=TEXT, Content_Length="10000")
    with RawConnection(impatient.port) as connection:
        connection.send(head)
        connection.socket.setblocking(False)

        def is_answered() -> bool:
            try:
                connection.send(b"a")
                return bool(connection.socket.recv(1, socket.MSG_PEEK))
            except BlockingIOError:
                return False

        eventually(is_answered, "an answer, though bytes kept coming")
        connection.socket.settimeout(connection.deadline_secs)
        check_timeout(connection)


def test_a_second_request_has_its_deadline_too(impatient: ServerProcess) -> None:
    with RawConnection(impatient.port) as connection:
        assert connection.request("GET", "/healthz").status == 200
        connection.send(b"GET /healthz HTTP/1.1\r\nHost: loc")
        check_timeout(connection)


def test_a_connection_that_never_asks_is_closed(impatient: ServerProcess) -> None:
    with RawConnection(impatient.port) as connection:
        connection.rest()


def test_an_idle_connection_is_closed_without_a_word(brisk: ServerProcess) -> None:
    with RawConnection(brisk.port) as connection:
        assert connection.request("GET", "/healthz").status == 200
        assert connection.is_at_end()


def test_a_connection_in_use_is_not_idle(brisk: ServerProcess) -> None:
    """It asks a hundred times a second, for longer than idle connections are kept."""
    dates = set()
    with RawConnection(brisk.port) as connection:

        def is_old() -> bool:
            dates.add(connection.request("GET", "/healthz").headers["date"])
            return len(dates) > 4

        eventually(is_old, "the connection outlives the idle time")


def test_a_connection_that_is_sending_a_body_is_not_idle(brisk: ServerProcess, stream: str) -> None:
    """The body has a deadline of its own, here 30 seconds."""
    upload = request_bytes("POST", stream, b"hello", Content_Type=TEXT)
    with RawConnection(brisk.port) as connection:
        connection.request("PUT", stream, Content_Type=TEXT)
        connection.send(upload[:-1])
        await_seconds(brisk, 4)
        connection.send(upload[-1:])
        assert connection.response().status == 204


def test_a_live_read_outlives_every_deadline(serve: Serve, stream: str) -> None:
    server = serve(
        DS_HTTP__HEADER_TIMEOUT_SECS="1",
        DS_HTTP__BODY_TIMEOUT_SECS="1",
        DS_HTTP__KEEP_ALIVE_SECS="1",
        DS_SERVER__LONG_POLL_TIMEOUT_SECS="3",
    )
    with RawConnection(server.port) as connection:
        connection.request("PUT", stream, Content_Type=TEXT)
        assert connection.request("GET", f"{stream}?offset=-1&live=long-poll").status == 204


def test_a_client_that_takes_nothing_of_its_answers_is_cut_off(
    impatient: ServerProcess, text: str
) -> None:
    with (
        client_of(impatient) as client,
        RawConnection(impatient.port, receive_buffer_bytes=4 * KIB) as stalled,
    ):
        client.post(text, content=b"x" * 64 * KIB, headers={"Content-Type": TEXT})
        stalled.send(request_bytes("GET", text) * 500)
        eventually(lambda: metric(client, "headrace_connections") == 2, "it is stalled")
        eventually(lambda: metric(client, "headrace_connections") == 1, "it is cut off", 15)


def test_a_slow_reader_gets_the_whole_of_its_last_answer(serve: Serve, stream: str) -> None:
    """Closing after an answer must leave as much time to take it as any other answer has."""
    server = serve(DS_LIMITS__READ_CHUNK_BYTES=str(9 * MIB))
    with RawConnection(server.port) as writer:
        writer.request("PUT", stream, Content_Type=TEXT)
        for _ in range(9):
            writer.request("POST", stream, b"x" * MIB, Content_Type=TEXT)
    with RawConnection(server.port, receive_buffer_bytes=4 * KIB) as reader:
        reader.send(request_bytes("GET", stream, Connection="close"))
        await_seconds(server, 5)
        assert len(reader.response().body) == 9 * MIB
