"""The slot of the shapes: transactions, with every column as the text Postgres prints.

They come in batches: some whole ones, or a part of one that is large, so that a batch has a bound
whatever a transaction does.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from heapq import merge
from struct import Struct
from typing import TypeVar

import orjson
import psycopg

from headrace.backoff import Backoff
from headrace.postgres.pgoutput import (
    Begin,
    Change,
    Commit,
    Decoder,
    Described,
    Relation,
    lsn_number,
)
from headrace.postgres.replication import Replication, open_replication
from headrace.postgres.values import encoder
from headrace.shapes.catalog import PUBLICATION
from headrace.shapes.feed_slot import ChangesLost, FeedSlot
from headrace.shapes.tables import Row, Table

POLL_SECS = 0.5
BATCH_CHANGES = 2000
BATCH_BYTES = 4 << 20
ACKNOWLEDGE_EVERY_POLLS = 20
RETRY_SECS = Backoff(0.1, 5.0)
# Classes of SQLSTATE: connections, resources, states, shutdowns, the system around Postgres.
_PASSING = frozenset({"08", "53", "55", "57", "58"})
_U32 = Struct(">I")
_OLD_ROW = ord("O")
T = TypeVar("T")
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Changed:
    """A row that changed, with all its columns before and after. `number` counts in its part."""

    number: int
    old: Row | None
    new: Row | None


@dataclass
class Transaction:
    """What one transaction did, by the oid of the table; or a part of that.

    Only the last part has an `end_lsn`.
    """

    xid: int = 0
    is_first_part: bool = True
    commit_lsn: int = 0
    end_lsn: int = 0
    size_bytes: int = 0
    count: int = 0
    changes: dict[int, list[Changed]] = field(default_factory=dict)
    truncated: set[int] = field(default_factory=set)
    incomplete: set[int] = field(default_factory=set)  # tables with changes of unknown old rows
    described: dict[int, Relation] = field(default_factory=dict)

    @property
    def is_last_part(self) -> bool:
        return self.end_lsn > 0

    def ends(self, table: Table) -> bool:
        """Whether a shape of the table cannot go on behind this."""
        return (
            not table.members.isdisjoint(self.truncated)
            or not table.members.isdisjoint(self.incomplete)
            or any(
                not table.is_still(oid, self.described[oid])
                for oid in table.members & self.described.keys()
            )
        )

    def of(self, table: Table) -> list[Changed]:
        """The changes of a table's rows, in their order."""
        if len(table.members) == 1:
            return self.changes.get(table.oid, [])
        lists = [self.changes[oid] for oid in table.members & self.changes.keys()]
        return list(merge(*lists, key=lambda changed: changed.number))


class SlotFeed:
    """What arrives by one slot and its publication, which tables join as shapes ask for them."""

    def __init__(self, url: str, slot: FeedSlot) -> None:
        self._url = url
        self._slot = slot

    def batches(self, stop: threading.Event) -> Iterator[list[Transaction]]:
        """Every transaction from the slot's position on, in batches of what has arrived.

        A transaction is acknowledged once the batch after its last part is asked for. A connection
        that breaks is opened again behind the last one: one that was given in part begins anew.
        ChangesLost if Postgres cannot give what follows.
        """
        done = 0
        while not stop.is_set():
            reader = self.reconnected(partial(self._open, done), stop)
            try:
                for batch in self._read(reader, stop, done):
                    yield batch
                    # The consumer has it in its logs when it asks for more: only now may Postgres
                    # give its log up.
                    if batch[-1].is_last_part:
                        done = batch[-1].end_lsn
                        self._acknowledge(reader, done)
            except psycopg.OperationalError as error:
                if not _may_pass(error):
                    raise ChangesLost(str(error).strip()) from error
                logger.warning("the replication connection ended: %s", str(error).strip())
            finally:
                reader.close()

    def _open(self, start: int) -> Replication:
        self._slot.check(start)
        try:
            return open_replication(self._url, self._slot.name, PUBLICATION, start, origin="any")
        except psycopg.errors.UndefinedObject as error:
            raise ChangesLost(str(error).strip()) from error

    def _acknowledge(self, reader: Replication, lsn: int) -> None:
        self._slot.release(lsn)
        reader.acknowledge(lsn)

    def reconnected(self, opened: Callable[[], T], stop: threading.Event) -> T:
        """The result of `opened`, retried for as long as Postgres is unreachable."""
        waits = RETRY_SECS.waits()
        while True:
            try:
                return opened()
            except psycopg.OperationalError as error:
                if stop.is_set():
                    raise
                logger.warning("Postgres is unreachable: %s", str(error).strip())
                stop.wait(next(waits))

    def _read(
        self, reader: Replication, stop: threading.Event, done: int
    ) -> Iterator[list[Transaction]]:
        gathered = _Gathered()
        quiet = 0
        while not stop.is_set():
            message = reader.receive(0 if gathered.is_worth_giving else POLL_SECS)
            if message is not None:
                gathered.take(message)
            if gathered.is_full or (message is None and gathered.is_worth_giving):
                batch = gathered.give()
                done = max(done, batch[-1].end_lsn)
                yield batch
            elif message is None:
                quiet += 1
                # Nothing of ours in between: let Postgres have its log back.
                if quiet % ACKNOWLEDGE_EVERY_POLLS == 0 and not gathered.is_inside:
                    self._acknowledge(reader, max(done, reader.sent_lsn))


