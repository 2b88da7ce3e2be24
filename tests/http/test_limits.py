"""Limits on one request, however it is framed, and on what unread answers may hold.

Limits of the whole server (connections, rates, streams, memory) are in test_capacity.py.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from headrace.testing.raw_http import EndOfConnection, RawConnection, RawResponse, request_bytes
from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import eventually
from tests.conftest import Serve, stop_cleanly
from tests.http.helpers import KIB, MIB, resident_bytes

TEXT = "text/plain"
BODY_BYTES_MAX = 20_000
HEADER_BYTES_MAX = 2_000
HEADER_COUNT_MAX = 20
URL_BYTES_MAX = 300


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose limits on one request are small."""
    env = {
        "DS_LIMITS__MAX_BODY_BYTES": str(BODY_BYTES_MAX),
        "DS_LIMITS__MAX_HEADER_BYTES": str(HEADER_BYTES_MAX),
        "DS_LIMITS__MAX_HEADER_COUNT": str(HEADER_COUNT_MAX),
        "DS_LIMITS__MAX_URL_BYTES": str(URL_BYTES_MAX),
    }
    process = ServerProcess(env, cwd=str(tmp_path_factory.mktemp("small")))
    process.start()
    yield process
    stop_cleanly(process)


@pytest.fixture(scope="module")
def bystander(small: ServerProcess) -> Iterator[RawConnection]:
    with RawConnection(small.port) as connection:
        yield connection


@pytest.fixture
def text(bystander: RawConnection, stream: str) -> str:
    assert bystander.request("PUT", stream, Content_Type=TEXT).status == 201
    return stream


def only_answer(server: ServerProcess, sent: bytes) -> RawResponse:
    """Send, and take the one answer after which the server closes."""
    with RawConnection(server.port) as connection:
        connection.send(sent)
        answer = connection.response()
        assert connection.is_at_end()
    return answer


def upload(path: str, body: bytes, chunk_bytes: int | None = None) -> bytes:
    """An append with a length, or in chunks of one size; nothing follows it."""
    if chunk_bytes is None:
        return request_bytes("POST", path, body, Content_Type=TEXT, Connection="close")
    pieces = (body[at : at + chunk_bytes] for at in range(0, len(body), chunk_bytes))
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {TEXT}\r\n".encode()
    head += b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces) + b"0\r\n\r\n"


# -- bodies ----------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk_bytes", [None, 1, 1000, BODY_BYTES_MAX + 1])
def test_a_body_of_the_limit_is_taken_and_a_byte_more_is_413(
    small: ServerProcess, bystander: RawConnection, text: str, chunk_bytes: int | None
) -> None:
    body = b"x" * BODY_BYTES_MAX
    assert only_answer(small, upload(text, body, chunk_bytes)).status == 204
    refusal = only_answer(small, upload(text, body + b"x", chunk_bytes))
    assert refusal.status == 413
    assert refusal.json()["limit_bytes"] == BODY_BYTES_MAX
    assert bystander.request("GET", text).body == body


def test_a_client_that_sends_its_whole_body_first_still_reads_the_413(
    small: ServerProcess, text: str
) -> None:
    """A server that closes at once resets the connection and destroys its own answer."""
    assert only_answer(small, upload(text, b"x" * 8 * MIB)).status == 413


@pytest.mark.parametrize("limit", [10, 4000])
def test_a_small_body_limit_is_a_limit_too(serve: Serve, stream: str, limit: int) -> None:
    server = serve(DS_LIMITS__MAX_BODY_BYTES=str(limit))
    body = b"x" * (limit + 1)
    with RawConnection(server.port) as connection:
        connection.request("PUT", stream, Content_Type=TEXT)
    assert only_answer(server, upload(stream, body[:-1])).status == 204
    framings = {"length": None, "one chunk": len(body), "tiny chunks": 1}
    statuses = {
        name: only_answer(server, upload(stream, body, chunk_bytes)).status
        for name, chunk_bytes in framings.items()
    }
    assert statuses == dict.fromkeys(framings, 413)


# -- heads -----------------------------------------------------------------------------------

