"""What clients make and end leaves nothing behind that only the garbage collector could free.

A server with much in memory keeps what it has from the collector's sight (`http.process_memory`),
so a cycle that outlives a collection there would stay for good: one for each connection, request,
stream or wake is a leak that a client can drive.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import httpx
import pytest

from headrace.testing.raw_http import RawConnection, request_bytes
from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import eventually
from tests.conftest import stop_cleanly
from tests.hostile import attacks
from tests.hostile.attacks import JSON_TYPE, ROOT, TEXT_TYPE
from tests.hostile.cyclic_server import CyclicServer
from tests.http.helpers import await_readers
from tests.subscriptions.api import Api
from tests.subscriptions.receiver import ACCEPTED, Receiver, Reply, Webhook

TIMES = 12  # as often is each done: what is left behind each time is found as often
MIB = 1024 * 1024
START = "0" * 16 + "_" + "0" * 16


@dataclass
class Ground:
    server: ServerProcess
    client: httpx.Client

    @property
    def api(self) -> Api:
        return Api(self.client)

    def connect(self) -> RawConnection:
        return RawConnection(self.server.port)

    def create(self, name: str, body: bytes = b"", content_type: str = TEXT_TYPE) -> None:
        answer = self.client.put(
            f"{ROOT}/{name}", headers={"Content-Type": content_type}, content=body
        )
        assert answer.status_code in (200, 201), answer.text

    def cycles(self) -> dict[str, int]:
        found = self.client.get(f"{ROOT}/__ds/streams?name=cycles")
        return {str(name): int(count) for name, count in found.json().items()}


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    directory = tmp_path_factory.mktemp("cycles")
    env = {
        "DS_WEBHOOKS__ALLOW_LOOPBACK": "true",
        "DS_STORAGE__MODE": "file-durable",
        "DS_STORAGE__DATA_DIR": str(directory / "data"),
        "DS_LIMITS__MAX_STREAM_BYTES": str(64 * MIB),
        "DS_SERVER__LONG_POLL_TIMEOUT_SECS": "0.5",
    }
    server = CyclicServer(env, cwd=str(directory))
    server.start()
    with httpx.Client(base_url=server.url, timeout=60) as client:
        ground = Ground(server, client)
        ground.create("read", b"hello")
        ground.create("large", bytes(MIB))
        yield ground
    stop_cleanly(server)


def await_connections(ground: Ground) -> None:
    """Ours is the only one left."""

    def count() -> float:
        text = ground.client.get("/metrics").text
        line = next(line for line in text.splitlines() if line.startswith("headrace_connections "))
        return float(line.split()[1])

    eventually(lambda: count() == 1, "the connections are closed")


# -- connections -----------------------------------------------------------------------------


def connections(ground: Ground) -> None:
    """Each with an append, a read and a refusal; ended by the client."""
    for _ in range(TIMES):
        with ground.connect() as connection:
            connection.send(
                attacks.append("read", b"x")
                + request_bytes("GET", f"{ROOT}/read?offset=-1")
                + request_bytes("GET", f"{ROOT}/missing")
            )
            statuses = [connection.response().status for _ in range(3)]
            assert statuses == [204, 200, 404]


def connections_that_we_close(ground: Ground) -> None:
    for _ in range(TIMES):
        with ground.connect() as connection:
            connection.send(request_bytes("GET", f"{ROOT}/read", Connection="close"))
            assert connection.response().status == 200
            assert connection.is_at_end()


def refused_connections(ground: Ground) -> None:
    for _ in range(TIMES):
        with ground.connect() as connection:
            connection.send(b"NOT HTTP\r\n\r\n")
            assert connection.response().status == 400
            assert connection.is_at_end()


def connections_cut_off(ground: Ground) -> None:
    """In the middle of a head, of a body, of a large body."""
    body = request_bytes("POST", f"{ROOT}/read", bytes(2 * MIB), Content_Type=TEXT_TYPE)
    for _ in range(TIMES):
        for length in (20, 5000, MIB):
            with ground.connect() as connection:
                connection.send(body[:length])


def large_bodies(ground: Ground) -> None:
    for _ in range(TIMES):
        with ground.connect() as connection:
            connection.send(attacks.append("large", bytes(MIB)))
            assert connection.response().status == 204


def large_answers(ground: Ground) -> None:
    for number in range(TIMES):
        with ground.connect() as connection:
            connection.send(request_bytes("GET", f"{ROOT}/large?offset=-1"))
            if number % 2:
                assert connection.response().status == 200
            else:
                assert connection.head().status == 200  # and leaves


# -- live readers ----------------------------------------------------------------------------


def events(ground: Ground) -> None:
    targets = [f"{ROOT}/read?offset=-1&live=sse"] * TIMES
    with attacks.waiting_readers(ground.server.port, targets) as readers:
        for reader in readers:
            assert reader.head().status == 200
        await_readers(ground.client, "sse", TIMES)
        ground.client.post(f"{ROOT}/read", content=b"x", headers={"Content-Type": TEXT_TYPE})
        for reader in readers:
            next(reader.chunks())


def long_polls(ground: Ground) -> None:
    """Answered by an append; by their time; and some leave."""
    ground.create("polled")
    for wakes in (True, False):
        with ExitStack() as stack:
            polls = [stack.enter_context(ground.connect()) for _ in range(TIMES)]
            for poll in polls:
                poll.send(request_bytes("GET", f"{ROOT}/polled?offset=now&live=long-poll"))
            await_readers(ground.client, "long-poll", TIMES)
            if wakes:
                headers = {"Content-Type": TEXT_TYPE}
                ground.client.post(f"{ROOT}/polled", content=b"x", headers=headers)
            for poll in polls[: TIMES // 2] if wakes else polls:
                assert poll.response().status == (200 if wakes else 204)


def tails(ground: Ground) -> None:
    ground.create("tailed")
    for _ in range(TIMES):
        with ground.connect() as connection:
            connection.send(attacks.tails_poll({"tailed": START, "read": START}))
            assert connection.response().status == 200
    with ExitStack() as stack:
        for _ in range(TIMES):
            poll = stack.enter_context(ground.connect())
            poll.send(attacks.tails_poll({"tailed": START}))


# -- streams ---------------------------------------------------------------------------------


def streams(ground: Ground) -> None:
    for number in range(TIMES):
        ground.create(f"brief/{number}", b"[1]", JSON_TYPE)
        ground.client.get(f"{ROOT}/brief/{number}?offset=-1")
    for number in range(TIMES):
        assert ground.client.delete(f"{ROOT}/brief/{number}").status_code == 204


def forks(ground: Ground) -> None:
    for number in range(TIMES):
        headers = {"Stream-Forked-From": f"{ROOT}/read"}
        path = f"{ROOT}/forks/{number}"
        assert ground.client.put(path, headers=headers).status_code == 201
        assert ground.client.get(f"{path}?offset=-1").status_code == 200
        assert ground.client.delete(path).status_code == 204


def expired(ground: Ground) -> None:
    for number in range(TIMES):
        path = f"{ROOT}/expiring/{number}"
        headers = {"Content-Type": TEXT_TYPE, "Stream-TTL": "1"}
        assert ground.client.put(path, headers=headers).status_code == 201
    for number in range(TIMES):
        path = f"{ROOT}/expiring/{number}"
        eventually(lambda path=path: ground.client.head(path).status_code == 404, "it is gone")  # type: ignore[misc]


def buckets(ground: Ground) -> None:
    for number in range(TIMES):
        bucket = f"/bucket-{number}"
        assert ground.client.put(bucket).status_code == 201
        headers = {"Content-Type": JSON_TYPE}
        assert ground.client.put(f"{bucket}/s", headers=headers).status_code == 201
        answer = ground.client.post(f"{bucket}/s", content=b"[1]", headers=headers)
        offset = answer.headers["stream-next-offset"]
        blob = ground.client.put(f"{bucket}/s/snapshot/{offset}", content=bytes(MIB))
        assert blob.status_code == 204
        assert ground.client.get(f"{bucket}/s/bootstrap").status_code == 200
        assert ground.client.get(f"{bucket}/streams").status_code == 200
        assert ground.client.delete(f"{bucket}/s").status_code == 204
        assert ground.client.delete(bucket).status_code == 204


# -- subscriptions ---------------------------------------------------------------------------


def pull_wakes(ground: Ground) -> None:
    ground.create("wakes", content_type=JSON_TYPE)
    ground.create("pulled", content_type=JSON_TYPE)
    for _ in range(TIMES):
        id = ground.api.pull_wake("wakes", streams=["pulled", "missing"], pattern="pulled/*")
        ground.api.append("pulled", 1)
        claimed = ground.api.claim(id)
        assert ground.api.ack(id, claimed, done=True).status_code == 200
        ground.api.delete(id)


def webhooks(ground: Ground) -> None:
    ground.create("hooked", content_type=JSON_TYPE)
    with Receiver() as receiver:
        for _ in range(TIMES):
            id = ground.api.webhook(receiver.url, streams=["hooked"])
            ground.api.append("hooked", 1)
            receiver.next()
            ground.api.delete(id)


def webhooks_broken_off(ground: Ground) -> None:
    """Each subscription is deleted while its receiver has not answered."""
    ground.create("broken-off", content_type=JSON_TYPE)
    deleted = threading.Event()

    def reply(_: Webhook) -> Reply:
        deleted.wait()
        return ACCEPTED

    with Receiver(reply) as receiver:
        for _ in range(TIMES):
            deleted.clear()
            id = ground.api.webhook(receiver.url, streams=["broken-off"])
            ground.api.append("broken-off", 1)
            receiver.next()
            ground.api.delete(id)
            deleted.set()


OPERATIONS: dict[str, Callable[[Ground], None]] = {
    name.__name__.replace("_", "-"): name
    for name in (
        connections,
        connections_that_we_close,
        refused_connections,
        connections_cut_off,
        large_bodies,
        large_answers,
        events,
        long_polls,
        tails,
        streams,
        forks,
        expired,
        buckets,
        pull_wakes,
        webhooks,
        webhooks_broken_off,
    )
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_is_ended_is_freed_without_the_collector(ground: Ground, operation: str) -> None:
    OPERATIONS[operation](ground)  # what is made once, as a cache, is there by now
    await_connections(ground)
    ground.cycles()
    OPERATIONS[operation](ground)
    await_connections(ground)
    found = ground.cycles()
    print(found)
    left = {name: count for name, count in found.items() if count >= TIMES // 2}
    assert not left
