"""Clients that take nothing, or send nothing, hold little: and never what others need."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path

import httpx
import pytest

from headrace.errors import HeadraceError
from headrace.http.connections.send_windows import (
    ANSWER_WINDOW_BYTES,
    IN_KERNEL_BYTES,
    SMALL_ANSWER_BYTES,
    TAKEN_BYTES_PER_SEC_MIN,
    LargeAnswer,
    UnsentBudget,
)
from headrace.protocol.sse import EventDecoder, ReceivedEvent
from headrace.testing.certificates import write_self_signed
from headrace.testing.raw_http import RawConnection, request_bytes
from headrace.testing.server_process import ServerProcess
from headrace.testing.server_queries import live_readers, metric
from headrace.testing.waiting import eventually
from tests.conftest import Serve
from tests.hostile.stalls import stalls, stalls_since
from tests.http.helpers import KIB, MIB, await_readers, client_of, resident_bytes

JSON = {"Content-Type": "application/json"}
TEXT = {"Content-Type": "text/plain"}
LARGE = 4 * MIB
UNSENT_MAX = 16 * MIB
ROOM = {
    "DS_LIMITS__MAX_STREAM_BYTES": str(64 * MIB),
    "DS_LIMITS__MAX_MEMORY_BYTES": str(512 * MIB),
}
BOUNDED = ROOM | {"DS_LIMITS__MAX_UNSENT_BYTES": str(UNSENT_MAX)}


def large(number: int) -> bytes:
    return b"%08d" % number * (LARGE // 8)


def create(http: httpx.Client, path: str, *messages: bytes) -> None:
    http.put(path, headers=TEXT).raise_for_status()
    for message in messages:
        http.post(path, content=message, headers=TEXT).raise_for_status()


@contextmanager
def stalled(server: ServerProcess, targets: list[str]) -> Iterator[list[RawConnection]]:
    """Clients that ask and take nothing."""
    with ExitStack() as stack:
        connections = []
        for target in targets:
            connection = RawConnection(server.port, receive_buffer_bytes=4 * KIB)
            stack.enter_context(connection)
            connection.send(request_bytes("GET", target))
            connections.append(connection)
        yield connections


def unsent_bytes(http: httpx.Client) -> int:
    return int(metric(http, "headrace_unsent_bytes"))


def events(connection: RawConnection, count: int) -> list[ReceivedEvent]:
    """The next so many events of a stream of them."""
    decoder = EventDecoder()
    found: list[ReceivedEvent] = []
    for chunk in connection.chunks():
        found += decoder.feed(chunk)
        if len(found) >= count:
            break
    return found


def check_served(http: httpx.Client, path: str) -> None:
    """Whatever is large may have to wait, but nothing else does."""
    for probe in ("/healthz", "/readyz", "/metrics"):
        answer = http.get(probe)
        assert answer.status_code == 200
        assert len(answer.content) < SMALL_ANSWER_BYTES // 2, "so that it is never refused"
    assert http.post(path, content=b"y", headers=TEXT).status_code == 204
    assert http.get(path).status_code == 200
    assert http.get(f"{path}?offset=-1&live=long-poll").status_code == 200


# -- what waits for clients ------------------------------------------------------------------


def test_stalled_readers_of_one_large_message_share_it(serve: Serve, stream: str) -> None:
    """It is not the last message: nobody else is in the same place at the same time."""
    server = serve(**ROOM)
    target = f"{stream}?offset=-1&live=sse"
    with client_of(server) as http:
        create(http, stream, large(1) + large(2), b"the next")
        before = resident_bytes(server.pid)
        with stalled(server, [target] * 40):
            await_readers(http, "sse", 40)
            assert unsent_bytes(http) < 3 * LARGE
            assert resident_bytes(server.pid) - before < 16 * LARGE, "of 40 times 8 MiB"
            with RawConnection(server.port) as reader:
                reader.send(request_bytes("GET", target))
                assert reader.head().status == 200
                found = [event.data for event in events(reader, 4) if event.type == "data"]
                assert found == [(large(1) + large(2)).decode(), "the next"]
        eventually(lambda: unsent_bytes(http) == 0, "those who left hold nothing")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["memory", "file-fast"])
def test_stalled_readers_of_many_large_messages_stay_within_the_budget(
    serve: Serve, mode: str
) -> None:
    """Past it live readers wait with their position, and the stalled are cut off to let them on.

    From the disk, messages come later than they are asked for.
    """
    disk = {"DS_STORAGE__MODE": mode, "DS_STORAGE__JOURNAL_SEGMENT_BYTES": "65536"}
    server = serve(**BOUNDED, **disk)
    paths = [f"/v1/stream/large/{number}" for number in range(7)]
    targets = [f"{path}?offset=-1&live=sse" for path in paths]
    with client_of(server) as http:
        for number, path in enumerate(paths):
            create(http, path, large(number))
        create(http, "/v1/stream/small", b"x")
        with stalled(server, targets[:-1]), RawConnection(server.port) as reader:
            await_readers(http, "sse", 6)
            assert UNSENT_MAX < unsent_bytes(http) < UNSENT_MAX + 2 * LARGE
            reader.send(request_bytes("GET", targets[-1]))
            assert reader.head().status == 200, "it may follow, and gets it in its turn"
            check_served(http, "/v1/stream/small")
            refused = http.get(paths[0])
            assert refused.status_code == 503
            assert int(refused.headers["Retry-After"]) >= 1
            (event, _) = events(reader, 2)
            assert event.data == large(6).decode()
            assert metric(http, "headrace_clients_cut_total") >= 1


@pytest.mark.parametrize("what", ["read", "long-poll", "bootstrap", "snapshot"])
def test_answers_that_nobody_takes_refuse_large_ones_only(serve: Serve, what: str) -> None:
    server = serve(**BOUNDED)
    with client_of(server) as http:
        http.put("/hoard").raise_for_status()
        create(http, "/hoard/small", b"x")
        create(http, "/hoard/large", large(0))
        target = "/hoard/large?offset=-1"
        if what == "long-poll":
            target += "&live=long-poll"
        elif what == "bootstrap":
            target = "/hoard/large/bootstrap"
        elif what == "snapshot":
            tail = http.head("/hoard/large").headers["Stream-Next-Offset"]
            target = f"/hoard/large/snapshot/{tail}"
            http.put(target, content=large(1), headers=TEXT).raise_for_status()
        before = resident_bytes(server.pid)
        with stalled(server, [target] * 100):
            eventually(lambda: unsent_bytes(http) >= UNSENT_MAX, "nobody takes anything")
            check_served(http, "/hoard/small")
            assert http.get(target).status_code == 503
            assert resident_bytes(server.pid) - before < 5 * UNSENT_MAX, "of 400 MiB"
        eventually(lambda: unsent_bytes(http) == 0, "those who left hold nothing")
        assert http.get(target).status_code == 200


def send_queues(port: int) -> list[int]:
    """What the kernel keeps of what the server sent, for each connection to its port."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    here = f":{port:04X}"
    return [int(row[4].split(":")[0], 16) for row in rows if row[1].endswith(here)]


