"""No operation holds the event loop: each expensive one at its limit, beside a probe.

What counts is the processor time of the loop's thread, as the server's own watchdog measures it:
how long a stall lasts depends on what else the machine does. The probe says what a stall would
mean to someone else, and that everybody else is answered.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

import httpx
import pytest

from headrace.testing.raw_http import RawConnection, request_bytes
from headrace.testing.server_process import ServerProcess
from headrace.testing.server_queries import catch_up, metric
from headrace.testing.waiting import eventually
from tests.conftest import stop_cleanly
from tests.hostile import attacks
from tests.hostile.attacks import JSON_TYPE, ROOT, TEXT_TYPE, answers
from tests.hostile.crowded_server import BUCKETED, BUCKETS, GONE, STREAMS, CrowdedServer
from tests.hostile.stalls import stalls, stalls_since
from tests.http.helpers import await_readers

pytestmark = pytest.mark.slow

OPERATION_SECS = 120.0  # a deadline, so long that only what hangs meets it
REFUSALS = (400, 413, 422, 429, 503)  # what is too much may be refused, as long as it is at once
START = "0" * 16 + "_" + "0" * 16
MIB = 1024 * 1024
SETTINGS = {
    "DS_STORAGE__MODE": "file-durable",
    # Several checkpoints, and streams that hold the largest body there can be.
    "DS_STORAGE__JOURNAL_SEGMENT_BYTES": str(8 * MIB),
    "DS_LIMITS__MAX_STREAM_BYTES": str(64 * MIB),
    "DS_SERVER__LONG_POLL_TIMEOUT_SECS": "60",
    "DS_LOG__STALL_SECS": "0.1",
}


class Probe:
    """Someone else: one request after another on a connection of its own."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.statuses: Counter[int] = Counter()
        self.longest_secs = 0.0

    def __enter__(self) -> Probe:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        with RawConnection(self._port, deadline_secs=OPERATION_SECS) as connection:
            while True:
                begun = time.monotonic()
                answer = connection.request("HEAD", f"{ROOT}/probed")
                self.longest_secs = max(self.longest_secs, time.monotonic() - begun)
                self.statuses[answer.status] += 1
                if self._stopping.wait(0.01):
                    return


@dataclass
class Ground:
    """The server under attack."""

    server: ServerProcess
    client: httpx.Client

    @property
    def port(self) -> int:
        return self.server.port

    def send(self, *requests: bytes, connections: int = 1, may_refuse: bool = False) -> None:
        """Send, and see that all is answered, and well unless a refusal is as good."""
        found = answers(self.port, requests, connections)
        assert sum(found.values()) == len(requests)
        allowed = {*range(200, 300), *(REFUSALS if may_refuse else ())}
        assert found.keys() <= allowed, found

    def create(self, name: str, content_type: str = TEXT_TYPE, body: bytes = b"") -> None:
        self.send(attacks.create(name, body, content_type))

    def connection(self) -> RawConnection:
        return RawConnection(self.port, deadline_secs=OPERATION_SECS)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    directory = tmp_path_factory.mktemp("stalls")
    env = SETTINGS | {"DS_STORAGE__DATA_DIR": str(directory / "data")}
    server = CrowdedServer(env, cwd=str(directory))
    server.start()
    with httpx.Client(base_url=server.url, timeout=OPERATION_SECS) as client:
        ground = Ground(server, client)
        ground.create("probed")
        fill_bucket(ground)
        yield ground
    stop_cleanly(server)


def fill_bucket(ground: Ground) -> None:
    requests = [
        request_bytes("PUT", f"/crowd/{number}", Content_Type=TEXT_TYPE)
        for number in range(BUCKETED)
    ]
    ground.send(request_bytes("PUT", "/crowd"))
    ground.send(*requests, connections=100)


# -- bodies ----------------------------------------------------------------------------------


def json_body(make: Callable[[], bytes], ground: Ground) -> None:
    name = f"json-{make.__name__}"
    ground.create(name, JSON_TYPE)
    with ground.connection() as connection:
        connection.send(attacks.append(name, make(), JSON_TYPE))
        assert connection.response().status in (204, *REFUSALS)


