"""A progress bar for people; nothing at all where nobody looks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headrace.storage.export_file import Summary


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[Summary, int], None]]:
    """A callback for bytes moved, that shows them if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _, __: None
        return
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
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda summary, moved: bar.update(
            task, total=max(summary.data_bytes, 1), completed=moved
        )
