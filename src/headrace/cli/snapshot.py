"""`headrace snapshot`: publish, print and delete snapshots of a stream in a bucket."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from headrace.cli import show
from headrace.cli.remote import StreamArgument, TokenOption, UrlOption, connected

app = typer.Typer(name="snapshot", help="Snapshots of streams.", no_args_is_help=True)


@app.command()
def put(
    stream: StreamArgument,
    offset: Annotated[str, typer.Argument(help="The offset it stands for; `tail` for the tail.")],
    content_type: Annotated[
        str, typer.Option("--content-type", "-t", help="What the snapshot is.")
    ] = "application/octet-stream",
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Publish standard input as the snapshot at an offset; what came before is let go."""
    data = sys.stdin.buffer.read()
    with connected(url, token) as client:
        target = client.stream(stream)
        at = target.head().next_offset if offset == "tail" else offset
        target.publish_snapshot(at, data, content_type)
    show.note(f"{len(data)} bytes stand for everything before {at}")


@app.command()
def get(
    stream: StreamArgument,
    offset: Annotated[str | None, typer.Option("--offset", help="Not the latest.")] = None,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Print the latest snapshot."""
    with connected(url, token) as client:
        snapshot = client.stream(stream).snapshot(offset)
    show.note(f"{snapshot.content_type} at {snapshot.offset}")
    sys.stdout.buffer.write(snapshot.data)
    sys.stdout.flush()


@app.command()
def delete(
    stream: StreamArgument,
    offset: Annotated[str, typer.Argument(help="The offset of the snapshot.")],
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Delete a snapshot that is not the latest."""
    with connected(url, token) as client:
        client.stream(stream).delete_snapshot(offset)
