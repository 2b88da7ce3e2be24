"""The idempotent producer, blocking: gathers messages and sends them from threads of its own.

Which batch goes when, and under which number, is decided in `client.send_queue`.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Any

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
from headrace.client.sync_driver import CancelHandle, Driver
from headrace.client.transport import Stopped
from headrace.errors import HeadraceError, StreamClosed


class Producer:
    """Appends that reach the stream exactly once and in order, many at a time.

    `append` returns at once, or waits while too much is under way. `flush`, `detach` and `close`
    return when everything is in the stream and raise if anything is not; so does leaving it as a
    context manager. Safe to share between threads.
    """

    def __init__(
        self, driver: Driver, handle: StreamOps, producer_id: str, options: ProducerOptions
    ) -> None:
        self._driver = driver
        self._handle = handle
        self._queue = SendQueue(producer_id, options, int(time.time() * 1000))
        self._lock = threading.RLock()
        self._change = threading.Condition(self._lock)
        self._threads: list[threading.Thread] = []
        self._line = CancelHandle()
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

    def append(self, data: bytes | str) -> None:
        """Take one message: bytes or text as they are; one JSON text for a JSON stream."""
        message = encode_data(data)
        self._queue.has_texts = True
        self._take(message)

    def append_json(self, value: Any) -> None:
        """Take one value as one message."""
        message = encode_value(value)
        self._queue.has_values = True
        self._take(message)

    def _take(self, message: bytes) -> None:
        queue = self._queue
        # The bare lock: a condition takes and leaves it in Python, which costs as much as the rest.
        with self._lock:
            self._check()
            while not queue.has_room(len(message)):
                self._change.wait()
                self._check()
            if queue.add(message, time.monotonic()):
                self._wake()

    def flush(self, timeout_secs: float | None = None) -> None:
        """Send what is gathered and wait until everything is in the stream."""
        with self._change:
            self._await(self._queue.seal(), timeout_secs)

    def _await(self, last: SendBatch | None, timeout_secs: float | None = None) -> Appended | None:
        """Wait until this batch, and so everything before it, is in the stream."""
        self._raise_failure()
        if last is None:
            return None
        self._wake()
        queue = self._queue
        self._change.wait_for(lambda: queue.is_through(last) or queue.error, timeout_secs)
        if not queue.is_through(last):
            self._raise_failure()
            raise TimeoutError("not everything was accepted in time")
        return last.result

    def detach(self) -> None:
        """Flush, and end this producer; the stream stays open."""
        try:
            if not self._detached:
                self.flush()
        finally:
            self._stop()

    def close(self, data: bytes | str | None = None) -> Appended:
        """Flush, close the stream (with a last message), and end this producer."""
        with self._change:
            if self._closed is not None:
                return self._closed
            self._check()
            if data is not None:
                self._queue.has_texts = True
                self._queue.add(encode_data(data), time.monotonic())
            last = self._queue.seal(closes=True)
        try:
            with self._change:
                self._closed = self._await(last)
        finally:
            self._stop()
        assert self._closed is not None, "a flushed batch has an answer"
        return self._closed

    def unaccepted(self) -> list[bytes]:
        """After a failure: the messages that are not known to be in the stream, in order."""
        with self._change:
            return self._queue.unaccepted()

    # -- below, the lock is held --------------------------------------------------------------

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
        if wanted and len(self._threads) < self._queue.options.in_flight_max:
            name = f"producer-{self._queue.id}-{len(self._threads)}"
            thread = threading.Thread(target=self._send, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        self._change.notify_all()

    def _next(self) -> SendBatch | None:
        """The next batch, waited for; None when this producer has ended."""
        while True:
            batch = self._queue.take(time.monotonic())
            if batch is not None:
                return batch
            if self._detached or self._queue.error is not None:
                return None
            due_secs = None
            if self._queue.is_gathering:
                due_secs = max(self._queue.due_in(time.monotonic()), 0.001)
            self._idle += 1
            self._change.wait(due_secs)
            self._idle -= 1

    # -- the threads --------------------------------------------------------------------------

    def _send(self) -> None:
        while True:
            with self._change:
                batch = self._next()
            if batch is None:
                return
            try:
                steps = send_batch(self._queue, batch, self._handle, self._change)
                result = self._driver.run(steps, self._line)
            except HeadraceError as error:
                self._settle(batch, error=error)
            except Stopped:
                self._settle(batch, error=ProducerBroken("it was left with an error"))
            except Exception as fault:
                # For example a token function that raises: `append` and `flush` must raise it.
                self._settle(batch, error=ProducerBroken(repr(fault)))
            else:
                self._settle(batch, result)

    def _settle(
        self, batch: SendBatch, result: Appended | None = None, error: HeadraceError | None = None
    ) -> None:
        with self._change:
            if result is not None:
                self._queue.accepted(batch, result)
            elif error is not None:
                self._queue.failed(batch, error)
            self._wake()

    def _stop(self) -> None:
        with self._change:
            self._detached = True
            self._change.notify_all()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None and self._closed is None:
            self.detach()
        else:
            self._abandon()

    def _abandon(self) -> None:
        """Leave at once: an unreachable server must not delay an exception that is propagating."""
        self._line.stop()
        with self._change:
            self._detached = True
            self._change.notify_all()
