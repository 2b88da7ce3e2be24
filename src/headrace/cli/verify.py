"""`headrace verify`: check every checksum of a data directory that no server has open."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.options import EXIT_FAILED, EXIT_REFUSED, fail
from headrace.errors import HeadraceError


def verify(
    directory: Annotated[Path, typer.Argument(help="The data directory (storage.data_dir).")],
) -> None:
    """Check every stored byte; name what is damaged. Exit code 1 if anything is."""
    from headrace.storage.verify import verify as check

    try:
        report = check(directory) if directory.is_dir() else None
    except HeadraceError as error:
        fail(error.detail, EXIT_FAILED)
    if report is None:
        fail(f"{directory} is not a data directory of a durable mode.", EXIT_REFUSED)
    for finding in report.findings:
        typer.echo(finding)
    typer.echo(
        f"{report.streams} streams, {report.data_bytes} bytes, {len(report.findings)} damaged"
    )
    if report.findings:
        raise typer.Exit(EXIT_FAILED)
