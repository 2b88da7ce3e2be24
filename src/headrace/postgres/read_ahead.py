"""Reading ahead: a thread collects the next batch while the consumer writes the last one.

Nobody else uses the connection until `end` or `cancel` has returned.
"""

from __future__ import annotations

import threading
from typing import Final

from headrace.postgres.collector import BatchEnd, Collector
from headrace.postgres.positions import FeedPosition
from headrace.postgres.replication import Replication

_LOOK_UP_SECS: Final = 0.02  # what the next batch waits at most for the thread to notice


class ReadAhead:
    """Collects after `start` until that is a full batch, or it is ended."""

    def __init__(
        self, start: FeedPosition, reader: Replication, collected: Collector, bounds: BatchEnd
    ) -> None:
        self._start = start
        self._reader = reader
        self._collected = collected
        self._bounds = bounds
        self._failure: BaseException | None = None
        self._is_wanted = True
        self._thread = threading.Thread(target=self._run, name="read-ahead", daemon=True)
        self._thread.start()

    def is_for(self, start: FeedPosition, bounds: BatchEnd) -> bool:
        """Whether a batch after `start` may be as large as this, and nothing comes in between."""
        size_max = (self._bounds.rows_max, self._bounds.bytes_max)
        is_alike = size_max == (bounds.rows_max, bounds.bytes_max)
        return start == self._start and is_alike and bounds.stop is None

    def end(self) -> Collector:
        """What was collected. Raises what ended the thread."""
        self.cancel()
        if self._failure is not None:
            raise self._failure
        return self._collected

    def cancel(self) -> None:
        self._is_wanted = False
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._is_wanted and not self._bounds.is_full(self._collected):
                room = self._bounds.room(self._collected)
                self._collected.take(self._reader.receive_several(_LOOK_UP_SECS, *room))
        except BaseException as error:  # raised where the batch is asked for
            self._failure = error
