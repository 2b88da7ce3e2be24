"""`headrace verify`: check every checksum of the data directory of a stopped server."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.options import EXIT_FAILED, EXIT_REFUSED, fail
from headrace.errors import HeadraceError


def verify(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIRECTORY", help="Data directory (storage.data_dir) of a stopped server."
        ),
    ],
) -> None:
    """Check every stored byte and whether a server would start, and print each problem.

    The exit code is 1 if there is a problem.
    """
    from headrace.http.start_check import start_findings
    from headrace.storage.verify import verify as check

    try:
        report = check(directory) if directory.is_dir() else None
        if report is None:
            fail(f"{directory} is not a data directory of a durable mode.", EXIT_REFUSED)
        findings = report.findings
        logging.disable(logging.CRITICAL)  # what it says is said below
        # What is damaged may end the process that takes it for sound: acid's pages above all.
        if not findings:
            findings = asyncio.run(start_findings(directory))
    except HeadraceError as error:
        fail(error.detail, EXIT_FAILED)
    except OSError as error:
        fail(f"{error.filename or directory} cannot be read: {error.strerror}.", EXIT_FAILED)
    for finding in findings:
        typer.echo(finding)
    typer.echo(f"{report.streams} streams, {report.data_bytes} bytes, {len(findings)} damaged")
    if findings:
        raise typer.Exit(EXIT_FAILED)
