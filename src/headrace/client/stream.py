"""The blocking client: `Client`, `Stream` and `Reader`.

Thin: what happens is in `client.handle` and `client.reading`; `client.aio` is the same, awaited.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any, TypeVar, Unpack
from uuid import uuid4

from headrace.client import resources
from headrace.client.admin import Bucket, Subscription
from headrace.client.bootstrap import Bootstrap, bootstrap
from headrace.client.calls import Appended, Created, ProducerStamp, StreamInfo, Target
from headrace.client.driver import Driver, Line
from headrace.client.exchange import Steps
from headrace.client.handle import (
    AppendOptions,
    CreateOptions,
    ForkOptions,
    Handle,
    Place,
    ReadOptions,
)
from headrace.client.locate import bucket_url, locate, subscription_url
from headrace.client.materialise import StateView
from headrace.client.outbox import ProducerKeywords, ProducerOptions
from headrace.client.producer import Producer
from headrace.client.reading import Chunk, Live, Reading
from headrace.client.resources import RegisteredStream, Snapshot
from headrace.client.settings import ClientOptions, Fields, Settings
from headrace.client.state import State
from headrace.client.views import Batch, Event, EventView, TextView, batch_of
from headrace.protocol.headers import DEFAULT_CONTENT_TYPE, JSON
from headrace.protocol.names import REGISTRY_NAME
from headrace.protocol.offsets import BEGINNING

T = TypeVar("T")


class Client:
    """A pool of connections to one server. Safe to share between threads.

    `Client("http://localhost:4437", token=...)`; every field of `Settings` is a keyword.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        settings: Settings | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        self.settings = Settings.of(url, settings, options)
        self._driver = Driver(self.settings)

    def stream(
        self,
        name: str,
        *,
        content_type: str | None = None,
        headers: Fields | None = None,
        params: Fields | None = None,
    ) -> Stream:
        """A stream by name, by absolute path (`/bucket/stream`) or by URL; asks nothing yet.

        An append that does not know the content type asks for it first.
        """
        target = Target(locate(self.settings, name), self.settings, headers or {}, params or {})
        return Stream(self._driver, Handle(target, content_type))

    def streams(self, prefix: str = "") -> Iterator[RegisteredStream]:
        """The streams outside of buckets, sorted by name, as the server's registry lists them."""
        state = self.stream(REGISTRY_NAME).state().catch_up()
        return iter(resources.registered(state, prefix))

    def bucket(self, bucket_id: str) -> Bucket:
        return Bucket(self._driver, Target(bucket_url(self.settings, bucket_id), self.settings))

    def subscription(self, subscription_id: str) -> Subscription:
        url = subscription_url(self.settings, subscription_id)
        return Subscription(self._driver, Target(url, self.settings))

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

    def __init__(self, driver: Driver, handle: Handle) -> None:
        self._driver = driver
        self._handle = handle

    @property
    def url(self) -> str:
        return self._handle.target.url

    @property
    def content_type(self) -> str:
        """What the stream holds; asked for once."""
        return self._run(self._handle.learn_type())

    def _run(self, steps: Steps[T]) -> T:
        return self._driver.run(steps)

    def create(self, content_type: str = JSON, **options: Unpack[CreateOptions]) -> Created:
        """Create it, or confirm that an equal one is there."""
        return self._run(self._handle.create(content_type, **options))

    def fork(self, source: str, **options: Unpack[ForkOptions]) -> Created:
        """Create this stream as a fork of `source` (a name, a path or a URL of this server)."""
        return self._run(self._handle.fork(source, **options))

    def head(self) -> StreamInfo:
        return self._run(self._handle.head())

    def append(self, data: bytes | str, **options: Unpack[AppendOptions]) -> Appended:
        """Append `data` as it is. On a JSON stream it is JSON text, and an array is its elements.

        Without a producer stamp a lost answer raises `Indeterminate`.
        """
        return self._run(self._handle.append(data, **options))

    def append_json(self, *values: Any, **options: Unpack[AppendOptions]) -> Appended:
        """Append each value as one JSON message."""
        return self._run(self._handle.append_json(values, **options))

    def close(
        self, data: bytes | str | None = None, *, producer: ProducerStamp | None = None
    ) -> Appended:
        """Close the stream for good, with a last append if `data` is given."""
        return self._run(self._handle.close(data, producer))

    def delete(self) -> bool:
        """Delete it; False if it turned out to be gone after an answer was lost."""
        return self._run(self._handle.delete())

    def producer(
        self, producer_id: str | None = None, **options: Unpack[ProducerKeywords]
    ) -> Producer:
        """An idempotent producer; the options are the fields of `ProducerOptions`.

        Without an id it gets one of its own, and nobody fences it.
        """
        chosen = producer_id if producer_id is not None else str(uuid4())
        return Producer(self._driver, self._handle, chosen, ProducerOptions(**options))

    def publish_snapshot(
        self, offset: str, data: bytes, content_type: str = DEFAULT_CONTENT_TYPE
    ) -> None:
        """Let `data` stand for everything before `offset`, which the server may then let go."""
        self._run(resources.publish_snapshot(self._handle.target, offset, data, content_type))

    def snapshot(self, offset: str | None = None) -> Snapshot:
        """The snapshot at `offset`, or the latest."""
        return self._run(resources.read_snapshot(self._handle.target, offset))

    def delete_snapshot(self, offset: str) -> None:
        self._run(resources.delete_snapshot(self._handle.target, offset))

    def bootstrap(self) -> Bootstrap:
        """The latest snapshot, the messages since, and the offset to follow from."""
        return self._run(bootstrap(self._handle.target))

    def state(self, state: State | None = None, offset: str = BEGINNING) -> StateView:
        """This stream's change messages as a state; see docs/state.md."""
        return StateView(self._driver, self._handle.target, state, offset)

    def read(
        self, offset: str = BEGINNING, *, live: Live = False, **options: Unpack[ReadOptions]
    ) -> Reader:
        """Read from `offset`: what is there, or with `live` also what is to come.

        The reader is a one-time iterable of chunks, with views as text, JSON and events.
        """
        return Reader(self._driver, self._handle.reading(offset, live, options))

    def read_bytes(self, offset: str = BEGINNING) -> bytes:
        """Everything from `offset` to the tail."""
        return b"".join(self.read(offset).bytes())

    def read_text(self, offset: str = BEGINNING) -> str:
        return self.read_bytes(offset).decode("utf-8", "replace")

    def read_json(self, offset: str = BEGINNING) -> list[Any]:
        values: list[Any] = []
        for batch in self.read(offset).batches():
            values += batch.items
        return values


class Reader(Place):
    """A place in a stream that moves as it is iterated; one iteration per reader.

    `close`, from any thread, ends a live read at once. Used as a context manager it does so.
    """

    def __init__(self, driver: Driver, reading: Reading) -> None:
        super().__init__(reading)
        self._driver = driver
        self._line = Line() if reading.is_live else None

    def __iter__(self) -> Iterator[Chunk]:
        return self._driver.iterate(self._reading.flow(), self._line)

    def bytes(self) -> Iterator[bytes]:
        return (chunk.data for chunk in self if chunk.data)

    def text(self) -> Iterator[str]:
        return (text for text in map(TextView().feed, self) if text)

    def batches(self) -> Iterator[Batch[Any]]:
        """JSON messages as they came together; an empty batch says that it has caught up."""
        return (batch_of(self._reading.url, chunk) for chunk in self)

    def json(self) -> Iterator[Any]:
        for batch in self.batches():
            yield from batch.items

    def events(self) -> Iterator[Event[Any]]:
        """Messages one by one with their place; see `Event`."""
        view = EventView.of(self._reading)
        return (event for chunk in self for event in view.feed(chunk))

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
