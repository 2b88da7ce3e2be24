"""Lives of one server under fire: start, let clients write, end it badly, start again."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import httpx

from headrace.testing.delivery_checker import DeliveryChecker, Existence, LifecycleChecker
from headrace.testing.server_process import ServerProcess
from headrace.testing.server_queries import catch_up
from headrace.testing.waiting import eventually
from headrace.testing.writers import Client, LifecycleClient, Producer, Writer

ROOT = "/v1/stream"
STREAMS = [f"{ROOT}/fire/{number}" for number in range(4)]
WRITERS_PER_STREAM = 2
PRODUCERS_PER_STREAM = 1
CHURNERS = 2
DEADLINE_SECS = 30.0
MUTANTS = Path(__file__).parent / "mutants"


def mutant(name: str) -> dict[str, str]:
    """The environment that makes a server start as one of `mutants/`."""
    inherited = os.environ.get("PYTHONPATH", "")
    return {"PYTHONPATH": os.pathsep.join([str(MUTANTS / name), *filter(None, [inherited])])}


@dataclass
class Campaign:
    """What clients were told over all lives, stream by stream."""

    env: dict[str, str]
    directory: Path
    seed: int = 1
    checkers: dict[str, DeliveryChecker] = field(default_factory=dict)
    lifecycles: LifecycleChecker = field(default_factory=LifecycleChecker)
    repeats: int = 0
    lives: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._numbers: dict[str, int] = {}
        self._churned = [count() for _ in range(CHURNERS)]
        self.checkers = {path: DeliveryChecker() for path in STREAMS}

    @property
    def acknowledged(self) -> int:
        return sum(len(checker.acknowledged) for checker in self.checkers.values())

    def start(self) -> ServerProcess:
        server = ServerProcess(self.env, cwd=str(self.directory))
        server.start()
        return server

    def live_and_die(self, end: Callable[[ServerProcess], None], acks_max: int = 400) -> None:
        """One life, ended after a random number of acknowledgements."""
        server = self.start()
        try:
            if self.lives == 0:
                for path in STREAMS:
                    answer = httpx.put(server.url + path, headers={"content-type": "text/plain"})
                    assert answer.status_code == 201, answer.text
            clients = self._clients(server.port)
            enough = self.acknowledged + self._random.randrange(acks_max)
            for client in clients:
                client.start()
            self.meanwhile()
            eventually(lambda: self.acknowledged >= enough, "clients are acknowledged")
        finally:
            end(server)
        for client in clients:
            client.join(DEADLINE_SECS)
            assert not client.is_alive(), f"{client.name} hears nothing and waits"
            self._note(client)
        self.lives += 1

    def meanwhile(self) -> None:
        """What happens while the clients of a life are at work."""

    def _clients(self, port: int) -> list[Client]:
        clients: list[Client] = []
        for number, path in enumerate(STREAMS):
            checker = self.checkers[path]
            for index in range(WRITERS_PER_STREAM):
                name = f"w{number}.{index}"
                clients.append(Writer(port, path, name, self._numbers.get(name, 0), checker))
            for index in range(PRODUCERS_PER_STREAM):
                name = f"p{number}.{index}"
                clients.append(Producer(port, path, name, self._numbers.get(name, 0), checker))
        for index, numbers in enumerate(self._churned):
            clients.append(
                LifecycleClient(port, f"{ROOT}/churn", f"c{index}", numbers, self.lifecycles)
            )
        return clients

    def _note(self, client: Client) -> None:
        if isinstance(client, Writer | Producer):
            self._numbers[client.name] = client.number
        if isinstance(client, Producer):
            self.repeats += client.repeats

    # -- afterwards --------------------------------------------------------------------------

    def examine(self) -> Evidence:
        """Start once more and read everything."""
        server = self.start()
        try:
            with httpx.Client(base_url=server.url, timeout=DEADLINE_SECS) as client:
                return Evidence(
                    {path: read_lines(client, path) for path in STREAMS},
                    {path: existence_of(client, path) for path in self.lifecycles.paths()},
                    registered(client),
                )
        finally:
            server.kill()

    def violations(self, evidence: Evidence) -> list[str]:
        found = [
            f"{path}: {sentence}"
            for path, checker in self.checkers.items()
            for sentence in checker.violations(evidence.lines[path])
        ]
        return found + self.lifecycles.violations(evidence.lifecycles)


@dataclass
class Evidence:
    """What a server holds after its lives."""

    lines: dict[str, list[str]]
    lifecycles: dict[str, Existence]
    registered: set[str]


def read_lines(client: httpx.Client, path: str) -> list[str]:
    return (read_text(client, path) or "").splitlines()


def read_text(client: httpx.Client, path: str) -> str | None:
    """All of a stream; None where it is not there."""
    if client.head(path).status_code in (404, 410):
        return None
    return b"".join(answer.content for answer in catch_up(client, path)).decode()


def existence_of(client: httpx.Client, path: str) -> Existence:
    answer = client.head(path)
    if answer.status_code == 404:
        return Existence.ABSENT
    assert answer.status_code == 200, answer
    return Existence.CLOSED if "stream-closed" in answer.headers else Existence.OPEN


def registered(client: httpx.Client) -> set[str]:
    """The paths of the streams that the registry says exist."""
    names: set[str] = set()
    for answer in catch_up(client, f"{ROOT}/__registry__"):
        for message in answer.json():
            if message["headers"]["operation"] == "delete":
                names.discard(message["key"])
            else:
                names.add(message["key"])
    return {f"{ROOT}/{name}" for name in names}
