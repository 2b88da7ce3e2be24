"""Many live readers in a process of their own, so that what they cost there is not the server's.

    python -m headrace.testing.sse_load PORT TARGET COUNT KIND

Opens COUNT event streams of TARGET. Says `ready` once all are open, and ends when its standard
input does. Readers that are `idle` read what comes; `stalled` ones never read a byte; `healthy`
ones read until the server ends the response, and then their transcripts are printed as JSON: for
each different one, how many readers received it.
"""

from __future__ import annotations

import json
import resource
import selectors
import socket
import subprocess
import sys
from collections import Counter
from types import TracebackType
from typing import Any, Literal

from headrace.testing.raw_http import request_bytes
from headrace.testing.waiting import DEADLINE_SECS

ReaderKind = Literal["idle", "stalled", "healthy"]
PER_ADDRESS = 4000  # connections from one address: far fewer than there are ephemeral ports
DESCRIPTORS_RESERVED = 100
_RECEIVE_BYTES = 256 * 1024
_STALLED_RECEIVE_BUFFER_BYTES = 4096
_OPEN = b"event: control\n"


def descriptors_max() -> int:
    """How many readers one process may open here."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1] - DESCRIPTORS_RESERVED


class Crowd:
    """The process, as a test holds it; use it as a context manager."""

    def __init__(self, port: int, target: str, count: int, kind: ReaderKind) -> None:
        command = [sys.executable, "-m", "headrace.testing.sse_load"]
        self._process = subprocess.Popen(
            [*command, str(port), target, str(count), kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None, "stdout is a pipe"
        assert self._process.stdin is not None, "stdin is a pipe"
        self._output, self._input = self._process.stdout, self._process.stdin

    def __enter__(self) -> Crowd:
        line = self._output.readline()
        if line != "ready\n":
            self.leave()
            raise RuntimeError(f"the crowd did not gather: {line!r}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()

    def transcripts(self) -> list[tuple[str, int]]:
        """What healthy readers received, once the server has ended all their responses."""
        found: list[Any] = json.loads(self._output.readline())
        return [(text, count) for text, count in found]

    def leave(self) -> None:
        self._input.close()
        self._output.close()
        try:
            self._process.wait(DEADLINE_SECS)
        finally:
            self._process.kill()
            self._process.wait()


def main(port: int, target: str, count: int, kind: ReaderKind) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    # HTTP/1.0: the body is the events themselves, without chunks around them.
    request = request_bytes("GET", target).replace(b"HTTP/1.1", b"HTTP/1.0")
    readers = [_open(port, number, request, kind) for number in range(count)]
    if kind == "stalled":
        print("ready", flush=True)
        sys.stdin.read()
        return
    received = _read(readers, kind)
    if kind == "healthy":
        bodies = Counter(body.partition(b"\r\n\r\n")[2].decode() for body in received)
        print(json.dumps(bodies.most_common()), flush=True)
        sys.stdin.read()


def _open(port: int, number: int, request: bytes, kind: ReaderKind) -> socket.socket:
    reader = socket.socket()
    reader.settimeout(DEADLINE_SECS)
    if kind == "stalled":
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _STALLED_RECEIVE_BUFFER_BYTES)
    reader.bind((f"127.0.0.{2 + number // PER_ADDRESS}", 0))
    reader.connect(("127.0.0.1", port))
    reader.sendall(request)
    reader.setblocking(False)
    return reader


def _read(readers: list[socket.socket], kind: ReaderKind) -> list[bytearray]:
    """Read what comes; until all have ended, or until standard input closes, for idle readers."""
    received = [bytearray() for _ in readers]
    unopened, unended = set(range(len(readers))), set(range(len(readers)))
    with selectors.DefaultSelector() as selector:
        for number, reader in enumerate(readers):
            selector.register(reader, selectors.EVENT_READ, number)
        selector.register(sys.stdin, selectors.EVENT_READ, None)
        while unended:
            for key, _ in selector.select():
                if key.data is None:
                    return received
                number = key.data
                data = readers[number].recv(_RECEIVE_BYTES)
                if not data:
                    selector.unregister(key.fileobj)
                    unended.discard(number)
                elif kind == "healthy" or number in unopened:
                    received[number] += data
                if number in unopened and _OPEN in received[number]:
                    unopened.discard(number)
                    if not unopened:
                        print("ready", flush=True)
    return received


if __name__ == "__main__":
    _port, _target, _count, _kind = sys.argv[1:]
    main(int(_port), _target, int(_count), _kind)  # type: ignore[arg-type]  # ours: see Crowd
