"""Connections are cheap to open: however many come, storage keeps its descriptors."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from headrace.testing.certificates import write_self_signed
from headrace.testing.raw_http import EndOfConnection, RawConnection, request_bytes
from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import eventually
from tests.conftest import stop_cleanly
from tests.durability.modes import DURABLE_MODES
from tests.http.helpers import KIB

TEXT = "text/plain"
STREAM = "/v1/stream/kept"
MESSAGE_BYTES = 40 * KIB
LIMIT = 160


Launch = Callable[[ServerProcess], ServerProcess]


class Limited(ServerProcess):
    """A server that may open few files."""

    launcher = ("sh", "-c", f'ulimit -n {LIMIT}; exec "$@"', "sh")


@pytest.fixture
def launch() -> Iterator[Callable[[ServerProcess], ServerProcess]]:
    """Start a server; it is stopped afterwards, and must not have failed."""
    started: list[ServerProcess] = []

    def start(process: ServerProcess) -> ServerProcess:
        process.start()
        started.append(process)
        return process

    yield start
    for process in started:
        stop_cleanly(process)


def durable(directory: Path, mode: str, **more: str) -> dict[str, str]:
    """Segments are so small that two messages fill one."""
    return {
        "DS_STORAGE__MODE": mode,
        "DS_STORAGE__DATA_DIR": str(directory / "data"),
        "DS_STORAGE__JOURNAL_SEGMENT_BYTES": "65536",
        **more,
    }


def open_files(server: ServerProcess) -> int:
    return len(os.listdir(f"/proc/{server.pid}/fd"))


def message(number: int) -> bytes:
    return f"{number:06d}".encode() * (MESSAGE_BYTES // 6)


def appended(connection: RawConnection, number: int) -> int:
    return connection.request("POST", STREAM, message(number), Content_Type=TEXT).status


def content(connection: RawConnection) -> bytes:
    found, offset = b"", "-1"
    while True:
        answer = connection.request("GET", f"{STREAM}?offset={offset}")
        assert answer.status == 200, answer.body
        found, offset = found + answer.body, answer.headers["stream-next-offset"]
        if "stream-up-to-date" in answer.headers:
            return found


@contextmanager
def flood(server: ServerProcess, count: int, first: bytes = b"") -> Iterator[list[socket.socket]]:
    """So many connections, begun and left alone."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", server.port))
        for sock in sockets if first else ():
            try:
                sock.send(first)
            except OSError:
                continue
        yield sockets


@contextmanager
def few_descriptors(server: ServerProcess) -> Iterator[None]:
    """The limit is below what is open already."""
    soft, hard = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (8, hard))
    yield
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (soft, hard))


def await_seconds(connection: RawConnection, count: int) -> None:
    """Wait until the server's clock has ticked so often."""
    dates = set()

    def have_passed() -> bool:
        dates.add(connection.request("GET", "/healthz").headers["date"])
        return len(dates) > count

    eventually(have_passed, f"{count} seconds on the server's clock")


def is_served(server: ServerProcess, connect: Callable[[], RawConnection]) -> bool:
    try:
        with connect() as connection:
            return connection.request("GET", STREAM).status == 200
    except (EndOfConnection, OSError):
        return False


@pytest.mark.parametrize("mode", DURABLE_MODES)
def test_a_flood_of_connections_takes_no_descriptor_from_storage(
    launch: Launch, tmp_path: Path, mode: str
) -> None:
    """400 connections against 160 descriptors, while the journal takes a segment every two appends.

    The writer is refused nothing: what storage needs was never given to connections.
    """
    limited = launch(Limited(durable(tmp_path, mode), cwd=str(tmp_path)))
    with RawConnection(limited.port) as writer:
        assert writer.request("PUT", STREAM, Content_Type=TEXT).status == 201
        with flood(limited, 400):
            assert [appended(writer, number) for number in range(40)] == [204] * 40
            assert open_files(limited) < LIMIT
            assert content(writer) == b"".join(map(message, range(40)))
    eventually(lambda: is_served(limited, lambda: RawConnection(limited.port)), "room again")


def test_while_no_descriptor_is_free_writers_wait_and_nothing_dies(
    launch: Launch, tmp_path: Path
) -> None:
    """Somebody else took them all: the limit falls below what is open, and comes back."""
    server = launch(ServerProcess(durable(tmp_path, "file-durable"), cwd=str(tmp_path)))
    kept: list[int] = []
    with RawConnection(server.port) as writer, RawConnection(server.port) as other:
        assert writer.request("PUT", STREAM, Content_Type=TEXT).status == 201
        assert appended(writer, 0) == 204
        assert other.request("GET", "/healthz").status == 200
        with few_descriptors(server):
            for number in range(1, 6):
                writer.send(request_bytes("POST", STREAM, message(number), Content_Type=TEXT))
            await_seconds(other, 3)
            assert appended(other, 999) == 503, "another writer is told to come again"
            assert other.request("GET", "/healthz").status == 200
            assert other.request("GET", "/readyz").status == 200
            assert server.is_running
        kept = [n for n in range(1, 6) if writer.response().status == 204]
        eventually(lambda: appended(other, 6) == 204, "writing goes on")
        found = content(other)
    assert all(message(number) in found for number in [0, *kept, 6])


