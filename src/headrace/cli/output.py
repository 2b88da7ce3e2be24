"""A stream on standard output: exact in a pipe, with a bar at a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from headrace.protocol.headers import is_json

if TYPE_CHECKING:
    from rich.progress import Progress

    from headrace.client import Chunk, Event, Reader

T = TypeVar("T")

_BAR_BYTES_MIN = 8 * 1024 * 1024  # shorter reads are over before a bar is of use


class Output:
    """Writes chunks or events; `content_type` is what an event stream does not say."""

    def __init__(self, content_type: str | None = None) -> None:
        self._content_type = content_type
        self._written = 0
        self._bar: Progress | None = None

    def all(self, reader: Reader, *, as_events: bool, flush: bool = False) -> None:
        """Everything that the reader brings; with `flush`, each part at once."""
        if as_events:
            self._each(reader.events(), self.event, flush)
        else:
            self._each(reader, self.chunk, flush)

    def first(self, reader: Reader, count: int, *, as_events: bool) -> None:
        """The first messages that the reader brings; an append is one, but in a JSON stream."""
        for event in islice(reader.events(), count):
            if as_events:
                self.event(event)
            elif isinstance(event.value, bytes):
                sys.stdout.buffer.write(event.value)
            else:
                sys.stdout.buffer.write(msgspec.json.encode(event.value) + b"\n")

    def _each(self, parts: Iterable[T], write: Callable[[T], None], flush: bool) -> None:
        for part in parts:
            write(part)
            if flush:
                sys.stdout.flush()

    def chunk(self, chunk: Chunk) -> None:
        content_type = chunk.content_type or self._content_type
        if is_json(content_type or ""):
            self._lines(chunk)
        else:
            sys.stdout.buffer.write(chunk.data)
        self._progress(len(chunk.data))

    def _lines(self, chunk: Chunk) -> None:
        raw = msgspec.json.decode(chunk.data, type=list[msgspec.Raw]) if chunk.data else []
        # As they were sent: a number keeps its spelling. A line end inside would split a message.
        for message in raw:
            sys.stdout.buffer.write(
                bytes(message).replace(b"\r", b" ").replace(b"\n", b" ") + b"\n"
            )

    def event(self, event: Event[Any]) -> None:
        value = event.value
        if isinstance(value, bytes):
            value = value.decode("utf-8", "backslashreplace")
        members = {
            "offset": event.offset,
            "index": event.index,
            "next_offset": event.next_offset,
            "value": value,
        }
        line = json.dumps(members, ensure_ascii=False).encode() + b"\n"
        sys.stdout.buffer.write(line)
        self._progress(len(line))

    def _progress(self, count: int) -> None:
        self._written += count
        if sys.stdout.isatty() or not sys.stderr.isatty() or self._written < _BAR_BYTES_MIN:
            return
        if self._bar is None:
            self._bar = _bar()
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=self._written)

    def __enter__(self) -> Output:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def _bar() -> Progress:
    from rich.console import Console
    from rich.progress import FileSizeColumn, Progress, SpinnerColumn, TransferSpeedColumn

    bar = Progress(
        SpinnerColumn(), FileSizeColumn(), TransferSpeedColumn(), console=Console(stderr=True)
    )
    bar.add_task("read", total=None)
    return bar
