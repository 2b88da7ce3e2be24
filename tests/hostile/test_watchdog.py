"""The watchdog: what holds the event loop is measured and named, in a metric and in the log."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import eventually
from tests.conftest import stop_cleanly
from tests.hostile.holding_server import HOLD_SECS, HoldingServer
from tests.hostile.stalls import NONE, stalls
from tests.http.helpers import client_of

ASK = "/v1/stream/__ds/streams"
# The loop's heartbeat comes every 50 ms, so that much of a stall can go unseen.
SEEN_SECS = HOLD_SECS - 0.06
HELD = "the event loop was held up"
LATE = "the event loop ran late"


@pytest.fixture
def holding(tmp_path: Path) -> Iterator[ServerProcess]:
    server = HoldingServer(cwd=str(tmp_path))
    server.start()
    yield server
    stop_cleanly(server)


def hold(client: httpx.Client, how: str) -> None:
    assert client.get(ASK, params={"name": f"hold/{how}"}).status_code == 200


def lines(server: ServerProcess, sentence: str) -> list[str]:
    return [line for line in server.log if sentence in line]


def facts(line: str) -> dict[str, str]:
    return dict(re.findall(r"(\w+)=(\S+)", line))


@pytest.mark.parametrize("how", ["compute", "gil"])
def test_what_computes_on_the_loop_is_named_with_its_processor_time(
    holding: ServerProcess, how: str
) -> None:
    with client_of(holding) as client:
        hold(client, how)
        eventually(lambda: "inspection" in stalls(client), "the stall is counted")
        found = stalls(client)["inspection"]
        metrics = client.get("/metrics").text
    assert found.count >= 1
    assert found.secs >= found.cpu_secs >= SEEN_SECS
    assert found.above_250_ms == 1
    longest = r'longest_stall_cpu_seconds\{function="([^"]*)",operation="inspection"\} ([0-9.]+)'
    named = re.search(longest, metrics)
    assert named is not None, metrics
    assert float(named[2]) >= SEEN_SECS
    eventually(lambda: bool(lines(holding, HELD)), "the stall is logged")
    [line] = lines(holding, HELD)
    assert " warn " in line
    assert facts(line)["operation"] == "inspection"
    assert float(facts(line)["cpu_secs"]) >= SEEN_SECS
    assert facts(line)["function"] == named[1]
    assert "StreamMetadata" in named[1] or "holding" in named[1]


def test_a_sweep_that_holds_the_loop_is_named(holding: ServerProcess) -> None:
    with client_of(holding) as client:
        hold(client, "sweep")
        eventually(lambda: "sweep" in stalls(client), "the stall is counted")
        assert stalls(client)["sweep"].above_250_ms == 1


def test_a_call_that_blocks_the_loop_is_an_alarm_though_it_computes_nothing(
    holding: ServerProcess,
) -> None:
    with client_of(holding) as client:
        hold(client, "wait")
        eventually(lambda: "inspection" in stalls(client), "the stall is counted")
        found = stalls(client)["inspection"]
    assert found.secs >= found.held_secs
    assert found.held_secs > 2 * found.cpu_secs
    eventually(lambda: bool(lines(holding, HELD) + lines(holding, LATE)), "the stall is logged")


def test_a_process_without_a_processor_is_no_alarm(holding: ServerProcess) -> None:
    """Other processes that compute all the time on the one processor that it may use."""
    [processor, *_] = os.sched_getaffinity(0)
    with client_of(holding) as client, ExitStack() as stack:
        os.sched_setaffinity(holding.pid, {processor})
        for _ in range(8):
            stack.enter_context(spinning(processor))
        hold(client, "compute")
        eventually(lambda: "inspection" in stalls(client), "the stall is counted")
        found = stalls(client)["inspection"]
    assert found.secs > 2 * found.cpu_secs, "others had the processor"
    assert found.held_secs < found.secs - found.cpu_secs / 2


@contextmanager
def spinning(processor: int) -> Iterator[None]:
    code = f"import os\nos.sched_setaffinity(0, {{{processor}}})\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def test_the_same_stall_over_and_over_is_one_line_and_counted_each_time(
    holding: ServerProcess,
) -> None:
    with client_of(holding) as client:
        for _ in range(4):
            hold(client, "compute")
        eventually(
            lambda: stalls(client).get("inspection", NONE).above_250_ms == 4, "all are counted"
        )
    eventually(lambda: bool(lines(holding, HELD)), "the stall is logged")
    # A line for the first, and perhaps for one that was longer.
    assert 1 <= len(lines(holding, HELD)) < 4