OVERSIZE_HEADS = {
    "url": (414, f"/{'u' * URL_BYTES_MAX}", {}),
    "query": (414, f"/healthz?{'u' * URL_BYTES_MAX}", {}),
    "one-header": (431, "/healthz", {"X": "x" * HEADER_BYTES_MAX}),
    "header-bytes": (431, "/healthz", {f"X{n}": "x" * 200 for n in range(12)}),
    "header-count": (431, "/healthz", {f"X{n}": "x" for n in range(HEADER_COUNT_MAX)}),
}
oversize_heads = pytest.mark.parametrize(
    ("status", "target", "headers"), OVERSIZE_HEADS.values(), ids=OVERSIZE_HEADS
)


@oversize_heads
def test_a_head_over_the_limit_is_refused(
    small: ServerProcess,
    bystander: RawConnection,
    status: int,
    target: str,
    headers: dict[str, str],
) -> None:
    refusal = only_answer(small, request_bytes("GET", target, b"", **headers))
    assert refusal.status == status
    assert refusal.headers["content-type"] == "application/problem+json"
    assert bystander.request("GET", "/healthz").body == b"ok"


@oversize_heads
def test_a_head_over_the_limit_is_refused_behind_another_request_too(
    small: ServerProcess, status: int, target: str, headers: dict[str, str]
) -> None:
    with RawConnection(small.port) as connection:
        connection.send(
            request_bytes("GET", "/healthz") + request_bytes("GET", target, b"", **headers)
        )
        assert connection.response().status == 200
        assert connection.response().status == status
        assert connection.is_at_end()


def test_a_repeated_header_counts_every_time(small: ServerProcess) -> None:
    lines = b"X: y\r\n" * HEADER_COUNT_MAX
    refusal = only_answer(small, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + lines + b"\r\n")
    assert refusal.status == 431


@pytest.mark.parametrize(
    ("endless", "status"),
    [(b"GET /", 414), (b"GET / HTTP/1.1\r\nX: ", 431), (b"GET / HTTP/1.1\r\nX", 431)],
    ids=["url", "value", "name"],
)
def test_a_head_without_end_is_refused_while_it_comes(
    small: ServerProcess, endless: bytes, status: int
) -> None:
    assert only_answer(small, endless + b"a" * 100_000).status == status


# -- answers that nobody takes ---------------------------------------------------------------


def test_reads_that_nobody_takes_do_not_pile_up_in_memory(serve: Serve, stream: str) -> None:
    """20 clients ask for 4 GiB in all and read nothing; one that reads is served meanwhile."""
    server = serve()
    with RawConnection(server.port) as reader, ExitStack() as stalled:
        reader.request("PUT", stream, b"x" * MIB, Content_Type=TEXT)
        assert len(reader.request("GET", stream).body) == MIB
        idle_bytes = resident_bytes(server.pid)
        for _ in range(20):
            connection = RawConnection(server.port, receive_buffer_bytes=4 * KIB)
            stalled.enter_context(connection)
            connection.send(request_bytes("GET", stream) * 200)
        for _ in range(20):
            assert len(reader.request("GET", stream).body) == MIB
        assert resident_bytes(server.pid) - idle_bytes < 100 * MIB


# -- descriptors -----------------------------------------------------------------------------


def test_a_flood_past_the_descriptor_limit_leaves_accepted_clients_alone(serve: Serve) -> None:
    """The cap lies 64 below the descriptor limit, and refused clients that stay hold descriptors.

    The limit is lowered under the running server to what it would have been at its start.
    """
    server = serve(DS_LIMITS__MAX_CONNECTIONS="20")
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (84, 84))
    with RawConnection(server.port) as accepted:
        assert accepted.request("GET", "/healthz").status == 200
        with ExitStack() as flood:
            for _ in range(200):
                flood.enter_context(RawConnection(server.port))
            assert accepted.request("GET", "/healthz").status == 200
        eventually(lambda: is_served(server), "new clients are served after the flood")


def is_served(server: ServerProcess) -> bool:
    with RawConnection(server.port) as connection:
        try:
            return connection.request("GET", "/healthz").status == 200
        except (EndOfConnection, ConnectionError):
            return False
