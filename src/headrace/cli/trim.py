"""`headrace trim`: delete the beginning of a stream."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from headrace.cli import printing
from headrace.cli.remote import (
    JsonOption,
    StreamArgument,
    TokenOption,
    UrlOption,
    connected,
    deleting,
)


def trim(
    stream: StreamArgument,
    before: Annotated[
        str | None,
        typer.Option(metavar="OFFSET", help="Delete what comes before it; now: every message."),
    ] = None,
    keep: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Delete all but the last N messages.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Delete the beginning of a stream. At a terminal it asks first."""
    if (before is None) == (keep is None):
        raise typer.BadParameter("Say which messages to delete: --before OFFSET or --keep N.")
    if sys.stdin.isatty() and not yes:
        which = f"what comes before {before}" if keep is None else f"all but the last {keep}"
        typer.confirm(f"Delete {which} of {stream} for good?", abort=True, err=True)
    with connected(url, token) as client, deleting():
        earliest = client.stream(stream).trim(before=before, keep_messages=keep)
    told = {"stream": stream, "earliest_offset": earliest}
    printing.done(f"{stream} begins at {earliest}", told, as_json=as_json)
