"""The blocking client: `Client`, `Stream` and `Reader`.

Thin: what happens is in `client.calls` and `client.reading`; `client.aio` is the same, awaited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, TypeVar

from headrace.client import calls
from headrace.client.calls import Appended, Created, ProducerStamp, StreamInfo, Target
from headrace.client.driver import Driver, Line
from headrace.client.exchange import Steps
from headrace.client.locate import locate
from headrace.client.reading import Chunk, Live, Reading
from headrace.client.settings import Fields, Settings
from headrace.client.views import Batch, Event, EventView, TextView, batch_of
from headrace.protocol.headers import DEFAULT_CONTENT_TYPE
from headrace.protocol.offsets import BEGINNING

T = TypeVar("T")


class Client:
    """A pool of connections to one server. Safe to share between threads.

    `Client("http://localhost:4437", token=...)`; every field of `Settings` is a keyword.
    """

    def __init__(self, url: str | None = None, *, settings: Settings | None = None, **more: Any):
        self.settings = settings if settings is not None else Settings()
        if url is not None:
            more["url"] = url
        self.settings = self.settings.but(**more)
        self._driver = Driver(self.settings)

    def stream(
        self, name: str, *, headers: Fields | None = None, params: Fields | None = None
    ) -> Stream:
        """A stream by name, by absolute path (`/bucket/stream`) or by URL; asks nothing yet."""
        target = Target(locate(self.settings, name), self.settings, headers or {}, params or {})
        return Stream(self._driver, target)

    def close(self) -> None:
        self._driver.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Stream:
    """One stream of the server."""

    def __init__(self, driver: Driver, target: Target, content_type: str | None = None) -> None:
        self._driver = driver
        self._target = target
        self._content_type = content_type

    @property
    def url(self) -> str:
        return self._target.url

    def _run(self, steps: Steps[T]) -> T:
        return self._driver.run(steps)

    def create(
        self,
        content_type: str = DEFAULT_CONTENT_TYPE,
        *,
        ttl_secs: int | None = None,
        expires_at: str | None = None,
        closed: bool = False,
        data: bytes | str | None = None,
    ) -> Created:
        """Create it, or confirm that an equal one is there."""
        created = self._run(
            calls.create(
                self._target,
                content_type,
                ttl_secs=ttl_secs,
                expires_at=expires_at,
                closed=closed,
                body=None if data is None else calls.encode_data(data),
            )
        )
        self._content_type = created.content_type
        return created

    def head(self) -> StreamInfo:
        info = self._run(calls.head(self._target))
        self._content_type = info.content_type
        return info

    @property
    def content_type(self) -> str:
        """What the stream holds; asked for once."""
        return self._content_type or self.head().content_type

    def append(
        self,
        data: bytes | str,
        *,
        producer: ProducerStamp | None = None,
        seq: str | None = None,
        close: bool = False,
        repeat_in_doubt: bool = False,
    ) -> Appended:
        """Append `data` as it is. On a JSON stream it is JSON text, and an array is its elements.

        Without a producer stamp a lost answer raises `Indeterminate`; `repeat_in_doubt` sends it
        again instead, and may append it twice.
        """
        return self._run(
            calls.append(
                self._target,
                calls.encode_data(data),
                self.content_type,
                producer=producer,
                seq=seq,
                close=close,
                repeat_in_doubt=repeat_in_doubt,
            )
        )

    def append_json(self, *values: Any, **options: Any) -> Appended:
        """Append each value as one JSON message; the options are those of `append`."""
        return self.append(calls.encode_json(values), **options)

    def close(
        self, data: bytes | str | None = None, *, producer: ProducerStamp | None = None
    ) -> Appended:
        """Close the stream for good, with a last append if `data` is given."""
        if data is not None:
            return self.append(data, producer=producer, close=True)
        return self._run(calls.append(self._target, None, None, producer=producer, close=True))

    def delete(self) -> bool:
        """Delete it; False if it turned out to be gone after an answer was lost."""
        return self._run(calls.delete(self._target))

    def fork(
        self,
        source: str,
        *,
        offset: str | None = None,
        sub_offset: int | None = None,
        content_type: str = "",
        ttl_secs: int | None = None,
        expires_at: str | None = None,
    ) -> Created:
        """Create this stream as a fork of `source` (a name, a path or a URL of this server)."""
        path = locate(self._target.settings, source, path_only=True)
        created = self._run(
            calls.create(
                self._target,
                content_type,
                ttl_secs=ttl_secs,
                expires_at=expires_at,
                fork=calls.fork_headers(path, offset, sub_offset),
            )
        )
        self._content_type = created.content_type
        return created

    def read(
        self,
        offset: str = BEGINNING,
        *,
        live: Live = False,
        skip: int = 0,
        headers: Fields | None = None,
        params: Fields | None = None,
    ) -> Reader:
        """Read from `offset`: what is there, or with `live` also what is to come.

        The reader is a one-time iterable of chunks, with views as text, JSON and events; `skip`
        leaves out that many messages of the view `events`.
        """
        target = self._target.with_fields(headers, params)
        return Reader(self._driver, target, offset, live, skip)

    def read_bytes(self, offset: str = BEGINNING) -> bytes:
        """Everything from `offset` to the tail."""
        return b"".join(chunk.data for chunk in self.read(offset))

    def read_text(self, offset: str = BEGINNING) -> str:
        return self.read_bytes(offset).decode("utf-8", "replace")

    def read_json(self, offset: str = BEGINNING) -> list[Any]:
        return list(self.read(offset).json())


class Reader:
    """A place in a stream that moves as it is iterated; one iteration per reader.

    `close`, from any thread, ends a live read at once. Used as a context manager it does so.
    """

    def __init__(
        self, driver: Driver, target: Target, offset: str, live: Live, skip: int = 0
    ) -> None:
        self._driver = driver
        self._reading = Reading(target, offset, live)
        self._line = Line() if live else None
        self._url = target.url
        self._skip = skip

    @property
    def offset(self) -> str:
        """Where the next read goes on."""
        return self._reading.offset

    @property
    def up_to_date(self) -> bool:
        return self._reading.up_to_date

    @property
    def closed(self) -> bool:
        """Whether the stream is closed and everything of it was read."""
        return self._reading.closed

    @property
    def cursor(self) -> str | None:
        return self._reading.cursor

    @property
    def content_type(self) -> str | None:
        return self._reading.content_type

    def __iter__(self) -> Iterator[Chunk]:
        return self._driver.iterate(self._reading.flow(), self._line)

    def bytes(self) -> Iterator[bytes]:
        return (chunk.data for chunk in self if chunk.data)

    def text(self) -> Iterator[str]:
        return (text for text in map(TextView().feed, self) if text)

    def batches(self) -> Iterator[Batch[Any]]:
        """JSON messages as they came together; an empty batch says that it has caught up."""
        return (batch_of(self._url, chunk) for chunk in self)

    def json(self) -> Iterator[Any]:
        return (item for batch in self.batches() for item in batch.items)

    def events(self) -> Iterator[Event[Any]]:
        """Messages one by one with their place; see `Event`."""
        self._reading.typed = True
        feed: Callable[[Chunk], Iterator[Event[Any]]] = EventView(self._url, self._skip).feed
        return (event for chunk in self for event in feed(chunk))

    def close(self) -> None:
        if self._line is not None:
            self._line.stop()

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
