"""What Postgres's catalog says of tables: what they are, and whether they are published.

A table is more than its name: dropped and made again, renamed, altered, with other partitions or
left out of the publication, it gives other rows than a shape has, and no message says so. All of
that is in its `identity`, which is compared again and again.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import psycopg
from psycopg import sql

from headrace.shapes.definition import BadRequest, Definition
from headrace.shapes.tables import Table, TableColumn

PUBLICATION = "headrace_shapes"
SYSTEM_SCHEMAS = frozenset({"information_schema", "headrace"})
LOCK_SECS = 10
# Truncates of single partitions and shapes of them need the changes under the partitions' names.
_ALL_CHANGES = "publish = 'insert, update, delete, truncate', publish_via_partition_root = false"

_COLUMNS = """
select a.attname, coalesce(e.typname, t.typname), e.oid is not null, a.attnotnull,
       greatest(a.attndims, 1), a.atttypmod,
       coalesce(array_position(i.indkey::int2[], a.attnum), -1), a.atttypid,
       t.typtype = 'd', (
         with recursive base as (
           select b.oid, b.typbasetype from pg_type b where b.oid = a.atttypid
           union
           select b.oid, b.typbasetype from base join pg_type b on b.oid = base.typbasetype
         )
         select bool_or(base.oid = any('{json,jsonb}'::regtype[])) from base
       )
