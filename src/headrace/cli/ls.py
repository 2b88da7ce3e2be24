"""`headrace ls`: which streams there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import show
from headrace.cli.remote import JsonOption, TokenOption, UrlOption, connected

if TYPE_CHECKING:
    from headrace.client import Client

COLUMNS = ("stream", "content_type", "closed", "next_offset")


def ls(
    bucket: Annotated[
        str | None,
        typer.Argument(
            metavar="[BUCKET]", help="Bucket to list (default: streams outside buckets)."
        ),
    ] = None,
    prefix: Annotated[str, typer.Option("--prefix", help="List only names with this prefix.")] = "",
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """List the streams of a bucket, or those outside of buckets."""
    with connected(url, token) as client:
        if bucket is not None:
            show.table(COLUMNS, _in_bucket(client, bucket, prefix), as_json=as_json)
        else:
            show.table(COLUMNS[:2], _registered(client, prefix), as_json=as_json)


def _in_bucket(client: Client, bucket: str, prefix: str) -> Iterator[tuple[object, ...]]:
    for entry in client.bucket(bucket).streams(prefix):
        closed = entry.status.lower() == "closed"
        yield entry.stream_id, entry.content_type, closed, entry.next_offset


def _registered(client: Client, prefix: str) -> Iterator[tuple[object, ...]]:
    for found in client.streams(prefix):
        yield found.name, found.content_type