def read_of_small_messages(ground: Ground) -> None:
    """A chunk of half a million messages, at once and by the message."""
    ground.create("tiny", JSON_TYPE)
    for _ in range(3):
        ground.send(attacks.append("tiny", attacks.most_elements(), JSON_TYPE))
    path = f"{ROOT}/tiny"
    for query in ("offset=-1", "offset=-1&max_messages=200000", "offset=-1&live=sse"):
        with ground.connection() as connection:
            connection.send(request_bytes("GET", f"{path}?{query}"))
            assert connection.head().status in (200, *REFUSALS)


def octets(ground: Ground) -> None:
    ground.create("octets", "application/octet-stream")
    body = bytes(attacks.BODY_BYTES_MAX)
    with ground.connection() as connection:
        connection.send(attacks.append("octets", body, "application/octet-stream"))
        assert connection.response().status == 204


# -- many requests ---------------------------------------------------------------------------


def pipelined_heads(target: str, size: int, ground: Ground) -> None:
    ground.send(*attacks.heads(target, size), may_refuse=True)


def metrics(ground: Ground) -> None:
    assert ground.client.get("/metrics").status_code == 200


def listing(ground: Ground) -> None:
    for query in ("limit=1000", "limit=1000&prefix=4"):
        answer = ground.client.get(f"/crowd/streams?{query}")
        assert answer.status_code == 200, answer.text


def inspection(ground: Ground) -> None:
    names = "&".join(f"name=crowd/{STREAMS - 1 - number}" for number in range(200))
    assert ground.client.get(f"{ROOT}/__ds/streams?{names}").status_code == 200
    assert ground.client.get(f"{ROOT}/__ds/buckets").json()["bucket_count"] > BUCKETS


# -- subscriptions ---------------------------------------------------------------------------


def hostile_glob(ground: Ground) -> None:
    """Over names that are full of what it looks for; then one more such name."""
    ground.create("hostile-wakes")
    names = [attacks.long_name(number) for number in range(150)]
    ground.send(*map(attacks.create, names), connections=50)
    wake = {"type": "pull-wake", "wake_stream": "hostile-wakes"}
    for id, pattern in (("stars", attacks.many_stars()), ("run", attacks.long_run())):
        ground.send(attacks.subscription(id, pattern=pattern, **wake), may_refuse=True)
    ground.send(attacks.create(attacks.long_name(1000)))
    for id in ("stars", "run"):
        ground.client.delete(f"{ROOT}/__ds/subscriptions/{id}")


def glob_over_all(ground: Ground) -> None:
    """As many streams as there are: link them, wake for a thousand, describe, claim, unlink."""
    ground.create("all-wakes", JSON_TYPE)
    path = f"{ROOT}/__ds/subscriptions/all"
    wake = {"type": "pull-wake", "wake_stream": "all-wakes"}
    ground.send(attacks.subscription("all", pattern="crowd/**", **wake))
    names = [f"crowd/{STREAMS - 1 - number}" for number in range(1000)]
    ground.send(*(attacks.append(name, b"x") for name in names), connections=50)
    assert ground.client.get(path).status_code == 200
    assert ground.client.post(f"{path}/claim", json={"worker": "w"}).status_code == 200
    assert ground.client.delete(path).status_code == 204


def named_streams(ground: Ground) -> None:
    names = [f"crowd/{STREAMS - 1 - number}" for number in range(attacks.NAMES_MAX)]
    ground.create("named-wakes")
    wake = {"type": "pull-wake", "wake_stream": "named-wakes"}
    ground.send(attacks.subscription("named", streams=names, **wake))
    ground.client.delete(f"{ROOT}/__ds/subscriptions/named")


def tails(ground: Ground) -> None:
    """Polls over as many streams as one may name, and an append that ends them all."""
    names = [f"crowd/{GONE + number}" for number in range(attacks.NAMES_MAX)]
    request = attacks.tails_poll(dict.fromkeys(names, START))
    polls = [ground.connection() for _ in range(20)]
    try:
        for poll in polls:
            poll.send(request)
        ground.send(attacks.append(names[0], b"x"))
        for poll in polls:
            assert poll.response().status in (200, 503)
    finally:
        for poll in polls:
            poll.close()


