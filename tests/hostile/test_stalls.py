"""What one client does on purpose, and that others are answered meanwhile.

Nothing here looks at a clock: another connection asks all the time, and must have had answers
between the beginning and the end of what is expensive. A server that does it in one go gives none.
"""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack

import pytest

from headrace.testing.raw_http import RawConnection, request_bytes
from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import DEADLINE_SECS, eventually
from tests.conftest import Serve
from tests.hostile.probe import Probe
from tests.hostile.stall_figures import create_many, filled, live_polls, subscribe
from tests.subscriptions.receiver import DONE, Receiver, Reply, Webhook

ROOT = "/v1/stream"
MIB = 1024 * 1024
JSON = "application/json"
TAILS = f"{ROOT}/__ds/tails"
ANSWERS_MIN = 10  # that others get meanwhile; one or two would be chance


def connect(server: ServerProcess) -> RawConnection:
    return RawConnection(server.port, deadline_secs=4 * DEADLINE_SECS)


# -- JSON ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"[" + filled(b"[]", 9 * MIB) + b"]", id="small-values-in-one-message"),
        pytest.param(filled(b"[" * 1000 + b"]" * 1000, 9 * MIB), id="deep-messages"),
        pytest.param(b"[" + filled(b'"1e000 "', 9 * MIB) + b"]", id="strings-like-numbers"),
        pytest.param(filled(b'["", 1.5e+103 ]', 9 * MIB, b",7")[:-1] + b"x]", id="not-json"),
    ],
)
def test_others_are_answered_while_json_is_looked_at(serve: Serve, body: bytes) -> None:
    server = serve(DS_LIMITS__MAX_APPEND_MESSAGES="1000000")
    with connect(server) as client:
        client.request("PUT", f"{ROOT}/j", Content_Type=JSON)
        with Probe(server.port) as probe:
            eventually(lambda: probe.count > 0, "the probe asks")
            before = probe.count
            answer = client.request("POST", f"{ROOT}/j", body, Content_Type=JSON)
            assert probe.count - before >= ANSWERS_MIN
        assert answer.status == (400 if body.endswith(b"x]") else 204)


def test_one_append_has_a_bounded_number_of_messages(serve: Serve) -> None:
    server = serve(DS_LIMITS__MAX_APPEND_MESSAGES="1000")
    deep = b",%b1%b" % (b"[" * 1000, b"]" * 1000)
    with connect(server) as client:
        client.request("PUT", f"{ROOT}/j", Content_Type=JSON)
        for size in (2_100, 5_000, 2 * MIB):
            for body in (filled(b"1", size), filled(b"1", size + 3000, deep)):
                for method, name in (("POST", "j"), ("PUT", "new")):
                    answer = client.request(method, f"{ROOT}/{name}", body, Content_Type=JSON)
                    assert answer.status == 413, (size, method)
                    assert answer.json()["type"] == "urn:headrace:problem:too-many-messages"
                    assert answer.json()["limit"] == 1000
        most = client.request("POST", f"{ROOT}/j", filled(b"1", 2_002), Content_Type=JSON)
        assert most.headers["stream-next-offset"].startswith(f"{1000:016}_")
        # A message may hold as many values as it likes.
        one = b"[" + filled(b"1", 2 * MIB) + b"]"
        assert client.request("POST", f"{ROOT}/j", one, Content_Type=JSON).status == 204


def test_appends_of_one_connection_keep_their_order_whatever_their_size(serve: Serve) -> None:
    server = serve()
    large = filled(b'{"n":1}', 2 * MIB)[1:-1]
    bodies = [b"1", b"[[%b]]" % large, b"2", b"[[%b]]" % large, b"3"]
    with connect(server) as client:
        client.request("PUT", f"{ROOT}/j", Content_Type=JSON)
        client.send(
            b"".join(request_bytes("POST", f"{ROOT}/j", b, Content_Type=JSON) for b in bodies)
        )
        assert [client.response().status for _ in bodies] == [204] * 5
        found: list[object] = []
        offset = "-1"
        while len(found) < 5:
            answer = client.request("GET", f"{ROOT}/j?offset={offset}")
            found += answer.json()
            offset = answer.headers["stream-next-offset"]
        assert [value if isinstance(value, int) else "large" for value in found] == [
            1, "large", 2, "large", 3,
        ]  # fmt: skip


def test_a_large_append_meets_the_stream_as_it_is_when_it_is_decided(serve: Serve) -> None:
    """Precedence is that of small appends: a closed stream is closed before JSON is invalid."""
    server = serve()
    bad = b"[" + b"1," * MIB + b"x]"
    with connect(server) as client:
        client.request("PUT", f"{ROOT}/j", Content_Type=JSON, Stream_Closed="true")
        answer = client.request("POST", f"{ROOT}/j", bad, Content_Type=JSON)
        assert (answer.status, answer.json()["type"][-13:]) == (409, "stream-closed")
        created = client.request(
            "PUT", f"{ROOT}/k", filled(b'"' + b"a" * 1000 + b'"', 2 * MIB), Content_Type=JSON
        )
        assert created.status == 201
        assert created.headers["stream-next-offset"] > f"{2000:016}_"


