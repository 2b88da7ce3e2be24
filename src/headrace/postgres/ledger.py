"""The ledger: which batch of a writer's partition is in, cut how, and written by which run.

A batch that comes again finds itself here and changes nothing, whatever happened to the answer the
first time. It may come cut into other partitions, after a restart with other cores or options; what
is in then says nothing about what is missing. So a run that meets a batch which another run began
checks first that every partition which is in holds the same rows now, each in the task that has
them, and adds nothing until all are found. A task of a run that was replaced is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from shlex import quote

import psycopg
import pyarrow as pa

_LOCK = 0x6C6564676572  # "ledger": one set-up at a time
_RUNS_KEPT = 20
_DIGEST_ROWS = 100  # hashed at a time: the same rows, the same groups
_DIGEST_MARK = "2:"  # earlier versions hashed a partition as a whole, which says nothing here

_SET_UP = """
create schema if not exists headrace;
create table if not exists headrace.ledger (
  writer text not null,
  partition int not null,
  batch bigint not null,
  query text not null,
  primary key (writer, partition)
);
alter table headrace.ledger add column if not exists run text not null default '';
alter table headrace.ledger add column if not exists digest text not null default '';
alter table headrace.ledger add column if not exists planned text[];
create table if not exists headrace.ledger_runs (
  writer text primary key,
  run text not null,
  replaced text[] not null
)
"""

_FIRST_RUN = (
    "insert into headrace.ledger_runs (writer, run, replaced) values (%s, %s, '{}')"
    " on conflict do nothing"
)
_REPLACE_RUN = (
    "update headrace.ledger_runs set run = %(run)s, replaced = (run || replaced)[:%(kept)s]"
    " where writer = %(writer)s and run <> %(run)s and not replaced @> array[%(run)s::text]"
)
# Tasks of one run share this row; a new run waits until those of the last have released it.
_HOLD_RUN = "select 1 from headrace.ledger_runs where writer = %s and run = %s for share"
_MINE = "select batch, query, digest from headrace.ledger where writer = %s and partition = %s"
_CONFIRM = "update headrace.ledger set run = %s where writer = %s and partition = %s"
_ENTER = """
insert into headrace.ledger as l (writer, partition, batch, query, run, digest, planned)
values (%s, %s, %s, %s, %s, %s, %s)
on conflict (writer, partition) do update set batch = excluded.batch, run = excluded.run,
  digest = excluded.digest, planned = excluded.planned
where l.batch < excluded.batch or (%s and l.batch = excluded.batch)
returning 1
"""
_STILL_IN = (
    "select count(*) from headrace.ledger where writer = %s and query = %s"
    " and partition = any(%s) and batch >= %s"
)
_LAST = (
    "select batch, planned from headrace.ledger where writer = %s and query = %s"
    " order by batch desc, partition limit 1"
)
_OTHER_QUERY = (
    "select batch from headrace.ledger where writer = %s and query <> %s"
    " order by batch desc limit 1"
)
_OTHERS = (
    "select partition, batch, query from headrace.ledger where writer = %s"
    " and (query <> %s or batch > %s or (batch = %s and run <> %s)) order by partition limit 1"
)


class SinkError(RuntimeError):
    """Rows cannot be written; the message says what to do. Nothing of the batch is in."""


class NotYet(Exception):
    """Ask again: other tasks of this run must first find what is in already."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence


@dataclass(frozen=True)
class Committed:
    """What the driver saw committed: its last batches, each with its partitions.

    `note` is the file it is kept in, next to the checkpoint's own files.
    """

    note: str
    batches: tuple[tuple[int, tuple[int, ...]], ...] = ()

    def before(self, batch: int) -> tuple[int, tuple[int, ...]] | None:
        return max((each for each in self.batches if each[0] < batch), default=None)


@dataclass(frozen=True)
class Claim:
    """The identity of a batch: writer, partition, and the run of Spark's checkpoint.

    `run` is the same for all tasks of one attempt at a batch, and another after a restart;
    `digest` tells the rows of this partition from others.
    """

    writer: str
    query: str
    partition: int
    batch: int
    run: str = ""
    digest: str = ""
    committed: Committed | None = None
    planned: tuple[str, ...] = ()  # how Spark planned the batch, to plan it once more


