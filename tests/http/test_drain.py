"""SIGTERM: what is under way is finished, live readers are let go, the process exits with 0."""

from __future__ import annotations

import asyncio
import signal
import socket
from dataclasses import replace

import pytest
import uvloop

from headrace.config import Config
from headrace.http.server import Server
from headrace.testing.raw_http import RawConnection, request_bytes
from headrace.testing.sse_reader import open_events
from headrace.testing.waiting import DEADLINE_SECS, eventually
from tests.conftest import Serve
from tests.http.helpers import MIB, TEXT, await_readers, client_of

STREAM = "/v1/stream/a"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_server_exits_with_0(serve: Serve, number: int) -> None:
    server = serve()
    server.signal(number)
    assert server.wait() == 0


def test_a_waiting_long_poll_is_answered_204(serve: Serve) -> None:
    server = serve(DS_SERVER__LONG_POLL_TIMEOUT_SECS="600")
    with client_of(server) as client, RawConnection(server.port) as reader:
        tail = client.put(STREAM, content=b"x", headers=TEXT).headers["stream-next-offset"]
        reader.send(request_bytes("GET", f"{STREAM}?offset=now&live=long-poll"))
        await_readers(client, "long-poll", 1)
        server.signal(signal.SIGTERM)
        answer = reader.response()
        assert (answer.status, answer.headers["stream-next-offset"]) == (204, tail)
        assert answer.headers["connection"] == "close"
        assert reader.is_at_end()
    assert server.wait() == 0


def test_an_event_stream_ends_cleanly(serve: Serve) -> None:
    server = serve(DS_SERVER__SSE_RECONNECT_INTERVAL_SECS="0")
    with client_of(server) as client:
        tail = client.put(STREAM, content=b"x", headers=TEXT).headers["stream-next-offset"]
        with open_events(server.port, f"{STREAM}?offset=-1&live=sse") as events:
            assert events.batch().control["streamNextOffset"] == tail
            server.signal(signal.SIGTERM)
            assert events.rest() == [], "no half event, and the last chunk is there"
            assert events.connection.is_at_end()
    assert server.wait() == 0


def test_an_idle_connection_is_closed(serve: Serve) -> None:
    server = serve()
    with RawConnection(server.port) as connection:
        assert connection.request("GET", "/healthz").status == 200
        server.signal(signal.SIGTERM)
        assert connection.is_at_end()
    assert server.wait() == 0


def test_no_new_connection_is_taken(serve: Serve) -> None:
    server = serve(DS_SERVER__DRAIN_SECS="600", DS_SERVER__SSE_RECONNECT_INTERVAL_SECS="0")
    with client_of(server) as client, RawConnection(server.port) as busy:
        client.put(STREAM, content=b"x" * MIB, headers=TEXT)
        busy.send(30 * request_bytes("GET", STREAM))  # more than the buffers between us hold
        busy.head()
        client.close()
        server.signal(signal.SIGTERM)

        def refuses() -> bool:
            try:
                with RawConnection(server.port) as late:
                    late.send(request_bytes("GET", "/healthz"))
                    return late.is_at_end()
            except ConnectionError:
                return True

        eventually(refuses, "no new connections")
        assert server.is_running, "it waits for the answer under way"
    assert server.wait() == 0


def test_an_answer_under_way_is_finished(serve: Serve) -> None:
    server = serve()
    with client_of(server) as client, RawConnection(server.port) as reader:
        client.put(STREAM, content=b"x" * (8 * MIB), headers=TEXT)
        reader.send(request_bytes("GET", STREAM))
        head = reader.head()
        server.signal(signal.SIGTERM)
        assert len(reader.rest()) == int(head.headers["content-length"])
    assert server.wait() == 0


def test_a_client_that_takes_nothing_delays_the_exit_no_longer_than_allowed(serve: Serve) -> None:
    server = serve(DS_SERVER__DRAIN_SECS="0.3")
    with client_of(server) as client:
        client.put(STREAM, content=b"x" * (8 * MIB), headers=TEXT)
        with (
            RawConnection(server.port, receive_buffer_bytes=4096) as catching_up,
            RawConnection(server.port, receive_buffer_bytes=4096) as following,
        ):
            catching_up.send(20 * request_bytes("GET", STREAM))
            following.send(request_bytes("GET", f"{STREAM}?offset=-1&live=sse"))
            await_readers(client, "sse", 1)
            server.signal(signal.SIGTERM)
            assert server.wait() == 0


def test_many_live_readers_are_all_let_go(serve: Serve) -> None:
    server = serve(DS_SERVER__LONG_POLL_TIMEOUT_SECS="600")
    with client_of(server) as client:
        client.put(STREAM, headers=TEXT)
        polls = [RawConnection(server.port) for _ in range(100)]
        try:
            for poll in polls:
                poll.send(request_bytes("GET", f"{STREAM}?offset=now&live=long-poll"))
            await_readers(client, "long-poll", 100)
            server.signal(signal.SIGTERM)
            assert [poll.response().status for poll in polls] == [204] * 100
        finally:
            for poll in polls:
                poll.close()
    assert server.wait() == 0


@pytest.mark.parametrize("turns", range(5))
def test_a_connection_that_is_being_made_does_not_keep_the_server_from_stopping(
    turns: int,
) -> None:
    """Seen: one that was accepted a moment before SIGTERM was waited for until drain_secs."""
    config = Config()
    config = replace(config, server=replace(config.server, port=0, drain_secs=600))

    async def main() -> None:
        server = Server(config)
        await server.start()
        port = int(server.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)):
            async with asyncio.timeout(DEADLINE_SECS):
                while not server._acceptor._handshakes:
                    await asyncio.sleep(0)
                for _ in range(turns):
                    await asyncio.sleep(0)
                await server.stop()

    uvloop.run(main())
