"""Compares what a server acknowledged to its clients with what it holds afterwards.

Every attempt is recorded as acknowledged, refused or unanswered. Afterwards a full read must hold
each acknowledged message once, no refused one, an unanswered one at most once, and each writer's
messages in the order it sent them. `LifecycleChecker` does the same for streams that were created,
closed and deleted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass
class DeliveryChecker:
    """The answers that one set of writers received."""

    acknowledged: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    unanswered: set[str] = field(default_factory=set)

    def violations(self, stored: Iterable[str]) -> list[str]:
        """One sentence for each violation; a message is `writer:number`."""
        messages = list(stored)
        counts = Counter(messages)
        known = self.acknowledged | self.unanswered
        found = [f"acknowledged but lost: {m}" for m in sorted(self.acknowledged - set(counts))]
        found += [f"refused but present: {m}" for m in sorted(self.refused & set(counts))]
        found += [f"never sent: {m}" for m in sorted(set(counts) - known - self.refused)]
        found += [f"present {n} times: {m}" for m, n in sorted(counts.items()) if n > 1]
        return found + _disorder(messages)


def _disorder(messages: list[str]) -> list[str]:
    last: dict[str, int] = {}
    found = []
    for message in messages:
        writer, _, number = message.partition(":")
        if int(number) <= last.get(writer, -1):
            found.append(f"out of order: {message}")
        last[writer] = int(number)
    return found


class Existence(StrEnum):
    ABSENT = "absent"
    OPEN = "open"
    CLOSED = "closed"


class LifecycleChecker:
    """The states a stream may be in: one once it was acknowledged, several until then."""

    def __init__(self) -> None:
        self._allowed: dict[str, set[Existence]] = {}
        self.confirmed = 0

    def attempt(self, path: str, existence: Existence) -> None:
        """A request was sent that brings `path` into this state."""
        self._allowed.setdefault(path, {Existence.ABSENT}).add(existence)

    def confirm(self, path: str, existence: Existence) -> None:
        """That request was acknowledged: no other state is allowed any more."""
        self._allowed[path] = {existence}
        self.confirmed += 1

    def paths(self) -> list[str]:
        return sorted(self._allowed)

    def violations(self, found: Mapping[str, Existence]) -> list[str]:
        return [
            f"{path} is {found[path]}, and should be {' or '.join(sorted(allowed))}"
            for path, allowed in sorted(self._allowed.items())
            if found[path] not in allowed
        ]