# -- forks and the end of streams ------------------------------------------------------------


def forks(ground: Ground) -> None:
    """Thousands of one stream, which expire together."""
    ground.create("forked", body=b"x")
    before = metric(ground.client, "headrace_streams")
    expires = {"Stream_Expires_At": soon(4)}
    requests = [attacks.fork(f"forks/{number}", "forked", **expires) for number in range(3000)]
    ground.send(*requests, connections=100, may_refuse=True)
    assert ground.client.get(f"{ROOT}/__ds/streams/forked").status_code == 200
    await_streams(ground, before)


def fork_chain(ground: Ground) -> None:
    """As long as is allowed, up to a length; read at its end, and expiring together."""
    before = metric(ground.client, "headrace_streams")
    expires = {"Stream_Expires_At": soon(4)}
    ground.create("chain/0", body=b"x")
    with ground.connection() as connection:
        for number in range(1, 300):
            connection.send(attacks.fork(f"chain/{number}", f"chain/{number - 1}", **expires))
            if connection.response().status != 201:
                break
    assert ground.client.get(f"{ROOT}/chain/{number - 1}").text == "x"
    assert ground.client.delete(f"{ROOT}/chain/0").status_code == 204
    await_streams(ground, before)


def expiry(ground: Ground) -> None:
    """Ten thousand streams whose time is over in the same second."""
    at = soon(5)
    requests = [attacks.create(f"mayfly/{n}", Stream_Expires_At=at) for n in range(10_000)]
    ground.send(*requests, connections=200)
    full = metric(ground.client, "headrace_streams")
    # The others are no different, and go on expiring a thousand a second.
    await_streams(ground, full - 2500)


def soon(secs: int) -> str:
    return (datetime.now(UTC) + timedelta(seconds=secs)).strftime("%Y-%m-%dT%H:%M:%SZ")


def await_streams(ground: Ground, count: float) -> None:
    eventually(
        lambda: metric(ground.client, "headrace_streams") <= count,
        "what has expired is gone",
        secs=OPERATION_SECS,
        poll_secs=0.2,
    )


def expired_bucket(ground: Ground) -> None:
    """A bucket full of streams whose time is over is counted, listed and deleted."""
    ground.client.put("/brief")
    requests = [
        request_bytes("PUT", f"/brief/{n}", Content_Type=TEXT_TYPE, Stream_TTL="1")
        for n in range(3000)
    ]
    ground.send(*requests, connections=100)
    eventually(
        lambda: ground.client.delete("/brief").status_code == 204,
        "the bucket is deleted",
        secs=OPERATION_SECS,
    )


def registry_compaction(ground: Ground) -> None:
    """A few deletions more, and the registry says again all that is there."""

    def floor() -> str:
        answer = ground.client.get(f"{ROOT}/__ds/streams?name=__registry__")
        return str(answer.json()["streams"][0]["earliest_offset"])

    before = floor()
    requests = [
        request_bytes("DELETE", f"{ROOT}/crowd/{STREAMS - 20_000 - number}")
        for number in range(5000)
    ]
    ground.send(*requests, connections=100)
    eventually(lambda: floor() != before, "the registry was compacted")


# -- snapshots -------------------------------------------------------------------------------


def snapshot_and_bootstrap(ground: Ground) -> None:
    """The largest snapshot with as many messages after it as one append holds."""
    ground.client.put("/snap")
    path = "/snap/doc"
    ground.client.put(path, headers={"Content-Type": JSON_TYPE})
    answer = ground.client.post(path, headers={"Content-Type": JSON_TYPE}, content=b"[1]")
    offset = answer.headers["stream-next-offset"]
    blob = os.urandom(attacks.BODY_BYTES_MAX)
    assert ground.client.put(f"{path}/snapshot/{offset}", content=blob).status_code == 204
    for _ in range(3):
        ground.send(request_bytes("POST", path, attacks.most_elements(), Content_Type=JSON_TYPE))
    for target in ("bootstrap", f"snapshot/{offset}"):
        with ground.connection() as connection:
            connection.send(request_bytes("GET", f"{path}/{target}"))
            assert connection.response().status == 200


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
    targets = [f"{ROOT}/polled?offset={START}&live=long-poll"] * 1000
    with attacks.waiting_readers(ground.port, targets) as readers:
        await_readers(ground.client, "long-poll", len(readers))
        ground.send(attacks.append("polled", b"x" * 10_000))
        for reader in readers:
            assert reader.response().status == 200


