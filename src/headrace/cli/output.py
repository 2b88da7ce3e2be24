"""Chunks of a stream on standard output: exact in a pipe, with a bar at a terminal."""

from __future__ import annotations

import json
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.protocol.headers import is_json

if TYPE_CHECKING:
    from rich.progress import Progress

    from headrace.client import Chunk

_BAR_BYTES_MIN = 8 * 1024 * 1024  # shorter reads are over before a bar is of use


class Output:
    """Writes chunks; `content_type` is what an event stream does not say."""

    def __init__(self, as_events: bool, content_type: str | None = None) -> None:
        self._as_events = as_events
        self._content_type = content_type
        self._written = 0
        self._bar: Progress | None = None

    def chunk(self, chunk: Chunk) -> None:
        content_type = chunk.content_type or self._content_type
        if self._as_events:
            self._events(chunk, content_type)
        elif is_json(content_type or ""):
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

    def _events(self, chunk: Chunk, content_type: str | None) -> None:
        values: list[Any] = []
        if chunk.data:
            values = [chunk.data.decode("utf-8", "backslashreplace")]
        if is_json(content_type or ""):
            values = msgspec.json.decode(chunk.data or b"[]")
        for index, value in enumerate(values):
            last = index == len(values) - 1
            event = {
                "offset": chunk.offset,
                "index": index,
                "next_offset": chunk.next_offset if last else None,
                "value": value,
            }
            print(json.dumps(event, ensure_ascii=False))

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
    from rich.progress import DownloadColumn, Progress, SpinnerColumn, TransferSpeedColumn

    bar = Progress(
        SpinnerColumn(), DownloadColumn(), TransferSpeedColumn(), console=Console(stderr=True)
    )
    bar.add_task("read", total=None)
    return bar
