"""`headrace append`: write to a stream, from arguments or from standard input.

Standard input goes out in few requests: JSON values and lines of text are gathered into batches,
bytes of any other stream are passed on as they come. A producer sends them exactly once and in
order, whatever is retried.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import Enum, auto
from io import BufferedReader
from typing import TYPE_CHECKING, Annotated, Any, cast

import msgspec
import typer

from headrace.cli import printing
from headrace.cli.options import EXIT_REFUSED, fail
from headrace.cli.progress import input_bar
from headrace.cli.remote import (
    STEADFAST_RETRIES_MAX,
    JsonOption,
    StreamArgument,
    TokenOption,
    UrlOption,
    connected,
    connected_with,
)
from headrace.errors import HeadraceError, Indeterminate
from headrace.limits import INTEGER_MAX
from headrace.protocol.headers import is_json, media_type

if TYPE_CHECKING:
    from headrace.client import Producer, Stream

TEXT_ADVICE = "For text, create the stream with --content-type text/plain."
PIECE_BYTES = 1024 * 1024  # the client's own batch_bytes_max
BUFFER_BYTES = 8 * PIECE_BYTES  # what is read ahead of the server, so that progress is real


def append(
    stream: StreamArgument,
    messages: Annotated[
        list[str] | None, typer.Argument(help="Messages; without any, standard input is read.")
    ] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="Append all of standard input as one message.")
    ] = False,
    lines: Annotated[
        bool,
        typer.Option(
            "--lines",
            help="Append each line of standard input separately (slow: one request each).",
        ),
    ] = False,
    producer_id: Annotated[
        str | None,
        typer.Option("--producer-id", help="Producer id; a new run fences off the previous one."),
    ] = None,
    epoch: Annotated[
        int | None,
        typer.Option(
            "--epoch", min=0, max=INTEGER_MAX, help="Epoch of the producer; the time by default."
        ),
    ] = None,
    seq: Annotated[
        str | None, typer.Option("--seq", help="Stream-Seq of the message; allows one only.")
    ] = None,
    close: Annotated[
        bool, typer.Option("--close", help="Close the stream with the last message.")
    ] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Append messages.

    Without messages, standard input is sent as it comes, in batches, exactly once and in order:
    one value per line to a JSON stream, whole lines to a text stream, and bytes that are never
    cut at line ends to any other stream.
    """
    if whole and lines:
        raise typer.BadParameter("--whole is one message, --lines is many", param_hint="--lines")
    if producer_id == "":
        raise typer.BadParameter("a producer needs a name", param_hint="--producer-id")
    if epoch is not None and producer_id is None:
        raise typer.BadParameter("--epoch needs --producer-id", param_hint="--epoch")
    if "" in (messages or ()):
        raise typer.BadParameter("an empty message cannot be appended", param_hint="messages")
    if not messages and not whole and sys.stdin.isatty():
        printing.note("one message per line; Ctrl-D ends")
    with connected(url, token) as client:
        content_type = client.stream(stream).content_type
    with connected_with(url, token, STEADFAST_RETRIES_MAX) as client:
        target = client.stream(stream, content_type=content_type)
        source = _Source(messages or None, _cut(content_type, whole, lines))
        if seq is not None:
            _append_one(target, source, seq, close)
        else:
            _append_all(target, source, producer_id, epoch, close)
        tail = target.head().next_offset
    found = {"stream": stream, **source.amount(), "next_offset": tail, "closed": close}
    printing.facts(found, as_json=as_json)


class _Cut(Enum):
    """Where standard input is cut."""

    NOWHERE = auto()
    """All of it is one message."""
    VALUES = auto()
    """One JSON value per line."""
    LINES = auto()
    """After each line, and many lines share an append."""
    EACH_LINE = auto()
    """After each line, and each is an append."""
    PIECES = auto()
    """Where it happens to come apart on its way: bytes have no lines."""


