"""Buckets and subscriptions of the blocking client; `client.async_admin` is the same, awaited."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Unpack

from headrace.client import resources, subscriptions
from headrace.client.calls import Target
from headrace.client.driver import Driver
from headrace.client.resources import BucketInfo, StreamEntry
from headrace.client.subscriptions import SubscriptionConfig, Wake


class Bucket:
    """A namespace of streams; `client.stream("/bucket/stream")` is a stream in it."""

    def __init__(self, driver: Driver, target: Target) -> None:
        self._driver = driver
        self._target = target

    def create(self) -> None:
        """Create it; raises `BucketExists` if it is there."""
        self._driver.run(resources.create_bucket(self._target))

    def info(self) -> BucketInfo:
        return self._driver.run(resources.bucket_info(self._target))

    def delete(self) -> None:
        """Delete it; it must be empty."""
        self._driver.run(resources.delete_bucket(self._target))

    def streams(self, prefix: str = "") -> Iterator[StreamEntry]:
        """Its streams, sorted by id."""
        return self._driver.iterate(resources.list_streams(self._target, prefix))


class Subscription:
    """Wakes a worker when streams have something new; see docs/protocol.md."""

    def __init__(self, driver: Driver, target: Target) -> None:
        self._driver = driver
        self._target = target

    def create(self, **config: Unpack[SubscriptionConfig]) -> dict[str, Any]:
        """`type`, `pattern` or `streams`, and `webhook={"url": ...}` or `wake_stream`."""
        return self._driver.run(subscriptions.put(self._target, config))

    def info(self) -> dict[str, Any]:
        return self._driver.run(subscriptions.get(self._target))

    def delete(self) -> None:
        self._driver.run(subscriptions.delete(self._target))

    def add_streams(self, *streams: str) -> None:
        self._driver.run(subscriptions.add_streams(self._target, list(streams)))

    def claim(self, worker: str) -> Wake:
        """Take the pending work; raises when there is none or another worker has it."""
        return self._driver.run(subscriptions.claim(self._target, worker))

    def ack(self, wake: Wake, offsets: Mapping[str, str], *, done: bool = False) -> dict[str, Any]:
        """Say how far each stream was worked off; extends the lease unless `done`."""
        steps = subscriptions.acknowledge(self._target, wake, offsets, done=done)
        return self._driver.run(steps)

    def release(self, wake: Wake) -> dict[str, Any]:
        """Give the work back."""
        return self._driver.run(subscriptions.release(self._target, wake))
