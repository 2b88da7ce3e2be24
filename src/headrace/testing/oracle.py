"""The oracle: what clients were told, compared with what a server holds afterwards.

Every attempt is recorded as acknowledged, refused or unanswered. Afterwards a full read must hold
each acknowledged message once, no refused one, an unanswered one at most once, and each writer's
messages in the order it sent them. Of streams that came and went, `Fates` keeps what each of them
may be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass
class Oracle:
    """What one set of writers was told."""

    acknowledged: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    unanswered: set[str] = field(default_factory=set)

    def violations(self, stored: Iterable[str]) -> list[str]:
        """Sentences about everything that should not be; a message is `writer:number`."""
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


class Fate(StrEnum):
    ABSENT = "absent"
    OPEN = "open"
    CLOSED = "closed"


class Fates:
    """What each stream may be: one thing once that was acknowledged, several while it was not."""

    def __init__(self) -> None:
        self._allowed: dict[str, set[Fate]] = {}
        self.confirmed = 0

    def attempt(self, path: str, fate: Fate) -> None:
        """A request was sent that makes `path` this."""
        self._allowed.setdefault(path, {Fate.ABSENT}).add(fate)

    def confirm(self, path: str, fate: Fate) -> None:
        """That request was acknowledged: nothing else is allowed from here on."""
        self._allowed[path] = {fate}
        self.confirmed += 1

    def paths(self) -> list[str]:
        return sorted(self._allowed)

    def violations(self, found: Mapping[str, Fate]) -> list[str]:
        return [
            f"{path} is {found[path]}, and should be {' or '.join(sorted(allowed))}"
            for path, allowed in sorted(self._allowed.items())
            if found[path] not in allowed
        ]
