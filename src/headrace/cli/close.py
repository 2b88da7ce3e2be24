"""`headrace close`: let a stream take no more appends."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli import printing
from headrace.cli.remote import JsonOption, StreamArgument, TokenOption, UrlOption, connected


def close(
    stream: StreamArgument,
    data: Annotated[
        str | None, typer.Option("--data", "-d", help="Message to append before closing.")
    ] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Close a stream for good. Closing again changes nothing."""
    with connected(url, token) as client:
        closed = client.stream(stream).close(data)
    found = {"stream": stream, "closed": closed.closed, "next_offset": closed.next_offset}
    printing.facts(found, as_json=as_json)