# -- disk ------------------------------------------------------------------------------------


def checkpoints(ground: Ground) -> None:
    """Segments fill up and are carried over, of a few large streams and many small ones."""
    ground.create("bulk", "application/octet-stream")
    body = bytes(512 * 1024)
    bulk = [attacks.append("bulk", body, "application/octet-stream")] * 48
    small = [attacks.append(f"crowd/{GONE + n}", bytes(2000)) for n in range(5000)]
    ground.send(*bulk[:24], connections=4)
    ground.send(*small, connections=50)
    ground.send(*bulk[24:], connections=4)


def cold_reads(ground: Ground) -> None:
    assert len(catch_up(ground.client, f"{ROOT}/bulk")) > 20
    document = {"streams": [{"stream": "bulk", "from": START, "max_bytes": 48 * MIB}]}
    body = json.dumps(document).encode()
    ground.send(request_bytes("POST", f"{ROOT}/__ds/tails", body, Content_Type=JSON_TYPE))


OPERATIONS: dict[str, Callable[[Ground], None]] = {
    "registry-compaction": registry_compaction,  # the first: others make history, too
    "json-small-elements": partial(json_body, attacks.small_elements),
    "json-most-elements": partial(json_body, attacks.most_elements),
    "json-most-spaced": partial(json_body, attacks.most_spaced),
    "json-spaced-elements": partial(json_body, attacks.spaced_elements),
    "json-small-beside-deep": partial(json_body, attacks.small_beside_deep),
    "json-deepest": partial(json_body, attacks.deepest),
    "read-of-small-messages": read_of_small_messages,
    "largest-body": octets,
    "heads-of-a-stream": partial(pipelined_heads, f"{ROOT}/probed", 50_000),
    "heads-of-metrics": partial(pipelined_heads, "/metrics", 12_000),
    "listing": listing,
    "heads-of-a-listing": partial(pipelined_heads, "/crowd/streams?limit=1000", 12_000),
    "metrics": metrics,
    "inspection": inspection,
    "heads-of-buckets": partial(pipelined_heads, f"{ROOT}/__ds/buckets", 10_000),
    "hostile-glob": hostile_glob,
    "glob-over-all": glob_over_all,
    "named-streams": named_streams,
    "tails": tails,
    "forks": forks,
    "fork-chain": fork_chain,
    "expired-bucket": expired_bucket,
    "snapshot-and-bootstrap": snapshot_and_bootstrap,
    "tails-of-nested": tails_of_nested,
    "abandoned-bootstraps": abandoned_bootstraps,
    "events-of-line-ends": events_of_line_ends,
    "events-fan-out": events_fan_out,
    "long-poll-fan-out": long_poll_fan_out,
    "checkpoints": checkpoints,
    "cold-reads": cold_reads,
    "expiry": expiry,  # the last: it leaves streams behind that go on expiring
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_at_its_limit_holds_the_loop_for_no_more_than_250_ms(
    ground: Ground, operation: str
) -> None:
    before, lines = stalls(ground.client), len(ground.server.log)
    with Probe(ground.port) as probe:
        OPERATIONS[operation](ground)
    found = stalls_since(ground.client, before)
    assert probe.statuses.keys() == {200}
    said = [line.partition(" headrace.")[2] for line in ground.server.log[lines:]]
    print(f"{operation}: probe {probe.longest_secs:.3f}s", found)
    too_long = {name: stall for name, stall in found.items() if stall.above_250_ms}
    assert not too_long, f"{too_long}, a probe waited {probe.longest_secs:.3f} s\n{''.join(said)}"
