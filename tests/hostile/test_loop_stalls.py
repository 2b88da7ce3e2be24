"""No operation holds the event loop: each expensive one at its limit, beside a probe.

What counts is how long the loop was held, as the server's own watchdog measures it: by computing,
or by a call that blocked. How long a stall lasts depends on what else the machine does. The probe
says what a stall would mean to someone else, and that everybody else is answered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest

from headrace.testing.raw_http import RawConnection, request_bytes
from headrace.testing.server_process import ServerProcess
from headrace.testing.sse_load import Crowd, descriptors_max
from tests.conftest import stop_cleanly
from tests.hostile import attacks, expensive, expensive_live
from tests.hostile.attacks import ROOT, TEXT_TYPE
from tests.hostile.crowded_server import BUCKETED, CrowdedServer
from tests.hostile.ground import OPERATION_SECS, Ground, Probe
from tests.hostile.stalls import stalls, stalls_since

pytestmark = pytest.mark.slow

MIB = 1024 * 1024
SETTINGS = {
    # Several checkpoints, and streams that hold the largest body there can be.
    "DS_STORAGE__JOURNAL_SEGMENT_BYTES": str(8 * MIB),
    "DS_LIMITS__MAX_STREAM_BYTES": str(64 * MIB),
    "DS_SERVER__LONG_POLL_TIMEOUT_SECS": "60",
    "DS_LOG__STALL_SECS": "0.1",
    "DS_WEBHOOKS__ALLOW_LOOPBACK": "true",
}


class Grounds:
    """One server at a time, in the mode that is asked for: the cases are in the order of these."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stack = ExitStack()
        self._mode = ""

    def __call__(self, mode: str) -> Ground:
        if mode != self._mode:
            self.close()
            self._mode, self._ground = mode, self._stack.enter_context(self._started(mode))
        return self._ground

    def close(self) -> None:
        self._stack.close()

    @contextmanager
    def _started(self, mode: str) -> Iterator[Ground]:
        directory = self._directory / mode
        directory.mkdir()
        env = SETTINGS | {
            "DS_STORAGE__MODE": mode,
            "DS_STORAGE__DATA_DIR": str(directory / "data"),
        }
        server = CrowdedServer(env, cwd=str(directory))
        server.start()
        with httpx.Client(base_url=server.url, timeout=OPERATION_SECS) as client:
            ground = Ground(server, client)
            ground.create("probed")
            fill_bucket(ground)
            yield ground
        stop_cleanly(server)


@pytest.fixture(scope="module")
def grounds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grounds]:
    found = Grounds(tmp_path_factory.mktemp("stalls"))
    yield found
    found.close()


def fill_bucket(ground: Ground) -> None:
    requests = [
        request_bytes("PUT", f"/crowd/{number}", Content_Type=TEXT_TYPE)
        for number in range(BUCKETED)
    ]
    ground.send(request_bytes("PUT", "/crowd"))
    ground.send(*requests, connections=100)


