"""The oracle: what writers were told, compared with what a stream holds afterwards.

Every attempt is recorded as acknowledged, refused or unanswered. Afterwards a full read must hold
each acknowledged message once, no refused one, an unanswered one at most once, and each writer's
messages in the order it sent them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field


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
