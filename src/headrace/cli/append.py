"""`headrace append`: write to a stream, from arguments or from standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
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
    if epoch is not None and producer_id is None:
        raise typer.BadParameter("an epoch is that of a --producer-id", param_hint="--epoch")
    if "" in (messages or ()):
        raise typer.BadParameter("an empty message cannot be appended", param_hint="messages")
    if not messages and not whole and sys.stdin.isatty():
        show.note("one message per line; Ctrl-D ends")
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
        self.problem: str | None = None
        """Why it ended early: what is no JSON must not reach a JSON stream."""

    def take(self, as_json: bool) -> Iterator[bytes]:
        for number, message in enumerate(self._all(), 1):
            message = message.strip() if as_json else message
            if as_json and message and (wrong := _not_one_value(message)):
                self.problem = f"{self._named(number)} is not one JSON value: {wrong}."
                return
            if message:
                self.count += 1
                yield message

    def _named(self, number: int) -> str:
        if self._messages is not None:
            return f"Message {number}"
        return "Standard input" if self._whole else f"Line {number}"

    def _all(self) -> Iterator[bytes]:
        if self._messages is not None:
            yield from (message.encode("utf-8", "surrogateescape") for message in self._messages)
        elif self._whole:
            yield sys.stdin.buffer.read()
        else:
            yield from sys.stdin.buffer


def _not_one_value(message: bytes) -> str | None:
    """What is wrong with it; two values with a comma between would count as two messages."""
    try:
        msgspec.json.decode(message)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return str(error)
    return None


def _append_one(target: Stream, source: _Source, seq: str, close: bool) -> None:
    messages = list(source.take(is_json(target.content_type)))
    if source.problem is not None:
        fail(source.problem, EXIT_REFUSED)
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
    try:
        with producer:
            for message in source.take(as_json):
                producer.append(message)
            if close and source.problem is None:
                producer.close()
    except HeadraceError:
        _say_how_far(source.count - len(producer.unaccepted()))
        raise
    if source.problem is not None:
        _say_how_far(source.count)
        fail(source.problem, EXIT_REFUSED)


def _say_how_far(count: int) -> None:
    """Whoever repairs the rest must know where it begins."""
    if count:
        were = "message was" if count == 1 else "messages were"
        typer.echo(f"headrace: {count} {were} appended before a failure:", err=True)
