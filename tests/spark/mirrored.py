"""A schema of tables that are hard to mirror, and random changes to their rows and columns."""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import sql

Value = str | None
Generator = Callable[[random.Random], Value]

TYPES = """
create schema "Other Schema";
create type mood as enum ('so so', 'gre,at', 'it''s "fine"');
create type point3 as (x int, y text, z numeric);
create domain positive as int check (value > 0);
create domain email as text check (value like '%@%');
"""
_CHARACTERS = string.ascii_letters + "é\U0001f600\"'\\/%{},\n\t "


def number(most: int = 1_000_000, least: int = 0) -> Generator:
    return lambda rng: str(rng.randint(least, most))


def key(most: int = 200) -> Generator:
    return number(most, 1)


def text(most: int = 12, least: int = 0) -> Generator:
    def made(rng: random.Random) -> Value:
        return "".join(rng.choice(_CHARACTERS) for _ in range(rng.randint(least, most)))

    return made


def large(rng: random.Random) -> Value:
    """Larger than a page's share, and not to be compressed: kept outside the row."""
    return "".join(rng.choices(string.ascii_letters, k=rng.choice((10, 9000))))


def maybe(of: Generator) -> Generator:
    return lambda rng: None if rng.random() < 0.2 else of(rng)


def one_of(*values: Value) -> Generator:
    return lambda rng: rng.choice(values)


def quoted(of: Generator) -> Generator:
    """An element of an array, or a part of a composite value."""
    return lambda rng: '"' + str(of(rng)).replace("\\", "\\\\").replace('"', '\\"') + '"'


def array(of: Generator) -> Generator:
    return lambda rng: "{" + ",".join(str(of(rng)) for _ in range(rng.randint(0, 3))) + "}"


def numeric(rng: random.Random) -> Value:
    return f"{rng.randint(-(10**12), 10**12)}.{rng.randint(0, 10**9)}"


def floating(rng: random.Random) -> Value:
    special = ("NaN", "Infinity", "-Infinity", "-0", "1e300", "1e-300")
    return rng.choice((repr(rng.uniform(-1e9, 1e9)), *special))


def instant(rng: random.Random) -> Value:
    day = f"{rng.randint(1, 9999):04}-0{rng.randint(1, 9)}-1{rng.randint(0, 9)}"
    return f"{day} 0{rng.randint(0, 9)}:30:15.123456"


mood = one_of("so so", "gre,at", 'it\'s "fine"')


@dataclass(frozen=True)
class Table:
    """`columns` are those that are written, with their types; `name` is as pipelines have it."""

    name: str
    ddl: str
    columns: Mapping[str, tuple[str, Generator]]
    keys: tuple[str, ...]
    setup: tuple[str, ...] = ()

    @property
    def quoted(self) -> str:
        """As SQL has it."""
        return sql.Identifier(*self.name.split(".")).as_string(None)


def _table(
    name: str, ddl: str, keys: str, /, *setup: str, **columns: tuple[str, Generator]
) -> Table:
    return Table(f"public.{name}", ddl, columns, tuple(keys.split()), setup)


