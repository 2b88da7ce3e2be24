"""Takes the messages of a slot after a position, keeps what is new, and says where that ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from headrace.postgres.change_buffer import ChangeBuffer
from headrace.postgres.change_table import SCHEMA, ChangeTable
from headrace.postgres.pgoutput import (
    OID,
    ROWS,
    Begin,
    Change,
    Commit,
    Decoder,
    Described,
    Relation,
)
from headrace.postgres.positions import FeedPosition, with_relation
from headrace.postgres.row_columns import KIND_BYTES, RowGroup
from headrace.postgres.slot_names import SlotError

_KEY_CHARS_SHOWN = 200
# A transaction arrives in one go once it is committed; a pause this long ends a batch inside it.
REST_OF_TRANSACTION_SECS = 1.0
# Columns are made of so many rows at a time: enough to share the cost of the steps.
_PART_ROWS = 10_000
_PART_BYTES = 1024 * 1024
_SIZED = ("value", "old")
_NO_SEQ = -1  # of a schema event, which is not a change of its transaction


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
        return collected.rows >= self.rows_max or collected.size_bytes >= self.bytes_max

    def room(self, collected: Collector) -> tuple[int, int]:
        """How many messages, of how many bytes, may be taken together."""
        return self.rows_max - collected.rows, self.bytes_max - collected.size_bytes


class Collector:
    """Takes messages after a position and keeps what is new, and the position behind it."""

    def __init__(
        self,
        start: FeedPosition,
        decoder: Decoder,
        describe: Callable[[Relation], str],
        stop: int | None = None,
        row_bytes_max: int | None = None,
    ) -> None:
        self.lsn = start.lsn
        self.is_past_stop = False
        self._start = start  # with the shapes as they are now
        self._decoder = decoder
        self._describe = describe
        self._stop = stop
        self._row_bytes_max = row_bytes_max
        self._parts: list[pa.RecordBatch] = []
        self._parts_rows = self._parts_bytes = 0
        self._buffer = ChangeBuffer()
        self._buffer_bytes = 0
        self._behind = start.skip  # changes of the first transaction that were taken before
        self._passed = decoder.seq  # changes of the transaction that are not in the buffer
        self.is_inside = start.skip > 0
        self._described: dict[str, Relation] = {}  # and not yet compared with what was known

    def take(self, messages: Sequence[bytes]) -> None:
        """Row messages like one before are only put aside: columns are made of many at a time."""
        groups, order = self._groups, self._buffer.order
        for message in messages:
            group = groups.get(message[:KIND_BYTES])
            if group is not None:
                group.messages.append(message)
                order.append(group.index)
                continue
            self._take_other(message)
            if self.is_past_stop:
                return
            groups = self._groups
        self._decoder.seq = self._seq
        self._buffer_bytes += sum(map(len, messages))
        if len(self._buffer) >= _PART_ROWS or self._buffer_bytes >= _PART_BYTES:
            self._end_part()

    @property
    def rows(self) -> int:
        return self._parts_rows + len(self._buffer)

    @property
    def size_bytes(self) -> int:
        """What the changes take as JSON; of the last ones, as Postgres sent them."""
        return self._parts_bytes + self._buffer_bytes

    def changes(self) -> ChangeTable:
        """What was taken. Raises SlotError if Spark could not hold a row."""
        self._end_part()
        return ChangeTable(pa.Table.from_batches(self._parts, SCHEMA))

    @property
    def position(self) -> FeedPosition:
        skip = max(self._behind, self._seq) if self.is_inside else 0
        return replace(self._start, lsn=self.lsn, skip=skip)

    @property
    def is_idle(self) -> bool:
        """Whether nothing was taken, and a transaction is wholly behind."""
        return not self.rows and not self.is_inside

    @property
    def is_owing(self) -> bool:
        """Whether a shape was described and no row of it has come since."""
        return bool(self._described)

    def patience_secs(self, deadline: float) -> float:
        if self.is_inside:
            return REST_OF_TRANSACTION_SECS
        return 0.0 if self.rows else max(0.0, deadline - time.monotonic())

    def has_all_before(self, stop: int, sent_lsn: int) -> bool:
        """Whether no transaction that was committed before `stop` is still to come."""
        return self.is_past_stop or (sent_lsn >= stop and not self.is_inside)

    def has_reached(self, end: FeedPosition) -> bool:
        position = self.position
        return (position.lsn, position.skip) >= (end.lsn, end.skip)

    @property
    def _seq(self) -> int:
        """The number that the next change has in its transaction."""
        return self._passed + len(self._buffer)

    @property
    def _groups(self) -> dict[bytes, RowGroup]:
        """What rows can be put into without looking at them."""
        is_new = self._seq >= self._behind and not self._decoder.is_left_out
        return self._buffer.groups if is_new else {}

    def _take_other(self, message: bytes) -> None:
        if message[:1] in ROWS:
            self._take_row(message)
            return
        for said in self._decoder.feed(message):
            if isinstance(said, Begin):
                if self._stop and said.commit_lsn >= self._stop:
                    self.is_past_stop = True
                    return
                self.is_inside = True
                self._passed = -len(self._buffer)
                self._buffer.begin_run(self._decoder.transaction, 0)
            elif isinstance(said, Commit):
                self.is_inside = False
                if said.end_lsn > self.lsn:
                    self.lsn, self._behind = said.end_lsn, 0
            elif isinstance(said, Described):
                self._described[said.relation.table] = said.relation
                self._buffer.end_groups(message[OID])
            elif self._is_new():  # a truncate
                self._tell_shape(said.table)
                self._begin_run()
                self._buffer.add(said)

    def _take_row(self, message: bytes) -> None:
        """The first row of its kind, or one that is not wanted."""
        if self._decoder.is_left_out or not self._is_new():
            return
        relation = self._decoder.relation_of(message)
        self._tell_shape(relation.table)
        self._begin_run()
        group = self._buffer.open_group(message, relation)
        group.messages.append(message)
        self._buffer.order.append(group.index)

    def _is_new(self) -> bool:
        """Whether the next change was not taken before; counts it if it was."""
        if self._seq >= self._behind:
            return True
        self._passed += 1
        return False

    def _begin_run(self) -> None:
        self._buffer.begin_run(self._decoder.transaction, self._seq)

    def _tell_shape(self, table: str) -> None:
        """A schema change is reported with the first row after it.

        Not as it comes: read again, it comes with rows that were taken before, too.
        """
        relation = self._described.pop(table, None)
        before = self._start.shapes.get(table)
        if relation is None or before == relation.fingerprint:
            return
        self._start = with_relation(self._start, relation)
        if before is not None:
            told = self._describe(relation)
            self._buffer.begin_run(self._decoder.transaction, _NO_SEQ)
            self._buffer.add(Change(table, "schema", None, told, None, [], "", _NO_SEQ, 0, None))
            self._passed -= 1

    def _end_part(self) -> None:
        if not len(self._buffer):
            return
        part = self._buffer.record_batch()
        sizes = pc.add(*(pc.fill_null(pc.binary_length(part[name]), 0) for name in _SIZED))
        self._check_sizes(part, sizes)
        self._parts.append(part)
        self._parts_rows += part.num_rows
        self._parts_bytes += pc.sum(sizes).as_py()
        self._passed += part.num_rows
        self._buffer, self._buffer_bytes = ChangeBuffer(), 0

    def _check_sizes(self, part: pa.RecordBatch, sizes: pa.Array) -> None:
        if self._row_bytes_max is None or pc.max(sizes).as_py() <= self._row_bytes_max:
            return
        first = pc.index(pc.greater(sizes, self._row_bytes_max), True).as_py()
        [change] = ChangeTable(pa.Table.from_batches([part.slice(first, 1)]))
        check_row(change, self._row_bytes_max)


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
