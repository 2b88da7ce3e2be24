"""Work in slices on a large request body: counted while it waits, and gone with its client.

A body that waits for its turn is memory. It stays counted as one in flight, or clients that send
bodies faster than they can be worked through would fill memory with them. When the client leaves,
work that is not over is dropped at once, with the body: it need not wait for its turn to be
forgotten. Work that decides something before its last step, such as a subscription that is linked
stream by stream, is dropped only before it has begun (`is_atomic`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headrace.http.exchange import Exchange, Request


class BodyWork(Iterator[object]):
    """What `begin` gives, for `engine.slices`; nothing but this may refer to the request."""

    def __init__(
        self,
        request: Request,
        exchange: Exchange,
        begin: Callable[[], Iterator[object]],
        *,
        is_atomic: bool = False,
    ) -> None:
        self._request: Request | None = request
        self._begin: Callable[[], Iterator[object]] | None = begin
        self._steps: Iterator[object] | None = None
        self._is_atomic = is_atomic
        request.keeps_body = True
        exchange.when_left(self.leave)

    def __next__(self) -> object:
        if self._begin is None:
            raise StopIteration
        try:
            if self._steps is None:
                self._steps = self._begin()
            return next(self._steps)
        except BaseException:
            self._end()
            raise

    def leave(self) -> None:
        """The client has: nobody waits for this any more."""
        if self._steps is None or not self._is_atomic:
            self._end()

    def _end(self) -> None:
        request, self._request = self._request, None
        self._begin = self._steps = None
        if request is not None:
            request.release_body()
            request.drop_body()