TABLES = (
    _table(
        "plain", "id int primary key, name text, n numeric", "id",
        id=("int", key()), name=("text", maybe(text())), n=("numeric", maybe(numeric)),
    ),
    _table(
        "composite", "v text, a text, b int, c uuid, primary key (c, a, b)", "a b c",
        v=("text", text()), a=("text", text(2)), b=("int", key(3)),
        c=("uuid", one_of(f"{0:032x}", f"{1:032x}")),
    ),
    _table(
        "text_key", "id text primary key, v int", "id",
        id=("text", one_of("", "%empty", "%25empty", "%null", "a/b", "a", "é", "%2F")),
        v=("int", number()),
    ),
    _table(
        "toast", "id int primary key, n int, big text, raw bytea", "id",
        "alter table toast alter big set storage external",
        "alter table toast alter raw set storage external",
        id=("int", key(60)), n=("int", number()), big=("text", large),
        raw=("bytea", lambda rng: "\\x" + rng.randbytes(rng.choice((3, 5000))).hex()),
    ),
    _table(
        "toast_full", "id int primary key, n int, big text", "id",
        "alter table toast_full alter big set storage external",
        "alter table toast_full replica identity full",
        id=("int", key(60)), n=("int", number()), big=("text", large),
    ),
    _table(
        "no_key", "a bigint, b text, c int[]", "a",
        "alter table no_key replica identity full",
        # No two are the same: those have one key.
        a=("bigint", number(2**62)), b=("text", maybe(text())), c=("int[]", array(number())),
    ),
    _table(
        "arrays", "id int primary key, ints int[], texts text[], grid int[][], nums numeric[],"
        " js jsonb[]", "id",
        id=("int", key()), ints=("int[]", maybe(array(number()))),
        texts=("text[]", array(quoted(text()))), nums=("numeric[]", array(numeric)),
        grid=("int[][]", one_of("{}", "{{1,2},{3,4}}", "{{1},{NULL}}")),
        js=("jsonb[]", one_of("{}", '{"{\\"a\\": [1]}"}', '{NULL,"1"}')),
    ),
    _table(
        "enums", "id mood primary key, m mood, ms mood[]", "id",
        id=("mood", mood), m=("mood", maybe(mood)), ms=("mood[]", array(quoted(mood))),
    ),
    _table(
        "domains", "id positive primary key, e email, ps positive[]", "id",
        id=("positive", key()), e=("email", maybe(one_of("a@b", "ü@x"))),
        ps=("positive[]", array(key())),
    ),
    _table(
        "generated", "id int primary key, w int, h int,"
        " area int generated always as (w * h) stored", "id",
        id=("int", key()), w=("int", number(100)), h=("int", maybe(number(100))),
    ),
    _table(
        "identity", "id int generated always as identity primary key, v text", "id",
        v=("text", text()),
    ),
    _table(
        "ranged", "id int, at int, v text, primary key (id, at)) partition by range (at", "id at",
        "create table ranged_1 partition of ranged for values from (minvalue) to (100)",
        "create table ranged_2 partition of ranged for values from (100) to (200)",
        "create table ranged_3 partition of ranged for values from (200) to (maxvalue)",
        id=("int", key(20)), at=("int", number(300)), v=("text", text()),
    ),
    _table(
        "hashed", "id text primary key, v text) partition by hash (id", "id",
        "create table hashed_0 partition of hashed for values with (modulus 2, remainder 0)",
        "create table hashed_1 partition of hashed for values with (modulus 2, remainder 1)",
        id=("text", text(2)), v=("text", text()),
    ),
    Table(
        'public.Quoted "Table"',
        '"Key Col" int primary key, "select" text, "a.b/c" int, "ü{}" text',
        {
            "Key Col": ("int", key()), "select": ("text", text()), "a.b/c": ("int", number()),
            "ü{}": ("text", maybe(text())),
        },
        ("Key Col",),
    ),
    Table(
        "Other Schema.order", "id int primary key, v text",
        {"id": ("int", key()), "v": ("text", text())}, ("id",),
    ),
    _table(
        "documents", "id int primary key, j json, jb jsonb", "id",
        id=("int", key()),
        j=("json", maybe(one_of('{"b": 1,  "a": [ ]}', "[1, 2]", '"x"', "1.50"))),
        jb=("jsonb", maybe(one_of('{"a": {"b": null}}', "[]", '"\\u00e9"', "1e5", "true"))),
    ),
    _table(
        "times", "id timestamptz primary key, t timestamp, d date, i interval, tt timetz,"
        " r tstzrange", "id",
        id=("timestamptz", instant), t=("timestamp", maybe(instant)),
        d=("date", one_of("2026-01-01", "0044-03-15 BC", "infinity")),
        i=("interval", one_of("1 year -2 days 03:04:05.5", "0")),
        tt=("timetz", one_of("10:00:00+02", "23:59:59.999999-11")),
        r=("tstzrange", one_of("empty", '["2026-01-01 00:00:00+00",)')),
    ),
    _table(
        "odd", "id varchar(20) primary key, f8 float8, f4 float4, yes boolean, b bit(3), vb varbit,"
        " ip inet, net cidr, mac macaddr, c char(5), p point3, o oid", "id",
        id=("text", text(10)), f8=("float8", floating),
        f4=("float4", one_of("NaN", "0.1", "-3e30")),
        yes=("boolean", maybe(one_of("t", "f"))), b=("bit(3)", one_of("101", "000")),
        vb=("varbit", one_of("", "10101")), ip=("inet", one_of("::1", "10.0.0.1/8")),
        net=("cidr", one_of("10.0.0.0/8")), mac=("macaddr", one_of("08:00:2b:01:02:03")),
        c=("char(5)", one_of("a", "  b")), p=("point3", one_of('(1,"a,b",)', '(,"""",1.50)')),
        o=("oid", number(2**32 - 1)),
    ),
    _table(
        "handed_over", "id int primary key, u int unique, v text", "id",
        id=("int", key(30)), u=("int", key(60)), v=("text", text()),
    ),
    _table(
        "wide", ", ".join(["id int primary key", *(f"c{n} text" for n in range(60))]), "id",
        id=("int", key()), **{f"c{n}": ("text", maybe(text(4))) for n in range(60)},
    ),
)  # fmt: skip


def create(url: str) -> None:
    """The same schema, empty."""
    with psycopg.connect(url) as connection:
        connection.execute(TYPES)
        for table in TABLES:
            connection.execute(f"create table {table.quoted} ({table.ddl})".encode())
            for query in table.setup:
                connection.execute(query.encode())


