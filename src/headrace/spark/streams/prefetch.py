"""Prefetching: the next items are fetched while Spark consumes the current ones."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_END: Final = object()


def prefetched(items: Iterator[T], depth: int) -> Iterator[T]:
    """The same items, up to `depth` of them made before they are asked for, by another thread.

    What the thread raises is raised here. Left early, the thread ends before this does, so
    `items` may use what the caller closes afterwards.
    """
    making = _Making(items, depth)
    try:
        yield from making.taken()
    finally:
        making.stop()


class _Making(Generic[T]):
    def __init__(self, items: Iterator[T], depth: int) -> None:
        self._items = items
        self._made: queue.Queue[object] = queue.Queue(depth)
        self._is_wanted = True
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for item in self._items:
                self._made.put(item)
                if not self._is_wanted:
                    return
        except BaseException as error:  # raised where the items are taken
            self._failure = error
        finally:
            self._made.put(_END)

    def taken(self) -> Iterator[T]:
        while (item := self._made.get()) is not _END:
            yield item  # type: ignore[misc]  # an item or the end
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        self._is_wanted = False
        while self._thread.is_alive():
            try:
                self._made.get(timeout=0.05)  # makes room, so that the thread sees it
            except queue.Empty:
                continue
        self._thread.join()
