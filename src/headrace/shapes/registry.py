"""Which shapes there are: a stream of what was made and what was dropped.

Shapes come and go for as long as there are users, so it is written anew once most of it is out of
date, into the other one of two streams. That one counts when its last line is there; the first is
deleted afterwards, and what a crash leaves of either is removed at the next start.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from headrace.client import Client
from headrace.errors import StreamDeleted, StreamFull, StreamNotFound

STALE_MAX = 1000
_PER_APPEND = 100
Item = dict[str, Any]
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Written:
    """What one of the streams holds; the later generation of two that are complete counts."""

    is_complete: bool
    generation: int
    length: int
    number: int
    shapes: dict[str, Item]


class Registry:
    """The registry and what is in it, by handle. Used by one thread at a time."""

    def __init__(self, client: Client, name: str) -> None:
        self._streams = [client.stream(name), client.stream(f"{name}.2")]
        self._number = 0
        self._generation = 0
        self._stale = 0
        self.shapes: dict[str, Item] = {}

    def recover(self) -> None:
        """Read what there is, or begin."""
        found = [self._read(number) for number in range(len(self._streams))]
        best = max((written for written in found if written is not None), key=_rank, default=None)
        if best is None:
            self._streams[0].create("application/json")
            return
        self._number, self._generation = best.number, best.generation
        self.shapes = best.shapes
        self._stale = best.length - len(best.shapes)
        self._delete(1 - best.number)

    def add(self, item: Item) -> None:
        self.shapes[item["handle"]] = item
        self._append({"operation": "create", **item})

    def remove(self, handle: str) -> None:
        """Nothing, if it is not there."""
        if self.shapes.pop(handle, None) is not None:
            self._append({"operation": "drop", "handle": handle})
            self._stale += 2

    def _append(self, entry: Item) -> None:
        try:
            self._streams[self._number].append_json(entry, repeat_in_doubt=True)
        except (StreamNotFound, StreamDeleted):
            logger.warning("the server lost the registry of shapes: writing it anew")
            self._rewrite()
        except StreamFull:
            self._rewrite()
        if self._stale > max(STALE_MAX, len(self.shapes)):
            self._rewrite()

    def _rewrite(self) -> None:
        number = 1 - self._number
        self._delete(number)
        stream = self._streams[number]
        stream.create("application/json")
        entries: list[Item] = [{"operation": "begin", "generation": self._generation + 1}]
        entries += ({"operation": "create", **item} for item in self.shapes.values())
        entries += [{"operation": "complete"}]
        for at in range(0, len(entries), _PER_APPEND):
            stream.append_json(*entries[at : at + _PER_APPEND], repeat_in_doubt=True)
        self._delete(self._number)
        self._number, self._generation, self._stale = number, self._generation + 1, 0

    def _delete(self, number: int) -> None:
        with suppress(StreamNotFound, StreamDeleted):
            self._streams[number].delete()

    def _read(self, number: int) -> _Written | None:
        generation, length, is_complete = 0, 0, True
        shapes: dict[str, Item] = {}
        try:
            for entry in self._streams[number].read_json():
                length += 1
                operation = entry.pop("operation")
                if operation == "create":
                    shapes[entry["handle"]] = entry
                elif operation == "drop":
                    shapes.pop(entry["handle"], None)
                elif operation == "begin":
                    generation, is_complete = entry["generation"], False
                else:
                    is_complete = True
        except (StreamNotFound, StreamDeleted):
            return None
        return _Written(is_complete, generation, length, number, shapes)


def _rank(written: _Written) -> tuple[bool, int, int]:
    return (written.is_complete, written.generation, written.length)
