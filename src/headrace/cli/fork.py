"""`headrace fork`: create a stream that shares the history of another."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.create import ExpiresOption, TtlOption, say
from headrace.cli.remote import JsonOption, TokenOption, UrlOption, connected


def fork(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="Stream to fork: a name, a path or a URL.",
        ),
    ],
    stream: Annotated[str, typer.Argument(metavar="FORK", help="Name of the stream to create.")],
    offset: Annotated[
        str | None, typer.Option("--offset", help="Offset to fork at (default: the tail).")
    ] = None,
    sub_offset: Annotated[
        int | None, typer.Option("--sub-offset", help="Messages (JSON) or bytes past the offset.")
    ] = None,
    ttl: TtlOption = None,
    expires_at: ExpiresOption = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Create a stream that starts with the messages of SOURCE."""
    with connected(url, token) as client:
        created = client.stream(stream).fork(
            source, offset=offset, sub_offset=sub_offset, ttl_secs=ttl, expires_at=expires_at
        )
    say(stream, created, as_json)
