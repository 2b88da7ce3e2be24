"""How long a server kept others waiting: a connection that asks for little, all the time."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from headrace.testing.raw_http import RawConnection, request_bytes

_ASK = request_bytes("HEAD", "/v1/stream/no-such-stream")
_PAUSE_SECS = 0.002


class Probe:
    """Asks for a stream that is not there and keeps the longest wait; a context manager."""

    def __init__(self, port: int) -> None:
        self.count = 0
        self._longest_secs = 0.0
        self._asked_at: float | None = None
        self._port = port
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Probe:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    @property
    def longest_secs(self) -> float:
        """The longest wait so far, the present one included."""
        asked_at = self._asked_at
        waited = 0.0 if asked_at is None else time.perf_counter() - asked_at
        return max(self._longest_secs, waited)

    def _run(self) -> None:
        with RawConnection(self._port, deadline_secs=120) as connection:
            while not self._over.wait(_PAUSE_SECS):
                self._asked_at = time.perf_counter()
                connection.send(_ASK)
                connection.response(head_only=True)
                self._longest_secs = self.longest_secs
                self._asked_at = None
                self.count += 1
