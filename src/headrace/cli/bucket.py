"""`headrace bucket`: create, list, show and delete buckets."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli import printing
from headrace.cli.options import EXIT_REFUSED, fail
from headrace.cli.remote import JsonOption, TokenOption, UrlOption, addition, connected, deleting
from headrace.errors import MethodNotAllowed

app = typer.Typer(name="bucket", help="Buckets: namespaces of streams.", no_args_is_help=True)

BucketArgument = Annotated[
    str,
    typer.Argument(metavar="BUCKET", help="Name of the bucket: 4 to 64 characters of a-z 0-9 _ -."),
]


@app.command()
def create(
    bucket: BucketArgument,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Create a bucket."""
    with connected(url, token) as client:
        try:
            client.bucket(bucket).create()
        except MethodNotAllowed:
            fail(f"{bucket!r} is a name that the server uses itself. Choose another.", EXIT_REFUSED)
    told = {"bucket": bucket, "created": True}
    printing.done(f"the bucket {bucket} is created", told, as_json=as_json)


@app.command()
def ls(
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """List the buckets with their number of streams (at most 10,000 buckets)."""
    with connected(url, token) as client, addition("bucket ls"):
        rows = [(bucket.bucket_id, bucket.streams) for bucket in client.buckets()]
    printing.table(("bucket", "streams"), rows, as_json=as_json)


@app.command(name="show")
def show_(
    bucket: BucketArgument,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Show how many streams a bucket has."""
    with connected(url, token) as client:
        info = client.bucket(bucket).info()
    printing.facts({"bucket": info.bucket_id, "streams": info.streams}, as_json=as_json)


@app.command()
def delete(
    bucket: BucketArgument,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Delete an empty bucket."""
    with connected(url, token) as client, deleting():
        client.bucket(bucket).delete()
    told = {"bucket": bucket, "deleted": True}
    printing.done(f"the bucket {bucket} is deleted", told, as_json=as_json)