class RowsDigest:
    """Of rows in their order, however they were cut into batches, without holding them."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._rest: list[pa.RecordBatch] = []
        self._rest_rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows in; whole groups of a fixed number of them are hashed."""
        first = 0
        while self._rest_rows + batch.num_rows - first >= _DIGEST_ROWS:
            wanted = _DIGEST_ROWS - self._rest_rows
            self._rest.append(batch.slice(first, wanted))
            first += wanted
            self._take()
        if first < batch.num_rows:
            self._rest.append(batch.slice(first))
            self._rest_rows += batch.num_rows - first

    def _take(self) -> None:
        # A copy: a slice keeps marks of the batch that it was cut from.
        self._hash.update(pa.concat_batches(self._rest).serialize())
        self._rest, self._rest_rows = [], 0

    def value(self) -> str:
        if self._rest:
            self._take()
        return f"{_DIGEST_MARK}{self._hash.hexdigest()}"


def digest_of_plan(plan: str) -> str:
    """For rows that follow from where they are: `plan` says how the batch is partitioned."""
    return f"{_DIGEST_MARK}{plan}"


def digest(batches: Iterable[pa.RecordBatch]) -> str:
    found = RowsDigest()
    for batch in batches:
        found.add(batch)
    return found.value()


@cache
def prepare(url: str) -> None:
    """Make the ledger; once per process, before the first batch."""
    with psycopg.connect(url) as connection:
        connection.execute("select pg_advisory_xact_lock(%s)", (_LOCK,))
        # Made last. Altering a table that others write to would wait for them, even for nothing.
        made = connection.execute(
            "select 1 from pg_attribute where attrelid = to_regclass('headrace.ledger')"
            " and attname = 'planned' and to_regclass('headrace.ledger_runs') is not null"
        ).fetchone()
        if made is None:
            connection.execute(_SET_UP)


def last_planned(
    connection: psycopg.Connection, writer: str, query: str
) -> tuple[int, list[str]] | None:
    """The last batch of a writer's query that is in, with how it was planned, if that is known."""
    if connection.execute("select to_regclass('headrace.ledger')").fetchone() == (None,):
        return None
    row = connection.execute(_LAST, (writer, query)).fetchone()
    return None if row is None or not row[1] else (row[0], row[1])


def take_run(connection: psycopg.Connection, claim: Claim) -> None:
    """Make the claim's run the writer's own, if it is new; waits for tasks of the last one.

    Not for another checkpoint: it would take the one that is running down, to be refused itself.
    """
    other = connection.execute(_OTHER_QUERY, (claim.writer, claim.query)).fetchone()
    if other is not None:
        raise SinkError(_other_checkpoint(claim, other[0]))
    # The commit of the rows comes behind this one in the log, and takes it to disk with it.
    connection.execute("set local synchronous_commit = off")
    connection.execute(_FIRST_RUN, (claim.writer, claim.run))
    named = {"writer": claim.writer, "run": claim.run, "kept": _RUNS_KEPT}
    connection.execute(_REPLACE_RUN, named)
    connection.commit()


def enter(connection: psycopg.Connection, claim: Claim, *, can_repeat: bool) -> bool:
    """Enter the batch, in the transaction of its rows; False if they are in already.

    With `can_repeat`, rows replace those of the same key: cut differently, they are written again.
    Raises NotYet if this must be asked again, in another transaction.
    """
    if connection.execute(_HOLD_RUN, (claim.writer, claim.run)).fetchone() is None:
        raise SinkError(
            f"Another run of the writer {claim.writer!r} has taken over from the one this task "
            "belongs to. If two pipelines run under one name, give each its own."
        )
    _miss_lost_commits(connection, claim)
    found = connection.execute(_MINE, (claim.writer, claim.partition)).fetchone()
    if found is not None and found[1] == claim.query:
        batch, _, rows = found
        is_known = rows.startswith(_DIGEST_MARK)
        if batch == claim.batch and (rows == claim.digest or not is_known):
            connection.execute(_CONFIRM, (claim.run, claim.writer, claim.partition))
            return False
        if batch == claim.batch and not can_repeat:
            raise SinkError(_cut_differently(claim, claim.partition))
    _heed_others(connection, claim, can_repeat=can_repeat)
    values = (claim.writer, claim.partition, claim.batch, claim.query, claim.run, claim.digest)
    planned = list(claim.planned) or None
    if connection.execute(_ENTER, (*values, planned, can_repeat)).fetchone() is None:
        raise NotYet("Another attempt at the same partition is writing it.")
    return True