# -- tails -----------------------------------------------------------------------------------


def poll_bytes(names: list[str]) -> bytes:
    streams = [{"stream": name, "from": "-1"} for name in names]
    return request_bytes(
        "POST", f"{TAILS}?live=long-poll", json.dumps({"streams": streams}).encode()
    )


@pytest.mark.slow
def test_others_are_answered_while_polls_of_many_tails_are(serve: Serve) -> None:
    server = serve(DS_SERVER__LONG_POLL_TIMEOUT_SECS="600")
    names = [f"s/{number}" for number in range(3000)]
    with ExitStack() as stack:
        client = stack.enter_context(connect(server))
        create_many(client, names)
        polls = [stack.enter_context(connect(server)) for _ in range(20)]
        for poll in polls:
            poll.send(poll_bytes(names))
        eventually(lambda: live_polls(client) == 20, "20 polls wait")
        eventually(lambda: polled_tails(client) == 60_000, "at 3000 tails each")
        probe = stack.enter_context(Probe(server.port))
        eventually(lambda: probe.count > 0, "the probe asks")
        before = probe.count
        client.request("POST", f"{ROOT}/s/7", b"x", Content_Type="text/plain")
        for poll in polls:
            found = poll.response().json()["streams"]
            assert [s["stream"] for s in found if s["messages"]] == ["s/7"]
            assert len(found) == 3000
        assert probe.count - before >= ANSWERS_MIN
        eventually(lambda: polled_tails(client) == 0, "nobody waits any more")


def polled_tails(client: RawConnection) -> int:
    return int(sample(client, "headrace_polled_tails"))


def sample(client: RawConnection, name: str) -> float:
    """0 for one that was not counted yet."""
    lines = client.request("GET", "/metrics").body.decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"{name} "))


def test_polls_of_many_tails_count_as_live_readers(serve: Serve) -> None:
    server = serve(
        DS_SERVER__LONG_POLL_TIMEOUT_SECS="600",
        DS_LIMITS__MAX_POLLED_TAILS="10000",
        DS_LIMITS__MAX_LIVE_READERS_PER_STREAM="2",
    )
    names = [f"s/{number}" for number in range(10)]
    with ExitStack() as stack:
        client = stack.enter_context(connect(server))
        create_many(client, [*names, "other"])
        polls = [stack.enter_context(connect(server)) for _ in range(3)]
        polls[0].send(poll_bytes(names * 100))
        eventually(lambda: polled_tails(client) == 1000, "one waits")
        polls[1].send(poll_bytes(names[:1]))
        eventually(lambda: live_polls(client) == 2, "another waits")
        polls[2].send(poll_bytes([*names[1:], names[0]]))
        refused = polls[2].response()
        assert (refused.status, refused.json()["limit"]) == (503, 2)
        polls[2].send(poll_bytes(["other"] * 9000))
        refused = polls[2].response()
        assert (refused.status, refused.json()["limit"]) == (503, 10_000)
        polls[0].close()
        polls[1].close()
        eventually(lambda: polled_tails(client) == 0, "who leaves is not counted")
        polls[2].send(poll_bytes(names))
        eventually(lambda: live_polls(client) == 1, "there is room again")


def test_a_move_while_a_poll_begins_is_not_missed(serve: Serve) -> None:
    """The streams are looked at in slices; one that moved meanwhile ends the poll."""
    server = serve(DS_SERVER__LONG_POLL_TIMEOUT_SECS="600")
    names = [f"s/{number}" for number in range(2000)]
    with connect(server) as client, connect(server) as writer:
        create_many(client, names)
        offset = "-1"
        for _ in range(5):
            streams = [{"stream": name, "from": "-1"} for name in names[1:]]
            streams.insert(0, {"stream": names[0], "from": offset})
            body = json.dumps({"streams": streams}).encode()
            client.send(request_bytes("POST", f"{TAILS}?live=long-poll", body))
            writer.request("POST", f"{ROOT}/s/0", b"x", Content_Type="text/plain")
            found = client.response().json()["streams"]
            assert found[0]["messages"] == 1
            offset = found[0]["next_offset"]


def test_a_request_for_tails_has_a_bounded_body(serve: Serve) -> None:
    with connect(serve()) as client:
        body = json.dumps({"streams": ["a" * 4000] * 1100}).encode()
        answer = client.request("POST", TAILS, body)
        assert (answer.status, answer.json()["limit_bytes"]) == (413, 4 * MIB)


