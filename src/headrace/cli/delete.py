"""`headrace delete`: delete a stream."""

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


def delete(
    stream: StreamArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Delete a stream. At a terminal it asks first."""
    if sys.stdin.isatty() and not yes:
        typer.confirm(f"Delete {stream} for good?", abort=True, err=True)
    with connected(url, token) as client, deleting():
        client.stream(stream).delete()
    printing.done(f"{stream} is deleted", {"stream": stream, "deleted": True}, as_json=as_json)