OPERATIONS: dict[str, Callable[[Ground], None]] = {
    "registry-compaction": expensive.registry_compaction,  # the first: others make history, too
    "json-small-elements": partial(expensive.json_body, attacks.small_elements),
    "json-most-elements": partial(expensive.json_body, attacks.most_elements),
    "json-most-spaced": partial(expensive.json_body, attacks.most_spaced),
    "json-spaced-elements": partial(expensive.json_body, attacks.spaced_elements),
    "json-small-beside-deep": partial(expensive.json_body, attacks.small_beside_deep),
    "json-deepest": partial(expensive.json_body, attacks.deepest),
    "read-of-small-messages": expensive.read_of_small_messages,
    "largest-body": expensive.octets,
    "chunks-of-a-byte": expensive.chunks_of_a_byte,
    "heads-of-many-clients": expensive.heads_of_many_clients,
    "metrics-of-many-clients": expensive.metrics_of_many_clients,
    "listings-of-many-clients": expensive.listings_of_many_clients,
    "heads-of-a-stream": partial(expensive.pipelined_heads, f"{ROOT}/probed", 50_000),
    "heads-of-metrics": partial(expensive.pipelined_heads, "/metrics", 12_000),
    "listing": expensive.listing,
    "heads-of-a-listing": partial(expensive.pipelined_heads, "/crowd/streams?limit=1000", 12_000),
    "metrics": expensive.metrics,
    "inspection": expensive.inspection,
    "heads-of-buckets": partial(expensive.pipelined_heads, f"{ROOT}/__ds/buckets", 10_000),
    "hostile-glob": expensive.hostile_glob,
    "glob-over-all": expensive.glob_over_all,
    "named-streams": expensive.named_streams,
    "tails": expensive.tails,
    "forks": expensive.forks,
    "fork-chain": expensive.fork_chain,
    "expired-bucket": expensive.expired_bucket,
    "snapshot-and-bootstrap": expensive.snapshot_and_bootstrap,
    "tails-of-nested": expensive_live.tails_of_nested,
    "abandoned-bootstraps": expensive_live.abandoned_bootstraps,
    "events-of-line-ends": expensive_live.events_of_line_ends,
    "events-fan-out": expensive_live.events_fan_out,
    "long-poll-fan-out": expensive_live.long_poll_fan_out,
    "crowd-at-one-tail": expensive_live.crowd_at_one_tail,
    "fan-in-to-readers": expensive_live.fan_in_to_readers,
    "fan-in-to-subscriptions": expensive_live.fan_in_to_subscriptions,
    "subscription-listing": expensive_live.subscription_listing,
    "webhooks": expensive_live.webhooks,
    "checkpoints": expensive.checkpoints,
    "cold-reads": expensive.cold_reads,
    "expiry": expensive.expiry,  # the last: it leaves streams behind that go on expiring
}


# Where the storage mode makes a difference; without a thread for storage, everything is done on
# the loop and at once.
IN_ACID = (
    "registry-compaction",
    "forks",
    "expired-bucket",
    "subscription-listing",
    "checkpoints",
    "cold-reads",
    "expiry",
)
IN_MEMORY = (
    "largest-body",
    "chunks-of-a-byte",
    "heads-of-many-clients",
    "tails",
    "expired-bucket",
    "long-poll-fan-out",
    "fan-in-to-readers",
    "fan-in-to-subscriptions",
    "expiry",
)
CASES = [
    *(("file-durable", operation) for operation in OPERATIONS),
    *(("acid", operation) for operation in IN_ACID),
    *(("memory", operation) for operation in IN_MEMORY),
]


@pytest.mark.parametrize(("mode", "operation"), CASES)
def test_an_operation_at_its_limit_holds_the_loop_for_no_more_than_250_ms(
    grounds: Grounds, mode: str, operation: str
) -> None:
    ground = grounds(mode)
    before, lines = stalls(ground.client), len(ground.server.log)
    with Probe(ground.port) as probe:
        OPERATIONS[operation](ground)
    found = stalls_since(ground.client, before)
    assert probe.statuses.keys() == {200}
    said = [line.partition(" headrace.")[2] for line in ground.server.log[lines:]]
    print(f"{operation}: probe {probe.longest_secs:.3f}s", found)
    too_long = {name: stall for name, stall in found.items() if stall.above_250_ms}
    assert not too_long, f"{too_long}, a probe waited {probe.longest_secs:.3f} s\n{''.join(said)}"


def test_a_drain_with_many_readers_does_not_hold_the_loop() -> None:
    """In one turn, telling them takes a sixth of a second, and closing as much again."""
    count = min(14_000, descriptors_max() - 4000)
    with ServerProcess({"DS_LOG__STALL_SECS": "0.06"}) as server:
        with RawConnection(server.port) as connection:
            connection.request("PUT", f"{ROOT}/read", Content_Type=TEXT_TYPE)
        target = f"{ROOT}/read?offset=now&live=sse"
        with Crowd(server.port, target, count, "healthy") as crowd:
            before = len(server.log)
            assert server.stop() == 0
            assert sum(readers for _, readers in crowd.transcripts()) == count
    lines = "".join(server.log[before:])
    held_secs = re.findall(r"the event loop was held up.*cpu_secs=([0-9.]+)", lines)
    assert max(map(float, held_secs), default=0.0) < 0.12, lines
