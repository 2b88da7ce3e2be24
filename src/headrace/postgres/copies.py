"""Tables of a slot that are copied again while the rest goes on, and notices between changes.

Notices are of partitions that moved, and of a table whose columns differ from those the consumer
knows: the log describes them with the table's next row only.

A request to copy a table again is a row in `headrace.copies`; the consumer of the slot finds it
there, now or when it runs next. It copies the table as of a position, which a temporary slot gives
with its snapshot: transactions before that position are in the copy, those behind are changes
after it. So the feed gives its changes up to there, then a reset and the rows, then goes on: no gap
and no row older than a change that was given. A crash of Postgres empties the copy; then it is made
again under another number.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, get_args

import orjson
import psycopg
from psycopg import sql

from headrace.postgres import partitions
from headrace.postgres.catalog import describe, exists, files, qualified
from headrace.postgres.pgoutput import Change, Relation, lsn_number, lsn_text
from headrace.postgres.slot_names import SlotError
from headrace.postgres.staging import Staging

if TYPE_CHECKING:
    from headrace.postgres.slots import Slot

OnPartitions = Literal["report", "resnapshot"]
ON_PARTITIONS: Final[tuple[OnPartitions, ...]] = get_args(OnPartitions)

SET_UP: Final = (
    """
create schema if not exists headrace;
create table if not exists headrace.copies (
  number bigint generated always as identity primary key,
  slot text not null,
  relation text not null,
  notice text,
  lsn pg_lsn,
  rows bigint,
  requested_at timestamptz not null default now(),
  shape text,
  key_names text[]
);
"""
    + partitions.SET_UP
)
_MORE_COLUMNS: Final = (
    "alter table headrace.copies add column if not exists shape text,"
    " add column if not exists key_names text[]"
)
_NEXT = (
    "select number, relation, lsn::text, rows, notice, shape, key_names from headrace.copies"
    " where slot = %s"
    " and (lsn is null or number >= %s) order by lsn is null, number limit 1"
)
_REQUEST = (
    "insert into headrace.copies (slot, relation) select %(slot)s, %(table)s where not exists"
    " (select 1 from headrace.copies where slot = %(slot)s and relation = %(table)s"
    " and lsn is null)"
)
_NOTICE = (
    "insert into headrace.copies (slot, relation, notice, lsn, rows, shape, key_names)"
    " values (%s, %s, %s, pg_current_wal_lsn(), 1, %s, %s)"
)
# Or will be: a copy of the table brings its columns.
_IS_NOTICED = (
    "select 1 from headrace.copies where slot = %s and relation = %s"
    " and (shape = %s or notice is null) limit 1"
)
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Copy:
    """A table's rows as of `lsn`, its reset among them; or a notice, which counts as one row."""

    number: int
    table: str
    lsn: int
    rows: int
    notice: str | None
    shape: str | None = None  # of a notice about columns, the fingerprint of its table
    key_names: tuple[str, ...] = ()


