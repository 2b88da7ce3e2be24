"""`headrace import`: create a data directory from an export, for any durable mode."""

from __future__ import annotations

import asyncio
import shutil
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.options import EXIT_FAILED, EXIT_REFUSED, fail
from headrace.cli.progress import progress_bar
from headrace.errors import HeadraceError


class Mode(StrEnum):
    FILE_DURABLE = "file-durable"
    FILE_FAST = "file-fast"
    ACID = "acid"


def import_(
    file: Annotated[Path, typer.Argument(help="File written by `headrace export`.")],
    directory: Annotated[
        Path, typer.Argument(help="Data directory to create; must be new or empty.")
    ],
    mode: Annotated[
        Mode, typer.Option(help="Storage mode of the new directory.")
    ] = Mode.FILE_DURABLE,
    shards: Annotated[
        int, typer.Option(min=1, max=256, help="Number of shards in acid mode.")
    ] = 16,
) -> None:
    """Create a data directory from an export."""
    from headrace.storage.export_file import ExportUnusable
    from headrace.storage.transfer import import_directory

    if not file.is_file():
        fail(f"There is no file {file}.", EXIT_REFUSED)
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        fail(f"{directory} is not empty: import into a new or empty directory.", EXIT_REFUSED)
    # A partial import has another name, so that it is never served.
    part = directory.with_name(f"{directory.name}.importing")
    if part.exists():
        fail(f"{part} is left from an import that ended early: remove it first.", EXIT_REFUSED)
    shard_count = shards if mode is Mode.ACID else None
    try:
        with progress_bar("importing") as progress:
            summary = asyncio.run(import_directory(file, part, shard_count, progress))
        part.rename(directory)
    except (HeadraceError, ExportUnusable, OSError) as error:
        shutil.rmtree(part, ignore_errors=True)
        fail(str(error), EXIT_FAILED)
    typer.echo(
        f"{summary.streams} streams, {summary.data_bytes} bytes, {summary.documents} documents"
    )
