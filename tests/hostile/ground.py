"""A server under attack, and someone else who uses it meanwhile."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx

from headrace.testing.raw_http import RawConnection
from headrace.testing.server_process import ServerProcess
from tests.hostile import attacks
from tests.hostile.attacks import ROOT, TEXT_TYPE, answers

OPERATION_SECS = 120.0  # a deadline, so long that only what hangs meets it
REFUSALS = (400, 413, 422, 429, 503)  # what is too much may be refused, as long as it is at once
START = "0" * 16 + "_" + "0" * 16


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

    def send_at_once(self, packets: list[bytes], answers_each: int = 1) -> None:
        """Each from a client of its own, all at the same time; see that all is answered well."""

        def send(packet: bytes) -> None:
            is_head = packet.startswith(b"HEAD")
            with self.connection() as connection, ThreadPoolExecutor(1) as sending:
                sent = sending.submit(connection.send, packet)
                for _ in range(answers_each):
                    assert connection.response(head_only=is_head).status < 300
                sent.result()

        with ThreadPoolExecutor(len(packets)) as clients:
            for sent in [clients.submit(send, packet) for packet in packets]:
                sent.result()

    def create(self, name: str, content_type: str = TEXT_TYPE, body: bytes = b"") -> None:
        self.send(attacks.create(name, body, content_type))

    def connection(self) -> RawConnection:
        return RawConnection(self.port, deadline_secs=OPERATION_SECS)
