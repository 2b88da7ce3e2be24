"""Expensive operations with live readers and subscriptions: what `test_loop_stalls` runs."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from headrace.testing.raw_http import request_bytes
from headrace.testing.server_queries import metric
from headrace.testing.sse_load import Crowd, descriptors_max
from headrace.testing.waiting import eventually
from tests.hostile import attacks
from tests.hostile.attacks import JSON_TYPE, ROOT
from tests.hostile.ground import OPERATION_SECS, START, Ground
from tests.http.helpers import await_readers

CROWD = min(10_000, descriptors_max() // 2)  # readers at one tail
WRITERS = 250
SUBSCRIPTIONS = 9_900  # of the 10,000 that there may be

# -- live readers ----------------------------------------------------------------------------


def tails_of_nested(ground: Ground) -> None:
    ground.send(attacks.tails_of_nested())


def abandoned_bootstraps(ground: Ground) -> None:
    """Readers that leave in the middle: the rest of the answer must not be made for nobody."""
    ground.client.put("/left")
    ground.client.put("/left/doc", headers={"Content-Type": JSON_TYPE})
    for _ in range(10):
        ground.send(
            request_bytes("POST", "/left/doc", attacks.most_elements(), Content_Type=JSON_TYPE)
        )
    for number in range(24):
        with ground.connection() as connection:
            connection.send(request_bytes("GET", "/left/doc/bootstrap"))
            assert connection.head().status == 200
            chunks, received = connection.chunks(), 0
            while received < (number % 4 + 1) * 300_000:
                received += len(next(chunks))


def events_of_line_ends(ground: Ground) -> None:
    ground.create("line-ends", body=b"\r" * 10_000_000)
    targets = [f"{ROOT}/line-ends?offset=-1&live=sse"] * 10
    with attacks.waiting_readers(ground.port, targets) as readers:
        for reader in readers:
            assert reader.head().status == 200
            next(reader.chunks())


def events_fan_out(ground: Ground) -> None:
    """A large message, whose every line is a line of the event, to readers of which one reads."""
    ground.create("events")
    targets = [f"{ROOT}/events?offset=now&live=sse"] * 200
    with attacks.waiting_readers(ground.port, targets) as readers:
        for reader in readers:
            assert reader.head().status == 200
        with ground.connection() as connection:
            connection.send(attacks.append("events", attacks.large_text()))
            assert connection.response().status == 204
        received, chunks = 0, readers[0].chunks()
        while received < attacks.BODY_BYTES_MAX // 2:
            received += len(next(chunks))


def long_poll_fan_out(ground: Ground) -> None:
    ground.create("polled")
    targets = [f"{ROOT}/polled?offset={START}&live=long-poll"] * 5000
    with attacks.waiting_readers(ground.port, targets) as readers:
        await_readers(ground.client, "long-poll", len(readers))
        ground.send(attacks.append("polled", b"x" * 10_000))
        for reader in readers:
            assert reader.response().status == 200


def crowd_at_one_tail(ground: Ground) -> None:
    """Each is sent every append; all leave at once; and the stream ends under the next ones."""
    ground.create("crowded")
    target = f"{ROOT}/crowded?offset=now&live=sse"
    with Crowd(ground.port, target, CROWD, "idle"):
        sent = metric(ground.client, "headrace_sent_bytes_total")
        for _ in range(3):
            ground.send(attacks.append("crowded", b"x" * 100))
        await_sent(ground, sent + 3 * 100 * CROWD)
    await_nobody(ground)
    with Crowd(ground.port, target, CROWD, "healthy"):
        assert ground.client.delete(f"{ROOT}/crowded").status_code == 204
        await_nobody(ground)


def await_sent(ground: Ground, byte_count: float) -> None:
    eventually(
        lambda: metric(ground.client, "headrace_sent_bytes_total") >= byte_count,
        "everybody is sent everything",
        secs=OPERATION_SECS,
        poll_secs=0.2,
    )


def await_nobody(ground: Ground) -> None:
    eventually(
        lambda: metric(ground.client, "headrace_connections") < 10,
        "all readers are gone",
        secs=OPERATION_SECS,
        poll_secs=0.2,
    )


def fan_in_to_readers(ground: Ground) -> None:
    """Everybody who waits is woken by everybody who writes, if nobody counts."""
    ground.create("fan-in")
    target = f"{ROOT}/fan-in?offset=now&live=sse"
    with Crowd(ground.port, target, 400, "idle"):
        burst(ground, [attacks.append("fan-in", b"x" * 100)] * WRITERS)


def fan_in_to_subscriptions(ground: Ground) -> None:
    ground.create("fan-in-subscribed")
    ground.create("fan-in-wakes", JSON_TYPE)
    wake = {"type": "pull-wake", "wake_stream": "fan-in-wakes", "streams": ["fan-in-subscribed"]}
    ids = [f"fan-in-{number}" for number in range(SUBSCRIPTIONS)]
    with all_of(ground, ids, wake):
        for _ in range(2):
            burst(ground, [attacks.append("fan-in-subscribed", b"x")] * WRITERS)


def burst(ground: Ground, requests: list[bytes]) -> None:
    """Each on a connection of its own, all of them open before the first is sent."""
    with ExitStack() as stack:
        connections = [stack.enter_context(ground.connection()) for _ in requests]
        for connection, request in zip(connections, requests, strict=True):
            connection.send(request)
        for connection in connections:
            assert connection.response().status == 204


# -- subscriptions ---------------------------------------------------------------------------


def subscription_listing(ground: Ground) -> None:
    """As many as there may be, whose ids are as long as they may be."""
    ground.create("listed")
    ground.create("listed-wakes", JSON_TYPE)
    wake = {"type": "pull-wake", "wake_stream": "listed-wakes", "streams": ["listed"]}
    ids = [f"{number:04}-{'x' * 200}" for number in range(SUBSCRIPTIONS)]
    with all_of(ground, ids, wake):
        path = f"{ROOT}/__ds/subscriptions"
        for query in ("limit=1000", f"limit=1000&after={ids[-1002]}", "limit=1000&prefix=9"):
            answer = ground.client.get(f"{path}?{query}")
            assert answer.status_code == 200, answer.text
        asked = request_bytes("GET", f"{path}?limit=1000")
        ground.send(*([asked] * 20), connections=20)


def webhooks(ground: Ground) -> None:
    """Of a thousand subscriptions, to a receiver that hangs up, and to one that does not answer."""
    ground.create("hooked")
    with ExitStack() as stack:
        closed, silent = (stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in "ab")
        closed_port, silent_port = closed.getsockname()[1], silent.getsockname()[1]
        closed.close()
        for kind, port in (("closed", closed_port), ("silent", silent_port)):
            ids = [f"{kind}-{number}" for number in range(500)]
            config = {"url": f"http://127.0.0.1:{port}/hook"}
            hook = {"type": "webhook", "streams": ["hooked"], "webhook": config}
            stack.enter_context(all_of(ground, ids, hook))
        burst(ground, [attacks.append("hooked", b"x")] * 20)
        eventually(
            lambda: failed_webhooks(ground) >= 100,
            "webhooks were sent",
            secs=OPERATION_SECS,
            poll_secs=0.2,
        )


def failed_webhooks(ground: Ground) -> float:
    text = ground.client.get("/metrics").text
    found = re.search(r'^headrace_webhook_deliveries_total{result="failed"} (\S+)', text, re.M)
    return 0.0 if found is None else float(found[1])


@contextmanager
def all_of(ground: Ground, ids: list[str], config: Mapping[str, object]) -> Iterator[None]:
    """Subscriptions that are deleted afterwards."""
    path = f"{ROOT}/__ds/subscriptions"
    ground.send(*(attacks.subscription(id, **config) for id in ids), connections=50)
    try:
        yield
    finally:
        ground.send(*(request_bytes("DELETE", f"{path}/{id}") for id in ids), connections=50)