from pg_attribute a
join pg_type t on t.oid = a.atttypid
left join pg_type e on e.oid = t.typelem and t.typcategory = 'A'
left join pg_index i on i.indrelid = a.attrelid and i.indisprimary
where a.attrelid = %s and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
order by a.attnum
"""
_TABLE = """
select c.oid, row_security_active(c.oid)
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname = %s and c.relname = %s and c.relkind in ('r', 'p')
"""
# A table with the partitions, or the tables that inherit from it, whose rows are its own.
_TREE = """
with recursive tree(root, oid) as (
  select c.oid, c.oid from pg_class c where c.oid = any(%(oids)s)
  union
  select tree.root, i.inhrelid from tree join pg_inherits i on i.inhparent = tree.oid
)
"""
# A column's type, and those that it is made of: of an array, a domain, a range, a composite.
_TYPES = """
, types(root, oid) as (
  select distinct a.atttypid, a.atttypid from tree join pg_attribute a on a.attrelid = tree.oid
  where a.attnum > 0 and not a.attisdropped
  union
  select types.root, part.oid from types join pg_type t on t.oid = types.oid cross join lateral (
    select unnest(array[t.typelem, t.typbasetype])
    union all
    select r.rngsubtype from pg_range r where t.oid in (r.rngtypid, r.rngmultitypid)
    union all
    select a.atttypid from pg_attribute a
    where a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped
  ) part(oid)
), parts(root, text) as (
  select types.root, string_agg(concat_ws(' ', t.oid, t.typname,
    (select string_agg(e.enumlabel, ',' order by e.enumsortorder) from pg_enum e
     where e.enumtypid = t.oid),
    (select string_agg(concat_ws(' ', a.attname, format_type(a.atttypid, a.atttypmod)), ','
       order by a.attnum)
     from pg_attribute a where a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped)
  ), ',' order by t.oid)
  from types join pg_type t on t.oid = types.oid group by types.root
)
"""
_IDENTITIES = f"""{_TREE}{_TYPES}
select tree.root, md5(string_agg(concat_ws('|',
  c.oid, n.nspname, c.relname, c.relkind, c.relfilenode, c.relreplident,
  row_security_active(c.oid),
  (select string_agg(concat_ws(' ', a.attnum, a.attname, a.atttypid,
     format_type(a.atttypid, a.atttypmod), parts.text, a.attcollation, a.attnotnull,
     a.attgenerated, has_column_privilege(a.attrelid, a.attnum, 'select')), ',' order by a.attnum)
   from pg_attribute a left join parts on parts.root = a.atttypid
   where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped),
  (select i.indkey::text from pg_index i where i.indrelid = c.oid and i.indisprimary),
  (select concat_ws(' ', p.oid, p.xmin, r.oid, r.prattrs, r.prqual is null)
   from pg_publication p left join pg_publication_rel r on r.prpubid = p.oid and r.prrelid = c.oid
   where p.pubname = '{PUBLICATION}')
), ';' order by c.oid)), array_agg(c.oid)
from tree join pg_class c on c.oid = tree.oid join pg_namespace n on n.oid = c.relnamespace
group by tree.root
"""
_MEMBERS = f"""{_TREE}
select n.nspname, c.relname, c.relkind, c.relreplident, (
  select case when r.prqual is null and r.prattrs is null then 'whole' else 'part' end
  from pg_publication_rel r join pg_publication p on p.oid = r.prpubid
  where r.prrelid = c.oid and p.pubname = '{PUBLICATION}'
), c.oid = tree.root
from tree join pg_class c on c.oid = tree.oid join pg_namespace n on n.oid = c.relnamespace
order by c.oid
"""


class _Member(NamedTuple):
    """A table of a tree. `published` is whole, part, or None."""

    schema: str
    name: str
    kind: str
    replica_identity: str
    published: str | None
    is_root: bool

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)


def describe(connection: psycopg.Connection, definition: Definition) -> Table:
    """The table that a definition names, with the part of it that it asks for."""
    if definition.schema in SYSTEM_SCHEMAS or definition.schema.startswith("pg_"):
        raise BadRequest(table=f"is in {definition.schema}, which is not for shapes")
    found = connection.execute(_TABLE, (definition.schema, definition.table)).fetchone()
    oid, has_policies = (0, False) if found is None else found
    if has_policies:
        raise BadRequest(
            table="has row-level security that applies to this role, and changes would pass it"
        )
    columns = tuple(TableColumn(*row) for row in connection.execute(_COLUMNS, (oid,)))
    identity, members = identities(connection, [oid]).get(oid, ("", ()))
    if not columns or not members:
        raise missing(definition)
    in_key = sorted((c.key_index, c.name) for c in columns if c.key_index >= 0)
    keys = tuple(name for _, name in in_key) or tuple(column.name for column in columns)
    selected = _selected(definition, columns, keys)
    return Table(
        definition.schema,
        definition.table,
        columns,
        selected,
        keys,
        oid=oid,
        members=frozenset(members),
        identity=identity,
    )


def missing(definition: Definition) -> BadRequest:
    return BadRequest(
        table=f'Table "{definition.schema}"."{definition.table}" does not exist. If the table '
        "name contains capitals or special characters you must quote it."
    )


def _selected(
    definition: Definition, columns: Collection[TableColumn], keys: tuple[str, ...]
) -> tuple[str, ...]:
    names = [column.name for column in columns]
    if definition.columns is None:
        return tuple(names)
    unknown = [name for name in definition.columns if name not in names]
    if unknown:
        found = ", ".join(unknown)
        raise BadRequest(columns=f"The following columns could not be found: {found}")
    left_out = [name for name in keys if name not in definition.columns]
    if left_out:
        raise BadRequest(
            columns=f"Must include all primary key columns, missing: {', '.join(left_out)}"
        )
    return tuple(name for name in names if name in definition.columns)


def identities(
    connection: psycopg.Connection, oids: Collection[int]
) -> dict[int, tuple[str, list[int]]]:
    """Of each table that is there: what tells it from another, and the oids whose rows it has."""
    rows = connection.execute(_IDENTITIES, {"oids": list(oids)})
    return {oid: (identity, members) for oid, identity, members in rows}


def publish(connection: psycopg.Connection, definition: Definition, table: Table) -> None:
    """Let the slot have the table's changes, old rows included.

    The lock waits for open writes to the table: a change that was made before the table was
    published would never reach the slot, though its transaction commits afterwards.
    """
    members = [
        _Member(*row) for row in connection.execute(_MEMBERS, {"oids": [table.oid]}).fetchall()
    ]
    if any(member.kind == "f" for member in members):
        raise BadRequest(table="has a foreign table as a partition, whose changes are not seen")
    # A published partitioned table includes its partitions, also later ones.
    is_parted = any(member.is_root and member.kind == "p" for member in members)
    needed = [member for member in members if member.is_root or not is_parted]
    is_done = all(member.published == "whole" for member in needed) and all(
        member.replica_identity == "f" for member in members
    )
    if is_done and _publishes_all(connection):
        return
    try:
        _alter(connection, table, members, needed)
    except psycopg.errors.UndefinedTable as error:
        raise missing(definition) from error
    except (psycopg.ProgrammingError, psycopg.DataError, psycopg.NotSupportedError) as error:
        sentence = error.diag.message_detail or error.diag.message_primary
        raise BadRequest(table=f"cannot be followed: {sentence}") from error


def ensure_publication(connection: psycopg.Connection) -> None:
    """Make the publication where it is missing, and let it have every kind of change."""
    name = sql.Identifier(PUBLICATION)
    if not connection.execute(
        "select from pg_publication where pubname = %s", (PUBLICATION,)
    ).rowcount:
        connection.execute(sql.SQL("create publication {}").format(name))
    elif not _publishes_all(connection):
        statement = sql.SQL("alter publication {} set ({})")
        connection.execute(statement.format(name, sql.SQL(_ALL_CHANGES)))


def _publishes_all(connection: psycopg.Connection) -> bool:
    found = connection.execute(
        "select from pg_publication where pubname = %s"
        " and pubinsert and pubupdate and pubdelete and pubtruncate and not pubviaroot",
        (PUBLICATION,),
    )
    return found.rowcount == 1


def _alter(
    connection: psycopg.Connection,
    table: Table,
    members: Collection[_Member],
    needed: Collection[_Member],
) -> None:
    publication = sql.Identifier(PUBLICATION)
    statements = [sql.SQL("lock table {} in share row exclusive mode").format(table.identifier)]
    alter = sql.SQL("alter table only {} replica identity full")
    statements += [alter.format(m.identifier) for m in members if m.replica_identity != "f"]
    # It may have been added with a row filter or a column list.
    drop = sql.SQL("alter publication {} drop table only {}")
    statements += [drop.format(publication, m.identifier) for m in needed if m.published == "part"]
    add = sql.SQL("alter publication {} add table only {}")
    statements += [add.format(publication, m.identifier) for m in needed if m.published != "whole"]
    with connection.transaction():
        connection.execute(f"set local lock_timeout = '{LOCK_SECS}s'".encode())
        ensure_publication(connection)
        for statement in statements:
            connection.execute(statement)
