"""Globs over stream names: `*` is one path segment, `**` any number of them, none included.

Two matchers for two questions. `Glob` is asked about many names, one after another, and is a
regular expression; `GlobIndex` is asked which of many globs match one name, and is a tree of
their segments. Neither backtracks over more than one `**`, so a hostile pattern costs no more
than its length times that of the name.

Names that begin with `__` belong to the server; no glob matches them.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import Final, Generic, TypeVar

from headrace.limits import STREAM_NAME_BYTES_MAX

ONE: Final = "*"
ANY: Final = "**"
INTERNAL_PREFIX: Final = "__"

T = TypeVar("T")


class Glob:
    """One pattern, valid by construction."""

    __slots__ = ("_matches", "segments")

    def __init__(self, pattern: str) -> None:
        """Raises ValueError with a sentence that says what is wrong with `pattern`."""
        if len(pattern.encode("utf-8", "surrogatepass")) > STREAM_NAME_BYTES_MAX:
            raise ValueError(f"A pattern must not exceed {STREAM_NAME_BYTES_MAX} bytes.")
        segments = pattern.split("/")
        if "" in segments:
            raise ValueError("A pattern has no empty segments.")
        if any("*" in segment and segment not in (ONE, ANY) for segment in segments):
            raise ValueError(
                "In a pattern * and ** stand for whole segments, as in users/*/events; a name "
                "that holds a star is subscribed to by name, in streams."
            )
        # `**/**` says no more than `**`.
        self.segments = tuple(
            segment
            for kind, run in groupby(segments)
            for segment in ([kind] if kind == ANY else run)
        )
        self._matches = re.compile(_expression(self.segments)).fullmatch

    def matches(self, name: str) -> bool:
        return self._matches(name + "/") is not None and not name.startswith(INTERNAL_PREFIX)


def _expression(segments: tuple[str, ...]) -> str:
    """A regular expression for names whose every segment is followed by a slash."""
    runs: list[str] = [""]
    for segment in segments:
        if segment == ANY:
            runs.append("")
        else:
            runs[-1] += "[^/]+/" if segment == ONE else re.escape(segment) + "/"
    first, *others = runs
    if not others:
        return first
    # Between two `**` the leftmost place is as good as any later one, so the group is atomic
    # and never tried again; only the last `**` looks for its end.
    middle = "".join(f"(?>(?:[^/]+/)*?{run})" for run in others[:-1])
    return f"{first}{middle}(?:[^/]+/)*{others[-1]}"


class _Node(Generic[T]):
    """A place in the tree. One that stands for `**` holds on to any number of segments."""

    __slots__ = ("children", "stays", "values")

    def __init__(self, *, stays: bool = False) -> None:
        self.stays = stays
        self.children: dict[str, _Node[T]] = {}
        self.values: dict[T, None] = {}


class GlobIndex(Generic[T]):
    """Which values were filed under globs that match a name."""

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()

    def add(self, glob: Glob, value: T) -> None:
        node = self._root
        for segment in glob.segments:
            node = node.children.setdefault(segment, _Node(stays=segment == ANY))
        node.values[value] = None

    def remove(self, glob: Glob, value: T) -> None:
        path = [self._root]
        for segment in glob.segments:
            path.append(path[-1].children[segment])
        del path[-1].values[value]
        for depth in range(len(glob.segments), 0, -1):
            if path[depth].values or path[depth].children:
                return
            del path[depth - 1].children[glob.segments[depth - 1]]

    def matching(self, name: str) -> list[T]:
        if name.startswith(INTERNAL_PREFIX):
            return []
        places: dict[_Node[T], None] = {}
        _enter(places, self._root)
        for segment in name.split("/"):
            reached: dict[_Node[T], None] = {}
            for node in places:
                if node.stays:
                    _enter(reached, node)
                # A segment that is itself `**` finds a place that `_enter` has found already.
                for key in (segment, ONE):
                    child = node.children.get(key)
                    if child is not None:
                        _enter(reached, child)
            places = reached
        return list(dict.fromkeys(value for node in places for value in node.values))


def _enter(places: dict[_Node[T], None], node: _Node[T]) -> None:
    """Add a place, and the one beyond it if a `**` there may stand for nothing."""
    places[node] = None
    beyond = node.children.get(ANY)
    if beyond is not None:
        places[beyond] = None
