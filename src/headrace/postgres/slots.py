"""Publications, slots and the snapshot that goes with a slot.

Theory of operation. A slot and the snapshot taken with it are one *generation* of the feed. The
snapshot shows the tables as of exactly the slot's first position, and the log has everything from
there on: no gap, no overlap. A generation ends when Postgres no longer has what it needs: its slot
was lost or dropped, a table left the publication, the database was restored to an earlier moment,
or the copy of the snapshot is gone before it was delivered. The next one starts with a reset of
every table, then its rows, so consumers end up with the current tables whatever they missed.

The copy is inside Postgres (`staging`), made in a transaction with the slot's exported snapshot. So
a batch of snapshot rows is the same when it is read again after a restart of the consumer. It is an
unlogged table: a crash of Postgres empties it.

`headrace.slots` has a row per slot: the generation, its tables, first position and number of rows,
whether the copy is still needed, and the owner. The row is what says that a generation is in force.
A new one is made under an advisory lock, and a crash at any point leads back to the same steps:

    step                                            after a crash here the next `ensure` finds
    1 publish the tables                            the old generation, if it is still sound
    2 set tables = '{}' in the row                  no generation: begins again
    3 drop the old slot                             no generation: begins again
    4 create the slot, export its snapshot          a slot without a generation: drops it, begins
                                                    again
    5 in one transaction with that snapshot: copy   as after 4, since nothing is committed
      the tables, write the row
    6 commit                                        the new generation in force

Step 2 comes before 3 because a new slot under the old row would be taken for the old one, and what
was written between the two would be lost.

Ownership. A slot advances for one consumer; two would each get a part of the changes. A consumer
makes up a name for itself and carries it in its position. It becomes the owner (`claim`) when it
comes with a position that has the name in it, which proves that its checkpoint is durable. Another
name is then refused before anything is touched (`check_owner`). A consumer that crashes before its
first checkpoint owns nothing. An owner whose checkpoint is lost never comes back: an operator has
to release the slot, as the error says.
"""

from __future__ import annotations

import socket
from collections.abc import Generator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import psycopg
from psycopg import sql

from headrace.postgres import copies, partitions
from headrace.postgres.catalog import (
    Types,
    check_identity,
    describe,
    exists,
    files,
    identifier,
    primary_key,
    qualified,
)
from headrace.postgres.pgoutput import Change, Relation, lsn_number, lsn_text
from headrace.postgres.slot_names import (
    SlotError,
    check_database,
    check_slot_name,
    default_slot,
)
from headrace.postgres.staging import Staging
from headrace.postgres.values import SESSION

_LOCK = 0x6865616472616365  # "headrace": one set-up at a time
_FAILOVER_SINCE = 17_00_00
_END_READER_MS = 5_000  # terminating its backend releases the slot only after a while

_SET_UP = """
create schema if not exists headrace;
create table if not exists headrace.slots (
  slot text primary key,
  generation int not null,
  tables text[] not null,
  lsn pg_lsn not null,
  rows bigint not null,
  staged boolean not null
);
"""
# Columns that later versions added; existing tables get them, too.
_MORE_COLUMNS = """
alter table headrace.slots add column if not exists owner text;
alter table headrace.slots add column if not exists owner_name text;
alter table headrace.slots add column if not exists mark pg_lsn;
alter table headrace.slots add column if not exists keep_mb bigint;
alter table headrace.slots add column if not exists delivered pg_lsn;
"""


class SlotLost(SlotError):
    """Postgres removed log the slot still needed, or the slot itself is gone."""


@dataclass(frozen=True)
class Generation:
    """One slot with its snapshot: where its log begins, how many snapshot rows there are."""

    number: int
    lsn: int
    rows: int
    staged: bool


@dataclass(frozen=True)
class Noted:
    """What `headrace.slots` says of a slot. `tables` is empty while its snapshot is being made."""

    generation: int
    lsn: str
    rows: int
    staged: bool
    tables: list[str]
    owner: str | None = None
    owner_name: str | None = None
    mark: str | None = None
    keep_mb: int | None = None  # what a slot might keep when this one was made
    delivered: str | None = None

    @classmethod
    def of(cls, row: dict[str, Any]) -> Noted:
        """A table from before has fewer columns than this, one from after may have more."""
        return cls(**{each.name: row[each.name] for each in fields(cls) if each.name in row})


@dataclass(frozen=True)
class SlotHealth:
    """How much log a slot holds back, and how far behind it is."""

    status: str  # reserved, extended, unreserved, lost, or missing
    retained_bytes: int
    lag_bytes: int

    @property
    def is_lost(self) -> bool:
        return self.status in ("lost", "missing")


