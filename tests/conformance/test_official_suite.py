"""The official suite passes whole: against `headrace serve` in every storage mode, and against the
ASGI application; its base protocol also against the streams of a bucket.

The suite is JavaScript. One vitest run per server writes a JSON report, and the report must name
exactly the tests of suite_tests.txt, all of them passed: a suite that is not found, skips tests or
grows new ones fails here too.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from headrace.testing.ports import free_port, is_listening
from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import eventually

HERE = Path(__file__).parent
VITEST = HERE / "node_modules" / ".bin" / "vitest"
SUITE_TESTS = frozenset((HERE / "suite_tests.txt").read_text("utf-8").splitlines())
SUITE_TIMEOUT_SECS = 600  # about 25 s on a quiet machine
START_TIMEOUT_SECS = 60
# Long enough that what the suite appends during a long-poll arrives in it on a busy machine, and
# shorter than the 5 s after which the suite gives up on the one that no append ends.
# The suite's webhook receivers are on this machine.
SERVER_ENV = {"DS_SERVER__LONG_POLL_TIMEOUT_SECS": "3", "DS_WEBHOOKS__ALLOW_LOOPBACK": "true"}
# The suite's streams are at /v1/stream/{id}: with buckets below /v1 that is a bucket called stream.
BUCKET_ENV = {"DS_SERVER__BUCKET_ROOT": "/v1", "DS_SERVER__STREAM_ROOT": "/base"}
# Subscriptions are an interface of the base surface: docs/protocol.md.
SUBSCRIPTIONS = "Reserved subscription APIs > "
# These sleep for most of a TTL and demand that it has not passed: half a second in which the
# machine stands still fails them. Whichever fails is run once more, with a warning, and must pass.
TIMED = (
    "TTL Expiration Behavior > should extend TTL on ",
    "TTL Expiration Behavior > should NOT extend ",
    "Fork - TTL and Expiry > should allow fork to outlive source ",
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default:the machine may have stood still"),
    pytest.mark.skipif(
        not VITEST.exists() or shutil.which("node") is None,
        reason="the official suite is not installed: run `make conformance` (needs Node 20)",
    ),
]


def test_the_list_of_suite_tests_is_the_one_we_claim() -> None:
    assert len(SUITE_TESTS) == 338


@pytest.mark.parametrize("mode", ["memory", "file-fast", "file-durable", "acid"])
def test_headrace_serve_passes_the_official_suite(mode: str, tmp_path: Path) -> None:
    storage = {"DS_STORAGE__MODE": mode, "DS_STORAGE__DATA_DIR": str(tmp_path / "data")}
    with ServerProcess(env=SERVER_ENV | storage) as server:
        assert_suite_passes(server.url, tmp_path / "report.json")


def test_the_streams_of_a_bucket_pass_all_but_the_subscriptions(tmp_path: Path) -> None:
    wanted = frozenset(name for name in SUITE_TESTS if not name.startswith(SUBSCRIPTIONS))
    assert len(wanted) == 332
    storage = {
        "DS_STORAGE__MODE": "file-durable",
        "DS_STORAGE__DATA_DIR": str(tmp_path / "data"),
    }
    with ServerProcess(env=SERVER_ENV | BUCKET_ENV | storage) as server:
        assert httpx.put(f"{server.url}/v1/stream").status_code == 201
        assert_suite_passes(server.url, tmp_path / "report.json", wanted)
        listed = httpx.get(f"{server.url}/v1/stream/streams").json()["streams"]
    assert len(listed) > 200, "that the suite ran in the bucket shows"


def test_the_asgi_application_passes_the_official_suite(tmp_path: Path) -> None:
    with uvicorn_process(tmp_path / "uvicorn.log") as url:
        assert_suite_passes(url, tmp_path / "report.json")


def assert_suite_passes(url: str, report: Path, wanted: frozenset[str] = SUITE_TESTS) -> None:
    statuses, reasons = run_suite(url, report, wanted)
    late = [name for name in wanted if name.startswith(TIMED) and statuses.get(name) == "failed"]
    if late:
        why = "; ".join(f"{name}: {reasons.get(name)}" for name in late)
        warnings.warn(f"the machine may have stood still, once more: {why}", stacklevel=2)
        again, reasons_again = run_suite(url, report, wanted, only="TTL")
        statuses |= {name: again[name] for name in late}
        reasons |= reasons_again
    passed = {name for name, status in statuses.items() if status == "passed"}
    others = [
        f"{status}: {name}\n    {reasons.get(name, '')}"
        for name, status in sorted(statuses.items())
        if status != "passed" and (name in wanted or status != "skipped")
    ]
    assert not others, f"{len(others)} of {len(statuses)} did not pass:\n" + "\n".join(others)
    assert passed == wanted, f"ran another suite: {sorted(passed ^ wanted)}"


def run_suite(
    url: str, report: Path, wanted: frozenset[str], only: str = ".*"
) -> tuple[dict[str, str], dict[str, str]]:
    report.unlink(missing_ok=True)
    subscriptions = "off" if wanted < SUITE_TESTS else "on"
    told = {"CONFORMANCE_BASE_URL": url, "CONFORMANCE_SUBSCRIPTIONS": subscriptions}
    finished = subprocess.run(
        [VITEST, "run", "--reporter=json", f"--outputFile={report}", f"--testNamePattern={only}"],
        cwd=HERE,
        env=os.environ | told | {"CI": "1", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=SUITE_TIMEOUT_SECS,
        check=False,
    )
    assert report.exists(), finished.stdout[-4000:] + finished.stderr[-4000:]
    return read_report(report)


def read_report(report: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Each test's status, and the first line of why it failed, by its full name."""
    statuses: dict[str, str] = {}
    reasons: dict[str, str] = {}
    for file in json.loads(report.read_text("utf-8"))["testResults"]:
        for test in file["assertionResults"]:
            name = " > ".join([*test["ancestorTitles"], test["title"]])
            statuses[name] = test["status"]
            if test.get("failureMessages"):
                reasons[name] = test["failureMessages"][0].partition("\n")[0]
    return statuses, reasons


@contextlib.contextmanager
def uvicorn_process(log: Path) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "headrace.http.asgi:create_app", "--factory"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--log-level", "warning"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=os.environ | SERVER_ENV, stdout=output, stderr=output
        )
    try:
        wait_for_port(port, process, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    def listens() -> bool:
        assert process.poll() is None, log.read_text("utf-8", "replace")
        return is_listening(port)

    eventually(listens, f"uvicorn listens on {port}", START_TIMEOUT_SECS)