def test_acid_writes_and_reads_while_no_descriptor_is_free(launch: Launch, tmp_path: Path) -> None:
    """It has all its files open from the start; a snapshot, which is a file, has to wait."""
    server = launch(ServerProcess(durable(tmp_path, "acid"), cwd=str(tmp_path)))
    snapshot = f"/bucket/doc/snapshot/{1:016d}_{1:016d}"
    with RawConnection(server.port) as client:
        assert client.request("PUT", "/bucket").status == 201
        assert client.request("PUT", "/bucket/doc", b"x", Content_Type=TEXT).status == 201
        assert client.request("PUT", STREAM, Content_Type=TEXT).status == 201
        assert appended(client, 0) == 204
        with few_descriptors(server):
            assert [appended(client, number) for number in range(1, 9)] == [204] * 8
            assert content(client) == b"".join(map(message, range(9)))
            assert client.request("PUT", snapshot, b"folded").status == 503
            assert client.request("GET", "/healthz").status == 200
            assert client.request("GET", "/readyz").status == 200

        def is_published() -> bool:
            return client.request("PUT", snapshot, b"folded").status == 204

        eventually(is_published, "the snapshot finds a descriptor")
        assert client.request("GET", snapshot).body == b"folded"
        assert content(client) == b"".join(map(message, range(9)))


def test_a_read_that_finds_no_descriptor_is_told_to_come_again(
    launch: Launch, tmp_path: Path
) -> None:
    server = launch(ServerProcess(durable(tmp_path, "file-durable"), cwd=str(tmp_path)))
    with RawConnection(server.port) as client:
        assert client.request("PUT", STREAM, Content_Type=TEXT).status == 201
        assert [appended(client, number) for number in range(8)] == [204] * 8

        def is_cold() -> bool:
            with few_descriptors(server):
                answer = client.request("GET", f"{STREAM}?offset=-1")
            assert answer.status in (200, 503), answer.body
            return answer.status == 503

        eventually(is_cold, "a read that goes to the disk")
        assert content(client) == b"".join(map(message, range(8)))


@pytest.mark.parametrize("mode", DURABLE_MODES)
def test_handshakes_count_and_end(launch: Launch, tmp_path: Path, mode: str) -> None:
    """Clients that connect and never begin TLS hold places like others, and for a short while."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    trust = write_self_signed(cert, key)
    settings = durable(
        tmp_path,
        mode,
        DS_TLS__CERT_PATH=str(cert),
        DS_TLS__KEY_PATH=str(key),
        DS_HTTP__HEADER_TIMEOUT_SECS="1",
    )
    server = launch(Limited(settings, cwd=str(tmp_path)))

    def connect() -> RawConnection:
        return RawConnection(server.port, tls=trust)

    with connect() as writer:
        assert writer.request("PUT", STREAM, Content_Type=TEXT).status == 201
        with flood(server, 300):
            assert [appended(writer, number) for number in range(10)] == [204] * 10
            assert open_files(server) < LIMIT
            eventually(lambda: is_served(server, connect), "those who say nothing are dropped")
        assert content(writer) == b"".join(map(message, range(10)))


def test_probes_are_answered_when_connections_are_used_up(launch: Launch, tmp_path: Path) -> None:
    """A server that serves as many as it can is alive: nobody should restart it."""
    server = launch(ServerProcess({"DS_LIMITS__MAX_CONNECTIONS": "3"}, cwd=str(tmp_path)))
    with ExitStack() as stack:
        held = [stack.enter_context(RawConnection(server.port)) for _ in range(3)]
        assert [c.request("GET", "/healthz").status for c in held] == [200] * 3
        for target in ("/healthz", "/readyz", "/metrics"):
            for method in ("GET", "HEAD"):
                with RawConnection(server.port) as probe:
                    answer = probe.request(method, target)
                    assert answer.status == 200
                    assert answer.headers["connection"] == "close"
                    assert probe.is_at_end()
        with RawConnection(server.port) as refused:
            assert refused.request("GET", STREAM).status == 503
        with RawConnection(server.port) as refused:
            refused.send(request_bytes("POST", STREAM, Content_Type=TEXT, Content_Length="100000"))
            refused.send(b"x" * 50_000)
            assert refused.response().status == 503
        with RawConnection(server.port) as silent:
            assert silent.response().status == 503
            assert silent.is_at_end()
        assert [c.request("GET", "/healthz").status for c in held] == [200] * 3
