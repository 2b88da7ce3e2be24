"""`headrace read` and `headrace tail`: a stream on standard output, as it is or as JSON lines."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from headrace.cli.message_format import BadTemplate, Format, as_object, as_sent, template
from headrace.cli.output import Output
from headrace.cli.remote import StreamArgument, TokenOption, UrlOption, connected
from headrace.protocol.headers import is_json

OffsetOption = Annotated[
    str, typer.Option("--offset", "-o", help="Where to start: -1, now, or a Stream-Next-Offset.")
]
EventsOption = Annotated[
    bool,
    typer.Option(
        "--json", help='One JSON object per line: {"offset", "index", "next_offset", "value"}.'
    ),
]
FormatOption = Annotated[
    str | None,
    typer.Option(
        "--format",
        "-f",
        metavar="TEMPLATE",
        help=r"Print each message by a template such as '%o %s\n'. %s message, %S its bytes, "
        r"%o offset, %n next offset, %i index, %t stream, %% percent sign; \n, \t, \r, \0.",
    ),
]


def read(
    stream: StreamArgument,
    offset: OffsetOption = "-1",
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="Print only the first N messages.")
    ] = None,
    as_events: EventsOption = False,
    layout: FormatOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Print what is in a stream: bytes as they are, JSON one message per line."""
    with connected(url, token) as client:
        found = client.stream(stream)
        by_message = message_format(stream, as_events=as_events, layout=layout)
        with found.read(offset) as reader, Output() as output:
            if by_message is None and count is None:
                output.chunks(reader)
            else:
                format = (by_message or as_sent)(json_stream=is_json(found.content_type))
                output.messages(reader, format, count=count)
    sys.stdout.flush()


def message_format(
    stream: str, *, as_events: bool, layout: str | None
) -> Callable[..., Format] | None:
    """What --json and --format ask for; None if neither was given."""
    if layout is None:
        return as_object if as_events else None
    if as_events:
        raise typer.BadParameter("give either --json or --format", param_hint="--format")
    try:
        by_template = template(layout, stream)
    except BadTemplate as error:
        raise typer.BadParameter(str(error), param_hint="--format") from None
    return lambda json_stream: by_template
