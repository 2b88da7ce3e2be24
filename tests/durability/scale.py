"""Sizes for the long tier: 10 GiB in 1,000 streams, and 100,000 streams.

Each can be run for itself, and made smaller:

    python -m tests.durability.scale streams --mode acid --scale 0.2
    python -m tests.durability.scale bytes --scale 0.1
"""

from __future__ import annotations

import argparse
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import httpx

from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import eventually
from tests.durability.campaign import registered
from tests.durability.modes import DURABLE_MODES, SHARDS

OCTETS = {"content-type": "application/octet-stream"}
GIB = 1 << 30
BODY_BYTES_MAX = 4 << 20
WRITERS = 4
READY_SECS_MAX = 1.0
STARTS = 5
DEADLINE_SECS = 120.0


class Found(NamedTuple):
    sentence: str
    wrong: list[str]


def env(mode: str, directory: Path) -> dict[str, str]:
    return {
        "DS_STORAGE__MODE": mode,
        "DS_STORAGE__DATA_DIR": str(directory),
        "DS_STORAGE__ACID_SHARD_COUNT": str(SHARDS),
    }


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def start_seconds(server: ServerProcess) -> float:
    """From the call that starts the process until it says where it listens: it is ready then."""
    began = time.monotonic()
    server.start()
    assert httpx.get(f"{server.url}/readyz").status_code == 200
    return time.monotonic() - began


def best_start_seconds(directory: Path) -> float:
    """Of a few orderly starts: what else the machine does can only make one longer."""
    taken = []
    for _ in range(STARTS):
        server = ServerProcess(env("file-durable", directory), cwd=str(directory.parent.parent))
        taken.append(start_seconds(server))
        server.stop()
    return min(taken)


def recovery_at_size(directory: Path, scale: float) -> Found:
    """How long a start takes with much history, beside one with none."""
    streams = max(10, int(1000 * scale))
    per_stream = max(1 << 20, int(10 * GIB * scale) // streams)
    bodies = -(-per_stream // BODY_BYTES_MAX)
    body = b"x" * (per_stream // bodies)
    none_secs = best_start_seconds(directory / "empty")
    server = ServerProcess(env("file-durable", directory / "full"), cwd=str(directory.parent))
    server.start()
    with httpx.Client(base_url=server.url, timeout=DEADLINE_SECS) as client:

        def fill(number: int) -> None:
            path = f"/v1/stream/large/{number}"
            client.put(path, headers=OCTETS)
            for _ in range(bodies):
                # 503: too much waits for a checkpoint.
                eventually(
                    lambda: client.post(path, content=body, headers=OCTETS).status_code != 503,
                    "room for another body",
                    DEADLINE_SECS,
                )

        with ThreadPoolExecutor(WRITERS) as threads:
            list(threads.map(fill, range(streams)))
    server.kill()
    again = ServerProcess(env("file-durable", directory / "full"), cwd=str(directory.parent))
    after_kill = start_seconds(again)
    again.stop()
    after_stop = best_start_seconds(directory / "full")
    gib = streams * bodies * len(body) / GIB
    sentence = (
        f"{gib:.1f} GiB in {streams:,} streams: ready {after_stop:.2f} s after an orderly stop, "
        f"{after_kill:.2f} s after a kill; with no streams {none_secs:.2f} s "
        "(all with the start of the interpreter)"
    )
    slow = after_stop - none_secs > READY_SECS_MAX
    return Found(sentence, [f"ready {after_stop - none_secs:.2f} s later"] if slow else [])


def streams_at_scale(mode: str, directory: Path, scale: float) -> Found:
    """Create, append, restart and list many streams; what each takes in memory."""
    count = max(1000, int(100_000 * scale))
    server = ServerProcess(env(mode, directory), cwd=str(directory.parent))
    server.start()
    before = resident_bytes(server.pid)

    def make(first: int) -> None:
        with httpx.Client(base_url=server.url, timeout=DEADLINE_SECS) as client:
            for number in range(first, count, WRITERS * 4):
                path = f"/v1/stream/many/{number}"
                assert client.put(path, headers=OCTETS).status_code == 201
                assert client.post(path, content=b"one", headers=OCTETS).status_code == 204

    with ThreadPoolExecutor(WRITERS * 4) as threads:
        list(threads.map(make, range(WRITERS * 4)))
    fresh = (resident_bytes(server.pid) - before) / count
    server.stop()
    again = ServerProcess(env(mode, directory), cwd=str(directory.parent))
    ready_secs = start_seconds(again)
    reopened = (resident_bytes(again.pid) - before) / count
    with httpx.Client(base_url=again.url, timeout=DEADLINE_SECS) as client:
        listed = len(registered(client))
        last = client.get(f"/v1/stream/many/{count - 1}", params={"offset": "-1"}).content
    again.stop()
    wrong = [] if listed == count else [f"{listed} of {count} are listed after a restart"]
    wrong += [] if last == b"one" else ["the last stream does not hold what was appended"]
    sentence = (
        f"{count:,} streams created, appended to, restarted ({ready_secs:.1f} s) and listed; "
        f"{fresh:,.0f} bytes of memory a stream, {reopened:,.0f} after the restart"
    )
    return Found(sentence, wrong)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.durability.scale", description=__doc__)
    parser.add_argument("what", choices=["streams", "bytes"])
    parser.add_argument("--mode", default="file-durable", choices=DURABLE_MODES)
    parser.add_argument("--scale", type=float, default=1.0, help="1 is the whole size")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-scale-") as name:
        directory = Path(name) / "data"
        if options.what == "streams":
            found = streams_at_scale(options.mode, directory, options.scale)
        else:
            found = recovery_at_size(directory, options.scale)
    print(found.sentence)
    for sentence in found.wrong:
        print(f"WRONG: {sentence}")


if __name__ == "__main__":
    main()