class Copies:
    """What is to be put between the changes of one slot."""

    def __init__(self, slot: Slot, on_partitions: OnPartitions) -> None:
        self._slot = slot
        self._on_partitions = on_partitions

    @property
    def _staging(self) -> Staging:
        return Staging(f"copy_{self._slot.name}", self._slot.types.encoder)

    def next(self, number: int, shapes: Mapping[str, str]) -> Copy | None:
        """The first one numbered `number` or above, made if it is not there; None if none is due.

        Looks at partitions and at columns, too, for they may be a reason for one. `shapes` are
        the fingerprints of the tables that the consumer knows.
        """
        with self._slot.connect() as connection:
            _set_up(connection)
            with connection.transaction():
                for moved in partitions.moved(connection, self._slot.name, self._slot.tables):
                    self._tell(connection, moved)
                for table in self._slot.tables:
                    self._compare_columns(connection, table, shapes.get(table))
            found = self._find(connection, number)
            if found is None or found.rows:
                return found
            return self._make(connection, found)

    def find(self, number: int) -> Copy | None:
        """The one of this number, if it is there still."""
        with self._slot.connect() as connection:
            found = self._find(connection, number)
        return found if found is not None and found.number == number and found.rows else None

    def rows(self, copy: Copy, start: int, end: int) -> Generator[Change]:
        lsn = lsn_text(copy.lsn)
        if copy.notice is not None:
            yield Change(copy.table, "schema", None, copy.notice, None, [], lsn, 0, 0, None)
            return
        with self._slot.connect() as connection:
            yield from self._staging.rows(connection, lsn, start, end)

    def relation(self, copy: Copy) -> Relation | None:
        """The table as it was when it was copied."""
        if copy.notice is not None:
            return None
        with self._slot.connect() as connection:
            return self._staging.relations(connection)[copy.table]

    def release(self, copy: Copy) -> None:
        """Every row of it has been delivered."""
        with self._slot.connect() as connection, connection.transaction():
            if copy.notice is None:
                self._staging.drop(connection)
            connection.execute("delete from headrace.copies where number = %s", (copy.number,))

    def _find(self, connection: psycopg.Connection, number: int) -> Copy | None:
        """Without rows, if it is still to be made, or to be made again."""
        row = connection.execute(_NEXT, (self._slot.name, number)).fetchone()
        if row is None:
            return None
        number, table, lsn, rows, notice, shape, keys = row
        if lsn is None or (notice is None and not self._staging.is_there(connection)):
            return Copy(number, table, 0, 0, None)
        return Copy(number, table, lsn_number(lsn), rows, notice, shape, tuple(keys or ()))

    def _make(self, connection: psycopg.Connection, wanted: Copy) -> Copy:
        before = files(connection, wanted.table)
        create = sql.SQL(
            "CREATE_REPLICATION_SLOT {} TEMPORARY LOGICAL pgoutput (SNAPSHOT 'export')"
        ).format(sql.Identifier(f"{self._slot.name}_copy"))
        with psycopg.connect(self._slot.url, autocommit=True, replication="database") as creator:
            made = creator.execute(create).fetchone()
            assert made is not None, "CREATE_REPLICATION_SLOT answers with one row"
            lsn, exported = made[1], made[2]
            with connection.transaction():
                connection.execute("set transaction isolation level repeatable read")
                connection.execute(sql.SQL("set transaction snapshot {}").format(exported))
                # What is delivered as of this position must not be ahead of the log on disk.
                connection.execute("set local synchronous_commit = on")
                self._staging.begin(connection, [wanted.table])
                rows = self._staging.add_resets(connection, [wanted.table])
                rows += self._slot.stage_table(connection, self._staging, wanted.table, rows)
                if files(connection, wanted.table) != before:
                    raise psycopg.OperationalError("A table was rewritten while it was copied.")
                row = connection.execute(
                    "update headrace.copies set number = default, lsn = %s, rows = %s"
                    " where number = %s returning number",
                    (lsn, rows, wanted.number),
                ).fetchone()
                assert row is not None, "only the owner of the slot takes requests away"
        return Copy(row[0], wanted.table, lsn_number(lsn), rows, None)

    def _tell(self, connection: psycopg.Connection, moved: partitions.Moved) -> None:
        if self._on_partitions == "resnapshot":
            logger.warning(
                "copying %s again: partitions with rows were attached, detached or truncated (%s)",
                moved.table,
                moved.names,
            )
            request(connection, self._slot.name, moved.table)
            return
        logger.warning(
            "%s: partitions with rows were attached, detached, or truncated or rewritten (%s). "
            "Postgres does not replicate that. To copy the table again, run: headrace pipeline "
            "resnapshot --table %s",
            moved.table, moved.names, moved.table,
        )  # fmt: skip
        relation = describe(connection, moved.table)
        notice = orjson.loads(self._slot.types.describe(relation))
        notice |= {"attached": moved.attached, "detached": moved.detached}
        if moved.truncated:
            notice["truncated"] = moved.truncated
        values = (self._slot.name, moved.table, orjson.dumps(notice).decode(), None, None)
        connection.execute(_NOTICE, values)

    def _compare_columns(
        self, connection: psycopg.Connection, table: str, known: str | None
    ) -> None:
        now = describe(connection, table, self._slot.types.encoder)
        if known in (None, now.fingerprint):
            return
        name = self._slot.name
        if connection.execute(_IS_NOTICED, (name, table, now.fingerprint)).fetchone():
            return
        notice = self._slot.types.describe(now)
        connection.execute(_NOTICE, (name, table, notice, now.fingerprint, now.key_names))


def _set_up(connection: psycopg.Connection) -> None:
    """Make the tables, or bring those of an earlier version up to date."""
    if not exists(connection, "headrace.partitions"):
        connection.execute(SET_UP)
    has_last = connection.execute(
        "select 1 from pg_attribute where attrelid = 'headrace.copies'::regclass"
        " and attname = 'key_names' and not attisdropped"
    ).fetchone()
    if has_last is None:
        connection.execute(_MORE_COLUMNS)


def request(connection: psycopg.Connection, slot: str, table: str) -> None:
    """Ask the consumer of `slot` to copy one of its tables again. Asked twice, it is done once."""
    table = qualified(table)
    row = None
    if exists(connection, "headrace.slots"):
        known = "select tables from headrace.slots where slot = %s"
        row = connection.execute(known, (slot,)).fetchone()
    if row is None:
        raise SlotError(
            f"There is no slot {slot} in this database. Run the pipeline once, or set slot and "
            "postgres to the values the pipeline uses."
        )
    if table not in row[0]:
        raise SlotError(f"The slot {slot} follows {', '.join(row[0])}, but not {table}.")
    if not exists(connection, "headrace.copies"):
        connection.execute(SET_UP)
    connection.execute(_REQUEST, {"slot": slot, "table": table})


def forget(connection: psycopg.Connection, slot: str) -> None:
    """A new generation has every table anew."""
    connection.execute("delete from headrace.copies where slot = %s", (slot,))
    connection.execute("delete from headrace.partitions where slot = %s", (slot,))


def reset_refused(slot: str, why: str) -> SlotError:
    """Of a consumer that cannot forget all rows of a table at once."""
    return SlotError(
        f"{slot}: {why}. Its consumer cannot drop all rows of a table at once, and deleted ones "
        "would live on: with {key} in stream every row has its own stream. To write everything "
        "again: delete these streams and start with another checkpoint, slot and producer (in a "
        "pipeline, another --state). To go on without these deletes: leave truncate out of "
        "operations (in Spark, set onReset to report)."
    )
