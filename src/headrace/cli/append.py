"""`headrace append`: write to a stream, from arguments or from standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import show
from headrace.cli.options import EXIT_REFUSED, fail
from headrace.cli.remote import JsonOption, StreamArgument, TokenOption, UrlOption, connected
from headrace.errors import HeadraceError
from headrace.limits import INTEGER_MAX
from headrace.protocol.headers import is_json

if TYPE_CHECKING:
    from headrace.client import Stream


def append(
    stream: StreamArgument,
    messages: Annotated[
        list[str] | None, typer.Argument(help="Messages; without any, standard input is read.")
    ] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="Standard input is one message, not one per line.")
    ] = False,
    producer_id: Annotated[
        str | None, typer.Option("--producer-id", help="Append as this producer: exactly once.")
    ] = None,
    epoch: Annotated[
        int | None,
        typer.Option(
            "--epoch", min=0, max=INTEGER_MAX, help="The producer's epoch; else a new one."
        ),
    ] = None,
    seq: Annotated[
        str | None, typer.Option("--seq", help="Stream-Seq of a single message.")
    ] = None,
    close: Annotated[bool, typer.Option("--close", help="Close the stream with it.")] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Append messages.

    Lines of standard input are sent in batches as they come and arrive exactly once and in order.
    A text stream keeps the line ends; a JSON stream takes one value per line.
    """
    if producer_id == "":
        raise typer.BadParameter("a producer needs a name", param_hint="--producer-id")
    source = _Source(messages or None, whole)
    with connected(url, token) as client:
        target = client.stream(stream)
        if seq is not None:
            _append_one(target, source, seq, close)
        else:
            _append_all(target, source, producer_id, epoch, close)
        tail = target.head().next_offset
    found = {"stream": stream, "messages": source.count, "next_offset": tail, "closed": close}
    show.facts(found, as_json=as_json)


class _Source:
    """The messages of one command, counted as they go by."""

    def __init__(self, messages: list[str] | None, whole: bool) -> None:
        self._messages = messages
        self._whole = whole
        self.count = 0

    def take(self, as_json: bool) -> Iterator[bytes]:
        for message in self._all(as_json):
            self.count += 1
            yield message

    def _all(self, as_json: bool) -> Iterator[bytes]:
        if self._messages is not None:
            yield from (message.encode("utf-8", "surrogateescape") for message in self._messages)
        elif self._whole:
            yield sys.stdin.buffer.read()
        elif as_json:
            yield from (line for line in map(bytes.strip, sys.stdin.buffer) if line)
        else:
            yield from sys.stdin.buffer


def _append_one(target: Stream, source: _Source, seq: str, close: bool) -> None:
    messages = list(source.take(is_json(target.content_type)))
    if len(messages) != 1:
        fail("--seq goes with exactly one message.", EXIT_REFUSED)
    target.append(messages[0], seq=seq, close=close)


def _append_all(
    target: Stream, source: _Source, producer_id: str | None, epoch: int | None, close: bool
) -> None:
    as_json = is_json(target.content_type)
    # One message, one append: what a batch of bytes holds could not be told apart by a reader.
    batch: dict[str, Any] = {} if as_json else {"batch_items_max": 1, "linger_ms": 0}
    producer = target.producer(producer_id, epoch=epoch, **batch)
    given = 0
    try:
        with producer:
            for message in source.take(as_json):
                if message:
                    producer.append(message)
                    given += 1
            if close:
                producer.close()
    except HeadraceError:
        # Whoever repairs the rest must know where it begins.
        there = given - len(producer.unaccepted())
        typer.echo(f"headrace: {there} messages were accepted before a failure:", err=True)
        raise
