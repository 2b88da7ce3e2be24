"""A tenant that does everything wrong, in a process of its own.

    python -m tests.hostile.hostile_tenant ATTACK ENVOY_PORT SERVER_PORT TOKEN TRAP_URL

Says `ready` once what the attack needs is there, attacks in waves until its standard input ends,
and is then killed. What it is answered does not matter to it. It comes through Envoy, and from
beside it where Envoy would spoil the attack.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Final

from headrace.testing.raw_http import EndOfConnection, RawConnection, request_bytes
from headrace.testing.waiting import DEADLINE_SECS
from tests.hostile import attacks
from tests.hostile.attacks import JSON_TYPE, ROOT, TEXT_TYPE

WAVE_SECS: Final = 0.05  # between two waves: the attacker's own work is not the attack
MIB: Final = 1024 * 1024
TRICKLED_WAVES: Final = 20  # then other connections trickle
CONNECTIONS: Final = 4000  # that the server under attack accepts
HELD_MAX: Final = 3600  # of them; a wave has three hundred more
LINKS: Final = 500  # that a subscription of the server under attack may have
LOST: Final = (OSError, EndOfConnection, ValueError)  # what becomes of an attack is all the same
START: Final = "0" * 16 + "_" + "0" * 16


@dataclass
class Target:
    envoy_port: int
    server_port: int
    token: str
    trap_url: str
    receive_buffer_bytes: int | None = None
    held: list[RawConnection] = field(default_factory=list)
    wave: int = 0

    def connect(self, *, direct: bool = False) -> RawConnection:
        port = self.server_port if direct else self.envoy_port
        return RawConnection(port, receive_buffer_bytes=self.receive_buffer_bytes)

    def sign(self, request: bytes) -> bytes:
        line = f"\r\nAuthorization: Bearer {self.token}\r\n\r\n".encode()
        return request.replace(b"\r\n\r\n", line, 1)

    def ask(self, request: bytes) -> None:
        with suppress(*LOST), self.connect() as connection:
            connection.send(self.sign(request))
            connection.response(head_only=request.startswith(b"HEAD"))

    def hold(self, request: bytes, *, direct: bool = False) -> None:
        """Send, read nothing, and keep the connection."""
        with suppress(*LOST):
            connection = self.connect(direct=direct)
            self.held.append(connection)
            connection.send(request if direct else self.sign(request))

    def many(self, requests: list[bytes], connections: int) -> None:
        signed = [self.sign(request) for request in requests]
        with suppress(*LOST):
            attacks.answers(self.envoy_port, signed, connections)

    def let_go(self, kept: int = 0) -> None:
        gone, self.held = self.held[: len(self.held) - kept], self.held[len(self.held) - kept :]
        for connection in gone:
            connection.close()


Waves = Iterator[None]
"""What an attack needs first, then a wave with each turn."""


def pipelined_heads(target: Target) -> Waves:
    """50 kB of HEADs in one packet, of a page that takes a while to make."""
    target.ask(request_bytes("PUT", "/hostile"))
    puts = [request_bytes("PUT", f"/hostile/{n}", Content_Type=TEXT_TYPE) for n in range(1000)]
    target.many(puts, 50)
    requests = attacks.heads("/hostile/streams?limit=1000")
    while True:
        yield
        for direct in (True, False):
            packet = b"".join(requests if direct else map(target.sign, requests))
            target.hold(packet, direct=direct)
        with suppress(*LOST):
            for _ in requests:
                target.held[-2].head()
        target.let_go()


def stalled_events(target: Target) -> Waves:
    """Readers of events that never read, and large messages; of 4 MiB they take the disk."""
    yield
    while True:
        name = f"hostile/events/{target.wave}"
        target.ask(attacks.create(name))
        for number in range(40):
            follow = request_bytes("GET", f"{ROOT}/{name}?offset=-1&live=sse")
            target.hold(follow, direct=number % 2 == 0)
        target.ask(attacks.append(name, attacks.large_text(MIB)))
        target.let_go(kept=80)
        yield


def silent_bodies(target: Target) -> Waves:
    """Announce as much as may come, and send next to nothing."""
    target.ask(attacks.create("hostile/silent"))
    request = request_bytes(
        "POST",
        f"{ROOT}/hostile/silent",
        Content_Type=TEXT_TYPE,
        Content_Length=str(attacks.BODY_BYTES_MAX),
    )
    yield
    for number in range(16):
        target.hold(request + b"x", direct=number % 2 == 0)
    while True:
        yield


def json_bodies(target: Target) -> Waves:
    """Many elements, deep ones, and both."""
    target.ask(attacks.create("hostile/json", content_type=JSON_TYPE))
    bodies = [attacks.small_beside_deep(), attacks.small_elements(), attacks.deepest()]
    requests = [attacks.append("hostile/json", body, JSON_TYPE) for body in bodies]
    while True:
        yield
        with suppress(*LOST), target.connect(direct=True) as connection:
            connection.send(requests[target.wave % len(requests)])
            connection.response()


def globs(target: Target) -> Waves:
    """Patterns that nearly match, over names that are as long as names may be."""
    names = [attacks.long_name(number) for number in range(100)]
    target.many([attacks.create(name) for name in (*names, "hostile/wakes")], 20)
    wake = {"type": "pull-wake", "wake_stream": "hostile/wakes"}
    while True:
        yield
        for number, pattern in enumerate((attacks.many_stars(), attacks.long_run(), "deep/**")):
            id = f"hostile-{target.wave}-{number}"
            target.ask(attacks.subscription(id, pattern=pattern, **wake))
        target.ask(attacks.create(attacks.long_name(1000 + target.wave)))


def tails_polls(target: Target) -> Waves:
    """Polls over thousands of streams, and an append that wakes them all."""
    names = [f"hostile/tails/{number}" for number in range(2000)]
    target.many([attacks.create(name) for name in names], 50)
    starts = dict.fromkeys(names, START)
    count = 0
    while True:
        yield
        target.let_go()
        poll = attacks.tails_poll(starts)
        for number in range(20):
            target.hold(poll, direct=number % 2 == 0)
        target.ask(attacks.append(names[0], b"x"))
        count += 1
        starts[names[0]] = f"{count:016d}_{count:016d}"


def connections(target: Target) -> Waves:
    """Nearly all that the server accepts: silent ones, half a head, and ones that leave at once."""
    yield
    while True:
        for number in range(300):
            target.hold((b"", b"GET /v1/stre", b"\r\n")[number % 3], direct=number % 4 > 0)
        for connection in target.held[-90:]:
            reset(connection)
        target.let_go(kept=HELD_MAX)
        yield


def forks(target: Target) -> Waves:
    """Wide and deep, and gone again in a moment: many before the first wave, to expire in it."""
    target.ask(attacks.create("hostile/source", b"x"))
    while True:
        wave = f"hostile/forks/{target.wave}"
        count = 300 if target.wave else 2000
        wide = [attacks.fork(f"{wave}/{n}", "hostile/source", Stream_TTL="1") for n in range(count)]
        target.many(wide, 40)
        deep = ["hostile/source", *(f"{wave}/deep/{n}" for n in range(40))]
        with suppress(*LOST), target.connect() as connection:
            for source, name in pairwise(deep):
                connection.send(target.sign(attacks.fork(name, source, Stream_TTL="1")))
                connection.response()
        yield


def webhooks(target: Target) -> Waves:
    """To addresses that never answer, to this server itself, and to what only an admin may call."""
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as tarpit:
        tarpit_url = f"http://127.0.0.1:{tarpit.getsockname()[1]}/"
        own_url = f"http://127.0.0.1:{target.server_port}{ROOT}/hostile/hooked"
        target.ask(attacks.create("hostile/hooked"))
        urls = [target.trap_url, own_url, *[tarpit_url] * 60]
        for number, url in enumerate(filter(None, urls)):
            webhook = {"type": "webhook", "webhook": {"url": url}}
            id = f"hostile-hook-{number}"
            target.ask(attacks.subscription(id, streams=["hostile/hooked"], **webhook))
        while True:
            yield
            target.ask(attacks.append("hostile/hooked", b"x"))


def slow_readers(target: Target) -> Waves:
    """Large answers that nobody takes."""
    target.ask(request_bytes("PUT", "/hostile"))
    target.ask(request_bytes("PUT", "/hostile/doc", b"x", Content_Type=TEXT_TYPE))
    offset = f"{1:016d}_{1:016d}"
    blob = os.urandom(8 * MIB)
    target.ask(request_bytes("PUT", f"/hostile/doc/snapshot/{offset}", blob))
    target.ask(attacks.create("hostile/large", bytes(8 * MIB)))
    target.receive_buffer_bytes = 4096
    yield
    for number in range(60):
        target.hold(request_bytes("GET", f"{ROOT}/hostile/large?offset=-1"), direct=True)
        for path in ("doc/bootstrap", f"doc/snapshot/{offset}"):
            target.hold(request_bytes("GET", f"/hostile/{path}"), direct=number % 2 == 0)
    while True:
        yield


MALFORMED: Final = (
    b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\n\r\n",
    b"POST /v1/stream/a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n"
    b"\r\n0\r\n\r\nGET /v1/stream/b HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST  /v1/stream/a HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx",
    b"GET /v1/stream/a HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /v1/stream/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\nx",
    b"GET " + b"/x" * 5000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 200 + b"\r\n",
    b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1",
    b"POST /v1/stream/a HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n",
    b"\x00" * 100,
)


def malformed(target: Target) -> Waves:
    """Upgrades, two lengths, other protocols: each alone, and behind a good request."""
    good = request_bytes("HEAD", f"{ROOT}/hostile/none")
    while True:
        yield
        for request in MALFORMED:
            for direct in (True, False):
                target.hold(request, direct=direct)
                target.hold(good + request, direct=direct)
        target.let_go(kept=2 * len(MALFORMED))


def aborts(target: Target) -> Waves:
    """Leave in the middle: of a head, of a body, before an answer, in the middle of one."""
    target.ask(attacks.create("hostile/aborted"))
    target.ask(attacks.create("hostile/large", bytes(4 * MIB)))
    body = b"foreign bytes " * 1000
    append = target.sign(attacks.append("hostile/aborted", body))
    read = target.sign(request_bytes("GET", f"{ROOT}/hostile/large?offset=-1"))
    poll = request_bytes("GET", f"{ROOT}/hostile/aborted?offset=now&live=long-poll")
    follow = request_bytes("GET", f"{ROOT}/hostile/aborted?offset=-1&live=sse")
    sent = [append[: len(append) // 2], append, append * 3, read, read[:40]]
    sent += [target.sign(poll), target.sign(follow)]
    while True:
        yield
        for number in range(70):
            with suppress(*LOST):
                connection = target.connect(direct=number % 3 == 0)
                connection.send(sent[number % len(sent)])
                if number % 2:
                    connection.socket.settimeout(WAVE_SECS / 10)
                    with suppress(TimeoutError):
                        connection.socket.recv(100)
                reset(connection)


def trickled_uploads(target: Target) -> Waves:
    """As much announced as may come, and a little of it sent all the time."""
    target.ask(attacks.create("hostile/trickled"))
    request = request_bytes(
        "POST",
        f"{ROOT}/hostile/trickled",
        Content_Type=TEXT_TYPE,
        Content_Length=str(attacks.BODY_BYTES_MAX),
    )
    while True:
        yield
        if not target.wave % TRICKLED_WAVES:
            target.let_go()
        while len(target.held) < 64:
            target.hold(request, direct=len(target.held) % 2 == 0)
        for connection in target.held:
            with suppress(*LOST):
                connection.send(b"x" * 100)


def nested_tails(target: Target) -> Waves:
    """Requests for tails that are as long as they may be, and mostly nested lists."""
    request = attacks.tails_of_nested()
    while True:
        yield
        for number in range(4):
            target.hold(request, direct=number % 2 == 0)
        with suppress(*LOST):
            target.held[-1].response()
        target.let_go()


def abandoned_bootstraps(target: Target) -> Waves:
    """Begin to read a snapshot and much after it, and leave."""
    target.ask(request_bytes("PUT", "/hostile"))
    target.ask(request_bytes("PUT", "/hostile/begun", b"x", Content_Type=TEXT_TYPE))
    blob = os.urandom(4 * MIB)
    target.ask(request_bytes("PUT", f"/hostile/begun/snapshot/{1:016d}_{1:016d}", blob))
    more = request_bytes("POST", "/hostile/begun", bytes(4 * MIB), Content_Type=TEXT_TYPE)
    target.ask(more)
    request = request_bytes("GET", "/hostile/begun/bootstrap")
    while True:
        yield
        for number in range(20):
            target.hold(request, direct=number % 2 == 0)
        for connection in target.held:
            connection.socket.settimeout(WAVE_SECS)
            with suppress(TimeoutError, *LOST):
                connection.socket.recv(100)
            reset(connection)
        target.held.clear()


def fan_in(target: Target) -> Waves:
    """Many subscriptions to one stream: one append is a wake of each."""
    target.many([attacks.create("hostile/popular"), attacks.create("hostile/wakes")], 1)
    wake = {"type": "pull-wake", "wake_stream": "hostile/wakes", "streams": ["hostile/popular"]}
    target.many([attacks.subscription(f"hostile-fan-{n}", **wake) for n in range(500)], 10)
    worker = json.dumps({"worker": "mallory"}).encode()
    count = 0
    while True:
        yield
        target.ask(attacks.append("hostile/popular", b"x"))
        claimed = f"{ROOT}/__ds/subscriptions/hostile-fan-{count % 500}/claim"
        target.ask(request_bytes("POST", claimed, worker, Content_Type=JSON_TYPE))
        count += 1


def used_up_links(target: Target) -> Waves:
    """Patterns that match more streams than a subscription may follow, which come and go."""
    target.ask(attacks.create("hostile/wakes"))
    wake = {"type": "pull-wake", "wake_stream": "hostile/wakes", "pattern": "hostile/links/**"}
    target.many([attacks.subscription(f"hostile-links-{n}", **wake) for n in range(8)], 4)
    target.many([attacks.create(f"hostile/links/{n}") for n in range(LINKS + 200)], 20)
    while True:
        yield
        names = [f"{ROOT}/hostile/links/{n}" for n in range(100)]
        target.many([request_bytes("DELETE", name) for name in names], 10)
        target.many([request_bytes("PUT", name, Content_Type=TEXT_TYPE) for name in names], 10)


def appends(target: Target) -> Waves:
    """Nothing but appends, several to a packet, on connections that the proxy shares."""
    target.ask(attacks.create("hostile/appended"))
    requests = [attacks.append("hostile/appended", b"foreign")] * 80
    while True:
        yield
        target.many(requests, 8)


def reset(connection: RawConnection) -> None:
    """Close without a farewell."""
    connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


ATTACKS: Final[dict[str, Callable[[Target], Waves]]] = {
    "pipelined-heads": pipelined_heads,
    "stalled-events": stalled_events,
    "silent-bodies": silent_bodies,
    "json-bodies": json_bodies,
    "globs": globs,
    "tails-polls": tails_polls,
    "connections": connections,
    "forks": forks,
    "webhooks": webhooks,
    "slow-readers": slow_readers,
    "malformed": malformed,
    "aborts": aborts,
    "appends": appends,
    "trickled-uploads": trickled_uploads,
    "nested-tails": nested_tails,
    "abandoned-bootstraps": abandoned_bootstraps,
    "fan-in": fan_in,
    "used-up-links": used_up_links,
}


class HostileTenant:
    """The process, as a test holds it; use it as a context manager."""

    def __init__(
        self, attack: str, envoy_port: int, server_port: int, token: str, trap_url: str
    ) -> None:
        paths = (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", ""))
        arguments = [attack, str(envoy_port), str(server_port), token, trap_url]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.hostile.hostile_tenant", *arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.waves = 0

    def __enter__(self) -> HostileTenant:
        assert self._process.stdout is not None, "stdout is a pipe"
        line = self._process.stdout.readline()
        if line != "ready\n":
            self._end()
            raise RuntimeError(f"the attack did not begin: {line!r}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        """Its waves, and then the end, in the middle of whatever it is doing."""
        assert self._process.stdin is not None, "stdin is a pipe"
        assert self._process.stdout is not None, "stdout is a pipe"
        with suppress(OSError):
            self._process.stdin.close()
        said = self._process.stdout.readline()
        self.waves = json.loads(said)["waves"] if said.startswith("{") else 0
        self._process.stdout.close()
        self._process.kill()
        self._process.wait(DEADLINE_SECS)


def main(attack: str, envoy_port: int, server_port: int, token: str, trap_url: str) -> None:
    target = Target(envoy_port, server_port, token, trap_url)
    waves = ATTACKS[attack](target)
    next(waves)
    print("ready", flush=True)
    threading.Thread(target=_leave, args=(target,), daemon=True).start()
    while True:
        target.wave += 1
        next(waves)
        time.sleep(WAVE_SECS)


def _leave(target: Target) -> None:
    sys.stdin.read()
    print(json.dumps({"waves": target.wave}), flush=True)


if __name__ == "__main__":
    _attack, _envoy_port, _server_port, _token, _trap_url = sys.argv[1:]
    main(_attack, int(_envoy_port), int(_server_port), _token, _trap_url)
