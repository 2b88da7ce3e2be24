"""`headrace subscribe`: create, list, show, claim, acknowledge and delete subscriptions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import printing
from headrace.cli.client_config import write_private
from headrace.cli.options import EXIT_REFUSED, fail
from headrace.cli.remote import (
    AlwaysJsonOption,
    JsonOption,
    TokenOption,
    UrlOption,
    addition,
    connected,
)
from headrace.protocol.offsets import BEGINNING, parse_token

if TYPE_CHECKING:
    from headrace.client import Tail, Wake

app = typer.Typer(
    name="subscribe", help="Subscriptions: get notified when streams change.", no_args_is_help=True
)

COLUMNS = ("subscription", "type", "status", "pattern", "streams", "generation")
LAG_COLUMNS = ("stream", "acked_offset", "tail_offset", "messages", "bytes")

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="Id of the subscription.")]


@app.command()
def create(
    id: IdArgument,
    pattern: Annotated[
        str | None,
        typer.Option("--pattern", help="Glob of stream names: * matches a segment, ** any number."),
    ] = None,
    streams: Annotated[
        list[str] | None, typer.Option("--stream", help="A stream to follow; may be repeated.")
    ] = None,
    webhook: Annotated[
        str | None, typer.Option("--webhook", help="URL that receives a POST when streams change.")
    ] = None,
    wake_stream: Annotated[
        str | None,
        typer.Option("--wake-stream", help="Stream that receives a message when streams change."),
    ] = None,
    _: AlwaysJsonOption = True,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Create a subscription, or confirm an equal one."""
    if (webhook is None) == (wake_stream is None):
        raise typer.BadParameter("give either --webhook or --wake-stream")
    config: dict[str, Any] = {"type": "webhook", "webhook": {"url": webhook}}
    if wake_stream is not None:
        config = {"type": "pull-wake", "wake_stream": wake_stream}
    if pattern is not None:
        config["pattern"] = pattern
    if streams:
        config["streams"] = streams
    with connected(url, token) as client:
        created = client.subscription(id).create(**config)
    typer.echo(json.dumps(created))


@app.command()
def ls(
    prefix: Annotated[str, typer.Option("--prefix", help="List only ids with this prefix.")] = "",
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """List the subscriptions: type, status, pattern, number of streams and generation."""
    with connected(url, token) as client, addition("subscribe ls"):
        rows = (
            (s.id, s.type, s.status, s.pattern, s.stream_count, s.generation)
            for s in client.subscriptions(prefix)
        )
        printing.table(COLUMNS, rows, as_json=as_json)


@app.command(name="show")
def show_(
    id: IdArgument,
    _: AlwaysJsonOption = True,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Show a subscription and how far its streams are acknowledged, as JSON."""
    with connected(url, token) as client:
        typer.echo(json.dumps(client.subscription(id).info()))


@app.command()
def lag(
    id: IdArgument,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Show for each stream how many messages and bytes are not acknowledged yet."""
    with connected(url, token) as client:
        links = client.subscription(id).info()["streams"]
        with addition("subscribe lag"):
            tails = client.tails(*(link["path"] for link in links)) if links else []
    acked = {link["path"]: link["acked_offset"] for link in links}
    rows = [_lag_row(acked[tail.stream], tail) for tail in tails if tail.problem is None]
    printing.table(LAG_COLUMNS, rows, as_json=as_json)


def _lag_row(acked: str, tail: Tail) -> tuple[object, ...]:
    earliest, end = parse_token(tail.earliest_offset), parse_token(tail.next_offset)
    # What was trimmed before it was acknowledged can no longer be read.
    start = earliest if acked == BEGINNING else max(earliest, parse_token(acked))
    return tail.stream, acked, end.token(), end.messages - start.messages, end.bytes - start.bytes


@app.command()
def claim(
    id: IdArgument,
    worker: Annotated[
        str, typer.Option("--worker", help="Name of the worker that claims the work.")
    ] = "headrace",
    done: Annotated[bool, typer.Option("--done", help="Acknowledge everything at once.")] = False,
    lease: Annotated[
        Path | None,
        typer.Option("--lease", metavar="FILE", help="Write the lease to FILE, for `ack`."),
    ] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Take the pending work of a pull-wake subscription, and show which streams have news."""
    with connected(url, token) as client:
        subscription = client.subscription(id)
        wake = subscription.claim(worker)
        if done:
            subscription.ack(wake, _tails(wake), done=True)
    if lease is None and not done:
        printing.note("acknowledging takes the lease: claim with --lease FILE")
    if lease is not None:
        import msgspec

        write_private(lease, msgspec.json.encode(wake).decode())
    rows = ((s.path, s.acked_offset, s.tail_offset) for s in wake.streams)
    printing.table(("stream", "acked_offset", "tail_offset"), rows, as_json=as_json)


@app.command()
def ack(
    id: IdArgument,
    lease: Annotated[
        Path, typer.Option("--lease", metavar="FILE", help="The file that `claim --lease` wrote.")
    ],
    offsets: Annotated[
        list[str] | None,
        typer.Option(
            "--offset",
            metavar="STREAM=OFFSET",
            help="Acknowledge this stream up to this offset; may be repeated "
            "(default: all streams, up to the tails at the claim).",
        ),
    ] = None,
    done: Annotated[
        bool, typer.Option("--done", help="Release the lease: others may claim the rest.")
    ] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Acknowledge claimed work, and extend the lease unless --done."""
    wake = _read_lease(lease)
    acked = _offsets_of(offsets) if offsets else _tails(wake)
    with connected(url, token) as client:
        client.subscription(id).ack(wake, acked, done=done)
    printing.table(("stream", "acked_offset"), list(acked.items()), as_json=as_json)


def _tails(wake: Wake) -> dict[str, str]:
    return {stream.path: stream.tail_offset for stream in wake.streams}


def _read_lease(path: Path) -> Wake:
    import msgspec

    from headrace.client import Wake

    try:
        return msgspec.json.decode(path.read_bytes(), type=Wake)
    except OSError as error:
        fail(f"Cannot read {path}: {error.strerror}.", EXIT_REFUSED)
    except msgspec.DecodeError as error:
        fail(f"{path} is not a file of `subscribe claim --lease`: {error}.", EXIT_REFUSED)


def _offsets_of(given: Sequence[str]) -> dict[str, str]:
    pairs = [item.rpartition("=") for item in given]
    if not all(stream and offset for stream, _, offset in pairs):
        raise typer.BadParameter("write --offset as STREAM=OFFSET")
    return {stream: offset for stream, _, offset in pairs}


@app.command()
def delete(
    id: IdArgument,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Delete a subscription."""
    with connected(url, token) as client:
        client.subscription(id).delete()
    told = {"subscription": id, "deleted": True}
    printing.done(f"the subscription {id} has ended", told, as_json=as_json)