@pytest.mark.parametrize("target", ["?offset=-1", "?offset=now&live=long-poll"])
def test_the_kernel_keeps_little_of_what_nobody_takes(serve: Serve, target: str) -> None:
    """Or it would keep up to 4 MiB for each of them, which no limit counts."""
    server = serve(**ROOM)
    with client_of(server) as http:
        create(http, "/v1/stream/s", *([] if "long-poll" in target else [large(0)]))
        with stalled(server, [f"/v1/stream/s{target}"] * 20):
            if "long-poll" in target:
                await_readers(http, "long-poll", 20)
                http.post("/v1/stream/s", content=large(0), headers=TEXT).raise_for_status()
            eventually(
                lambda: unsent_bytes(http) >= LARGE + 20 * IN_KERNEL_BYTES, "all are sent it"
            )
            assert max(send_queues(server.port)) <= IN_KERNEL_BYTES
            if "long-poll" in target:
                assert unsent_bytes(http) == LARGE + 20 * IN_KERNEL_BYTES, "one body for all"
        eventually(lambda: unsent_bytes(http) == 0, "those who left hold nothing")


def test_an_append_that_many_wait_for_is_sent_in_turns(serve: Serve) -> None:
    """One turn for all of them would copy hundreds of megabytes before anybody else is served."""
    server = serve(**ROOM, DS_LOG__STALL_SECS="0.1")
    with client_of(server) as http:
        create(http, "/v1/stream/s", b"first")
        with stalled(server, ["/v1/stream/s?offset=now&live=long-poll"] * 150):
            await_readers(http, "long-poll", 150)
            before = stalls(http)
            http.post("/v1/stream/s", content=large(0)[: 2 * MIB], headers=TEXT).raise_for_status()
            eventually(lambda: sum(map(bool, send_queues(server.port))) == 150, "all are sent it")
            found = stalls_since(http, before)
            assert not any(stall.above_250_ms for stall in found.values()), found


class StoppedLoop(asyncio.SelectorEventLoop):
    now = 100.0

    def time(self) -> float:
        return self.now


class Client:
    was_cut = False

    def on_cut(self) -> None:
        self.was_cut = True


