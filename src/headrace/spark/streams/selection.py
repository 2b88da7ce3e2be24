"""Which streams a query reads: named once, or found as they appear.

A selection answers two questions: which streams there are, and which of them may have moved. It
also waits, so that a query with nothing to do costs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from headrace.client.feeds import Change
from headrace.errors import OffsetTrimmed
from headrace.protocol import framed
from headrace.protocol.names import REGISTRY_NAME
from headrace.protocol.offsets import BEGINNING, NOW, START
from headrace.protocol.registry import note_announced
from headrace.spark.streams.plan import SparkOffset, StreamTail, created_of, is_another
from headrace.spark.streams.stream_api import StreamApi
from headrace.spark.streams.stream_options import ReadOptions


class Selection(Protocol):
    def names(self) -> set[str]:
        """Every stream there is to read, now."""
        ...

    def tails(self) -> dict[str, StreamTail] | None:
        """The tail of every stream, if known without a request per stream."""
        ...

    def changed(self, start: SparkOffset) -> set[str]:
        """A superset of the streams whose tail may be past `start`, or that were replaced."""
        ...

    def wait(self, at: Mapping[str, str]) -> None:
        """Return once a stream has moved beyond `at` or is new, or after a while."""
        ...


class Named:
    """The streams of `subscribe`, given once and for all."""

    def __init__(self, names: tuple[str, ...], server: StreamApi) -> None:
        self._names = frozenset(names)
        self._server = server

    def names(self) -> set[str]:
        return set(self._names)

    def tails(self) -> None:
        return None

    def changed(self, start: SparkOffset) -> set[str]:
        return self.names()

    def wait(self, at: Mapping[str, str]) -> None:
        self._server.tails(_held(at, self._names), wait=True)


class Registered:
    """The streams whose names match a pattern, followed through the registry."""

    def __init__(self, pattern: str, exclude: frozenset[str], server: StreamApi) -> None:
        self._pattern = re.compile(pattern)
        self._exclude = exclude
        self._server = server
        self._known: set[str] = set()
        self._offset = BEGINNING

    def names(self) -> set[str]:
        self._follow()
        known = self._known - self._exclude
        return {name for name in known if self._pattern.fullmatch(name)}

    def tails(self) -> None:
        return None

    def changed(self, start: SparkOffset) -> set[str]:
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


class Followed:
    """The streams of a bucket, followed through its feed: costs what changes."""

    def __init__(
        self, bucket: str, prefix: str, exclude: frozenset[str], server: StreamApi
    ) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._exclude = exclude
        self._server = server
        self._cursor: str | None = None
        self._tails: dict[str, StreamTail] = {}
        # Streams whose tail may differ from where the query has read to.
        self._elsewhere: dict[str, StreamTail] = {}

    def names(self) -> set[str]:
        return set(self.tails())

    def tails(self) -> dict[str, StreamTail]:
        self._follow(wait=False)
        return dict(self._tails)

    def changed(self, start: SparkOffset) -> set[str]:
        self._follow(wait=False)
        at, created = start["at"], created_of(start)
        self._elsewhere = {
            name: tail
            for name, tail in self._elsewhere.items()
            if self._is_news(name, tail, StreamTail(at.get(name, START.token()), created.get(name)))
        }
        return set(self._elsewhere)

    def _is_news(self, name: str, tail: StreamTail, read: StreamTail) -> bool:
        if tail.offset > read.offset:
            return True
        # A tail before what was read is that of another stream of that name: a request confirms it.
        is_other = tail.offset < read.offset or is_another(tail.created_at_ms, read.created_at_ms)
        return is_other and name in self._tails

    def wait(self, at: Mapping[str, str]) -> None:
        self._follow(wait=True)

    def _follow(self, *, wait: bool) -> None:
        """Take in what changed; list everything at first, and after too long an absence."""
        if self._cursor is None:
            self._list()
            return
        try:
            while True:
                found = self._server.feed(self._bucket, self._cursor, wait=wait)
                self._take(found.changes)
                wait, self._cursor = False, found.cursor
                if found.up_to_date or not found.changes:
                    return
        except OffsetTrimmed:
            self._list()

    def _list(self) -> None:
        # The cursor first: a change while the bucket is listed is reported twice instead of being
        # missed.
        cursor = self._server.feed(self._bucket, NOW).cursor
        self._tails = {}
        self._take(self._server.list_bucket(self._bucket, self._prefix))
        self._cursor = cursor

    def _take(self, changes: Iterable[Change]) -> None:
        for change in changes:
            if not change.stream_id.startswith(self._prefix):
                continue
            name = f"/{self._bucket}/{change.stream_id}"
            if name in self._exclude:
                continue
            if change.next_offset is None:
                # What of it was not read yet is noticed as missing when it is asked for.
                self._tails.pop(name, None)
            else:
                stand = StreamTail(change.next_offset, change.created_at_ms)
                self._tails[name] = self._elsewhere[name] = stand


def _held(at: Mapping[str, str], names: set[str] | frozenset[str]) -> list[dict[str, Any]]:
    """What a wait compares with: a stream that was not read yet is at its beginning."""
    return [{"stream": name, "from": at.get(name, START.token())} for name in sorted(names)]


def selection_of(options: ReadOptions, server: StreamApi) -> Selection:
    if options.bucket is not None:
        return Followed(options.bucket, options.prefix, options.exclude, server)
    if options.subscribe:
        return Named(tuple(set(options.subscribe) - options.exclude), server)
    assert options.pattern is not None, "one selector is always given"
    return Registered(options.pattern, options.exclude, server)