def _miss_lost_commits(connection: psycopg.Connection, claim: Claim) -> None:
    """Refuse to go on over a hole: Postgres may have come back without its last commits."""
    seen = claim.committed.before(claim.batch) if claim.committed else None
    if claim.committed is None or seen is None:
        return
    batch, partitions = seen
    values = (claim.writer, claim.query, list(partitions), batch)
    if connection.execute(_STILL_IN, values).fetchone() == (len(partitions),):
        return
    row = connection.execute(_LAST, (claim.writer, claim.query)).fetchone()
    checkpoint = claim.committed.note.rpartition("/")[0]  # a path, or a URL
    anew = "start with another --state, and empty the table if it still has rows"
    if row is None:
        lost, again = "knows nothing of it", anew
    elif row[1]:
        lost = f"misses rows of batch {row[0]} and later"
        again = (
            f"stop, run `python -m headrace.spark.rewind {quote(checkpoint)} --postgres "
            f"URL --writer {quote(claim.writer)}`, and start again"
        )
    else:
        last = row[0]
        lost = f"misses rows of batch {last} and later"
        again = (
            f"stop, delete the files numbered {last} and above in {checkpoint}/commits and "
            f"those numbered above {last} in {checkpoint}/offsets, and start again. If the "
            f"files {max(last - 1, 0)} and {last} are no longer in {checkpoint}/offsets: {anew}"
        )
    raise SinkError(
        f"The writer {claim.writer!r} has committed batch {batch}, and the ledger {lost}: Postgres "
        "has lost commits, as in a failover to a standby that was behind or a restore, or the "
        "writer was forgotten there. Nothing "
        f"more is written. To write what is lost once more: {again}. To go on without it: delete "
        f"{claim.committed.note}."
    )


def _heed_others(connection: psycopg.Connection, claim: Claim, *, can_repeat: bool) -> None:
    values = (claim.writer, claim.query, claim.batch, claim.batch, claim.run)
    row = connection.execute(_OTHERS, values).fetchone()
    if row is None:
        return
    partition, batch, query = row
    if query != claim.query:
        raise SinkError(_other_checkpoint(claim, batch))
    if batch > claim.batch:
        raise SinkError(
            f"Batch {claim.batch} of the writer {claim.writer!r} is older than batch {batch}, "
            "which is already written. Is the checkpoint an old copy?"
        )
    if not can_repeat:
        raise NotYet(_cut_differently(claim, partition))


def _other_checkpoint(claim: Claim, batch: int) -> str:
    return (
        f"The ledger knows the writer {claim.writer!r} from another checkpoint, at batch {batch}. "
        "If two pipelines run, give this one another writer: set writer. If that checkpoint is "
        "lost, decide about the rows it wrote, then run `headrace pipeline reset NAME "
        "--checkpoint-lost`; for a query of your own: "
        f"delete from headrace.ledger where writer = '{claim.writer}';"
    )


def _cut_differently(claim: Claim, partition: int) -> str:
    return (
        f"Batch {claim.batch} of the writer {claim.writer!r} was begun before a restart, and its "
        f"partition {partition} does not come again with the same rows. Nothing more is written. "
        "Start once more with the partitions it had: the same master and cores, the same "
        "maxPartitions, repartition() and spark.sql.shuffle.partitions, the same query. If they "
        "are and only the order of rows is not, as after a shuffle: update headrace.ledger "
        f"set digest = '' where writer = '{claim.writer}';"
    )