def test_a_client_at_the_least_rate_is_not_cut_within_a_window() -> None:
    with closing(StoppedLoop()) as loop:
        budget = UnsentBudget(loop, bytes_max=1)
        slow, stopped = Client(), Client()
        answers = [LargeAnswer(bytes(2 * MIB), budget, client) for client in (slow, stopped)]
        for answer in answers:
            assert len(answer.window()) == ANSWER_WINDOW_BYTES
        for second in range(1, ANSWER_WINDOW_BYTES // TAKEN_BYTES_PER_SEC_MIN):
            loop.now += 1
            answers[0].note_unsent(ANSWER_WINDOW_BYTES - second * TAKEN_BYTES_PER_SEC_MIN)
            answers[1].note_unsent(ANSWER_WINDOW_BYTES)
            budget.cut_slowest()
        assert stopped.was_cut
        assert not slow.was_cut


class Waiter:
    def __init__(self, defect: Exception | None = None) -> None:
        self.heard: list[str] = []
        self._defect = defect

    def on_room(self) -> None:
        self.heard.append("room")
        if self._defect is not None:
            raise self._defect

    def on_fault(self, fault: HeadraceError) -> None:
        self.heard.append("fault")


@pytest.mark.faults
def test_a_defect_in_one_waiting_client_leaves_the_others_their_room() -> None:
    with closing(StoppedLoop()) as loop:
        budget = UnsentBudget(loop, bytes_max=1)
        waiters = [Waiter(ValueError("a defect")), Waiter(), Waiter()]
        for waiter in waiters:
            budget.wait(waiter)
        budget.add(2)
        budget.remove(2)
        loop.run_until_complete(asyncio.sleep(0))
        assert [waiter.heard for waiter in waiters] == [["room", "fault"], ["room"], ["room"]]
        late = Waiter()
        budget.wait(late)
        budget.add(2)
        budget.remove(2)
        loop.run_until_complete(asyncio.sleep(0))
        assert late.heard == ["room"]


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
def test_a_large_event_arrives_whole(serve: Serve, tmp_path: Path, secure: bool) -> None:
    settings, trust = dict(ROOM), None
    if secure:
        cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
        trust = write_self_signed(cert, key)
        settings |= {"DS_TLS__CERT_PATH": str(cert), "DS_TLS__KEY_PATH": str(key)}
    server = serve(**settings)
    connect = partial(RawConnection, server.port, tls=trust)
    lines = b"a line\r\n another\n" * (MIB // 16)
    document = json.dumps([{"n": n} for n in range(100_000)]).encode()
    with connect() as writer:
        for path, kind, body in (
            ("/v1/stream/t", "text/plain", lines),
            ("/v1/stream/j", "application/json", b"[" + document + b"]"),
            ("/v1/stream/b", "application/octet-stream", bytes(range(256)) * 4096),
        ):
            created = writer.request("PUT", path, body, Content_Type=kind, Stream_Closed="true")
            assert created.status == 201
            read = writer.request("GET", f"{path}?offset=-1").body
            assert read == (body if kind != "application/json" else b"[" + document + b"]")
            with connect(receive_buffer_bytes=8 * KIB) as slow:
                slow.send(request_bytes("GET", f"{path}?offset=-1&live=sse"))
                assert slow.head().status == 200
                decoder = EventDecoder()
                found = [event for chunk in slow.chunks() for event in decoder.feed(chunk)]
                assert slow.is_at_end()
            assert [event.type for event in found] == ["data", "control"]
            assert json.loads(found[1].data)["streamClosed"] is True
            data = found[0].data
            if kind == "text/plain":
                assert data == lines.replace(b"\r\n", b"\n").decode()
            elif kind == "application/json":
                assert json.loads(data) == [json.loads(document)]
            else:
                assert base64.b64decode(data) == body


@pytest.mark.slow
def test_a_large_event_under_way_is_finished_before_its_response_rotates(serve: Serve) -> None:
    server = serve(**ROOM, DS_SERVER__SSE_RECONNECT_INTERVAL_SECS="4")
    with client_of(server) as http:
        create(http, "/v1/stream/s", large(0) + large(1))
        with stalled(server, ["/v1/stream/s?offset=-1&live=sse"]) as (reader,):
            await_readers(http, "sse", 1)
            seconds = set()

            def is_due() -> bool:
                seconds.add(http.get("/healthz").headers["Date"])
                return len(seconds) > 5

            eventually(is_due, "the time to rotate has come")
            assert reader.head().status == 200
            data = b"".join(reader.chunks())
            assert data.count(b"event: control") == 1
            assert (large(0) + large(1)) in data
            assert reader.is_at_end()


# -- what is announced and does not come -----------------------------------------------------


def announcement(size: int) -> bytes:
    return request_bytes(
        "POST", "/v1/stream/s", Content_Type="text/plain", Content_Length=str(size)
    )


def test_bodies_that_are_only_announced_hold_nothing(serve: Serve) -> None:
    """200 clients announce 16 MiB each, and send nothing or next to nothing."""
    server = serve(**ROOM)
    with client_of(server) as http, ExitStack() as silent:
        create(http, "/v1/stream/s")
        before = resident_bytes(server.pid)
        for number in range(200):
            connection = silent.enter_context(RawConnection(server.port))
            connection.send(announcement(16 * MIB) + b"x" * (number % 2))
        for _ in range(4):
            body = b"x" * (15 * MIB)
            assert http.post("/v1/stream/s", content=body, headers=TEXT).status_code == 204
        assert resident_bytes(server.pid) - before < 150 * MIB


@pytest.mark.slow
@pytest.mark.parametrize("sent", [0, 1, 8 * MIB])
def test_a_body_that_stops_coming_is_given_up_soon(serve: Serve, sent: int) -> None:
    """However much of it came before: that is no time in hand."""
    server = serve(DS_HTTP__BODY_TIMEOUT_SECS="1")
    with RawConnection(server.port) as connection:
        connection.send(announcement(16 * MIB) + b"x" * sent)
        assert connection.response().status == 408


@pytest.mark.slow
def test_a_body_that_others_are_refused_for_is_given_up_sooner(serve: Serve) -> None:
    """It may take five minutes here; but not while it takes the room of those who send."""
    server = serve(
        DS_HTTP__BODY_TIMEOUT_SECS="300",
        DS_LIMITS__MAX_BODY_BYTES=str(MIB),
        DS_LIMITS__MAX_INFLIGHT_BODY_BYTES=str(MIB),
    )
    with client_of(server) as http, RawConnection(server.port) as slow:
        create(http, "/v1/stream/s")
        slow.send(announcement(MIB) + b"x" * (MIB * 3 // 4))

        def has_room() -> bool:
            """Asked without sending anything, which might take the room of the slow one."""
            with RawConnection(server.port) as other:
                expecting = announcement(MIB // 2)[:-2] + b"Expect: 100-continue\r\n\r\n"
                other.send(expecting)
                return other.response().status == 100

        eventually(lambda: not has_room(), "the room is taken")
        eventually(has_room, "and given back")
        assert slow.response().status == 503


@pytest.mark.slow
def test_bodies_that_wait_to_be_parsed_are_counted_until_their_clients_leave(serve: Serve) -> None:
    """One is sent after the other, and faster than they can be parsed."""
    server = serve(DS_LIMITS__MAX_INFLIGHT_BODY_BYTES=str(64 * MIB))
    body = b"[" + b",".join([b'"%s"' % (b"x" * 78)] * 195_000) + b"}"  # invalid at its end
    with client_of(server) as http:
        http.put("/v1/stream/j", headers=JSON)
    request = request_bytes("POST", "/v1/stream/j", body, Content_Type="application/json")
    with ExitStack() as stack:
        clients = [stack.enter_context(RawConnection(server.port)) for _ in range(12)]
        for client in clients:
            with suppress(ConnectionError):  # refused before all of it was sent
                client.send(request)
        assert Counter(client.response().status for client in clients).keys() == {400, 503}
    for _ in range(12):
        with RawConnection(server.port) as client, suppress(ConnectionError):
            client.send(request)
            linger = struct.pack("ii", 1, 0)  # leaves with a reset
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    with client_of(server) as http:
        large = http.post("/v1/stream/j", headers=JSON, content=b'["' + b"x" * 8 * MIB + b'"]')
        assert large.status_code == 204


@pytest.mark.slow
@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_a_live_reader_that_leaves_is_gone_whatever_it_has_sent_besides(
    serve: Serve, live: str
) -> None:
    """A connection that is ahead of its answers is not read from, and does not hear of its end."""
    env = {
        "DS_STORAGE__MODE": "file-durable",
        "DS_SERVER__SSE_RECONNECT_INTERVAL_SECS": "0",
        "DS_SERVER__LONG_POLL_TIMEOUT_SECS": "600",
    }
    server = serve(**env)
    with client_of(server) as http:
        http.put("/v1/stream/cold", headers=TEXT, content=b"x" * 600_000)
    assert server.stop() == 0
    server = serve(**env)
    offset = "-1" if live == "sse" else "now"
    poll = request_bytes("GET", f"/v1/stream/cold?offset={offset}&live={live}")
    with client_of(server) as http, ExitStack() as stack:
        for _ in range(5):
            client = stack.enter_context(RawConnection(server.port))
            client.send(poll + request_bytes("GET", "/healthz") * 3)
            seen = b""
            # What was sent and not read would come back as a reset, which is always heard.
            while live == "sse" and b"upToDate" not in seen:
                seen = seen[-20:] + client.socket.recv(MIB)
        eventually(lambda: live_readers(http, live) == 5, "five live readers")
        stack.close()
        eventually(lambda: live_readers(http, live) == 0, "all of them are gone")
