"""Many readers cost little, and readers that do not read cost the others nothing."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from headrace.protocol.sse import EventDecoder
from headrace.testing.raw_http import RawConnection
from headrace.testing.server_process import ServerProcess
from headrace.testing.server_queries import live_readers
from headrace.testing.sse_load import Crowd, descriptors_max
from headrace.testing.waiting import DEADLINE_SECS, eventually
from tests.conftest import Serve

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc"),
]

KIB, MIB = 1024, 1024 * 1024
IDLE_READERS = 10_000
IDLE_BYTES_MAX = 150 * MIB
STALLED_READERS = 1_000
STALLED_BYTES_MAX = 64 * KIB  # each: a queue of 32 KiB, the connection, and some slack
CATCHING_UP_BYTES_MAX = 128 * KIB  # each: two pieces of 32 KiB, and what does not fit together
HEALTHY_READERS = 100
EVENTS = 300
EVENT_BYTES = 4 * KIB  # together several times what kernel and server hold for one reader
TEXT = {"Content-Type": "text/plain"}


@pytest.fixture
def server(serve: Serve) -> ServerProcess:
    """A server of its own for each test, because its memory is what is measured."""
    return serve(
        DS_SERVER__SSE_RECONNECT_INTERVAL_SECS="0", DS_LIMITS__MAX_STREAM_BYTES=str(64 * MIB)
    )


@pytest.fixture
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=DEADLINE_SECS) as client:
        yield client


def rss_bytes(server: ServerProcess) -> int:
    held = Path(f"/proc/{server.pid}/statm").read_text().split()[1]
    return int(held) * resource.getpagesize()


def wait_for_readers(http: httpx.Client, count: int) -> None:
    eventually(lambda: live_readers(http, "sse") == count, f"{count} readers")


@pytest.mark.skipif(
    descriptors_max() < IDLE_READERS,
    reason=f"needs a hard limit of {IDLE_READERS} open files and some",
)
def test_ten_thousand_idle_readers_cost_at_most_150_mib(
    server: ServerProcess, http: httpx.Client, stream: str
) -> None:
    http.put(stream, headers=TEXT)
    idle = rss_bytes(server)
    with Crowd(server.port, f"{stream}?offset=now&live=sse", IDLE_READERS, "idle"):
        wait_for_readers(http, IDLE_READERS)
        grown = rss_bytes(server) - idle
        print(f"{IDLE_READERS} idle readers: {grown / MIB:.1f} MiB above idle")
        assert grown <= IDLE_BYTES_MAX
        assert http.get("/healthz").text == "ok"
    wait_for_readers(http, 0)


def test_stalled_readers_do_not_keep_events_from_healthy_ones(
    server: ServerProcess, http: httpx.Client, stream: str
) -> None:
    http.put(stream, headers=TEXT)
    target = f"{stream}?offset=now&live=sse"
    before = rss_bytes(server)
    with (
        Crowd(server.port, target, STALLED_READERS, "stalled"),
        Crowd(server.port, target, HEALTHY_READERS, "healthy") as healthy,
    ):
        wait_for_readers(http, STALLED_READERS + HEALTHY_READERS)
        sent = [f"{number:0{EVENT_BYTES}d}" for number in range(EVENTS)]
        with RawConnection(server.port) as writer:
            for text in sent:
                answer = writer.request("POST", stream, text.encode(), Content_Type="text/plain")
                assert answer.status == 204
        each = (rss_bytes(server) - before) / STALLED_READERS
        print(f"{STALLED_READERS} stalled readers at the tail: {each / KIB:.1f} KiB each")
        http.post(stream, headers={"Stream-Closed": "true"})
        transcripts = healthy.transcripts()
    assert each <= STALLED_BYTES_MAX
    assert sum(count for _, count in transcripts) == HEALTHY_READERS
    for transcript, _ in transcripts:
        data, controls = parted(transcript)
        assert "".join(data) == "".join(sent)
        assert controls[-1]["streamClosed"] is True


def parted(transcript: str) -> tuple[list[str], list[dict[str, object]]]:
    events = list(EventDecoder().feed(transcript.encode()))
    data = [event.data for event in events if event.type == "data"]
    return data, [json.loads(event.data) for event in events if event.type == "control"]


def test_readers_that_stall_while_they_catch_up_cost_little_each(
    server: ServerProcess, http: httpx.Client, stream: str
) -> None:
    """A long history of small messages must not be queued for someone who does not take it."""
    readers = 200
    http.put(stream, headers={"Content-Type": "application/json"})
    for _ in range(8):
        http.post(stream, json=["x" * EVENT_BYTES] * (MIB // EVENT_BYTES)).raise_for_status()
    url = f"{stream}?offset=-1&live=sse"
    empty = rss_bytes(server)
    with Crowd(server.port, url, readers, "stalled"):
        wait_for_readers(http, readers)
        before = rss_bytes(server)
        assert (before - empty) / readers <= CATCHING_UP_BYTES_MAX
        # The first found memory that was free; each that comes on top of them costs its own.
        with Crowd(server.port, url, readers, "stalled"):
            wait_for_readers(http, 2 * readers)
            each = (rss_bytes(server) - before) / readers
        print(f"{readers} readers stalled in 8 MiB of history: {each / KIB:.1f} KiB each")
        assert each <= CATCHING_UP_BYTES_MAX


def test_a_stream_deleted_under_stalled_readers_lets_them_go(
    server: ServerProcess, http: httpx.Client, stream: str
) -> None:
    http.put(stream, headers=TEXT)
    with Crowd(server.port, f"{stream}?offset=now&live=sse", HEALTHY_READERS, "stalled"):
        wait_for_readers(http, HEALTHY_READERS)
        for _ in range(EVENTS):
            http.post(stream, content=b"x" * EVENT_BYTES, headers=TEXT)
        http.delete(stream)
        wait_for_readers(http, 0)
