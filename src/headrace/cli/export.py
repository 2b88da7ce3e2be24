"""`headrace export`: everything in a data directory, as one file."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.options import EXIT_FAILED, EXIT_REFUSED, fail
from headrace.cli.progress import progress_bar
from headrace.errors import HeadraceError


def export(
    source: Annotated[
        str, typer.Argument(metavar="DIRECTORY", help="Data directory (storage.data_dir).")
    ],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write; must not exist.")],
) -> None:
    """Write all streams and subscriptions of a stopped server to one file.

    The file contains the private key that signs webhooks: protect it like the data directory.
    """
    from headrace.storage.transfer import export_directory

    # Text until here: a path would print the // of a URL as one slash.
    if source.startswith(("http:/", "https:/")):
        fail(
            f"{source} is a running server: what it keeps for itself (producers' receipts, "
            "leases, keys) is not served over HTTP. Stop it and export its data directory, or "
            "export a snapshot of that directory that the file system took.",
            EXIT_REFUSED,
        )
    directory = Path(source)
    if file.exists():
        fail(f"{file} exists already: name a file that does not.", EXIT_REFUSED)
    if not file.parent.is_dir():
        fail(f"There is no directory {file.parent} to write to.", EXIT_REFUSED)
    try:
        with progress_bar("exporting") as progress:
            summary = asyncio.run(export_directory(directory, file, progress))
    except (HeadraceError, OSError) as error:
        fail(str(error), EXIT_FAILED)
    if summary is None:
        fail(f"{directory} is not a data directory of a durable mode.", EXIT_REFUSED)
    typer.echo(
        f"{summary.streams} streams, {summary.data_bytes} bytes, {summary.documents} documents"
    )
