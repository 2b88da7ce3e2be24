"""What the verbs that talk to a server share: a client of it, and how its errors are said."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.client_config import SCHEMES, configured
from headrace.cli.error_text import error_text, nothing_deleted
from headrace.cli.options import EXIT_FAILED, EXIT_REFUSED, fail
from headrace.errors import (
    BucketNotFound,
    HeadraceError,
    MethodNotAllowed,
    Refused,
    RouteNotFound,
    StreamNotFound,
)

if TYPE_CHECKING:
    from headrace.client import Client

RETRIES_MAX = 5  # about three seconds
STEADFAST_RETRIES_MAX = 12  # about a minute: a running command survives a restart of the server

StreamArgument = Annotated[
    str,
    typer.Argument(metavar="STREAM", help="A name, a path such as /bucket/stream, or a URL."),
]
UrlOption = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="URL of the server (default: HEADRACE_URL)."),
]
TokenOption = Annotated[
    str | None,
    typer.Option("--token", metavar="TOKEN", help="Bearer token (default: HEADRACE_TOKEN)."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
# So that a script may say --json to every verb.
AlwaysJsonOption = Annotated[
    bool, typer.Option("--json", show_default=False, help="Print JSON, as it always does.")
]


def connected(url: str | None, token: str | None) -> AbstractContextManager[Client]:
    """A client that waits a few seconds for its server."""
    return connected_with(url, token, RETRIES_MAX)


@contextmanager
def connected_with(url: str | None, token: str | None, retries_max: int | None) -> Iterator[Client]:
    """A client; what it raises ends the command with one sentence and an exit code.

    With None for `retries_max` it waits for its server for ever.
    """
    # Imported here: `headrace serve` need not pay for the client.
    from headrace.client import Client, Retry

    where, bearer = configured(url, token)
    retry = Retry(retries_max=retries_max, first_connect_retries_max=retries_max or 0)
    try:
        with Client(where, token=bearer, retry=retry) as client:
            yield client
    except HeadraceError as error:
        fail(error_text(error), EXIT_REFUSED if isinstance(error, Refused) else EXIT_FAILED)
    except BrokenPipeError:
        # The reader of our output has left, as `head` does. Python would complain on exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


@contextmanager
def deleting() -> Iterator[None]:
    """End a command that deletes what does not exist, without the advice to create it."""
    try:
        yield
    except (StreamNotFound, BucketNotFound) as error:
        fail(nothing_deleted(error), EXIT_REFUSED)


@contextmanager
def addition(what: str) -> Iterator[None]:
    """End the command with a sentence if the server lacks `what`, an addition of Headrace."""
    from headrace.client import BadAnswer

    try:
        yield
    except (StreamNotFound, RouteNotFound, MethodNotAllowed, BadAnswer):
        fail(f"{what} needs a Headrace server; this server lacks that addition.", EXIT_REFUSED)


def check_in_bucket(stream: str) -> None:
    """End the command if this names a stream outside of buckets, which has no snapshots."""
    if not stream.startswith(("/", *SCHEMES)):
        fail(f"Only a stream in a bucket has snapshots: /bucket/{stream}, say.", EXIT_REFUSED)
