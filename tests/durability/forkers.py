"""Clients that fork what they have forked, down to the limit, and what each fork must hold.

A forker is the only writer of its streams. So once a fork is acknowledged its content is known: the
lines of its source, and then its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from headrace.testing.writers import Client

TOO_DEEP: Final = 409
FULL: Final = (503, 507)  # storage failed or has no room: it did not happen
APPENDS_PER_FORK: Final = 2
FREED_EVERY: Final = 3  # of the chains, from the root on: a fork outlives its sources


@dataclass
class Chains:
    """What one forker was told, over all lives of its server."""

    holds: dict[str, str] = field(default_factory=dict)
    """What is in each stream that was acknowledged."""
    perhaps: dict[str, str] = field(default_factory=dict)
    """What may be behind that: an append that nobody answered."""
    gone: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    """Created or deleted, perhaps."""
    number: int = 0
    tip: str | None = None
    depth: int = 0
    deepest: int = 0

    @property
    def confirmed(self) -> int:
        return len(self.holds) + len(self.gone)

    def paths(self) -> list[str]:
        return [*self.holds, *self.gone]

    def violations(self, found: Mapping[str, str | None]) -> list[str]:
        """`found` is what was read of each path; None is a stream that is not there."""
        wrong = []
        for path, text in self.holds.items():
            allowed = {text, text + self.perhaps.get(path, "")}
            if path in self.unknown:
                allowed.add(None)  # type: ignore[arg-type]
            if found[path] not in allowed:
                wrong.append(f"{path} holds {str(found[path])[:80]!r}, and should {text[:80]!r}")
        wrong += [f"{path} is back" for path in self.gone if found[path] is not None]
        return wrong


class Forker(Client):
    """Forks, appends to the fork, and goes on from there; frees some of the sources behind it."""

    def __init__(self, port: int, root: str, name: str, chains: Chains) -> None:
        super().__init__(port, name)
        self._root = f"{root}/{name}"
        self._chains = chains

    def step(self) -> bool:
        """Fork the tip, or begin a chain. Where that fails, the next life goes on from the tip."""
        chains = self._chains
        chains.number += 1
        path, source = f"{self._root}/{chains.number}", chains.tip
        headers = {} if source is None else {"Stream_Forked_From": source}
        status = self.ask("PUT", path, **headers)
        if status == TOO_DEEP:
            return self._begin_anew()
        if status is None or status in FULL:
            return False
        assert status == 201, f"PUT {path} was answered {status}"
        chains.holds[path] = "" if source is None else chains.holds[source]
        if not all(self._append(path, number) for number in range(APPENDS_PER_FORK)):
            return False
        chains.tip = path
        chains.depth = 0 if source is None else chains.depth + 1
        chains.deepest = max(chains.deepest, chains.depth)
        is_freed = source is not None and chains.number % FREED_EVERY == 0
        return self._free(source) if is_freed and source is not None else True

    def _append(self, path: str, number: int) -> bool:
        line = f"{path}:{number}\n"
        status = self.ask("POST", path, line)
        if status is None:
            self._chains.perhaps[path] = line
        if status is None or status in FULL:
            return False
        assert status == 204, f"POST {path} was answered {status}"
        self._chains.holds[path] += line
        return True

    def _free(self, path: str) -> bool:
        status = self.ask("DELETE", path)
        if status is None or status in FULL:
            self._chains.unknown.add(path)  # where there was no room, it may happen later
            return False
        assert status == 204, f"DELETE {path} was answered {status}"
        del self._chains.holds[path]
        self._chains.gone.add(path)
        return True

    def _begin_anew(self) -> bool:
        """The limit of depth: every second stream goes, from the tip to the root."""
        self._chains.tip = None
        for path in list(self._chains.holds)[::-2]:
            if path not in self._chains.unknown and not self._free(path):
                return False
        return True
