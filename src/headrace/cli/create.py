"""`headrace create`: make a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import printing
from headrace.cli.remote import JsonOption, StreamArgument, TokenOption, UrlOption, connected
from headrace.protocol.headers import JSON

if TYPE_CHECKING:
    from headrace.client import Created

TtlOption = Annotated[
    int | None,
    typer.Option(
        "--ttl",
        metavar="SECONDS",
        help="Delete the stream after this long without a read or a write.",
    ),
]
ExpiresOption = Annotated[
    str | None,
    typer.Option("--expires-at", metavar="TIME", help="Delete the stream at this RFC 3339 time."),
]


def create(
    stream: StreamArgument,
    content_type: Annotated[
        str, typer.Option("--content-type", "-t", help="Content type of the stream.")
    ] = JSON,
    ttl: TtlOption = None,
    expires_at: ExpiresOption = None,
    closed: Annotated[bool, typer.Option("--closed", help="Create the stream closed.")] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Create a stream, or confirm that an equal one exists."""
    with connected(url, token) as client:
        created = client.stream(stream).create(
            content_type, ttl_secs=ttl, expires_at=expires_at, closed=closed
        )
    say(stream, created, as_json)


def say(stream: str, created: Created, as_json: bool) -> None:
    found = {
        "stream": stream,
        "created": created.created,
        "content_type": created.content_type,
        "next_offset": created.next_offset,
        "closed": created.closed,
    }
    printing.facts(found, as_json=as_json)
