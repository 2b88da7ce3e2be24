"""The idempotent producer, awaited: `client.sync_producer` with tasks in place of threads."""

from __future__ import annotations

import asyncio
import time
from contextlib import nullcontext
from types import TracebackType
from typing import Any

from headrace.client.async_driver import AsyncDriver
from headrace.client.encoding import encode_data, encode_value
from headrace.client.requests import Appended
from headrace.client.send_queue import (
    ProducerBroken,
    ProducerOptions,
    SendBatch,
    SendQueue,
    send_batch,
)
from headrace.client.stream_ops import StreamOps
from headrace.errors import HeadraceError, StreamClosed


class AsyncProducer:
    """Appends that reach the stream exactly once and in order, many at a time; see `Producer`.

    `append` waits only while too much is under way.
    """

    def __init__(
        self, driver: AsyncDriver, handle: StreamOps, producer_id: str, options: ProducerOptions
    ) -> None:
        self._driver = driver
        self._handle = handle
        self._queue = SendQueue(producer_id, options, int(time.time() * 1000))
        self._change = asyncio.Condition()
        self._senders: list[asyncio.Task[None]] = []
        self._idle = 0
        self._detached = False
        self._closed: Appended | None = None

    @property
    def id(self) -> str:
        return self._queue.id

    @property
    def epoch(self) -> int:
        return self._queue.epoch

    @property
    def unaccepted_bytes(self) -> int:
        """Bytes given to `append` that are not known to be in the stream yet."""
        return self._queue.unaccepted_bytes

    async def append(self, data: bytes | str) -> None:
        """Take one message: bytes or text as they are; one JSON text for a JSON stream."""
        message = encode_data(data)
        self._queue.has_texts = True
        await self._take(message)

    async def append_json(self, value: Any) -> None:
        """Take one value as one message."""
        message = encode_value(value)
        self._queue.has_values = True
        await self._take(message)

    async def _take(self, message: bytes) -> None:
        self._check()
        while not self._queue.has_room(len(message)):
            async with self._change:
                await self._change.wait()
            self._check()
        if self._queue.add(message, time.monotonic()):
            async with self._change:
                self._wake()
            if not self._queue.is_gathering:
                # A batch is full: let it go now, rather than when the buffer is.
                await asyncio.sleep(0)

    async def flush(self) -> None:
        """Send what is gathered and wait until everything is in the stream."""
        await self._await(self._queue.seal())

    async def detach(self) -> None:
        """Flush, and end this producer; the stream stays open."""
        try:
            if not self._detached:
                await self.flush()
        finally:
            await self._stop()

    async def close(self, data: bytes | str | None = None) -> Appended:
        """Flush, close the stream (with a last message), and end this producer."""
        if self._closed is not None:
            return self._closed
        self._check()
        if data is not None:
            self._queue.has_texts = True
            self._queue.add(encode_data(data), time.monotonic())
        try:
            self._closed = await self._await(self._queue.seal(closes=True))
        finally:
            await self._stop()
        assert self._closed is not None, "a flushed batch has an answer"
        return self._closed

    def unaccepted(self) -> list[bytes]:
        """After a failure: the messages that are not known to be in the stream, in order."""
        return self._queue.unaccepted()

    async def _await(self, last: SendBatch | None) -> Appended | None:
        """Wait until this batch, and so everything before it, is in the stream."""
        self._raise_failure()
        if last is None:
            return None
        async with self._change:
            self._wake()
            queue = self._queue
            await self._change.wait_for(lambda: queue.is_through(last) or queue.error)
        if not queue.is_through(last):
            self._raise_failure()
        return last.result

    def _check(self) -> None:
        if self._queue.error is not None:
            raise self._queue.error
        if self._closed is not None:
            raise StreamClosed(self._handle.target.url, self._closed.next_offset or "")
        if self._detached:
            raise RuntimeError("This producer is detached.")

    def _raise_failure(self) -> None:
        if self._queue.error is not None:
            raise self._queue.error

    def _wake(self) -> None:
        wanted = self._idle < self._queue.waiting and self._queue.error is None
        if wanted and len(self._senders) < self._queue.options.in_flight_max:
            self._senders.append(asyncio.create_task(self._send()))
        self._change.notify_all()

    async def _next(self) -> SendBatch | None:
        """The next batch, waited for; None when this producer has ended."""
        while True:
            batch = self._queue.take(time.monotonic())
            if batch is not None:
                return batch
            if self._detached or self._queue.error is not None:
                return None
            await self._wait()

    async def _wait(self) -> None:
        """Until something changes, or what is gathered is due."""
        due_secs = None
        if self._queue.is_gathering:
            due_secs = max(self._queue.due_in(time.monotonic()), 0.001)
        self._idle += 1
        try:
            await asyncio.wait_for(self._change.wait(), due_secs)
        except TimeoutError:
            pass
        finally:
            self._idle -= 1

    async def _send(self) -> None:
        while True:
            async with self._change:
                batch = await self._next()
            if batch is None:
                return
            try:
                steps = send_batch(self._queue, batch, self._handle, nullcontext())
                self._queue.accepted(batch, await self._driver.run(steps))
            except HeadraceError as error:
                self._queue.failed(batch, error)
            except Exception as fault:
                # For example a token function that raises: `append` and `flush` must raise it.
                self._queue.failed(batch, ProducerBroken(repr(fault)))
            async with self._change:
                self._wake()

    async def _stop(self) -> None:
        self._detached = True
        for sender in self._senders:
            sender.cancel()
        await asyncio.gather(*self._senders, return_exceptions=True)

    async def __aenter__(self) -> AsyncProducer:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None and self._closed is None:
            await self.detach()
        else:
            await self._stop()
