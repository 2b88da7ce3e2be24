"""Figures: the longest wait of another connection while one client is expensive on purpose.

    python -m tests.hostile.stall_figures [--source DIRECTORY] [name ...]

Prints one line for each attack. The server is that of this directory, or of another checkout:

    git worktree add ../before bdefa0f
    python -m tests.hostile.stall_figures --source ../before forks heads

On a busy machine the waits are longer than the stalls.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socketserver
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from headrace.testing.raw_http import RawConnection, request_bytes
from headrace.testing.server_process import ServerProcess
from tests.hostile import attacks
from tests.hostile.probe import Probe

ROOT = "/v1/stream"
MIB = 1024 * 1024
TOGETHER_SECS = 40  # enough to make thousands of forks before the first of them expires
SETTINGS = {
    "DS_LIMITS__MAX_STREAM_BYTES": str(64 * MIB),
    "DS_LIMITS__MAX_MEMORY_BYTES": str(2**31),
    "DS_WEBHOOKS__ALLOW_LOOPBACK": "true",
}


checkout = Path(__file__).parents[2]


def serve(env: Mapping[str, str] = SETTINGS) -> ServerProcess:
    """In its checkout's own directory, where its configuration is."""
    return ServerProcess(env, cwd=str(checkout))


def peak_mib(server: ServerProcess) -> int:
    status = Path(f"/proc/{server.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) // 1024  # type: ignore[index]


def connect(server: ServerProcess) -> RawConnection:
    return RawConnection(server.port, deadline_secs=300)


def report(name: str, server: ServerProcess, probe: Probe, begun: float, note: str) -> None:
    took = time.perf_counter() - begun
    print(
        f"{name:28} longest wait {probe.longest_secs * 1000:7.0f} ms, took {took:6.2f} s, "
        f"peak {peak_mib(server)} MiB  {note}",
        flush=True,
    )


def append_json(name: str, body: bytes) -> None:
    with serve() as server, connect(server) as client:
        client.request("PUT", f"{ROOT}/j", Content_Type="application/json")
        with Probe(server.port) as probe:
            begun = time.perf_counter()
            answer = client.request("POST", f"{ROOT}/j", body, Content_Type="application/json")
            report(name, server, probe, begun, f"{answer.status} {answer.body[:90]!r}")


def filled(unit: bytes, size: int, rest: bytes = b"") -> bytes:
    return b"[" + b",".join([unit] * ((size - 2 - len(rest)) // (len(unit) + 1))) + rest + b"]"


def json_bodies() -> Iterator[tuple[str, bytes]]:
    size = 16 * MIB - 64
    deep = b",%b1%b" % (b"[" * 1000, b"]" * 1000)
    yield "json: small beside a deep", filled(b"1", 8 * MIB, deep)
    yield "json: 16 MiB of 1", filled(b"1", size)
    yield "json: one of many lists", b"[" + filled(b"[]", size) + b"]"
    yield "json: one of many objects", b"[" + filled(b'{"":1}', size) + b"]"
    yield "json: deep ones", filled(b"[" * 900 + b"]" * 900, size)
    yield "json: exponents in strings", b"[" + filled(b'"1e000 "', size) + b"]"
    yield "json: exponents", b"[" + filled(b"1.5e+103 ", size) + b"]"
    yield "json: escapes", b'["' + b"\\\\" * (size // 2) + b'"]'
    yield "json: white space", b"[" + b" " * size + b"1]"
    yield "json: equal keys", b"[{" + b",".join([b'"a":1'] * (size // 6 - 2)) + b"}]"
    yield "json: not UTF-8 at the end", b'["' + "é".encode() * (size // 2) + b'\xff"]'
    yield "json: 30 byte records", filled(b'{"id":12345,"name":"records"}', size)
    yield "json: 200 byte records", filled(b'{"id":12345,"text":"' + b"x" * 177 + b'"}', size)


def measure_json() -> None:
    for name, body in json_bodies():
        append_json(name, body)


def create_many(client: RawConnection, names: list[str], content_type: str = "text/plain") -> None:
    for first in range(0, len(names), 200):
        some = names[first : first + 200]
        client.send(
            b"".join(
                request_bytes("PUT", f"{ROOT}/{name}", Content_Type=content_type) for name in some
            )
        )
        for _ in some:
            answer = client.response()
            assert answer.status == 201, answer


def measure_tails(polls: int = 100, streams: int = 10_000) -> None:
    names = [f"s/{number}" for number in range(streams)]
    body = json.dumps({"streams": [{"stream": name, "from": "-1"} for name in names]}).encode()
    with serve() as server, ExitStack() as stack:
        client = stack.enter_context(connect(server))
        create_many(client, names)
        waiting = [stack.enter_context(connect(server)) for _ in range(polls)]
        begun = time.perf_counter()
        with Probe(server.port) as probe:
            for poll in waiting:
                poll.send(request_bytes("POST", f"{ROOT}/__ds/tails?live=long-poll", body))
            client.request("HEAD", f"{ROOT}/s/0")
            while live_polls(client) < 20:
                pass
            time.sleep(1)
            report(f"tails: {polls} polls begin", server, probe, begun, f"{live_polls(client)}")
        begun = time.perf_counter()
        with Probe(server.port) as probe:
            client.request("POST", f"{ROOT}/s/7", b"x", Content_Type="text/plain")
            append_secs = time.perf_counter() - begun
            statuses = [poll.response().status for poll in waiting]
            note = f"append {append_secs:.3f} s; " + " ".join(
                f"{statuses.count(status)}x{status}" for status in sorted(set(statuses))
            )
            report(f"tails: {polls} polls answered", server, probe, begun, note)


def live_polls(client: RawConnection) -> int:
    text = client.request("GET", "/metrics").body.decode()
    return int(float(re.search(r'live_readers\{mode="long-poll"\} (\S+)', text)[1]))  # type: ignore[index]


def subscribe(client: RawConnection, id: str, **config: Any) -> int:
    body = {"type": "webhook", "webhook": {"url": "http://127.0.0.1:9/"}, **config}
    answer = client.request("PUT", f"{ROOT}/__ds/subscriptions/{id}", json.dumps(body).encode())
    return answer.status


def measure_globs() -> None:
    names = [f"{number:04}/" + "/".join(["a"] * 1500) for number in range(500)]
    patterns = {
        "segments": "**/" + "/".join(["*"] * 1800) + "/b",
        "any": "/".join(["**", "a"] * 600) + "/b",
        "run": "**/" + "a/" * 1000 + "b/**/c",
        "allowed": "**/" + "*/" * 11 + "b/**/a",
    }
    for label, pattern in patterns.items():
        with serve() as server, connect(server) as client:
            create_many(client, names)
            with Probe(server.port) as probe:
                begun = time.perf_counter()
                statuses = [subscribe(client, f"s{n}", pattern=pattern) for n in range(3)]
                report(f"glob: {label}", server, probe, begun, f"{statuses}")
            with Probe(server.port) as probe:
                begun = time.perf_counter()
                create_many(client, [f"later/{'/'.join(['a'] * 1500)}/{n}" for n in range(10)])
                report(f"glob: {label}, creations", server, probe, begun, "")


def measure_members(streams: int = 100_000) -> None:
    with serve() as server, connect(server) as client:
        create_many(client, [f"m/{number}" for number in range(streams)])
        for step in ("PUT", "GET", "DELETE"):
            with Probe(server.port) as probe:
                begun = time.perf_counter()
                if step == "PUT":
                    status = subscribe(client, "all", pattern="m/*")
                else:
                    target = f"{ROOT}/__ds/subscriptions/all"
                    status = client.request(step, target).status
                report(f"subscription: {step} {streams}", server, probe, begun, f"{status}")


@contextmanager
def receiver(answer: bytes | None) -> Iterator[tuple[int, list[float]]]:
    """A webhook receiver: `answer` None never answers. Its port, and when it was called."""
    seen: list[float] = []

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65536)
            seen.append(time.perf_counter())
            if answer is not None:
                self.request.sendall(answer)
            else:
                over.wait(60)

    class Server(socketserver.ThreadingTCPServer):
        request_queue_size = 256
        daemon_threads = True

    over = threading.Event()
    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1], seen
        over.set()
        server.shutdown()


def measure_tarpits(count: int = 120) -> None:
    done = b'HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{"done":true}'
    with (
        serve() as server,
        connect(server) as client,
        receiver(None) as (tarpit, _),
        receiver(done) as (honest, seen),
    ):
        for number in range(count):
            hook = {"url": f"http://127.0.0.1:{tarpit}/"}
            subscribe(client, f"tar{number}", streams=["bad"], webhook=hook)
        subscribe(client, "good", streams=["good"], webhook={"url": f"http://127.0.0.1:{honest}/"})
        create_many(client, ["bad", "good"])
        with Probe(server.port) as probe:
            client.request("POST", f"{ROOT}/bad", b"x", Content_Type="text/plain")
            time.sleep(1)
            begun = time.perf_counter()
            client.request("POST", f"{ROOT}/good", b"x", Content_Type="text/plain")
            while not seen:
                time.sleep(0.01)
            report("webhook beside 120 tarpits", server, probe, begun, "")


def measure_forks(count: int = 8000) -> None:
    """Forks of one stream that expire together, and a start with as many of a trimmed stream."""
    with tempfile.TemporaryDirectory() as directory:
        stored = SETTINGS | {"DS_STORAGE__MODE": "file-durable", "DS_STORAGE__DATA_DIR": directory}
        bucket = "/figures/source"
        with serve(stored) as server, connect(server) as client:
            client.request("PUT", "/figures")
            client.request("PUT", bucket, b"x" * 1000, Content_Type="text/plain")
            client.request("PUT", f"{bucket}/snapshot/{1:016d}_{1000:016d}", b"folded")
            create_forks(client, "/figures/fork", count, bucket)
            client.request("PUT", f"{ROOT}/source", b"x" * 1000, Content_Type="text/plain")
            begun = time.perf_counter()
            at = f"{datetime.now(UTC) + timedelta(seconds=TOGETHER_SECS):%Y-%m-%dT%H:%M:%SZ}"
            create_forks(client, f"{ROOT}/short/", count, f"{ROOT}/source", Stream_Expires_At=at)
            print(
                f"{'forks: ' + str(count) + ' created':28} took {time.perf_counter() - begun:.2f} s"
            )
            begun = time.perf_counter()
            with Probe(server.port) as probe:
                while client.request("HEAD", f"{ROOT}/short/{count - 1}").status != 404:
                    time.sleep(0.2)
                time.sleep(3)
                report(f"forks: {count} expire", server, probe, begun, "waiting for it included")
            server.kill()
        begun = time.perf_counter()
        with serve(stored) as server:
            print(f"{'forks: start after a kill':28} took {time.perf_counter() - begun:.2f} s")
            server.kill()


def create_forks(
    client: RawConnection, prefix: str, count: int, source: str, **headers: str
) -> None:
    for first in range(0, count, 200):
        some = range(first, min(first + 200, count))
        puts = (
            request_bytes("PUT", f"{prefix}{n}", b"", Stream_Forked_From=source, **headers)
            for n in some
        )
        client.send(b"".join(puts))
        for _ in some:
            answer = client.response()
            assert answer.status == 201, answer


def measure_heads() -> None:
    """50 kB of HEADs in one packet, of a page of a thousand streams."""
    requests = attacks.heads("/figures/streams?limit=1000")
    with serve() as server, connect(server) as client, connect(server) as other:
        client.request("PUT", "/figures")
        for number in range(1000):
            client.request("PUT", f"/figures/{number}", Content_Type="text/plain")
        with Probe(server.port) as probe:
            begun = time.perf_counter()
            other.send(b"".join(requests))
            for _ in requests:
                other.response(head_only=True)
            report(f"{len(requests)} pipelined HEADs", server, probe, begun, "")


def measure_readers(count: int = 100) -> None:
    """Readers of events, of a bootstrap and of catch-up that take nothing of a message of 8 MiB."""
    body, snapshot = b"x" * (8 * MIB), f"/figures/doc/snapshot/{1:016d}_{1:016d}"
    targets = {
        "events": f"{ROOT}/large?offset=-1&live=sse",
        "bootstraps": "/figures/doc/bootstrap",
        "catch-up": f"{ROOT}/large?offset=-1",
    }
    for what, target in targets.items():
        with serve() as server, connect(server) as client, ExitStack() as stack:
            client.request("PUT", "/figures")
            client.request("PUT", "/figures/doc", b"x", Content_Type="text/plain")
            client.request("PUT", snapshot, b"folded")
            client.request("POST", "/figures/doc", body, Content_Type="text/plain")
            client.request("PUT", f"{ROOT}/large", body, Content_Type="text/plain")
            with Probe(server.port) as probe:
                begun = time.perf_counter()
                for _ in range(count):
                    reader = RawConnection(server.port, receive_buffer_bytes=4096)
                    stack.enter_context(reader).send(request_bytes("GET", target))
                time.sleep(2)
                note = f"resident {resident_mib(server)} MiB"
                report(f"{count} stalled {what}", server, probe, begun, note)


def resident_mib(server: ServerProcess) -> int:
    status = Path(f"/proc/{server.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) // 1024  # type: ignore[index]


def measure_bodies(count: int = 4) -> None:
    """Connections that announce 16 MiB and send a byte; how long another's 100 kB wait."""
    announced = request_bytes(
        "POST", f"{ROOT}/b", Content_Type="text/plain", Content_Length=str(attacks.BODY_BYTES_MAX)
    )
    with serve() as server, connect(server) as client, ExitStack() as stack:
        client.request("PUT", f"{ROOT}/b", Content_Type="text/plain")
        for _ in range(count):
            stack.enter_context(connect(server)).send(announced + b"x")
        time.sleep(0.5)
        with Probe(server.port) as probe:
            begun, statuses = time.perf_counter(), [0]
            while statuses[-1] != 204 and time.perf_counter() - begun < 120:
                with connect(server) as other:
                    body = b"x" * 100_000
                    answer = other.request("POST", f"{ROOT}/b", body, Content_Type="text/plain")
                    statuses.append(answer.status)
                time.sleep(0 if statuses[-1] == 204 else 0.5)
            report(f"{count} silent bodies", server, probe, begun, f"{len(statuses) - 1} attempts")


FIGURES: dict[str, Callable[[], None]] = {
    "json": measure_json,
    "tails": measure_tails,
    "globs": measure_globs,
    "members": measure_members,
    "tarpits": measure_tarpits,
    "forks": measure_forks,
    "heads": measure_heads,
    "readers": measure_readers,
    "bodies": measure_bodies,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.stall_figures")
    parser.add_argument("--source", type=Path, help="the checkout whose server is measured")
    parser.add_argument("names", nargs="*", choices=[[], *FIGURES], metavar="name")
    chosen = parser.parse_args()
    global checkout
    if chosen.source is not None:
        checkout = chosen.source
        SETTINGS["PYTHONPATH"] = os.fspath((chosen.source / "src").resolve(strict=True))
    for name in chosen.names or FIGURES:
        FIGURES[name]()


if __name__ == "__main__":
    main()
