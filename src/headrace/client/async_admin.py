"""Buckets and subscriptions of the async client.

`client.sync_admin` is generated from this module, so edit here and run
`python -m tools.generate_sync_client`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Unpack

from headrace.client import bucket_ops, subscriptions
from headrace.client.async_driver import AsyncDriver
from headrace.client.bucket_ops import BucketInfo, StreamEntry
from headrace.client.requests import Target
from headrace.client.subscriptions import SubscriptionConfig, Wake


class AsyncBucket:
    """A namespace of streams; `client.stream("/bucket/stream")` is a stream in it."""

    def __init__(self, driver: AsyncDriver, target: Target) -> None:
        self._driver = driver
        self._target = target

    async def create(self) -> None:
        """Create it; raises `BucketExists` if it is there."""
        await self._driver.run(bucket_ops.create_bucket(self._target))

    async def info(self) -> BucketInfo:
        return await self._driver.run(bucket_ops.bucket_info(self._target))

    async def delete(self) -> None:
        """Delete it; it must be empty."""
        await self._driver.run(bucket_ops.delete_bucket(self._target))

    def streams(self, prefix: str = "") -> AsyncIterator[StreamEntry]:
        """Its streams, sorted by id."""
        return self._driver.iterate(bucket_ops.list_streams(self._target, prefix))


class AsyncSubscription:
    """Wakes a worker when streams have something new; see docs/protocol.md."""

    def __init__(self, driver: AsyncDriver, target: Target) -> None:
        self._driver = driver
        self._target = target

    async def create(self, **config: Unpack[SubscriptionConfig]) -> dict[str, Any]:
        """`type`, `pattern` or `streams`, and `webhook={"url": ...}` or `wake_stream`."""
        return await self._driver.run(subscriptions.put(self._target, config))

    async def info(self) -> dict[str, Any]:
        return await self._driver.run(subscriptions.get(self._target))

    async def delete(self) -> None:
        await self._driver.run(subscriptions.delete(self._target))

    async def add_streams(self, *streams: str) -> None:
        await self._driver.run(subscriptions.add_streams(self._target, list(streams)))

    async def claim(self, worker: str) -> Wake:
        """Take the pending work; raises when there is none or another worker has it."""
        return await self._driver.run(subscriptions.claim(self._target, worker))

    async def ack(
        self, wake: Wake, offsets: Mapping[str, str], *, done: bool = False
    ) -> dict[str, Any]:
        """Say how far each stream was worked off; extends the lease unless `done`."""
        steps = subscriptions.acknowledge(self._target, wake, offsets, done=done)
        return await self._driver.run(steps)

    async def release(self, wake: Wake) -> dict[str, Any]:
        """Give the work back."""
        return await self._driver.run(subscriptions.release(self._target, wake))
