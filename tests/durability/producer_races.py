"""Many writers on one producer id: who is told what, and what the stream then holds."""

from __future__ import annotations

import http.client
import random
import threading
from dataclasses import dataclass, field

DEADLINE_SECS = 60.0
PRODUCER = "raced"
ACCEPTED, REPEATED = 200, 204
RECEIPTS = 64


@dataclass
class Race:
    """What all racers were told; their guess at the next number is shared and often wrong."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    epoch: int = 0
    next_seq: int = 0
    attempts: int = 0
    accepted: dict[tuple[int, int], tuple[str, str]] = field(default_factory=dict)
    repeated: list[tuple[int, int, str | None]] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)

    def note(self, claim: tuple[int, int], body: str, status: int, offset: str | None) -> None:
        with self.lock:
            self.attempts += 1
            if status == ACCEPTED:
                if claim in self.accepted:
                    self.faults.append(f"{claim} was accepted twice")
                self.accepted[claim] = (body, offset or "")
                if claim > (self.epoch, self.next_seq - 1):
                    self.epoch, self.next_seq = claim[0], claim[1] + 1
            elif status == REPEATED:
                self.repeated.append((*claim, offset))
                self.refused.add(body)
            elif status in (400, 403, 409):
                self.refused.add(body)
            else:
                self.faults.append(f"{claim} was answered {status}")

    def violations(self, stored: list[str]) -> list[str]:
        """Everything that cannot be, given what the stream holds in the end."""
        found = list(self.faults)
        expected = [body for _, (body, _) in sorted(self.accepted.items())]
        if stored != expected:
            found.append(f"{len(stored)} messages stored, {len(expected)} accepted, not the same")
        by_epoch: dict[int, list[int]] = {}
        for epoch, seq in sorted(self.accepted):
            by_epoch.setdefault(epoch, []).append(seq)
        for epoch, seqs in by_epoch.items():
            if seqs != list(range(len(seqs))):
                found.append(f"epoch {epoch} has gaps: {seqs[:20]}")
        for epoch, seq, offset in self.repeated:
            original = self.accepted.get((epoch, seq))
            if original is None:
                found.append(f"{(epoch, seq)} is called a repeat, and was never accepted")
            elif offset is not None and offset != original[1]:
                found.append(f"{(epoch, seq)} was at {original[1]}, its repeat says {offset}")
        present = self.refused & set(stored)
        return found + [f"refused and present: {body}" for body in sorted(present)]


class Racer(threading.Thread):
    """Sends what it takes for the next append, an earlier one with another body, or a new epoch."""

    def __init__(self, port: int, path: str, name: str, race: Race, attempts: int) -> None:
        super().__init__(name=name, daemon=True)
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_SECS)
        self._path = path
        self._race = race
        self._attempts = attempts
        self._random = random.Random(name)

    def run(self) -> None:
        try:
            for number in range(self._attempts):
                self._attempt(f"{self.name}:{number}")
        except (OSError, http.client.HTTPException) as error:
            self._race.faults.append(repr(error))
        finally:
            self._connection.close()

    def _attempt(self, body: str) -> None:
        epoch, seq = self._claim()
        headers = {
            "Content-Type": "text/plain",
            "Producer-Id": PRODUCER,
            "Producer-Epoch": str(epoch),
            "Producer-Seq": str(seq),
        }
        self._connection.request("POST", self._path, f"{body}\n", headers)
        answer = self._connection.getresponse()
        answer.read()
        offset = answer.getheader("Stream-Next-Offset")
        self._race.note((epoch, seq), body, answer.status, offset)

    def _claim(self) -> tuple[int, int]:
        race, chance = self._race, self._random.random()
        with race.lock:
            epoch, seq = race.epoch, race.next_seq
        if chance < 0.01:
            return epoch + 1, 0
        if chance < 0.03:
            return max(0, epoch - 1), seq
        if chance < 0.25:
            return epoch, max(0, seq - self._random.randrange(1, RECEIPTS // 2))
        if chance < 0.28:
            return epoch, seq + 1
        return epoch, seq


def run_race(port: int, path: str, racers: int, attempts: int, race: Race) -> None:
    """All at once; each makes so many attempts."""
    threads = [Racer(port, path, f"r{n}", race, attempts) for n in range(racers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_SECS * 5)
        assert not thread.is_alive(), thread.name
