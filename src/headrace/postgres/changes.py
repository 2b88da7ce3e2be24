"""The change feed of a slot in batches: where the next batch ends, and what is in it.

A position is a value that survives a restart: the generation, how many rows of its snapshot are
behind, the end of the last transaction that is wholly behind, how many changes of the next one are
behind too (so that a large transaction fits into small batches), and the shape of every table, so
that a schema change is reported once. Read again from a position, the feed gives the same changes.

A position also says whose it is. A consumer is named by the first batch it is given; once that is
checkpointed and it asks for the next, it owns the slot, and other consumers are refused. It also
names the Postgres server and the mark in it, so that a position is not trusted by a database that
was restored to an earlier moment (`history`). The reverse is refused: from a position older than
what was acknowledged, Postgres would silently skip to where it can start (`marks`).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TypeVar

import psycopg

from headrace.backoff import Backoff
from headrace.postgres.catalog import check_identity, primary_key
from headrace.postgres.change_table import NO_CHANGES, ChangeTable
from headrace.postgres.collector import (
    REST_OF_TRANSACTION_SECS,
    BatchEnd,
    Collector,
    check_row,
    size_of,
)
from headrace.postgres.copies import Copies, Copy, OnPartitions, reset_refused
from headrace.postgres.history import identify
from headrace.postgres.keys import Keys
from headrace.postgres.marks import Marks
from headrace.postgres.origins import Origin, is_own
from headrace.postgres.pgoutput import (
    Change,
    Decoder,
    lsn_number,
    lsn_text,
)
from headrace.postgres.positions import FeedPosition, with_relation, with_shape
from headrace.postgres.read_ahead import ReadAhead
from headrace.postgres.replication import Replication, open_replication
from headrace.postgres.slot_names import SlotError
from headrace.postgres.slots import Generation, Slot

T = TypeVar("T")

_REREAD_SECS = 60.0
_ASK_AGAIN_SECS = 0.05  # how far Postgres has sent, while a run waits for the end
_RETRY_SECS = Backoff(0.1, 2.0)
_LOOK_AGAIN_SECS = 10.0  # between checks that the publication still has every table


@dataclass(frozen=True)
class Batch:
    """What lies between two positions."""

    start: FeedPosition
    end: FeedPosition
    changes: ChangeTable
    is_full: bool = False  # more of the log is waiting, probably


class ChangeFeed:
    """Batches of one slot. Holds the replication connection open between them.

    `retry_secs` is how long Postgres may be away before that is an error. `origin="others"` leaves
    out what our sink wrote, so that nothing goes in circles; "none" leaves out what any replication
    origin did, such as a logical subscription. Without `may_reset`, for a consumer that cannot
    forget all rows of a table at once, whatever would ask that of it is an error.
    """

    def __init__(
        self,
        slot: Slot,
        *,
        origin: Origin = "others",
        recover_lost_slot: bool = True,
        retry_secs: float = 60.0,
        on_partitions: OnPartitions = "report",
        may_reset: bool = True,
        row_bytes_max: int | None = None,
    ) -> None:
        self.slot = slot
        self._copies = Copies(slot, on_partitions)
        self._copy: Copy | None = None  # what comes next between the changes
        self._knows_copies = False
        self._origin = origin
        self._recover = recover_lost_slot
        self._may_reset = may_reset
        self._row_bytes_max = row_bytes_max
        self._retry_secs = retry_secs
        self._generation: Generation | None = None
        self._reader: Replication | None = None
        self._ahead: ReadAhead | None = None
        self._decoder = Decoder()
        self._read_to: FeedPosition | None = None  # how far the open connection has read
        self._look_again_at = 0.0
        self._own_name = uuid.uuid4().hex[:12]
        self._claimed = ""
        self._system = ""
        self._marks = Marks(slot)
        self._delivered = 0  # as it was last noted

    def begin(self) -> FeedPosition:
        """Where a new consumer starts. Asked twice, the answer is the same."""
        return self._retrying(self._begin)

    def _begin(self) -> FeedPosition:
        self.slot.check_owner("")
        found = self.slot.ensure()
        if self.slot.with_snapshot and not found.staged:
            found = self.slot.ensure(fresh=True)  # an earlier consumer took the snapshot
        self._generation = found
        if self.slot.with_snapshot:
            return self._first(found, row=0)
        # What an earlier consumer had is gone, and this one does not ask for it.
        lsn = max(found.lsn, self._marks.delivered(found.number))
        return replace(self._first(found, row=found.rows), lsn=lsn)

    def _first(self, generation: Generation, *, row: int) -> FeedPosition:
        found = self.slot.relations(generation)
        shapes = {table: relation.fingerprint for table, relation in found.items()}
        keys = {table: names for table, it in found.items() if (names := it.key_names)}
        return FeedPosition(generation.number, row, generation.lsn, 0, shapes, keys=keys)

    def newest_lsn(self) -> int:
        """The end of Postgres's log as it is now, so far as it is on disk: no sooner is it sent."""
        with self.slot.connect() as connection:
            row = connection.execute("select pg_current_wal_flush_lsn()::text").fetchone()
        assert row is not None
        return lsn_number(row[0])

    def next_batch(
        self,
        start: FeedPosition,
        *,
        rows_max: int,
        bytes_max: int,
        wait_secs: float,
        until: int | None = None,
    ) -> Batch:
        """The batch after `start`, which is durable at the consumer; empty after `wait_secs`.

        An empty one may end behind `start`: at the end of a transaction whose changes are taken,
        or with the consumer's name in it, so that this is checkpointed before the first row.

        With `until`, a position in the log, it is empty only once everything before it was given.
        """
        bounds = BatchEnd(rows_max, bytes_max, wait_secs, until)
        return self._retrying(lambda: self._next_batch(start, bounds), wait_secs)

    def reread(self, start: FeedPosition, end: FeedPosition) -> ChangeTable:
        """The changes of a batch planned earlier, after a restart or in another process.

        Of a generation that is gone there is nothing to read: the next one's snapshot has it all.
        """
        return self._retrying(lambda: self._reread(start, end))

    def close(self) -> None:
        self._stop_ahead()
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        self._marks.close()

    def _next_batch(self, start: FeedPosition, bounds: BatchEnd) -> Batch:
        generation = self._in_force(start, owner=start.owner)
        at = self._named(start)
        if generation.number != start.generation:
            first = self._named(replace(self._first(generation, row=0), owner=at.owner))
            return self._snapshot_batch(start, first, generation, bounds)
        if start.row < generation.rows:
            return self._snapshot_batch(start, at, generation, bounds)
        # Before its first batch a consumer has no checkpoint, and asks where to begin.
        has_begun = start.row > 0 or start.lsn > generation.lsn
        if generation.staged and has_begun:
            self.slot.release_snapshot()
            self._generation = replace(generation, staged=False)
        copy = self._due_copy(start)
        if copy is not None:
            if start.copy == copy.number or start.lsn >= copy.lsn:
                return self._marked(self._copy_batch(start, at, copy, bounds))
            bounds = replace(bounds, until=max(bounds.until or 0, copy.lsn), stop=copy.lsn)
        elif bounds.until is not None and start.lsn >= bounds.until:
            return Batch(start, at, NO_CHANGES)
        collected = self._collected_ahead(start, bounds)
        reader = self._reader_at(start)
        found = replace(self._collect(reader, at, bounds, collected), start=start)
        if copy is not None and not found.changes and found.end.lsn >= copy.lsn:
            found = self._copy_batch(start, found.end, copy, bounds)
        found = self._marked(found)
        self._acknowledge(reader, start.lsn, start.lsn)
        if found.is_full and copy is None and self._read_to == found.end:
            self._ahead = ReadAhead(found.end, reader, self._collector(found.end, None), bounds)
        return found

    def _collected_ahead(self, start: FeedPosition, bounds: BatchEnd) -> Collector | None:
        """What was read after `start` already, if that is what comes next."""
        ahead = self._ahead
        if ahead is None or not ahead.is_for(start, bounds):
            self._stop_ahead()
            return None
        self._ahead = None
        return ahead.end()

    def _stop_ahead(self) -> None:
        if self._ahead is not None:
            self._ahead.cancel()
            self._ahead = None
            self._read_to = None

    def _marked(self, batch: Batch) -> Batch:
        """The batch with a mark in its end, if anything is in it."""
        if not batch.changes:
            return batch
        if batch.changes.has_truncate:
            self._check_reset("a table was truncated")
        end = replace(batch.end, mark=self._mark(batch.start.lsn))
        if self._read_to == batch.end:
            self._read_to = end
        return replace(batch, end=end)

    def _mark(self, delivered: int) -> int:
        mark = self._marks.add(delivered)
        self._delivered = delivered
        return mark

    def _acknowledge(self, reader: Replication, lsn: int, delivered: int) -> None:
        """Let Postgres forget what is before `lsn`. It is noted first up to where it was
        delivered: a checkpoint from before finds no other sign of it."""
        assert self._generation is not None, "a reader is of a generation"
        if delivered > max(self._delivered, self._generation.lsn):
            self._mark(delivered)
        reader.acknowledge(lsn)

    def _due_copy(self, start: FeedPosition) -> Copy | None:
        """The next copy to insert between changes, if any; a finished one is dropped."""
        while True:
            if not self._knows_copies:
                self._copy = self._copies.next(start.copy, start.shapes)
                self._knows_copies = True
            copy = self._copy
            if copy is None:
                return None
            is_through = (start.copy, start.copy_row) == (copy.number, copy.rows)
            # The log was faster: a row came after the change of columns.
            is_known = copy.shape is not None and copy.shape == start.shapes.get(copy.table)
            if not is_through and not (is_known and start.lsn >= copy.lsn):
                return copy
            self._copies.release(copy)
            self._knows_copies = False

    def _copy_batch(
        self, start: FeedPosition, at: FeedPosition, copy: Copy, bounds: BatchEnd
    ) -> Batch:
        if copy.notice is None:
            self._check_reset(f"{copy.table} is to be copied again")
        if at.copy != copy.number:
            at = replace(at, copy=copy.number, copy_row=0)
        last = min(copy.rows, at.copy_row + bounds.rows_max)
        end, changes = self._copied(at, copy, last, bounds.bytes_max)
        if end.copy_row == at.copy_row:
            self._knows_copies = False
            raise psycopg.OperationalError("The copy is gone.")  # made again on the next attempt
        return Batch(start, end, ChangeTable.of(changes))

    def _copied(
        self, at: FeedPosition, copy: Copy, last: int, bytes_max: int | None = None
    ) -> tuple[FeedPosition, list[Change]]:
        """Rows of a copy, the shape that they have first; and the position behind them."""
        changes: list[Change] = []
        rows = size_bytes = 0
        with closing(self._copies.rows(copy, at.copy_row, last)) as found:
            for change in found:
                check_row(change, self._row_bytes_max)
                changes.append(change)
                rows += 1
                size_bytes += size_of(change)
                if bytes_max is not None and size_bytes >= bytes_max:
                    break
        if copy.shape is not None:
            at = with_shape(at, copy.table, copy.shape, copy.key_names)
        relation = self._copies.relation(copy) if rows and at.copy_row == 0 else None
        if relation is not None and at.shapes.get(copy.table) != relation.fingerprint:
            at = with_relation(at, relation)
            value = self.slot.types.describe(relation)
            changes.insert(1, changes[0]._replace(op="schema", value=value, seq=-1))
        return replace(at, copy_row=at.copy_row + rows), changes

    def _named(self, position: FeedPosition) -> FeedPosition:
        owner = position.owner or self._own_name
        return replace(position, owner=owner, system=self._system or position.system)

    def _in_force(self, start: FeedPosition, *, owner: str) -> Generation:
        """The generation to read from: the consumer's, or the one that follows a lost slot.

        `owner` is the name in its checkpoint, empty before there is one: that claims the slot.
        """
        now = time.monotonic()
        is_known = owner == self._claimed and now < self._look_again_at
        if self._generation is not None and self._reader is not None and is_known:
            return self._generation
        self._look_again_at = now + _LOOK_AGAIN_SECS
        self._knows_copies = False
        self.slot.check_owner(start.owner)
        loss = self._loss(start)
        if loss is not None:
            if not (self._recover and self.slot.with_snapshot):
                raise SlotError(
                    f"The slot {self.slot.name} is lost: {loss}. Allow a fresh snapshot, or start "
                    "anew."
                )
            self._check_reset(f"the slot is lost: {loss}")
            self.close()
        self._generation = self.slot.ensure(fresh=loss is not None, known=start.generation)
        if owner:
            self.slot.claim(owner)
        self._claimed = owner
        if self._generation.number != start.generation:
            self._delivered = 0
        else:
            self._marks.check_position(start.generation, start.lsn)
        return self._generation

    def _check_reset(self, why: str) -> None:
        if not self._may_reset:
            raise reset_refused(self.slot.name, why)

    def _loss(self, start: FeedPosition) -> str | None:
        """Why the slot no longer gives all changes, if so."""
        # Always: after a failover a new generation, too, must name its Postgres.
        doubts = self._doubts(start)
        if self.slot.current() is None:
            self.slot.check_tables()
        elif not self.slot.health().is_lost:
            return doubts or self._gone_tables() or self._gone_snapshot(start)
        return f"Postgres no longer has the changes since {lsn_text(start.lsn)}"

    def _gone_tables(self) -> str | None:
        gone = self.slot.unpublished()
        return f"{', '.join(gone)} was dropped, and perhaps made again" if gone else None

    def _gone_snapshot(self, start: FeedPosition) -> str | None:
        found = self.slot.current()
        is_needed = found is not None and (
            start.generation != found.number or start.row < found.rows
        )
        if not is_needed or self.slot.has_snapshot():
            return None
        return "its snapshot went with a crash or a failover of Postgres"

    def _doubts(self, start: FeedPosition) -> str | None:
        """Why this is not the Postgres, or not the past, that the position is of."""
        with self.slot.connect() as connection:
            server = identify(self.slot.url, connection, start.system)
        self._system = server.name
        found = server.doubts(start.system, start.lsn)
        if found is None and self._marks.are_older_than(start.generation, start.mark):
            found = "this Postgres was restored to a moment before the last batch"
        return found

    def _snapshot_batch(
        self, start: FeedPosition, first: FeedPosition, generation: Generation, bounds: BatchEnd
    ) -> Batch:
        last = min(generation.rows, first.row + bounds.rows_max)
        changes: list[Change] = []
        size_bytes = 0
        with closing(self.slot.snapshot_rows(generation, first.row, last)) as rows:
            for change in rows:
                check_row(change, self._row_bytes_max)
                changes.append(change)
                size_bytes += size_of(change)
                if size_bytes >= bounds.bytes_max:
                    break
        end = replace(first, row=first.row + len(changes))
        return Batch(start, end, ChangeTable.of(changes))

    def _reread(self, start: FeedPosition, end: FeedPosition) -> ChangeTable:
        first_row = start.row if start.generation == end.generation else 0
        # From the first row that is needed. The name in `end` is in no checkpoint yet if this is
        # the first batch: until that is committed Spark asks anew where to begin, and an owner
        # could not (a pipeline killed twice in its first batch was locked out of its own slot).
        generation = self._in_force(replace(end, row=first_row), owner=start.owner)
        if generation.number != end.generation:
            return NO_CHANGES
        if end.row > first_row:
            found = list(self.slot.snapshot_rows(generation, first_row, end.row))
            if len(found) < end.row - first_row:
                raise psycopg.OperationalError("The snapshot is gone.")  # the next look sees it
            return ChangeTable.of(found)
        if start.generation != end.generation:
            return NO_CHANGES
        self._marks.check_position(start.generation, start.lsn)
        self._stop_ahead()
        if (start.copy, start.copy_row) != (end.copy, end.copy_row):
            return self._reread_copy(start, end)
        reader = self._reader_at(start)
        collected = Collector(start, self._decoder, self.slot.types.describe)
        deadline = time.monotonic() + _REREAD_SECS
        while not collected.has_reached(end):
            message = reader.receive(REST_OF_TRANSACTION_SECS)
            if message is not None:
                collected.take([message])
            elif time.monotonic() > deadline:
                raise SlotError(
                    f"The slot {self.slot.name} no longer gives the changes up to "
                    f"{lsn_text(end.lsn)}; was its publication changed?"
                )
        self._read_to = collected.position
        return collected.changes()

    def _reread_copy(self, start: FeedPosition, end: FeedPosition) -> ChangeTable:
        copy = self._copies.find(end.copy)
        if copy is None:
            return NO_CHANGES  # it went with a crash, and comes again as a whole
        at = start if start.copy == end.copy else replace(start, copy=end.copy, copy_row=0)
        again, changes = self._copied(at, copy, end.copy_row)
        if again.copy_row < end.copy_row:
            raise psycopg.OperationalError("The copy is gone.")  # the next look sees it
        return ChangeTable.of(changes)

    def _collector(self, start: FeedPosition, stop: int | None) -> Collector:
        describe = self.slot.types.describe
        return Collector(start, self._decoder, describe, stop, self._row_bytes_max)

    def _collect(
        self, reader: Replication, start: FeedPosition, bounds: BatchEnd, ahead: Collector | None
    ) -> Batch:
        self._read_to = None  # what fails in between has read on, nobody knows how far
        collected = ahead or self._collector(start, bounds.stop)
        deadline = time.monotonic() + bounds.wait_secs
        while not bounds.is_full(collected) and not collected.is_past_stop:
            # Past its time, an empty batch ends with the first transaction that has nothing for us.
            is_late = not collected.rows and bounds.is_over(collected.lsn, deadline)
            room = (1, 1) if is_late else bounds.room(collected)
            messages = reader.receive_several(collected.patience_secs(deadline), *room)
            if messages:
                collected.take(messages)
                # Changes may come without a pause and all be left out.
                if collected.is_idle and bounds.is_over(collected.lsn, deadline):
                    break
            elif collected.rows or bounds.until is None or reader.sent_lsn >= bounds.until:
                break
            else:
                deadline = time.monotonic() + _ASK_AGAIN_SECS
                self._acknowledge(reader, start.lsn, start.lsn)
        end = collected.position
        if bounds.stop is not None and collected.has_all_before(bounds.stop, reader.sent_lsn):
            end = replace(end, lsn=max(end.lsn, bounds.stop), skip=0)
            self._read_to = None if collected.is_owing or collected.is_past_stop else end
            return Batch(start, end, collected.changes())
        # The last batch may have ended with its transaction: then that end is all there is so far.
        has_left = start.skip > 0 and end.lsn > start.lsn
        if not collected.rows and not has_left:
            # Nothing for us up to here: let Postgres have its log back, though we stay where we
            # are. Otherwise a quiet table would retain the WAL of busy ones for ever.
            through = max(reader.sent_lsn, collected.lsn)
            if through > start.lsn and not collected.is_inside:
                self._acknowledge(reader, through, start.lsn)
            end = start
        # A shape whose first row is still to come is described again to a new reader only.
        self._read_to = None if collected.is_owing else end
        return Batch(start, end, collected.changes(), bounds.is_full(collected))

    def _reader_at(self, start: FeedPosition) -> Replication:
        if self._reader is not None and self._read_to == start:
            return self._reader
        self.close()
        with self.slot.connect() as connection:
            for table in self.slot.tables if self.slot.needs_key else ():
                check_identity(connection, table, needs_key=True)
            now = {table: primary_key(connection, table) for table in self.slot.tables}
        keys = Keys(now, {table: frozenset(names) for table, names in start.keys.items()})
        leaves_out = is_own if self._origin == "others" else _nothing
        self._decoder = Decoder(keys, self.slot.types.encoder, leaves_out)
        origin = "none" if self._origin == "none" else "any"
        self._reader = open_replication(
            self.slot.url, self.slot.name, self.slot.name, start.lsn, origin=origin
        )
        return self._reader

    def _retrying(self, attempt: Callable[[], T], spent_secs: float = 0.0) -> T:
        """Retry while Postgres is unreachable; then raise SlotError."""
        deadline = time.monotonic() + self._retry_secs + spent_secs
        waits = _RETRY_SECS.waits()
        while True:
            try:
                return attempt()
            except psycopg.OperationalError as error:
                self.close()
                if time.monotonic() > deadline:
                    raise SlotError(
                        f"Postgres is unreachable or refuses: {str(error).strip()}"
                    ) from error
            except psycopg.errors.ObjectNotInPrerequisiteState:
                self.close()  # the slot was lost while it was read: the next look finds it so
                if time.monotonic() > deadline:
                    raise
            time.sleep(next(waits))


def _nothing(origin: str) -> bool:
    return False
