"""A progress bar on a terminal; no output anywhere else."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

    from headrace.storage.export_file import Summary

BAR_AFTER_SECS = 0.5  # what is over sooner needs no bar
UPDATE_SECS = 0.1


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[Summary, int], None]]:
    """A callback for bytes moved, that shows them if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _, __: None
        return
    with _bytes_bar() as bar:
        task = bar.add_task(what, total=None)
        yield lambda summary, moved: bar.update(
            task, total=max(summary.data_bytes, 1), completed=moved
        )


@contextmanager
def input_bar(reads_input: bool) -> Iterator[Callable[[int], None]]:
    """A callback for bytes of standard input that have arrived.

    It shows them if stderr is a terminal and standard input is not.
    """
    if not reads_input or not sys.stderr.isatty() or sys.stdin.isatty():
        yield lambda _: None
        return
    bar = _bytes_bar()
    task = bar.add_task("appending", total=_input_bytes())
    due = time.monotonic() + BAR_AFTER_SECS

    def show(arrived: int) -> None:
        nonlocal due
        now = time.monotonic()
        if now >= due:
            due = now + UPDATE_SECS
            bar.start()
            bar.update(task, completed=arrived)

    try:
        yield show
    finally:
        bar.stop()


def _input_bytes() -> int | None:
    """How much there is to read, where standard input is a file."""
    found = os.fstat(sys.stdin.fileno())
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _bytes_bar() -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True)
