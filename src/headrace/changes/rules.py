"""How changes are applied, and what is said where that cannot be."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Final, Literal

NewColumns = Literal["add", "refuse", "ignore"]

VALID_FROM: Final = "valid_from"
VALID_TO: Final = "valid_to"
CURRENT: Final = "current"
HISTORY: Final = (VALID_FROM, VALID_TO, CURRENT)


class CannotApply(RuntimeError):
    """The stream, the rules and a table do not fit; the message says what to do."""


@dataclass(frozen=True)
class Rules:
    """`keys` are the key columns, else those that the table names."""

    table: str = "{stream}"
    keys: tuple[str, ...] = ()
    history: bool = False
    create_table: bool = True
    new_columns: NewColumns = "add"
    fire_triggers: bool = True


def qualified(name: str) -> str:
    """`schema.table`, where a name without a schema is of `public`."""
    return name if "." in name else f"public.{name}"


def check_history(name: str, has: Container[str], source: Container[str]) -> None:
    """Refuse a table that cannot keep history, and a source that has its columns."""
    absent = [column for column in HISTORY if column not in has]
    if absent:
        raise CannotApply(f"{name} has no column {', '.join(absent)}, which history needs.")
    twice = [column for column in HISTORY if column in source]
    if twice:
        raise CannotApply(f"The source of {name} has a column {twice[0]}, as history has.")


def no_table(name: str) -> CannotApply:
    return CannotApply(f"There is no table {name}. Make it, or set create_table.")


def no_key(name: str) -> CannotApply:
    return CannotApply(
        f"There is no table {name}, and its stream does not say which columns are its key: no "
        "schema message precedes its first row, as in a stream of an earlier version of "
        "postgres-to-stream, from Electric, or compacted. Make the table, or set keys."
    )


def unwanted_columns(name: str, columns: str) -> CannotApply:
    return CannotApply(
        f"{name} has no column {columns}, which its stream has now. Add it, or set new_columns to "
        '"add" or "ignore". Nothing of the batch is written.'
    )
