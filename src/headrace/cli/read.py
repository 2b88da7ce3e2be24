"""`headrace read` and `headrace tail`: a stream on standard output, as it is or as JSON lines."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from headrace.cli.output import Output
from headrace.cli.remote import StreamArgument, TokenOption, UrlOption, connected

OffsetOption = Annotated[
    str, typer.Option("--offset", "-o", help="Where to start: -1, now, or a Stream-Next-Offset.")
]
EventsOption = Annotated[
    bool,
    typer.Option(
        "--json", help='One JSON object per line: {"offset", "index", "next_offset", "value"}.'
    ),
]


def read(
    stream: StreamArgument,
    offset: OffsetOption = "-1",
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="Print only the first N messages.")
    ] = None,
    as_events: EventsOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Print what is in a stream: bytes as they are, JSON one message per line."""
    with connected(url, token) as client:
        reader = client.stream(stream).read(offset)
        with reader, Output() as output:
            if count is None:
                output.all(reader, as_events=as_events)
            else:
                output.first(reader, count, as_events=as_events)
    sys.stdout.flush()
