"""Recording what concurrent clients see of one stream, for `headrace.testing.linearizability`."""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections.abc import Callable

from headrace.protocol.offsets import parse_token
from headrace.testing.linearizability import Operation, OperationKind, Record, digest_of

DEADLINE_SECS = 30.0
HEADERS = {"Content-Type": "text/plain"}


class Recorder(threading.Thread):
    """One client: appends, reads and HEADs at random, each noted with when it was under way."""

    def __init__(self, port: int, path: str, name: str, operations: int, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_SECS)
        self._path = path
        self._random = random.Random(seed)
        self._operations = operations
        self._appends = 0
        self.history: list[Operation] = []

    def run(self) -> None:
        try:
            self.play(self._operations)
        finally:
            self._connection.close()

    def play(self, operations: int) -> None:
        choices: list[Callable[[], None]] = [self.append, self.append, self.read, self.head]
        for _ in range(operations):
            self._random.choice(choices)()

    def append(self) -> None:
        data = f"{self.name}:{self._appends}\n".encode()
        self._appends += 1
        called = time.monotonic()
        status, headers, _ = self._ask("POST", self._path, data)
        kind = OperationKind.APPEND if status in (200, 204) else OperationKind.REFUSED
        self._note(called, kind, _end(headers), digest_of(data))

    def close(self) -> None:
        called = time.monotonic()
        self._ask("POST", self._path, b"", {"Stream-Closed": "true"})
        self._note(called, OperationKind.CLOSE, 0)

    def read(self) -> None:
        called = time.monotonic()
        _, headers, data = self._ask("GET", f"{self._path}?offset=-1")
        assert "stream-up-to-date" in headers, "the stream fits one answer"
        self._note(called, _read_kind(headers), _end(headers), digest_of(data))

    def head(self) -> None:
        called = time.monotonic()
        _, headers, _ = self._ask("HEAD", self._path)
        self._note(called, _read_kind(headers), _end(headers))

    def _ask(
        self, method: str, target: str, body: bytes = b"", extra: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        self._connection.request(method, target, body, HEADERS | (extra or {}))
        response = self._connection.getresponse()
        headers = {name.lower(): value for name, value in response.getheaders()}
        return response.status, headers, response.read()

    def _note(
        self, called: float, kind: OperationKind, end: int, digest: int | None = None
    ) -> None:
        self.history.append(Operation(called, time.monotonic(), kind, end, digest))


def _end(headers: dict[str, str]) -> int:
    return parse_token(headers["stream-next-offset"]).bytes


def _read_kind(headers: dict[str, str]) -> OperationKind:
    return OperationKind.READ_CLOSED if "stream-closed" in headers else OperationKind.READ


def lines_as_log(data: bytes) -> list[Record]:
    """The final read of a stream whose appends were lines."""
    log: list[Record] = []
    end = 0
    for line in data.splitlines(keepends=True):
        end += len(line)
        log.append(Record(end, line))
    return log
