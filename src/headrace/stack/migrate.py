"""Versioned migrations: each file once, in order, in its own transaction.

`headrace.migrations` in the database says which are in, with a checksum each: a file that was
changed after it was applied is refused, and so is a database that is newer than this program.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

_LOCK = 0x6D696772617465  # "migrate": one at a time
_NAME = re.compile(r"(\d{4})_(\w+)\.sql")
_SET_UP = """
create schema if not exists headrace;
create table if not exists headrace.migrations (
    version int primary key,
    name text not null,
    checksum text not null,
    applied_at timestamptz not null default now()
)
"""


class MigrationError(RuntimeError):
    """The database cannot be brought to this version; the sentence says why."""


@dataclass(frozen=True)
class Migration:
    version: int
    name: str
    script: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.script.encode()).hexdigest()


def known() -> list[Migration]:
    """The migrations this program carries, in order."""
    return sorted(_packaged(), key=lambda migration: migration.version)


def _packaged() -> Iterator[Migration]:
    for file in resources.files("headrace.stack.migrations").iterdir():
        found = _NAME.fullmatch(file.name)
        if found:
            yield Migration(int(found[1]), found[2], file.read_text("utf-8"))


def migrate(url: str, migrations: Sequence[Migration] | None = None) -> list[Migration]:
    """Apply what is missing; the migrations that were applied now."""
    wanted = known() if migrations is None else migrations
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("select pg_advisory_lock(%s)", (_LOCK,))
        connection.execute(_SET_UP)
        rows = connection.execute("select version, name, checksum from headrace.migrations")
        applied = {version: (name, checksum) for version, name, checksum in rows}
        _check(applied, wanted)
        missing = [migration for migration in wanted if migration.version not in applied]
        for migration in missing:
            _apply(connection, migration)
    return missing


def _check(applied: dict[int, tuple[str, str]], wanted: Sequence[Migration]) -> None:
    by_version = {migration.version: migration for migration in wanted}
    for version, (name, checksum) in sorted(applied.items()):
        migration = by_version.get(version)
        if migration is None:
            raise MigrationError(
                f"The database has migration {version:04d}_{name}, which this version of headrace "
                "does not know: use the version that made it, or a later one."
            )
        if migration.checksum != checksum:
            raise MigrationError(
                f"Migration {version:04d}_{name} was changed after it was applied: put the "
                "change into a migration of its own."
            )


def _apply(connection: psycopg.Connection, migration: Migration) -> None:
    with connection.transaction():
        connection.execute(migration.script.encode())
        connection.execute(
            "insert into headrace.migrations (version, name, checksum) values (%s, %s, %s)",
            (migration.version, migration.name, migration.checksum),
        )


def create_database(url: str) -> bool:
    """Create the database that `url` names if it is missing; whether it was."""
    try:
        psycopg.connect(url).close()
        return False
    except psycopg.OperationalError as error:
        if "does not exist" not in str(error):
            raise
    name = str(conninfo_to_dict(url)["dbname"])
    with psycopg.connect(make_conninfo(url, dbname="postgres"), autocommit=True) as connection:
        connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    return True
