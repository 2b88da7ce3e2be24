"""Globs over stream names: `*` is one path segment, `**` any number of them, none included.

A name begins with what precedes the first `**` and ends with what follows the last:
both are compared where they are. Only what lies between two `**` is searched for, and there the
leftmost place is as good as any later one. So nothing is tried twice: a pattern costs no more than
its length times that of the name.

`Glob` is asked about many names, one after another; `GlobIndex` which of many globs match a name.
Names that begin with `__` belong to the server; no glob matches them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final, Generic, NamedTuple, TypeVar

from headrace.limits import STREAM_NAME_BYTES_MAX

ONE: Final = "*"
ANY: Final = "**"
INTERNAL_PREFIX: Final = "__"
# What a new pattern may have. Names have been seen with ten segments; `**/a/**/b/**` has three.
SEGMENTS_MAX: Final = 16
ANY_MAX: Final = 4

T = TypeVar("T")


class Glob:
    """One pattern, valid by construction."""

    __slots__ = ("_first", "_is_open", "_last", "_middles", "_prefix", "segments")

    def __init__(self, pattern: str) -> None:
        """Raises ValueError with a sentence that says what is wrong with `pattern`."""
        if len(pattern.encode("utf-8", "surrogatepass")) > STREAM_NAME_BYTES_MAX:
            raise ValueError(f"A pattern must not exceed {STREAM_NAME_BYTES_MAX} bytes.")
        segments = pattern.split("/")
        if "" in segments:
            raise ValueError("A pattern has no empty segments.")
        if any("*" in segment and segment not in (ONE, ANY) for segment in segments):
            raise ValueError(
                "In a pattern, * and ** match whole segments, as in users/*/events; a name "
                "that holds a star is subscribed to by name, in streams."
            )
        # `**/**` says no more than `**`.
        self.segments = tuple(
            segment
            for kind, run in groupby(segments)
            for segment in ([kind] if kind == ANY else run)
        )
        runs = _runs(self.segments)
        self._is_open = len(runs) > 1
        self._first = runs[0]
        self._last = runs[-1] if self._is_open else ()
        self._middles = tuple(_expression(run) for run in runs[1:-1])
        self._prefix = "/".join(_before_star(self._first))

    @property
    def is_searching(self) -> bool:
        """Whether a name has to be searched for something: that costs more than to compare."""
        return bool(self._middles)

    @property
    def first(self) -> tuple[str, ...]:
        """What a name begins with, up to the first `**`."""
        return self._first

    @property
    def is_open(self) -> bool:
        return self._is_open

    def matches(self, name: str) -> bool:
        if not name.startswith(self._prefix) or name.startswith(INTERNAL_PREFIX):
            return False
        segments = name.split("/")
        if not self._is_open:
            return len(segments) == len(self._first) and _is_like(self._first, segments)
        return _is_like(self._first, segments) and self.matches_after_first(segments)

    def matches_after_first(self, segments: list[str]) -> bool:
        """Whether the rest of a name matches that begins as it should."""
        begin, end = len(self._first), len(segments) - len(self._last)
        if end < begin or not _is_like(self._last, segments[end:]):
            return False
        if not self._middles:
            return True
        text, at = "/".join(["", *segments[begin:end], ""]), 0
        for middle in self._middles:
            found = middle.search(text, at)
            if found is None:
                return False
            at = found.end() - 1  # the slash that ends one segment begins the next
        return True


def check_bounds(glob: Glob) -> None:
    """Raises ValueError for a pattern that is longer than a new one may be.

    One that was accepted by an earlier version is not judged by this.
    """
    if len(glob.segments) > SEGMENTS_MAX:
        raise ValueError(f"A pattern has at most {SEGMENTS_MAX} segments.")
    if glob.segments.count(ANY) > ANY_MAX:
        raise ValueError(f"A pattern holds ** at most {ANY_MAX} times.")


def _runs(segments: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The parts before, between and after the `**` of a pattern."""
    runs: list[list[str]] = [[]]
    for segment in segments:
        if segment == ANY:
            runs.append([])
        else:
            runs[-1].append(segment)
    return [tuple(run) for run in runs]


def _before_star(run: tuple[str, ...]) -> Iterator[str]:
    for segment in run:
        if segment == ONE:
            return
        yield segment


def _is_like(run: tuple[str, ...], segments: Sequence[str]) -> bool:
    """Whether `segments` begin with `run`."""
    if len(segments) < len(run):
        return False
    return all(wanted in (ONE, found) for wanted, found in zip(run, segments, strict=False))


def _expression(run: tuple[str, ...]) -> re.Pattern[str]:
    """Finds a run of segments in a text in which each lies between slashes."""
    return re.compile(
        "/" + "".join("[^/]++/" if segment == ONE else re.escape(segment) + "/" for segment in run)
    )


class Candidate(NamedTuple, Generic[T]):
    """A value whose glob matches the beginning of a name; the rest is up to `glob`, if any."""

    value: T
    glob: Glob | None


class _Node(Generic[T]):
    """A place in the tree. Most have one child and no values, so both are made when needed."""

    __slots__ = ("children", "closed", "open")

    def __init__(self) -> None:
        self.children: dict[str, _Node[T]] | None = None
        self.closed: dict[T, None] | None = None
        self.open: dict[T, Glob] | None = None

    @property
    def is_empty(self) -> bool:
        return not (self.children or self.closed or self.open)


class GlobIndex(Generic[T]):
    """Which values were filed under globs that match a name: a tree of what globs begin with."""

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()

    def add(self, glob: Glob, value: T) -> None:
        node = self._root
        for segment in glob.first:
            if node.children is None:
                node.children = {}
            node = node.children.setdefault(segment, _Node())
        if glob.is_open:
            if node.open is None:
                node.open = {}
            node.open[value] = glob
        else:
            if node.closed is None:
                node.closed = {}
            node.closed[value] = None

    def remove(self, glob: Glob, value: T) -> None:
        path = [self._root]
        for segment in glob.first:
            children = path[-1].children
            assert children is not None, "what is removed was added"
            path.append(children[segment])
        values = path[-1].open if glob.is_open else path[-1].closed
        assert values is not None, "what is removed was added"
        del values[value]
        for depth in range(len(glob.first), 0, -1):
            above = path[depth - 1].children
            if not path[depth].is_empty or above is None:
                return
            del above[glob.first[depth - 1]]

    def candidates(self, segments: list[str]) -> Iterator[Candidate[T]]:
        """The values whose globs match the beginning of a name, each once for each glob."""
        places = [self._root]
        for segment in segments:
            yield from _open_values(places)
            places = [
                node.children[key]
                for node in places
                if node.children
                # A segment that is itself a star is not looked up twice.
                for key in ((segment, ONE) if segment != ONE else (ONE,))
                if key in node.children
            ]
            if not places:
                return
        yield from _open_values(places)
        for node in places:
            for value in node.closed or ():
                yield Candidate(value, None)

    def matching(self, name: str) -> list[T]:
        if name.startswith(INTERNAL_PREFIX):
            return []
        segments = name.split("/")
        return list(
            dict.fromkeys(
                value
                for value, glob in self.candidates(segments)
                if glob is None or glob.matches_after_first(segments)
            )
        )


def _open_values(places: list[_Node[T]]) -> Iterator[Candidate[T]]:
    for node in places:
        if node.open:
            for value, glob in node.open.items():
                yield Candidate(value, glob)
