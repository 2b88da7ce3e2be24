"""What a message says about rows, whichever format it has.

Values are JSON text, as they came: nothing is parsed that is only passed on.
"""

from __future__ import annotations

from dataclasses import dataclass

Fields = dict[str, bytes]


class NotAChange(ValueError):
    """A message that says nothing about a row; the text is a sentence for people."""


@dataclass(frozen=True, slots=True)
class Source:
    """Which table a change is of, as the message names it; `schema` may be empty."""

    type: str
    schema: str = ""


@dataclass(frozen=True, slots=True)
class Put:
    """A row is now `fields`.

    The columns in `unchanged` keep the values that the row had, under its key `was` if the key
    changed. Without a key in the message, `key` is empty until the key columns are known; what the
    row was `before` then says whether its key changed.
    """

    source: Source
    key: str | None
    fields: Fields
    unchanged: tuple[str, ...] = ()
    was: str | None = None
    at_us: int | None = None
    has_document_texts: bool = False  # JSON columns come as strings that hold JSON
    before: Fields | None = None


@dataclass(frozen=True, slots=True)
class Gone:
    """A row was deleted. `fields` is what the message says of it, if not its key."""

    source: Source
    key: str | None
    fields: Fields
    at_us: int | None = None


@dataclass(frozen=True, slots=True)
class Clear:
    """All rows are gone: of `source`, or of every table that the stream feeds."""

    source: Source | None = None
    at_us: int | None = None


@dataclass(frozen=True, slots=True)
class ColumnShape:
    name: str
    type: str
    key: bool = False


@dataclass(frozen=True, slots=True)
class TableShape:
    """The columns of a table from here on, as its source describes them."""

    source: Source
    columns: tuple[ColumnShape, ...]
    has_key: bool = True  # if not, all columns together identify a row


@dataclass(frozen=True, slots=True)
class SnapshotStart:
    """What follows replaces everything, once the snapshot ends."""


@dataclass(frozen=True, slots=True)
class SnapshotEnd:
    pass


Row = Put | Gone
Event = Put | Gone | Clear | TableShape | SnapshotStart | SnapshotEnd
