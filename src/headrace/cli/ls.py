"""`headrace ls`: which streams there are."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import printing
from headrace.cli.error_text import error_text
from headrace.cli.options import EXIT_REFUSED, fail
from headrace.cli.remote import JsonOption, TokenOption, UrlOption, addition, connected
from headrace.errors import BucketNotFound, InvalidName

if TYPE_CHECKING:
    from headrace.client import Client, Tail

COLUMNS = ("stream", "content_type", "closed", "next_offset")
LONG_COLUMNS = ("stream", "content_type", "closed", "messages", "bytes")
UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"))


def ls(
    bucket: Annotated[
        str | None,
        typer.Argument(
            metavar="[BUCKET]", help="Bucket to list (default: streams outside buckets)."
        ),
    ] = None,
    prefix: Annotated[str, typer.Option("--prefix", help="List only names with this prefix.")] = "",
    long: Annotated[
        bool,
        typer.Option("--long", "-l", help="Show messages and bytes retained, and the age."),
    ] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """List the streams of a bucket, or those outside of buckets."""
    bucket = None if bucket is None else bucket.strip("/")  # /agents is how a bucket is shown
    with connected(url, token) as client, _with_prefix_advice(bucket):
        if long:
            _show_long(client, bucket, prefix, as_json=as_json)
        elif bucket is not None:
            printing.table(COLUMNS, _in_bucket(client, bucket, prefix), as_json=as_json)
        else:
            printing.table(COLUMNS[:2], _registered(client, prefix), as_json=as_json)


@contextmanager
def _with_prefix_advice(bucket: str | None) -> Iterator[None]:
    """End a command that names no bucket with the command for a prefix, which may be meant."""
    try:
        yield
    except (InvalidName, BucketNotFound) as error:
        prefix = quote((bucket or "").rstrip("*"))
        sentence = error_text(error).rstrip(".")
        fail(f"{sentence}. Names that begin with it: headrace ls --prefix {prefix}", EXIT_REFUSED)


def _in_bucket(client: Client, bucket: str, prefix: str) -> Iterator[tuple[object, ...]]:
    for entry in client.bucket(bucket).streams(prefix):
        closed = entry.status.lower() == "closed"
        yield entry.stream_id, entry.content_type, closed, entry.next_offset


def _registered(client: Client, prefix: str) -> Iterator[tuple[object, ...]]:
    for found in client.streams(prefix):
        yield found.name, found.content_type


def _show_long(client: Client, bucket: str | None, prefix: str, *, as_json: bool) -> None:
    if bucket is None:
        names, folder = [found.name for found in client.streams(prefix)], ""
    else:
        names = [found.stream_id for found in client.bucket(bucket).streams(prefix)]
        folder = f"/{bucket}/"
    with addition("ls --long"):
        tails = client.tails(*(f"{folder}{name}" for name in names)) if names else []
    # A stream that was deleted since it was listed has no tail.
    known = [tail for tail in tails if tail.problem is None]
    columns = (*LONG_COLUMNS, "created_at_ms" if as_json else "age")
    printing.table(columns, (_long_row(t, folder, as_json) for t in known), as_json=as_json)


def _long_row(tail: Tail, folder: str, as_json: bool) -> tuple[object, ...]:
    messages, size = tail.retained
    created = tail.created_at_ms if as_json else _age(tail.created_at_ms)
    name = tail.stream.removeprefix(folder)
    return name, tail.content_type, tail.closed, messages, size, created


def _age(created_at_ms: int | None) -> str:
    """How long ago, in the largest unit that fits: 3d, 5h, 7m or 20s."""
    if created_at_ms is None:
        return ""
    secs = max(0, int(time.time() - created_at_ms / 1000))
    return next((f"{secs // unit}{sign}" for unit, sign in UNITS if secs >= unit), f"{secs}s")