def _cut(content_type: str, whole: bool, lines: bool) -> _Cut:
    if whole:
        return _Cut.NOWHERE
    if is_json(content_type):
        return _Cut.VALUES
    if lines:
        return _Cut.EACH_LINE
    return _Cut.LINES if media_type(content_type).startswith("text/") else _Cut.PIECES


class _Source:
    """The messages of one command, counted as they go by."""

    def __init__(self, messages: list[str] | None, cut: _Cut) -> None:
        self._messages = messages
        self.cut = cut
        self.count = 0
        self.bytes = 0
        self.problem: str | None = None
        """Why it ended early: what is not JSON must not reach a JSON stream."""

    @property
    def is_input(self) -> bool:
        return self._messages is None

    @property
    def in_pieces(self) -> bool:
        return self.is_input and self.cut is _Cut.PIECES

    def amount(self) -> dict[str, int]:
        """How much was appended; pieces are counted in bytes, as their number means nothing."""
        return {"bytes": self.bytes} if self.in_pieces else {"messages": self.count}

    def take(self, as_json: bool) -> Iterator[bytes]:
        for number, message in enumerate(self._all(), 1):
            message = message.strip() if as_json else message
            if as_json and message and (wrong := _not_one_value(message)):
                what = f"{self._named(number)} is not one JSON value: {wrong}."
                self.problem = f"{what} {TEXT_ADVICE}"
                return
            if message:
                yield message
                # Only now: a producer that fails may not have taken it.
                self.count += 1
                self.bytes += len(message)

    def _named(self, number: int) -> str:
        if self._messages is not None:
            return f"Message {number}"
        return "Standard input" if self.cut is _Cut.NOWHERE else f"Line {number}"

    def _all(self) -> Iterator[bytes]:
        if self._messages is not None:
            yield from (message.encode("utf-8", "surrogateescape") for message in self._messages)
        elif self.cut is _Cut.NOWHERE:
            yield sys.stdin.buffer.read()
        elif self.cut is _Cut.PIECES:
            pipe = cast(BufferedReader, sys.stdin.buffer)
            while piece := pipe.read1(PIECE_BYTES):
                yield piece
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
    producer = target.producer(
        producer_id, epoch=epoch, buffer_bytes_max=BUFFER_BYTES, **_batches(source, as_json)
    )
    try:
        with producer, input_bar(source.is_input) as show_progress:
            for message in source.take(as_json):
                producer.append(message)
                show_progress(max(source.bytes - producer.unaccepted_bytes, 0))
            if close and source.problem is None:
                producer.close()
    except HeadraceError as error:
        in_doubt = isinstance(error, Indeterminate)
        _say_how_far(source, producer, "before a failure:", in_doubt=in_doubt)
        raise
    except KeyboardInterrupt:
        _say_how_far(source, producer, "before the interruption.", in_doubt=True)
        raise
    if source.problem is not None:
        _say_how_far(source, producer, "before a failure:")
        fail(source.problem, EXIT_REFUSED)


def _batches(source: _Source, as_json: bool) -> dict[str, Any]:
    """Options of the producer: what may share an append."""
    if as_json or (source.is_input and source.cut is _Cut.LINES):
        return {}
    if source.in_pieces:
        # A pipe hands over 64 KiB at a time: wait a little instead of appending each separately.
        return {"linger_ms": 50}
    return {"batch_items_max": 1, "linger_ms": 0}


def _say_how_far(
    source: _Source, producer: Producer, before: str, *, in_doubt: bool = False
) -> None:
    """Where the remainder begins, so that a caller can send it again."""
    left = producer.unaccepted()
    if source.in_pieces:
        count, unit = source.bytes - sum(map(len, left)), "byte"
    else:
        count, unit = source.count - len(left), "message"
    if count or in_doubt:
        were = f"{unit} was" if count == 1 else f"{unit}s were"
        at_least = "at least " if in_doubt else ""
        typer.echo(f"headrace: {at_least}{count} {were} appended {before}", err=True)
