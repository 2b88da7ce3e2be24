"""Which row of a table a change is about: its key as text, checked against the table's key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import msgspec

from headrace.changes.events import Fields, NotAChange, Put, Row
from headrace.changes.row_keys import key_text, key_values
from headrace.changes.rules import CannotApply

_NULL: Final = b"null"
_string = msgspec.json.Decoder(str)


class KeyMismatch(NotAChange):
    """A key of other parts than the table's."""


class ChangeKeys:
    """Of the changes of one table in one batch."""

    def __init__(self, table: str) -> None:
        self._table = table
        self._is_compared = False

    def named(self, change: Row, keys: Sequence[str]) -> Row:
        """The change with its key as text, which has as many parts as `keys`."""
        if change.key is None:
            return _of_row(change, keys)
        _check(change.key, keys)
        if isinstance(change, Put):
            if change.was is not None:
                _check(change.was, keys)
            if not self._is_compared:
                self._compare(change.key, change.fields, keys)
        return change

    def _compare(self, text: str, fields: Fields, keys: Sequence[str]) -> None:
        """Refuse rows known by other columns than the table's: deletes would miss them.

        Compared are texts and whole numbers, which have one form; and one row of a batch, since a
        stream's rows are all known by the same columns.
        """
        self._is_compared = True
        for key, part in zip(keys, key_values(text, len(keys)), strict=True):
            value = fields.get(key, b"")
            has_one_form = value.startswith(b'"') or value.removeprefix(b"-").isdigit()
            if has_one_form and text_of(value) != part:
                raise CannotApply(
                    f"The stream of {self._table} knows a row as {text!r}, which does not match "
                    f"its {', '.join(keys)}, the key of the table. Set keys to the columns that "
                    "the stream's keys are made of, in their order."
                )


def text_of(value: bytes) -> str | None:
    """A JSON value as text: of a string its content, of anything else how it is written."""
    if value == _NULL:
        return None
    return _string.decode(value) if value.startswith(b'"') else value.decode()


def _check(key: str, keys: Sequence[str]) -> None:
    try:
        key_values(key, len(keys))
    except ValueError as error:
        raise KeyMismatch(str(error)) from None


def _of_row(change: Row, keys: Sequence[str]) -> Row:
    """The key from the row itself; that before the change if it was another one."""
    key = _key_of(change.fields, keys)
    before = change.before if isinstance(change, Put) else None
    # A connector may fill columns that it does not know of the old row with null.
    if before is None or any(before.get(name, _NULL) == _NULL for name in keys):
        return replace(change, key=key)
    assert isinstance(change, Put), "only a row that stays has one before"
    was = _key_of(before, keys)
    return replace(change, key=key, was=was if was != key else None)


def _key_of(fields: Fields, keys: Sequence[str]) -> str:
    absent = [key for key in keys if key not in fields]
    if absent or not keys:
        raise NotAChange(f"the message lacks {', '.join(absent)} of the table's key")
    return key_text([text_of(fields[key]) for key in keys])