class Slot:
    """A named slot over a list of tables; the publication bears the same name.

    Without a name it has the default one of its database. `consumer` is the name under which others
    see who has it. With `needs_key` a table without a primary key is refused, with `with_columns`
    the rows of a snapshot are preceded by the columns of their table.
    """

    def __init__(
        self,
        url: str,
        name: str,
        tables: Sequence[str],
        *,
        snapshot: bool = True,
        consumer: str = "",
        needs_key: bool = False,
        with_columns: bool = False,
    ) -> None:
        if name:
            check_slot_name(name)
        if not tables:
            raise SlotError("No tables to follow: name at least one, such as public.items.")
        self.url = url
        self._given_name = name
        self.tables = [qualified(table) for table in tables]
        self.with_snapshot = snapshot
        self.consumer = consumer or socket.gethostname()
        self.needs_key = needs_key
        self.with_columns = with_columns
        self.types = Types(self.connect)

    @cached_property
    def name(self) -> str:
        if self._given_name:
            return self._given_name
        with self.connect() as connection:
            return default_slot(connection)

    def connect(self, *, autocommit: bool = True) -> psycopg.Connection:
        return psycopg.connect(self.url, autocommit=autocommit, options=SESSION)

    def health(self) -> SlotHealth:
        with self.connect() as connection:
            row = connection.execute(
                "select coalesce(wal_status, 'lost'),"
                " coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::bigint,"
                " coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn), 0)::bigint"
                " from pg_replication_slots where slot_name = %s and database = current_database()",
                (self.name,),
            ).fetchone()
        return SlotHealth("missing", 0, 0) if row is None else SlotHealth(*row)

    def current(self) -> Generation | None:
        """The generation in force, if one was ever made for these tables."""
        noted = self.noted()
        # Empty while a snapshot is being made (step 2 above), so no generation is found then.
        if noted is None or set(noted.tables) != set(self.tables):
            return None
        return Generation(noted.generation, lsn_number(noted.lsn), noted.rows, noted.staged)

    def check_tables(self) -> None:
        """Refuse to go on with other tables than the slot was made for."""
        noted = self.noted()
        if noted is not None and noted.tables and set(noted.tables) != set(self.tables):
            raise SlotError(
                f"The slot {self.name} follows {', '.join(noted.tables)} and cannot continue with "
                f"{', '.join(self.tables)}. Follow other tables with a slot and a checkpoint of "
                "their own."
            )

    def check_owner(self, owner: str) -> None:
        """Refuse a consumer that is not `owner` of the slot, before anything of it is touched."""
        noted = self.noted()
        if noted is not None and noted.owner and noted.owner != owner:
            raise SlotError(
                f"The slot {self.name} belongs to another consumer, {noted.owner} of "
                f"{noted.owner_name}: two that read one slot would get a part of the changes each. "
                f"Give this one its own and set slot, for example to {self.name}_2. If the "
                "checkpoint of the other is lost, or it shall not go on, run `headrace pipeline "
                "reset postgres-to-stream --checkpoint-lost`; for a query of your own: "
                f"update headrace.slots set owner = null where slot = '{self.name}';"
            )

    def claim(self, owner: str) -> None:
        """Note `owner`, whose checkpoint now has a position in the slot. The first one has it."""
        with self.connect() as connection:
            add_columns(connection)
            connection.execute(
                "update headrace.slots set owner = %s, owner_name = %s"
                " where slot = %s and owner is null",
                (owner, self.consumer, self.name),
            )
        # The other may have claimed it between the check before and this statement.
        self.check_owner(owner)

    def noted(self) -> Noted | None:
        """What `headrace.slots` says of it."""
        with self.connect() as connection:
            if not exists(connection, "headrace.slots"):
                return None
            row = connection.execute(
                "select to_jsonb(s) from headrace.slots s where slot = %s", (self.name,)
            ).fetchone()
        return None if row is None else Noted.of(row[0])

    def unpublished(self) -> list[str]:
        """The tables that are no longer in the publication: a recreated table is not."""
        with self.connect() as connection:
            found = connection.execute(
                "select schemaname || '.' || tablename from pg_publication_tables"
                " where pubname = %s",
                (self.name,),
            ).fetchall()
        published = {name for (name,) in found}
        return [table for table in self.tables if table not in published]

    def ensure(self, *, fresh: bool = False, known: int = -1) -> Generation:
        """The generation in force; a new one if there is none, its slot is lost, or `fresh`.

        A new one is numbered above `known`, what a consumer knows of: the note of it may be gone.
        """
        found = self.current()
        if found is not None and not fresh and not self.health().is_lost:
            return found
        self._check_room()
        return self._begin(known)

    def has_snapshot(self) -> bool:
        """Whether the copy is there: a crash of Postgres empties it, a failover, too."""
        with self.connect() as connection:
            return self._staging.is_there(connection)

    def _check_room(self) -> None:
        """Refuse to begin again, under the same bound, with a snapshot that outlived its slot."""
        noted = self.noted()
        if noted is None or not (noted.staged and noted.rows) or self.health().status != "lost":
            return
        with self.connect() as connection:
            now_mb, shown = _bound(connection)
        if noted.keep_mb is None or now_mb > noted.keep_mb:
            return
        raise SlotError(
            f"The slot {self.name} was lost before its snapshot of {noted.rows} rows was through: "
            "meanwhile Postgres wrote more log than it may keep. Raise max_slot_wal_keep_size "
            f"above {shown}, for example: alter system set max_slot_wal_keep_size = "
            f"'{4 * now_mb}MB'; select pg_reload_conf(); then start again. To try again as it is, "
            f"run: select pg_drop_replication_slot('{self.name}');"
        )

    def drop(self) -> None:
        """Forget everything: slot, publication, snapshot."""
        with self.connect() as connection:
            self._drop_slot(connection)
            connection.execute(_format("drop publication if exists {}", self.name))
            self._staging.drop(connection)
            if exists(connection, "headrace.slots"):
                connection.execute("delete from headrace.slots where slot = %s", (self.name,))
            if exists(connection, "headrace.partitions"):
                copies.forget(connection, self.name)
            Staging(f"copy_{self.name}", self.types.encoder).drop(connection)

    def owner(self) -> tuple[str, str] | None:
        """The id of the consumer that has the slot, and its name."""
        noted = self.noted()
        return (noted.owner, noted.owner_name or "") if noted and noted.owner else None

    def release(self, owner: str) -> None:
        """Take the slot from `owner`: the next consumer that asks for it has it."""
        with self.connect() as connection:
            connection.execute(
                "update headrace.slots set owner = null, owner_name = null"
                " where slot = %s and owner = %s",
                (self.name, owner),
            )

    def request_copy(self, table: str) -> None:
        """Ask the slot's consumer for one of its tables again: a reset, and all rows."""
        with self.connect() as connection:
            copies.request(connection, self.name, table)

    def release_snapshot(self) -> None:
        """Drop the copy: every row of it has been delivered."""
        with self.connect() as connection, connection.transaction():
            self._staging.drop(connection)
            connection.execute(
                "update headrace.slots set staged = false where slot = %s", (self.name,)
            )

    def snapshot_rows(self, generation: Generation, start: int, end: int) -> Generator[Change]:
        """The rows numbered from `start` to before `end`, one in memory at a time."""
        with self.connect() as connection:
            yield from self._staging.rows(connection, lsn_text(generation.lsn), start, end)

    def relations(self, generation: Generation) -> dict[str, Relation]:
        """The tables as they were when they were copied; as they are, once the copy is gone."""
        with self.connect() as connection:
            staged = self._staging.relations(connection) if generation.staged else {}
            return {
                table: staged.get(table) or describe(connection, table, self.types.encoder)
                for table in self.tables
            }

    @cached_property
    def _staging(self) -> Staging:
        return Staging(f"snapshot_{self.name}", self.types.encoder)

    def stage_table(
        self, connection: psycopg.Connection, staging: Staging, table: str, first: int
    ) -> int:
        """Copy a table, with its columns if they are wanted; how many rows that took."""
        rows = staging.add_rows(connection, table, first + self.with_columns)
        if self.with_columns:  # behind the rows: the table is locked now, and keeps its columns
            relation = describe(connection, table, self.types.encoder)
            columns = self.types.describe(relation)
            if not relation.key_names and not primary_key(connection, table):
                columns = columns.removesuffix("}") + ',"primary_key":false}'
            rows += staging.add_columns(connection, table, columns, first)
        return rows

    def _begin(self, known: int) -> Generation:
        with self.connect() as connection:
            # Held until the connection closes: of two consumers that start at once, one would drop
            # the slot that the other has just made.
            connection.execute("select pg_advisory_lock(%s)", (_LOCK,))
            connection.execute(_SET_UP + _MORE_COLUMNS + copies.SET_UP)
            check_database(connection, self.name)
            self._check_bound(connection)
            self._publish(connection)
            # Until the new snapshot is whole there is no generation: the new slot alone would be
            # taken for the old one, and what lies between the two be lost.
            connection.execute(
                "update headrace.slots set tables = '{}' where slot = %s", (self.name,)
            )
            self._drop_slot(connection)
            return self._create(connection, known)

    def _check_bound(self, connection: psycopg.Connection) -> None:
        if _bound(connection)[0] < 0:
            raise SlotError(
                "max_slot_wal_keep_size is -1: a slot that nobody reads would fill the disk of "
                "this Postgres. Set a bound, for example: "
                "alter system set max_slot_wal_keep_size = '10GB'; select pg_reload_conf();"
            )

    def _publish(self, connection: psycopg.Connection) -> None:
        for table in self.tables:
            check_identity(connection, table, needs_key=self.needs_key)
        names = sql.SQL(", ").join(identifier(table) for table in self.tables)
        exists = connection.execute(
            "select 1 from pg_publication where pubname = %s", (self.name,)
        ).fetchone()
        verb = (
            "alter publication {} set table {}" if exists else "create publication {} for table {}"
        )
        publication = sql.Identifier(self.name)
        connection.execute(sql.SQL(verb).format(publication, names))
        # Changes in a partition are published under the table that was named.
        connection.execute(
            sql.SQL("alter publication {} set (publish_via_partition_root = true)").format(
                publication
            )
        )

    def _drop_slot(self, connection: psycopg.Connection) -> None:
        connection.execute(
            "select pg_terminate_backend(active_pid, %s) from pg_replication_slots"
            " where slot_name = %s and database = current_database() and active_pid is not null",
            (_END_READER_MS, self.name),
        )
        connection.execute(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots"
            " where slot_name = %s and database = current_database()",
            (self.name,),
        )

    def _create(self, connection: psycopg.Connection, known: int) -> Generation:
        """Create the slot and, as of exactly its first position, copy the tables."""
        before = self._files(connection)
        copies.forget(connection, self.name)
        # Before the slot: what is attached from now on is found later.
        partitions.note(connection, self.name, self.tables)
        with psycopg.connect(self.url, autocommit=True, replication="database") as creator:
            # A standby that synchronises slots then has it, and the feed goes on after a failover.
            failover = ", FAILOVER" if creator.info.server_version >= _FAILOVER_SINCE else ""
            create = "CREATE_REPLICATION_SLOT {} LOGICAL pgoutput (SNAPSHOT 'export'" + failover
            made = creator.execute(_format(create + ")", self.name)).fetchone()
            assert made is not None, "CREATE_REPLICATION_SLOT answers with one row"
            lsn, exported = made[1], made[2]
            with connection.transaction():
                connection.execute("set transaction isolation level repeatable read")
                connection.execute(sql.SQL("set transaction snapshot {}").format(exported))
                generation = self._stage(connection, lsn, known)
                # A table that is rewritten after the snapshot looks empty in it. The copy holds a
                # lock on each table: one that is the same now was the same when it was copied.
                if self._files(connection) != before:
                    raise psycopg.OperationalError("A table was rewritten while it was copied.")
                return generation

    def _files(self, connection: psycopg.Connection) -> list[Any]:
        return [files(connection, table) for table in self.tables]

    def _stage(self, connection: psycopg.Connection, lsn: str, known: int) -> Generation:
        before = connection.execute(
            "select generation from headrace.slots where slot = %s", (self.name,)
        ).fetchone()
        number = max(before[0] if before else -1, known) + 1
        self._staging.begin(connection, self.tables)
        rows = 0
        if self.with_snapshot:
            # Consumers of a later generation may have missed deletions; those of the first have no
            # rows yet.
            rows = self._staging.add_resets(connection, self.tables) if number else 0
            for table in self.tables:
                rows += self.stage_table(connection, self._staging, table, rows)
        connection.execute(
            "insert into headrace.slots (slot, generation, tables, lsn, rows, staged, keep_mb)"
            " values (%s, %s, %s, %s, %s, true, %s) on conflict (slot) do"
            " update set generation = excluded.generation, tables = excluded.tables,"
            " lsn = excluded.lsn, rows = excluded.rows, staged = true, keep_mb = excluded.keep_mb,"
            " mark = null, delivered = null",
            (self.name, number, self.tables, lsn, rows, _bound(connection)[0]),
        )
        return Generation(number, lsn_number(lsn), rows, True)


def _format(query: str, name: str) -> sql.Composed:
    return sql.SQL(query).format(sql.Identifier(name))


def add_columns(connection: psycopg.Connection) -> None:
    """Bring a `headrace.slots` of an earlier version up to date."""
    has_last = connection.execute(
        "select 1 from pg_attribute where attrelid = 'headrace.slots'::regclass"
        " and attname = 'delivered' and not attisdropped"
    ).fetchone()
    if has_last is None:  # `alter table` waits for every reader, even if it changes nothing
        connection.execute(_MORE_COLUMNS)


def _bound(connection: psycopg.Connection) -> tuple[int, str]:
    """`max_slot_wal_keep_size` in MB, and as Postgres shows it."""
    row = connection.execute(
        "select setting::bigint, current_setting(name) from pg_settings"
        " where name = 'max_slot_wal_keep_size'"
    ).fetchone()
    assert row is not None, "every Postgres since 13 has it"
    return row
