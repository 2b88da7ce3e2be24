"""The async client: `AsyncClient`, `AsyncStream` and `AsyncReader`.

The logic is in `client.stream_ops` and `client.stream_reading`.

`client.sync_client` is generated from this module, so edit here and run
`python -m tools.generate_sync_client`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, TypeVar, Unpack
from uuid import uuid4

from headrace.client import bucket_ops, range_reads, subscriptions
from headrace.client.async_admin import AsyncBucket, AsyncSubscription
from headrace.client.async_driver import AsyncCancelHandle, AsyncDriver, AsyncItems
from headrace.client.async_producer import AsyncProducer
from headrace.client.async_state_view import AsyncStateView
from headrace.client.bootstrap import Bootstrap, bootstrap
from headrace.client.bucket_ops import BucketInfo, RegisteredStream, Snapshot
from headrace.client.chunk_views import Batch, Event, EventView, TextView, batch_of
from headrace.client.effects import Steps
from headrace.client.range_reads import Tail
from headrace.client.requests import Appended, Created, ProducerStamp, StreamInfo, Target
from headrace.client.send_queue import ProducerKeywords, ProducerOptions
from headrace.client.settings import ClientOptions, Fields, Settings
from headrace.client.state import State
from headrace.client.stream_ops import (
    AppendOptions,
    CreateOptions,
    ForkOptions,
    ReaderPosition,
    ReadOptions,
    StreamOps,
)
from headrace.client.stream_reading import Chunk, Live, Reading
from headrace.client.subscriptions import SubscriptionEntry
from headrace.client.urls import bucket_url, control_url, locate
from headrace.protocol.headers import DEFAULT_CONTENT_TYPE, JSON
from headrace.protocol.names import REGISTRY_NAME
from headrace.protocol.offsets import BEGINNING

T = TypeVar("T")


class AsyncClient:
    """A pool of connections to one server. Use it on one event loop.

    `AsyncClient("http://localhost:4437", token=...)`; every field of `Settings` is a keyword.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        settings: Settings | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        self.settings = Settings.of(url, settings, options)
        self._driver = AsyncDriver(self.settings)

    def stream(
        self,
        name: str,
        *,
        content_type: str | None = None,
        headers: Fields | None = None,
        params: Fields | None = None,
    ) -> AsyncStream:
        """A stream by name, by absolute path (`/bucket/stream`) or by URL. Makes no request.

        An append that does not know the content type asks for it first.
        """
        target = Target(locate(self.settings, name), self.settings, headers or {}, params or {})
        return AsyncStream(self._driver, StreamOps(target, content_type))

    async def streams(self, prefix: str = "") -> AsyncIterator[RegisteredStream]:
        """The streams outside of buckets, sorted by name, as the server's registry lists them."""
        state = await self.stream(REGISTRY_NAME).state().catch_up()
        for stream in bucket_ops.registered(state, prefix):
            yield stream

    async def tails(self, *names: str) -> list[Tail]:
        """Where each stream begins and ends; a bucket's stream is `/bucket/stream`."""
        target = Target(control_url(self.settings, "tails"), self.settings)
        queries = [{"stream": name} for name in names]
        return await self._driver.run(range_reads.tails(target, queries))

    async def buckets(self) -> list[BucketInfo]:
        """The buckets of the server, sorted by id; a Headrace server lists at most 10,000."""
        target = Target(control_url(self.settings, "buckets"), self.settings)
        return await self._driver.run(bucket_ops.list_buckets(target))

    def subscriptions(self, prefix: str = "") -> AsyncIterator[SubscriptionEntry]:
        """The subscriptions, sorted by id."""
        target = Target(control_url(self.settings, "subscriptions"), self.settings)
        return self._driver.iterate(subscriptions.list_all(target, prefix))

    def bucket(self, bucket_id: str) -> AsyncBucket:
        return AsyncBucket(
            self._driver, Target(bucket_url(self.settings, bucket_id), self.settings)
        )

    def subscription(self, subscription_id: str) -> AsyncSubscription:
        url = control_url(self.settings, "subscriptions", subscription_id)
        return AsyncSubscription(self._driver, Target(url, self.settings))

    async def close(self) -> None:
        await self._driver.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class AsyncStream:
    """One stream of the server."""

    def __init__(self, driver: AsyncDriver, handle: StreamOps) -> None:
        self._driver = driver
        self._handle = handle

    @property
    def url(self) -> str:
        return self._handle.target.url

    @property
    async def content_type(self) -> str:
        """What the stream holds; asked for once."""
        return await self._run(self._handle.learn_type())

    async def _run(self, steps: Steps[T]) -> T:
        return await self._driver.run(steps)

    async def create(self, content_type: str = JSON, **options: Unpack[CreateOptions]) -> Created:
        """Create it, or confirm that an equal one is there."""
        return await self._run(self._handle.create(content_type, **options))

    async def fork(self, source: str, **options: Unpack[ForkOptions]) -> Created:
        """Create this stream as a fork of `source` (a name, a path or a URL of this server)."""
        return await self._run(self._handle.fork(source, **options))

    async def head(self) -> StreamInfo:
        return await self._run(self._handle.head())

    async def offset_of_last(self, count: int) -> str:
        """The offset to read the last `count` messages from; asks a Headrace server only."""
        return await self._run(self._handle.offset_of_last(count))

    async def trim(self, *, before: str | None = None, keep_messages: int | None = None) -> str:
        """Delete the messages before an offset (`now`: all), or all but the last few.

        Returns where the stream begins now. Readers before that get OffsetTrimmed; a fork keeps
        what it shares. Asks a Headrace server only.
        """
        return await self._run(self._handle.trim(before, keep_messages))

    async def append(self, data: bytes | str, **options: Unpack[AppendOptions]) -> Appended:
        """Append `data` as it is. On a JSON stream it is JSON text, and an array is its elements.

        Without a producer stamp a lost answer raises `Indeterminate`.
        """
        return await self._run(self._handle.append(data, **options))

    async def append_json(self, *values: Any, **options: Unpack[AppendOptions]) -> Appended:
        """Append each value as one JSON message."""
        return await self._run(self._handle.append_json(values, **options))

    async def close(
        self, data: bytes | str | None = None, *, producer: ProducerStamp | None = None
    ) -> Appended:
        """Close the stream for good, with a last append if `data` is given."""
        return await self._run(self._handle.close(data, producer))

    async def delete(self) -> bool:
        """Delete it; False if it turned out to be gone after an answer was lost."""
        return await self._run(self._handle.delete())

    def producer(
        self, producer_id: str | None = None, **options: Unpack[ProducerKeywords]
    ) -> AsyncProducer:
        """An idempotent producer; the options are the fields of `ProducerOptions`.

        Without an id it gets a unique one, so no other producer fences it.
        """
        chosen = producer_id if producer_id is not None else str(uuid4())
        return AsyncProducer(self._driver, self._handle, chosen, ProducerOptions(**options))

    async def publish_snapshot(
        self, offset: str, data: bytes, content_type: str = DEFAULT_CONTENT_TYPE
    ) -> None:
        """Replace everything before `offset` by `data`; the server may then drop the messages."""
        await self._run(
            bucket_ops.publish_snapshot(self._handle.target, offset, data, content_type)
        )

    async def snapshot(self, offset: str | None = None) -> Snapshot:
        """The snapshot at `offset`, or the latest."""
        return await self._run(bucket_ops.read_snapshot(self._handle.target, offset))

    async def delete_snapshot(self, offset: str) -> None:
        await self._run(bucket_ops.delete_snapshot(self._handle.target, offset))

    async def bootstrap(self) -> Bootstrap:
        """The latest snapshot, the messages since, and the offset to follow from."""
        return await self._run(bootstrap(self._handle.target))

    def state(self, state: State | None = None, offset: str = BEGINNING) -> AsyncStateView:
        """This stream's change messages as a state; see docs/state.md."""
        return AsyncStateView(self._driver, self._handle.target, state, offset)

    def read(
        self, offset: str = BEGINNING, *, live: Live = False, **options: Unpack[ReadOptions]
    ) -> AsyncReader:
        """Read from `offset`: what is there, or with `live` also what is to come.

        The reader is a one-time iterable of chunks, with views as text, JSON and events.
        """
        return AsyncReader(self._driver, self._handle.reading(offset, live, options))

    async def read_bytes(self, offset: str = BEGINNING) -> bytes:
        """Everything from `offset` to the tail."""
        collected = bytearray()
        async for data in self.read(offset).bytes():
            collected += data
        return bytes(collected)

    async def read_text(self, offset: str = BEGINNING) -> str:
        return (await self.read_bytes(offset)).decode("utf-8", "replace")

    async def read_json(self, offset: str = BEGINNING) -> list[Any]:
        values: list[Any] = []
        async for batch in self.read(offset).batches():
            values += batch.items
        return values


