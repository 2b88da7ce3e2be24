"""A stream on standard output: exact in a pipe, with a bar at a terminal."""

from __future__ import annotations

import sys
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec

from headrace.cli.message_format import Format, one_line
from headrace.protocol.headers import is_json

if TYPE_CHECKING:
    from rich.progress import Progress

    from headrace.client import Reader

_BAR_BYTES_MIN = 8 * 1024 * 1024  # shorter reads are over before a bar is of use


class Output:
    """Writes chunks or messages; `content_type` is what an event stream does not say."""

    def __init__(self, content_type: str | None = None) -> None:
        self._content_type = content_type
        self._written = 0
        self._bar: Progress | None = None

    def chunks(self, reader: Reader, *, flush: bool = False) -> None:
        """Everything that the reader brings; with `flush`, each part at once."""
        for chunk in reader:
            content_type = chunk.content_type or self._content_type
            if is_json(content_type or ""):
                raw = msgspec.json.decode(chunk.data, type=list[msgspec.Raw]) if chunk.data else []
                self._write(b"".join(one_line(bytes(message)) for message in raw))
            else:
                self._write(chunk.data)
            if flush:
                sys.stdout.flush()

    def messages(
        self, reader: Reader, format: Format, *, count: int | None = None, flush: bool = False
    ) -> None:
        """The reader's messages, or the first `count`, each by `format`."""
        for event in islice(reader.events(raw=True), count):
            self._write(format(event))
            if flush:
                sys.stdout.flush()

    def _write(self, data: bytes) -> None:
        sys.stdout.buffer.write(data)
        self._progress(len(data))

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
