"""`headrace bootstrap`: what a new reader starts with."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from headrace.cli.remote import (
    AlwaysJsonOption,
    StreamArgument,
    TokenOption,
    UrlOption,
    check_in_bucket,
    connected,
)

if TYPE_CHECKING:
    from headrace.client import Part


def bootstrap(
    stream: StreamArgument,
    _: AlwaysJsonOption = True,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Print the latest snapshot and the messages since, one JSON object per line.

    The last line says where to go on: {"next_offset": ...}.
    """
    check_in_bucket(stream)
    with connected(url, token) as client:
        start = client.stream(stream).bootstrap()
    if start.snapshot is not None:
        _line(snapshot=_value(start.snapshot), offset=start.snapshot_offset)
    for part in start.messages:
        _line(value=_value(part))
    _line(next_offset=start.next_offset, up_to_date=start.up_to_date)


def _line(**members: Any) -> None:
    typer.echo(json.dumps(members, ensure_ascii=False))


def _value(part: Part) -> Any:
    return shown(part.content_type, part.data)


def shown(content_type: str, data: bytes) -> Any:
    """JSON as a value; anything else as text."""
    if "json" in content_type:
        try:
            return msgspec.json.decode(data)
        except msgspec.MsgspecError:
            pass
    return data.decode("utf-8", "backslashreplace")