def test_requests_for_tails_end_with_their_clients(serve: Serve) -> None:
    """Else a client that leaves after each request takes up all connections."""
    server = serve()
    names = [f"none/{number}" for number in range(5000)]
    request = request_bytes("POST", TAILS, json.dumps({"streams": names}).encode())
    with connect(server) as client:
        for _ in range(100):
            with connect(server) as asking:
                asking.send(request)
        eventually(lambda: sample(client, "headrace_connections") == 1, "the others are gone")
        assert sample(client, 'headrace_requests_total{operation="tails",status="200"}') < 50


# -- webhooks --------------------------------------------------------------------------------


def test_receivers_that_do_not_answer_hold_up_nobody_else(serve: Serve) -> None:
    """120 subscriptions of one tenant, and one of another: who is called while they hang."""
    server = serve(DS_WEBHOOKS__TIMEOUT_SECS="600", DS_WEBHOOKS__ALLOW_LOOPBACK="true")
    over = threading.Event()

    def hang(_: Webhook) -> Reply:
        over.wait(DEADLINE_SECS)
        return DONE

    with connect(server) as client, Receiver(hang) as tarpit, Receiver(DONE) as honest:
        create_many(client, ["bad", "good"])
        for number in range(120):
            created = subscribe(
                client,
                f"tarpit-{number}",
                streams=["bad"],
                webhook={"url": tarpit.url},
                lease_ttl_ms=600_000,
            )
            assert created == 201
        subscribe(client, "honest", streams=["good"], webhook={"url": honest.url})
        client.request("POST", f"{ROOT}/bad", b"x", Content_Type="text/plain")
        tarpit.next()
        for _ in range(5):
            client.request("POST", f"{ROOT}/good", b"x", Content_Type="text/plain")
            assert honest.next().body["subscription_id"] == "honest"
        assert not over.is_set()
        over.set()


# -- subscriptions ---------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["**/" + "*/" * 1800 + "b", "**/a/" * 600 + "b"])
def test_a_pattern_has_bounds(serve: Serve, pattern: str) -> None:
    with connect(serve()) as client:
        config = {"type": "pull-wake", "wake_stream": "wakes", "pattern": pattern}
        answer = client.request(
            "PUT", f"{ROOT}/__ds/subscriptions/one", json.dumps(config).encode()
        )
        assert answer.status == 400
        assert "A pattern ha" in answer.json()["detail"]


@pytest.mark.slow
def test_others_are_answered_while_many_names_are_searched(serve: Serve) -> None:
    server = serve()
    names = [f"{number}/" + "/".join(["a"] * 2000) for number in range(200)]
    with connect(server) as client, Probe(server.port) as probe:
        create_many(client, [*names, "wakes"])
        before = probe.count
        config = {
            "type": "pull-wake",
            "wake_stream": "wakes",
            "pattern": "**/" + "*/" * 11 + "b/**/a",
        }
        for number in range(20):
            answer = client.request(
                "PUT", f"{ROOT}/__ds/subscriptions/s{number}", json.dumps(config).encode()
            )
            assert answer.status == 201
        assert probe.count - before >= 3 * ANSWERS_MIN
        before = probe.count
        create_many(client, [f"later/{name}" for name in names[:20]])
        eventually(lambda: probe.count - before >= ANSWERS_MIN, "others are answered")


def test_a_subscription_that_misses_streams_says_so_until_it_follows_them(serve: Serve) -> None:
    """One tenant uses up the room; another, who was there before, is not left in the dark."""
    server = serve(DS_WEBHOOKS__ALLOW_LOOPBACK="true", DS_WEBHOOKS__MAX_MEMORY_BYTES=str(60_000))
    target = f"{ROOT}/__ds/subscriptions/old"
    with connect(server) as client:
        assert subscribe(client, "old", pattern="mine/*") == 201
        wanted = [f"absent/{number}" for number in range(1000)]
        assert subscribe(client, "greedy", streams=wanted) == 503
        assert subscribe(client, "greedy", streams=wanted[:105]) == 201
        create_many(client, [f"mine/{number}" for number in range(20)])
        found = client.request("GET", target).json()
        assert (found["status"], found["stream_count"] < 20) == ("degraded", True)
        assert "webhooks.max_memory_bytes" in found["degraded"]
        metrics = client.request("GET", "/metrics").body.decode()
        assert "headrace_subscriptions_degraded 1.0" in metrics
        assert any("does not follow streams" in line for line in server.log)
        client.request("DELETE", f"{ROOT}/__ds/subscriptions/greedy")
        eventually(
            lambda: client.request("GET", target).json()["status"] == "active",
            "it follows them all",
        )
        assert client.request("GET", target).json()["stream_count"] == 20
