"""Bodies that are received past the parser: whole, in order, and as bounded as any other."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from itertools import count, pairwise
from pathlib import Path

import pytest

from headrace.http.connections.large_bodies import MISSING_BYTES_MIN, LargeBody
from headrace.testing.certificates import write_self_signed
from headrace.testing.raw_http import RawConnection, request_bytes
from headrace.testing.server_process import ServerProcess
from tests.conftest import Serve
from tests.http.helpers import MIB, resident_bytes

Connect = Callable[[], RawConnection]
Client = Callable[[Connect], AbstractContextManager[None]]

BYTES = "application/octet-stream"
SIZES = (
    MISSING_BYTES_MIN - 1,
    MISSING_BYTES_MIN,
    MISSING_BYTES_MIN + 1,
    MIB,
    5 * MIB + 17,
)


def body_of(size: int) -> bytes:
    return random.Random(size).randbytes(size)


@pytest.fixture
def connection(server: ServerProcess, stream: str) -> Iterator[RawConnection]:
    """To a server that has `stream`, empty."""
    with RawConnection(server.port) as connection:
        assert connection.request("PUT", stream, Content_Type=BYTES).status == 201
        yield connection


def content(connection: RawConnection, stream: str) -> bytes:
    """All of it, read by requests on the same connection."""
    found, offset = b"", "-1"
    while True:
        answer = connection.request("GET", f"{stream}?offset={offset}")
        assert answer.status == 200
        found, offset = found + answer.body, answer.headers["stream-next-offset"]
        if "stream-up-to-date" in answer.headers:
            return found


@pytest.mark.parametrize("size", SIZES)
def test_bodies_of_any_size_arrive_as_they_are(
    connection: RawConnection, stream: str, size: int
) -> None:
    body = body_of(size)
    assert connection.request("POST", stream, body, Content_Type=BYTES).status == 204
    assert content(connection, stream) == body


@pytest.mark.parametrize("seed", range(5))
def test_it_does_not_matter_how_requests_are_cut(
    connection: RawConnection, stream: str, seed: int
) -> None:
    """Large and small ones, one behind the other, in pieces of any size."""
    rng = random.Random(seed)
    bodies = [body_of(rng.choice((1, 5000, *SIZES[:4]))) for _ in range(6)]
    sent = b"".join(request_bytes("POST", stream, body, Content_Type=BYTES) for body in bodies)
    cuts = sorted(rng.randrange(len(sent)) for _ in range(20))
    for start, end in pairwise((0, *cuts, len(sent))):
        connection.send(sent[start:end])
    assert [connection.response().status for _ in bodies] == [204] * len(bodies)
    assert content(connection, stream) == b"".join(bodies)


def test_a_client_that_waits_to_be_told_is_told(connection: RawConnection, stream: str) -> None:
    body = body_of(MIB)
    head = {"Content_Type": BYTES, "Content_Length": str(MIB), "Expect": "100-continue"}
    for _ in range(2):
        connection.send(request_bytes("POST", stream, b"", **head))
        assert connection.response().status == 100
        connection.send(body)
        assert connection.response().status == 204
    assert content(connection, stream) == body + body


def test_one_behind_a_long_poll_waits_for_its_turn(
    server: ServerProcess, connection: RawConnection, stream: str
) -> None:
    body = body_of(MIB)
    connection.send(request_bytes("GET", f"{stream}?offset=-1&live=long-poll"))
    connection.send(request_bytes("POST", stream, body, Content_Type=BYTES))
    with RawConnection(server.port) as other:
        assert other.request("POST", stream, b"first", Content_Type=BYTES).status == 204
        assert connection.response().body == b"first"
        assert connection.response().status == 204
        assert content(other, stream) == b"first" + body


def test_a_client_that_is_done_sending_is_answered(
    server: ServerProcess, connection: RawConnection, stream: str
) -> None:
    """Its end may be read together with the last bytes of the body."""
    body = body_of(MIB)
    for _ in range(10):
        with RawConnection(server.port) as other:
            other.send(request_bytes("POST", stream, body, Content_Type=BYTES))
            other.finish_sending()
            assert other.response().status == 204
    assert content(connection, stream) == 10 * body


def test_half_a_body_is_none(server: ServerProcess, connection: RawConnection, stream: str) -> None:
    connection.send(request_bytes("POST", stream, body_of(MIB), Content_Type=BYTES)[:-1])
    connection.finish_sending()
    assert connection.is_at_end()
    with RawConnection(server.port) as other:
        assert content(other, stream) == b""


LARGE = 8 * MIB
NOWHERE = "/v1/stream/not/there"
_numbers = count()


@contextmanager
def answered(connect: Connect) -> Iterator[None]:
    """A client that stays and has nothing more to say."""
    with connect() as connection:
        posted = connection.request("POST", NOWHERE, bytes(LARGE), Content_Type=BYTES)
        assert posted.status == 404
        yield


@contextmanager
def given_up(connect: Connect) -> Iterator[None]:
    """A client that leaves just before the end of a body."""
    with connect() as connection:
        connection.send(request_bytes("POST", NOWHERE, bytes(LARGE), Content_Type=BYTES)[:-100])
    yield


@contextmanager
def overtaken(connect: Connect) -> Iterator[None]:
    """A client whose body comes while a read without an end begins, which stands before it."""
    stream = f"/v1/stream/endless/{next(_numbers)}"
    post = request_bytes("POST", NOWHERE, bytes(LARGE), Content_Type=BYTES)
    with connect() as connection, connect() as writer:
        assert writer.request("PUT", stream, Content_Type=BYTES).status == 201
        connection.send(
            request_bytes("GET", f"{stream}?offset=-1&live=long-poll")
            + request_bytes("GET", f"{stream}?offset=-1&live=sse")
            + post[:1000]
        )
        assert writer.request("POST", stream, b"x", Content_Type=BYTES).status == 204
        assert connection.response().body == b"x"
        assert connection.head().status == 200
        connection.send(post[1000:-100])
        yield


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("client", [answered, given_up, overtaken])
def test_nothing_is_kept_of_a_body_that_is_done_with(
    serve: Serve, tmp_path: Path, client: Client, secure: bool
) -> None:
    """Whether its client is still there or not."""
    settings, trust = {}, None
    if secure:
        cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
        trust = write_self_signed(cert, key)
        settings = {"DS_TLS__CERT_PATH": str(cert), "DS_TLS__KEY_PATH": str(key)}
    server = serve(**settings)
    connect = partial(RawConnection, server.port, tls=trust)
    with ExitStack() as clients:
        clients.enter_context(client(connect))
        before = resident_bytes(server.pid)
        for _ in range(20):
            clients.enter_context(client(connect))
        kept = resident_bytes(server.pid) - before
    assert kept < 8 * LARGE, "of 20 bodies"


def test_the_bytes_are_not_copied_once_more() -> None:
    body = LargeBody(MIB, [b"head"])
    room = body.room()
    address = ctypes.addressof(ctypes.c_char.from_buffer(room)) - len(b"head")
    room[:] = bytes(len(room))
    body.add(len(room))
    del room
    taken = body.take()
    assert taken == b"head" + bytes(MIB - 4)
    assert ctypes.cast(ctypes.c_char_p(taken), ctypes.c_void_p).value == address
