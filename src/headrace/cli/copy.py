"""`headrace copy`: copy streams from any server of the protocol, exactly, and again if interrupted.

Theory of operation. A copy keeps no state of its own. It reads the target and the source from
their beginnings at once, and compares: what the target holds must be the beginning of the source,
and what follows in the source is appended. So an interrupted copy continues where it stopped, a
finished one verifies itself, and a target that holds anything else is refused before anything is
appended. It needs only the base protocol, of either server.

JSON messages are compared and appended one by one, with the text they were sent with. The base
protocol shows no message boundaries of other content types: their bytes are compared, and a
message is what one response of the source holds (one message if the source is Headrace).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from urllib.parse import urlsplit

import typer

from headrace.cli import printing
from headrace.cli.client_config import SCHEMES
from headrace.cli.options import EXIT_REFUSED, fail
from headrace.cli.remote import (
    STEADFAST_RETRIES_MAX,
    JsonOption,
    TokenOption,
    UrlOption,
    connected_with,
)
from headrace.errors import StreamNotFound
from headrace.protocol.headers import is_json
from headrace.protocol.names import REGISTRY_NAME

if TYPE_CHECKING:
    from headrace.client import Client, Stream, StreamInfo

COLUMNS = ("stream", "content_type", "appended_bytes", "closed")
PRODUCER_ID = "headrace-copy"  # a second copy to the same target fences the first


class Differs(Exception):
    """The target holds something that is not the beginning of the source."""


class Copied(NamedTuple):
    """One row of the command's output."""

    stream: str
    content_type: str
    appended_bytes: int
    closed: bool


def copy(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="A stream: a name, a path such as /bucket/stream, or a URL."
        ),
    ],
    target: Annotated[
        str | None,
        typer.Argument(metavar="[TARGET]", help="Name of the copy on the server of --url."),
    ] = None,
    everything: Annotated[
        bool,
        typer.Option("--all", help="SOURCE is the URL of a server: copy its streams by name."),
    ] = False,
    names: Annotated[
        typer.FileText | None,
        typer.Option(
            "--names", metavar="FILE", help="The same, for the names in FILE (- is standard input)."
        ),
    ] = None,
    prefix: Annotated[
        str, typer.Option("--prefix", help="With --all: only names with this prefix.")
    ] = "",
    source_token: Annotated[
        str | None,
        typer.Option(
            "--source-token", metavar="TOKEN", help="Bearer token for SOURCE, if it is a URL."
        ),
    ] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Copy a stream; with --all or --names, streams of a server outside of buckets.

    Copies content type, messages, expiry and closure. Repeat the command to continue after an
    interruption, or to copy what was appended since. Nobody else may append to the copy.
    """
    if (target is not None) + everything + (names is not None) != 1:
        raise typer.BadParameter("give TARGET, --all or --names")
    if target is None and not source.startswith(SCHEMES):
        raise typer.BadParameter("this needs the URL of a server", param_hint="SOURCE")
    listed = None if names is None else [line.strip() for line in names if line.strip()]
    with connected_with(url, token, STEADFAST_RETRIES_MAX) as client:
        if not source.startswith(SCHEMES):
            rows = _copied(client, client, {source: target or source})
        else:
            wanted = _Wanted(source, target, listed, prefix)
            rows = _copied_from_url(client, wanted, source_token)
        printing.table(COLUMNS, rows, as_json=as_json)


class _Wanted(NamedTuple):
    """What to copy from a URL: one stream, or the streams of a server."""

    url: str
    target: str | None
    listed: list[str] | None
    prefix: str

    @property
    def server(self) -> str:
        parts = urlsplit(self.url)
        return self.url if self.target is None else f"{parts.scheme}://{parts.netloc}"

    def names(self, source: Client) -> dict[str, str]:
        """The streams of the source, each with the name of its copy."""
        if self.target is not None:
            return {self.url: self.target}
        if self.listed is not None:
            return {name: name for name in self.listed}
        try:
            found = [stream.name for stream in source.streams(self.prefix)]
        except StreamNotFound:
            fail(
                f"{self.url} has no registry of its streams: name them with --names.", EXIT_REFUSED
            )
        return {name: name for name in found if name != REGISTRY_NAME}


def _copied_from_url(client: Client, wanted: _Wanted, token: str | None) -> Iterator[Copied]:
    # A client of its own: the token of the target is not for the source.
    from headrace.client import Client, Retry

    retry = Retry(retries_max=STEADFAST_RETRIES_MAX)
    with Client(wanted.server, token=token, retry=retry) as source:
        yield from _copied(source, client, wanted.names(source))


def _copied(source: Client, target: Client, names: dict[str, str]) -> Iterator[Copied]:
    for source_name, target_name in names.items():
        try:
            yield copy_stream(source.stream(source_name), target.stream(target_name), target_name)
        except Differs as difference:
            fail(
                f"{target_name!r} is not a copy of {source_name}: {difference}. Nothing was "
                "appended to it. Choose another name, or delete it first.",
                EXIT_REFUSED,
            )


def copy_stream(source: Stream, target: Stream, name: str) -> Copied:
    """Make `target` equal to `source` as it is now, or raise Differs and change nothing."""
    info = source.head()
    as_json = is_json(info.content_type)
    _create(target, info)
    reader, existing = source.read(), target.read()
    messages = (event.value for event in reader.events(raw=True))
    copied = (event.value for event in existing.events(raw=True))
    rest = _messages_after(messages, copied) if as_json else _bytes_after(messages, copied)
    # What is not JSON keeps its boundaries where the source shows them: one message an append.
    options: dict[str, Any] = {} if as_json else {"batch_items_max": 1, "linger_ms": 0}
    first = next(rest, None)
    appended = 0
    if first is not None and existing.closed:
        raise Differs("it is closed, and the source has more messages")
    if first is None and (existing.closed or not reader.closed):
        return Copied(name, info.content_type, 0, existing.closed)
    with target.producer(PRODUCER_ID, **options) as producer:
        while first is not None:
            producer.append(first)
            appended += len(first)
            first = next(rest, None)
        if reader.closed:
            producer.close()
    return Copied(name, info.content_type, appended, reader.closed)


def _create(target: Stream, info: StreamInfo) -> None:
    """An earlier copy may be closed by now, so that an equal PUT would be refused."""
    try:
        existing = target.head()
    except StreamNotFound:
        target.create(info.content_type, ttl_secs=info.ttl_secs, expires_at=info.expires_at)
        return
    for what in ("content_type", "ttl_secs", "expires_at"):
        ours, theirs = getattr(existing, what), getattr(info, what)
        if ours != theirs:
            raise Differs(f"its {what} is {ours}, that of the source {theirs}")


def _messages_after(source: Iterator[bytes], copied: Iterator[bytes]) -> Iterator[bytes]:
    """The messages of the source after those that were copied before."""
    for number, message in enumerate(copied, 1):
        if next(source, None) != message:
            raise Differs(f"message {number} differs")
    yield from source


def _bytes_after(source: Iterator[bytes], copied: Iterator[bytes]) -> Iterator[bytes]:
    """The same where only bytes count; the first may be the rest of a message."""
    pending, position = b"", 0
    for piece in copied:
        while piece:
            pending = pending or next(source, b"")
            size = min(len(piece), len(pending))
            if size == 0 or piece[:size] != pending[:size]:
                raise Differs(f"the bytes from {position} on differ")
            piece, pending, position = piece[size:], pending[size:], position + size
    if pending:
        yield pending
    yield from source