@dataclass
class Changer:
    """Random transactions over all tables. `columns` grow as it adds some."""

    rng: random.Random
    columns: dict[str, dict[str, tuple[str, Generator]]] = field(
        default_factory=lambda: {table.name: dict(table.columns) for table in TABLES}
    )
    transactions: int = 0
    altered: list[Table] = field(default_factory=list)

    def transaction(self, connection: psycopg.Connection) -> None:
        """A few statements, perhaps rolled back; some fail, and are as if they had not been."""
        with connection.transaction() as whole:
            for _ in range(self.rng.choice((1, 1, 3, 20))):
                with suppress(psycopg.errors.IntegrityError), connection.transaction():
                    self._statement(connection, self.rng.choice(TABLES))
            if self.rng.random() < 0.05:
                raise psycopg.Rollback(whole)
        self.transactions += 1

    def alter(self, connection: psycopg.Connection) -> Table:
        """DDL that concerns rows that are there, too: the table must then be copied again."""
        table = self.rng.choice([each for each in TABLES if each not in self.altered])
        columns = self.columns[table.name]
        others = [name for name in table.columns if name not in table.keys]
        # Computed of a column that the target does not rename, a generated one would differ.
        if "generated always as (" in table.ddl or self.rng.random() < 0.5:
            query = "add column if not exists added int default 7"
            columns["added"] = ("int", maybe(number()))
        else:
            old = self.rng.choice(others)
            query = sql.SQL("rename {} to renamed").format(sql.Identifier(old)).as_string(None)
            columns["renamed"] = columns.pop(old)
        connection.execute(f"alter table {table.quoted} {query}".encode())
        self.altered.append(table)
        return table

    def _statement(self, connection: psycopg.Connection, table: Table) -> None:
        roll = self.rng.random()
        if roll < 0.45:
            self._insert(connection, table)
        elif roll < 0.8:
            self._update(connection, table)
        elif roll < 0.99:
            self._on_some(connection, table, "delete from {table} where {some}", [])
        else:
            connection.execute(f"truncate {table.quoted}".encode())

    def _insert(self, connection: psycopg.Connection, table: Table) -> None:
        columns = self.columns[table.name]
        query = sql.SQL("insert into {} ({}) values ({}) on conflict do nothing").format(
            sql.SQL(table.quoted),
            sql.SQL(", ").join(map(sql.Identifier, columns)),
            sql.SQL(", ").join(sql.SQL(f"%s::{type_}") for type_, _ in columns.values()),
        )
        for _ in range(self.rng.choice((1, 1, 10))):
            connection.execute(query, [made(self.rng) for _, made in columns.values()])

    def _update(self, connection: psycopg.Connection, table: Table) -> None:
        columns = self.columns[table.name]
        others = [name for name in columns if name not in table.keys]
        chosen = set(self.rng.sample(others, self.rng.randint(1, min(3, len(others)))))
        moves = self.rng.random() < 0.2
        if moves:
            chosen |= {name for name in columns if name in table.keys}
        assigned = [name for name in columns if name in chosen]
        sets = sql.SQL(", ").join(
            sql.SQL("{} = %s::" + columns[name][0]).format(sql.Identifier(name))
            for name in assigned
        )
        values = [columns[name][1](self.rng) for name in assigned]
        query = sql.SQL("update {table} set ") + sets + sql.SQL(" where {some}")
        # Two rows with one new key would be one, or two that nothing tells apart.
        most = 1 if moves else 5
        self._on_some(connection, table, query.as_string(connection), values, most)

    def _on_some(
        self,
        connection: psycopg.Connection,
        table: Table,
        query: str,
        values: list[Any],
        most: int = 5,
    ) -> None:
        count = self.rng.choice((1, 1, most))
        some = (
            f"(tableoid, ctid) in (select tableoid, ctid from {table.quoted}"
            f" order by random() limit {count})"
        )
        # Names of columns may have braces.
        filled = query.replace("{table}", table.quoted).replace("{some}", some)
        connection.execute(filled.encode(), values or None)


def rows(url: str) -> int:
    with psycopg.connect(url) as connection:
        counts = (
            connection.execute(f"select count(*) from {table.quoted}".encode()).fetchone()
            for table in TABLES
        )
        return sum(count[0] for count in counts if count is not None)


def differences(source: str, target: str) -> Iterator[str]:
    """Where two databases differ, table by table, in the columns that the source has."""
    with psycopg.connect(source) as one, psycopg.connect(target) as other:
        for table in TABLES:
            cursor = one.execute(f"select * from {table.quoted} limit 0".encode())
            assert cursor.description is not None
            columns = sql.SQL(", ").join(sql.Identifier(c.name) for c in cursor.description)
            query = sql.SQL("select row({})::text from {} order by 1").format(
                columns, sql.SQL(table.quoted)
            )
            here = one.execute(query).fetchall()
            try:
                there = other.execute(query).fetchall()
            except psycopg.errors.UndefinedColumn as error:
                other.rollback()
                yield f"{table.name}: {error.diag.message_primary}"
                continue
            if here != there:
                absent, extra = set(here) - set(there), set(there) - set(here)
                yield (
                    f"{table.name}: {len(here)} rows and {len(there)}; only in the source "
                    f"{sorted(absent)[:2]!s:.300}; only in the target {sorted(extra)[:2]!s:.300}"
                )
