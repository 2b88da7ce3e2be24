"""`headrace snapshot`: publish, print and delete snapshots of a stream in a bucket."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from headrace.cli import printing
from headrace.cli.bootstrap import shown
from headrace.cli.remote import (
    JsonOption,
    StreamArgument,
    TokenOption,
    UrlOption,
    check_in_bucket,
    connected,
    deleting,
)

app = typer.Typer(name="snapshot", help="Snapshots of streams.", no_args_is_help=True)


@app.command()
def put(
    stream: StreamArgument,
    offset: Annotated[str, typer.Argument(help="Offset of the snapshot, or `tail`.")],
    content_type: Annotated[
        str, typer.Option("--content-type", "-t", help="Content type of the snapshot.")
    ] = "application/octet-stream",
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Publish standard input as the snapshot at an offset, and drop the messages before it."""
    check_in_bucket(stream)
    data = sys.stdin.buffer.read()
    with connected(url, token) as client:
        target = client.stream(stream)
        at = target.head().next_offset if offset == "tail" else offset
        target.publish_snapshot(at, data, content_type)
    values = {"stream": stream, "offset": at, "bytes": len(data)}
    printing.done(f"snapshot of {len(data)} bytes at {at}", values, as_json=as_json)


@app.command()
def get(
    stream: StreamArgument,
    offset: Annotated[
        str | None, typer.Option("--offset", help="Offset of the snapshot (default: the latest).")
    ] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Print the latest snapshot: its bytes, or with --json also its offset and content type."""
    check_in_bucket(stream)
    with connected(url, token) as client:
        snapshot = client.stream(stream).snapshot(offset)
    if as_json:
        value = shown(snapshot.content_type, snapshot.data)
        found = {"offset": snapshot.offset, "content_type": snapshot.content_type, "value": value}
        printing.facts(found, as_json=True)
        return
    printing.note(f"{snapshot.content_type} at {snapshot.offset}")
    sys.stdout.buffer.write(snapshot.data)
    sys.stdout.flush()


@app.command()
def delete(
    stream: StreamArgument,
    offset: Annotated[str, typer.Argument(help="The offset of the snapshot.")],
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Delete a snapshot that is not the latest."""
    check_in_bucket(stream)
    with connected(url, token) as client, deleting():
        client.stream(stream).delete_snapshot(offset)
    values = {"stream": stream, "offset": offset, "deleted": True}
    printing.done(f"the snapshot at {offset} is deleted", values, as_json=as_json)
