"""`headrace create`: make a stream."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import printing
from headrace.cli.remote import JsonOption, StreamArgument, TokenOption, UrlOption, connected
from headrace.protocol.headers import JSON

if TYPE_CHECKING:
    from headrace.client import Created

SECONDS_PER = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}


def seconds(text: str) -> int:
    """A number of seconds, or of minutes, hours or days with their letter behind it."""
    found = re.fullmatch(r"([0-9]{1,18})([smhd]?)", text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a time such as 90, 90s, 15m, 24h or 7d")
    return int(found[1]) * SECONDS_PER[found[2]]


TtlOption = Annotated[
    int | None,
    typer.Option(
        "--ttl",
        metavar="TIME",
        parser=seconds,
        help="Delete the stream after this long without a read or a write: 90, 90s, 15m, 24h, 7d.",
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
