"""A campaign with more trouble: fork chains down to the limit, a clock that is set, a full disk.

The clock is set between two lives and in the middle of one. The disk is filled to the last byte in
some lives, and in some stays full over the end of one and the start of the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx

from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import eventually
from headrace.testing.writers import Client
from tests.durability.campaign import DEADLINE_SECS, ROOT, Campaign, Evidence, read_text
from tests.durability.forkers import Chains, Forker
from tests.durability.full_disk import fill
from tests.hostile.set_clock import SetClockServer

FORKERS: Final = 2
CLOCK_STEPS_SECS: Final = (86_400, -86_400, 3_600, -3_600, 3_650 * 86_400)
SET_SHARE: Final = 0.5  # of lives, in which the clock is set
FULL_SHARE: Final = 0.3  # of lives, in which the disk is filled
FULL_SECS_MAX: Final = 5.0


@dataclass
class TroubledCampaign(Campaign):
    """`disk` is a file system that may be filled; None leaves that out."""

    disk: Path | None = None
    chains: list[Chains] = field(default_factory=lambda: [Chains() for _ in range(FORKERS)])
    clock_steps: int = 0
    full_lives: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._server = SetClockServer(self.env, self.directory)
        self._offset_secs = 0

    @property
    def deepest(self) -> int:
        return max(chains.deepest for chains in self.chains)

    def start(self) -> ServerProcess:
        """In half of the lives on the disk as the last one left it, which may be full."""
        self._maybe_set_clock()
        if self._random.random() < 0.5:
            self._make_room()
        self._server.url = ""
        self._server.start()
        self._make_room()
        return self._server

    def live_and_die(self, end: Callable[[ServerProcess], None], acks_max: int = 400) -> None:
        def fill_and_end(server: ServerProcess) -> None:
            if self.disk is not None and self._random.random() < FULL_SHARE:
                fill(self.disk)
            end(server)

        super().live_and_die(fill_and_end, acks_max)

    def _clients(self, port: int) -> list[Client]:
        forkers = [
            Forker(port, f"{ROOT}/chains", f"f{number}", chains)
            for number, chains in enumerate(self.chains)
        ]
        return [*super()._clients(port), *forkers]

    def meanwhile(self) -> None:
        self._maybe_set_clock()
        if self.disk is None or self._random.random() >= FULL_SHARE:
            return
        self.full_lives += 1
        fill(self.disk)
        url = f"{self._server.url}/readyz"
        eventually(lambda: httpx.get(url).status_code == 507, "the disk is full", FULL_SECS_MAX)
        self._make_room()
        eventually(lambda: httpx.get(url).status_code == 200, "there is room", DEADLINE_SECS)

    def _maybe_set_clock(self) -> None:
        if self._random.random() < SET_SHARE:
            self.clock_steps += 1
            self._offset_secs += self._random.choice(CLOCK_STEPS_SECS)
            # A server cannot be told of a time before there were clocks.
            self._offset_secs = max(self._offset_secs, -10 * 86_400)
            self._server.set_clock(self._offset_secs)

    def _make_room(self) -> None:
        if self.disk is not None:
            (self.disk / "somebody else's").unlink(missing_ok=True)

    @property
    def trouble(self) -> str:
        confirmed = sum(chains.confirmed for chains in self.chains)
        return (
            f"{confirmed:,} forks, the deepest {self.deepest}, {self.clock_steps} clock steps, "
            f"{self.full_lives} full disks"
        )

    def violations(self, evidence: Evidence) -> list[str]:
        return [*super().violations(evidence), *self.chain_violations()]

    def chain_violations(self) -> list[str]:
        """Start once more and read every fork."""
        found = []
        server = self.start()
        try:
            with httpx.Client(base_url=server.url, timeout=DEADLINE_SECS) as client:
                for chains in self.chains:
                    held = {path: read_text(client, path) for path in chains.paths()}
                    found += chains.violations(held)
        finally:
            server.kill()
        return found
