"""Which streams a query reads: named once, or found as they appear.

A selection answers two questions: which streams there are, and which of them may have moved. It
also waits, so that a query with nothing to do costs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol

from headrace.errors import OffsetTrimmed
from headrace.protocol import framed
from headrace.protocol.names import REGISTRY_NAME
from headrace.protocol.offsets import BEGINNING, START
from headrace.protocol.registry import note_announced
from headrace.spark.streams.options import ReadOptions
from headrace.spark.streams.server import Server


class Selection(Protocol):
    def names(self) -> set[str]:
        """Every stream there is to read, now."""
        ...

    def changed(self, at: Mapping[str, str]) -> set[str]:
        """Streams that may stand further than `at`: at least those that do."""
        ...

    def wait(self, at: Mapping[str, str]) -> None:
        """Return once a stream has moved beyond `at` or is new, or after a while."""
        ...


class Named:
    """The streams of `subscribe`, given once and for all."""

    def __init__(self, names: tuple[str, ...], server: Server) -> None:
        self._names = frozenset(names)
        self._server = server

    def names(self) -> set[str]:
        return set(self._names)

    def changed(self, at: Mapping[str, str]) -> set[str]:
        return self.names()

    def wait(self, at: Mapping[str, str]) -> None:
        self._server.tails(_held(at, self._names), wait=True)


class Registered:
    """The streams whose names match a pattern, followed through the registry."""

    def __init__(self, pattern: str, server: Server) -> None:
        self._pattern = re.compile(pattern)
        self._server = server
        self._known: set[str] = set()
        self._offset = BEGINNING

    def names(self) -> set[str]:
        self._follow()
        return {name for name in self._known if self._pattern.fullmatch(name)}

    def changed(self, at: Mapping[str, str]) -> set[str]:
        return self.names()

    def wait(self, at: Mapping[str, str]) -> None:
        registry = {"stream": REGISTRY_NAME, "from": self._offset}
        self._server.tails([registry, *_held(at, self.names())], wait=True)

    def _follow(self) -> None:
        """Read what the registry has announced since the last time."""
        try:
            self._read_on()
        except OffsetTrimmed:
            # It was compacted meanwhile and announces everything once more.
            self._known, self._offset = set(), BEGINNING
            self._read_on()

    def _read_on(self) -> None:
        for chunk in self._server.read_on(REGISTRY_NAME, self._offset):
            note_announced(self._known, bytes(framed.decode(chunk.body).data) or b",")
            self._offset = chunk.next_offset


def _held(at: Mapping[str, str], names: set[str] | frozenset[str]) -> list[dict[str, Any]]:
    """What a wait compares with: a stream that was not read yet stands at its beginning."""
    return [{"stream": name, "from": at.get(name, START.token())} for name in sorted(names)]


def selection_of(options: ReadOptions, server: Server) -> Selection:
    if options.subscribe:
        return Named(options.subscribe, server)
    assert options.pattern is not None, "one selector is always given"
    return Registered(options.pattern, server)