class AsyncReader(ReaderPosition):
    """A place in a stream that moves as it is iterated; one iteration per reader.

    `aclose`, from any task, ends a live read at once. Used as a context manager it does so.
    Cancelling the task that waits does the same.
    """

    def __init__(self, driver: AsyncDriver, reading: Reading) -> None:
        super().__init__(reading)
        self._driver = driver
        self._line = AsyncCancelHandle()
        self._chunks: AsyncItems[Chunk] | None = None

    def __aiter__(self) -> AsyncIterator[Chunk]:
        reading = self._reading
        self._chunks = self._driver.iterate(reading.flow(), self._line, live=reading.is_live)
        return self._chunks

    async def bytes(self) -> AsyncIterator[bytes]:
        async for chunk in self:
            if chunk.data:
                yield chunk.data

    async def text(self) -> AsyncIterator[str]:
        view = TextView()
        async for chunk in self:
            if text := view.feed(chunk):
                yield text

    async def batches(self) -> AsyncIterator[Batch[Any]]:
        """JSON messages as they came together; an empty batch says that it has caught up."""
        async for chunk in self:
            yield batch_of(self._reading.url, chunk)

    async def json(self) -> AsyncIterator[Any]:
        async for batch in self.batches():
            for item in batch.items:
                yield item

    async def events(self, *, raw: bool = False) -> AsyncIterator[Event[Any]]:
        """Messages one by one with their place; see `Event`. With `raw`, as the bytes sent."""
        view = EventView.of(self._reading, raw=raw)
        async for chunk in self:
            for event in view.feed(chunk):
                yield event

    async def aclose(self) -> None:
        """End the iteration and release its connection."""
        await self._line.end(self._chunks)

    async def __aenter__(self) -> AsyncReader:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()