def _may_pass(error: psycopg.OperationalError) -> bool:
    """Whether another connection may get on: not where Postgres fails to decode a change."""
    sqlstate = error.diag.sqlstate
    return sqlstate is None or sqlstate[:2] in _PASSING


class _Gathered:
    """Messages put together to transactions, and transactions to a batch."""

    def __init__(self) -> None:
        # Text for every type: Electric's clients read values as Postgres prints them.
        self._decoder = Decoder(encoding=lambda oid: encoder(0))
        self._current = Transaction()
        self._done: list[Transaction] = []
        self._changes = 0
        self._size_bytes = 0
        self.is_inside = False

    @property
    def is_worth_giving(self) -> bool:
        return bool(self._done) and not self.is_inside

    @property
    def is_full(self) -> bool:
        return self._changes >= BATCH_CHANGES or self._size_bytes >= BATCH_BYTES

    def give(self) -> list[Transaction]:
        """The whole transactions; if there are none, what has come of the one that is coming."""
        batch, self._done = self._done, []
        if not batch:
            part = self._current
            batch = [part]
            self._current = Transaction(part.xid, False, part.commit_lsn)
        self._changes = self._current.count
        self._size_bytes = self._current.size_bytes
        return batch

    def take(self, message: bytes) -> None:
        for told in self._decoder.feed(message):
            if isinstance(told, Begin):
                self._current = Transaction(xid=told.xid)
                self.is_inside = True
            elif isinstance(told, Described):
                self._current.described[_oid(message)] = told.relation
            elif isinstance(told, Commit):
                self._end(told.end_lsn)
            else:
                _take(self._current, told, message)
                self._size_bytes += len(message)
                self._changes += 1

    def _end(self, end_lsn: int) -> None:
        self.is_inside = False
        self._current.end_lsn = end_lsn
        if self._current.count or not self._current.is_first_part:
            self._done.append(self._current)
        self._current = Transaction()


def _take(current: Transaction, change: Change, message: bytes) -> None:
    current.commit_lsn = lsn_number(change.lsn)
    current.size_bytes += len(message)
    current.count += 1
    if change.op == "truncate":
        (count,) = _U32.unpack_from(message, 1)
        current.truncated |= set(Struct(f">{count}I").unpack_from(message, 6))
        return
    oid = _oid(message)
    if change.op != "insert" and message[5] != _OLD_ROW:
        current.incomplete.add(oid)  # its replica identity is no longer full
        return
    old = None if change.old is None else orjson.loads(change.old)
    new = None if change.value is None else orjson.loads(change.value)
    current.changes.setdefault(oid, []).append(Changed(current.count, old, new))


def _oid(message: bytes) -> int:
    """Of the table that a message is about: its name may be another one's by now."""
    oid: int = _U32.unpack_from(message, 1)[0]
    return oid
