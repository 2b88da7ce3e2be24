"""`headrace tail`: follow a stream, through restarts of the server, until it is closed."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headrace.cli import printing
from headrace.cli.output import Output
from headrace.cli.read import EventsOption, FormatOption, OffsetOption, message_format
from headrace.cli.remote import (
    StreamArgument,
    TokenOption,
    UrlOption,
    addition,
    connected,
    connected_with,
)
from headrace.protocol.headers import is_json

MODES = ("auto", "sse", "long-poll")


def tail(
    stream: StreamArgument,
    offset: OffsetOption = "now",
    count: Annotated[
        int | None,
        typer.Option("--count", "-n", min=0, help="Start with the last N messages.", metavar="N"),
    ] = None,
    live: Annotated[
        str, typer.Option("--live", help="auto, sse or long-poll.", metavar="MODE")
    ] = "auto",
    as_events: EventsOption = False,
    layout: FormatOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Follow a stream until it is closed: from now, from --offset, or from the last N messages."""
    if live not in MODES:
        raise typer.BadParameter("auto, sse or long-poll", param_hint="--live")
    if count is not None and offset != "now":
        raise typer.BadParameter("give either --offset or --count", param_hint="--count")
    by_message = message_format(stream, as_events=as_events, layout=layout)
    mode: Any = live
    with connected(url, token) as client:
        # A stream or a server that is not there is an error now, not something to wait for.
        content_type = client.stream(stream).content_type
        if count is not None:
            with addition("tail --count"):
                offset = client.stream(stream).offset_of_last(count)
    with connected_with(url, token, None) as client:
        reader = client.stream(stream).read(offset, live=mode)
        with Output(content_type) as output:
            if by_message is None:
                output.chunks(reader, flush=True)
            else:
                format = by_message(json_stream=is_json(content_type))
                output.messages(reader, format, flush=True)
        printing.note(f"{stream} is closed")
