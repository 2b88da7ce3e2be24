"""Takes the messages of a slot after a position, keeps what is new, and says where that ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from headrace.postgres.pgoutput import Begin, Change, Commit, Described, Relation
from headrace.postgres.positions import FeedPosition, with_relation
from headrace.postgres.slot_names import SlotError

_KEY_CHARS_SHOWN = 200
# A transaction arrives in one go once it is committed; a pause this long ends a batch inside it.
REST_OF_TRANSACTION_SECS = 1.0


@dataclass(frozen=True)
class BatchEnd:
    """Where a batch must end, and how long to wait for its first row."""

    rows_max: int
    bytes_max: int
    wait_secs: float
    until: int | None
    stop: int | None = None  # where something comes between the changes

    def is_over(self, lsn: int, deadline: float) -> bool:
        """Whether a batch that is still empty at `lsn` has waited long enough."""
        return time.monotonic() > deadline if self.until is None else lsn >= self.until

    def is_full(self, collected: Collector) -> bool:
        return len(collected.changes) >= self.rows_max or collected.size_bytes >= self.bytes_max


class Collector:
    """Takes messages after a position and keeps what is new, and the position behind it."""

    def __init__(
        self,
        start: FeedPosition,
        describe: Callable[[Relation], str],
        stop: int | None = None,
        row_bytes_max: int | None = None,
    ) -> None:
        self.position = start
        self.is_past_stop = False
        self._describe = describe
        self._stop = stop
        self._row_bytes_max = row_bytes_max
        self.changes: list[Change] = []
        self.size_bytes = 0
        self._behind = start.skip  # changes of the first transaction that were taken before
        self.is_inside = start.skip > 0
        self._described: dict[str, Relation] = {}  # and not yet compared with what was known

    def take(self, messages: list[Any]) -> None:
        for message in messages:
            if isinstance(message, Begin) and self._stop and message.commit_lsn >= self._stop:
                self.is_past_stop = True
                return
            if isinstance(message, Change):
                self._change(message)
            elif isinstance(message, Commit):
                self.is_inside = False
                if message.end_lsn > self.position.lsn:
                    self.position = replace(self.position, lsn=message.end_lsn, skip=0)
                    self._behind = 0
            elif isinstance(message, Begin):
                self.is_inside = True
            elif isinstance(message, Described):
                self._described[message.relation.table] = message.relation

    @property
    def is_idle(self) -> bool:
        """Whether nothing was taken, and a transaction is wholly behind."""
        return not self.changes and not self.is_inside

    @property
    def is_owing(self) -> bool:
        """Whether a shape was described and no row of it has come since."""
        return bool(self._described)

    def patience_secs(self, deadline: float) -> float:
        if self.is_inside:
            return REST_OF_TRANSACTION_SECS
        return 0.0 if self.changes else max(0.0, deadline - time.monotonic())

    def has_all_before(self, stop: int, sent_lsn: int) -> bool:
        """Whether no transaction that was committed before `stop` is still to come."""
        return self.is_past_stop or (sent_lsn >= stop and not self.is_inside)

    def has_reached(self, end: FeedPosition) -> bool:
        return (self.position.lsn, self.position.skip) >= (end.lsn, end.skip)

    def _change(self, change: Change) -> None:
        if change.seq < self._behind:
            return
        check_row(change, self._row_bytes_max)
        self._tell_shape(change)
        self.changes.append(change)
        self.size_bytes += size_of(change)
        self.position = replace(self.position, skip=change.seq + 1)

    def _tell_shape(self, change: Change) -> None:
        """A schema change is reported with the first row after it.

        Not as it comes: read again, it comes with rows that were taken before, too.
        """
        relation = self._described.pop(change.table, None)
        before = self.position.shapes.get(change.table)
        if relation is None or before == relation.fingerprint:
            return
        self.position = with_relation(self.position, relation)
        if before is not None:
            value = self._describe(relation)
            told = change._replace(op="schema", key=None, value=value, old=None)
            self.changes.append(told._replace(unchanged=[], seq=-1))


def check_row(change: Change, bytes_max: int | None) -> None:
    """Refuse a row that Spark could not hold, before it ends the driver for lack of memory."""
    size_bytes = size_of(change)
    if bytes_max is None or size_bytes <= bytes_max:
        return
    key = change.key or ""
    shown = key if len(key) <= _KEY_CHARS_SHOWN else f"{key[:_KEY_CHARS_SHOWN]}…"
    raise SlotError(
        f"A row of {change.table} takes {size_bytes} bytes as JSON, and more than {bytes_max} are "
        f"not sent to Spark (key {shown}). To let it through, raise row_bytes_max (in Spark "
        "maxRowBytes), and spark.driver.memory with it, to about 16 times as much."
    )


def size_of(change: Change) -> int:
    """What a change takes in a batch, about."""
    return sum(_utf8_bytes(text) for text in (change.value, change.old) if text)


def _utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
