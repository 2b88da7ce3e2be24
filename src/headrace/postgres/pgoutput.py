"""The pgoutput protocol, version 1: replication messages in, changes out.

Pure: bytes and positions in, values out. A row is JSON text from the start; no dictionary is
built on the way. What an update did not send (TOAST that did not change) is named, never guessed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from struct import Struct
from typing import NamedTuple

from headrace.postgres.keys import Keys
from headrace.postgres.values import Encoder, encoder

Encoding = Callable[[int], Encoder]

_BEGIN = Struct(">xQqI")
_COMMIT = Struct(">xBQQq")
_U32 = Struct(">I")
_U16 = Struct(">H")
_COLUMN_TYPE = Struct(">Ii")
_EPOCH_2000_US = 946_684_800_000_000

_NULL, _TEXT, _UNCHANGED = ord("n"), ord("t"), ord("u")
_OLD_KEY, _OLD_ROW = ord("K"), ord("O")
_FULL = ord("f")
ROWS = (b"I", b"U", b"D")
OID = slice(1, 5)  # of a table, in what describes it and in its rows


def lsn_text(lsn: int) -> str:
    """A position in the log as Postgres writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_number(text: str) -> int:
    high, low = text.split("/")
    return (int(high, 16) << 32) | int(low, 16)


class Change(NamedTuple):
    """One row of the change feed. `value`, `key` and `old` are JSON objects as text.

    `op` is insert, update, delete, truncate, schema, snapshot or reset; `old` is what the old row
    is known by (its key, or all of it under REPLICA IDENTITY FULL), `unchanged` names columns of
    `value` that Postgres did not send because they did not change.
    """

    table: str
    op: str
    key: str | None
    value: str | None
    old: str | None
    unchanged: list[str]
    lsn: str
    seq: int
    xid: int
    committed_at_us: int | None


@dataclass(frozen=True)
class Column:
    name: str
    type_oid: int
    type_modifier: int
    is_key: bool


@dataclass(frozen=True)
class Relation:
    """A table as the publisher describes it, with the work of encoding its rows done once."""

    table: str
    columns: tuple[Column, ...]
    prefixes: tuple[str, ...] = field(repr=False)
    encoders: tuple[Encoder, ...] = field(repr=False)
    keys: tuple[int, ...] = field(repr=False)

    @classmethod
    def of(cls, table: str, columns: tuple[Column, ...], encoding: Encoding = encoder) -> Relation:
        return cls(
            table,
            columns,
            tuple(f"{encoder(0)(column.name)}:" for column in columns),
            tuple(encoding(column.type_oid) for column in columns),
            tuple(i for i, column in enumerate(columns) if column.is_key),
        )

    @property
    def fingerprint(self) -> str:
        """Changes when a column is added, dropped, renamed or given another type."""
        shape = [(column.name, column.type_oid, column.type_modifier) for column in self.columns]
        return f"{zlib.crc32(repr(shape).encode()):08x}"

    @property
    def key_names(self) -> list[str]:
        """The columns of its key; none where that is all columns."""
        if len(self.keys) == len(self.columns):
            return []
        return [self.columns[i].name for i in self.keys]

    def describe(self, types: Sequence[str]) -> str:
        """The columns, as the `value` of a schema event; `types` names the type of each."""
        quote = encoder(0)
        columns = ",".join(
            f'{{"name":{quote(c.name)},"type":{quote(type_)},"type_oid":{c.type_oid},'
            f'"key":{str(c.is_key).lower()}}}'
            for c, type_ in zip(self.columns, types, strict=True)
        )
        return f'{{"columns":[{columns}]}}'

    def fields(self, texts: list[str | None]) -> list[str | None]:
        """`"name":value` for each column, from the text of the values."""
        return [
            prefix + ("null" if text is None else encode(text))
            for prefix, encode, text in zip(self.prefixes, self.encoders, texts, strict=True)
        ]

    def key_of(self, fields: list[str | None]) -> str | None:
        """The key as a JSON object; None if there is none, or a part was not sent."""
        parts = [fields[i] for i in self.keys]
        return joined(parts) if parts and None not in parts else None


def joined(fields: list[str | None]) -> str:
    """A JSON object of the fields that were sent."""
    return "{" + ",".join(field for field in fields if field is not None) + "}"


class Transaction(NamedTuple):
    """What all changes of a transaction have."""

    lsn: str
    xid: int
    committed_at_us: int


class Begin(NamedTuple):
    xid: int
    commit_lsn: int = 0


class Commit(NamedTuple):
    end_lsn: int


class Described(NamedTuple):
    """The publisher described a table, for the first time on this connection or anew."""

    relation: Relation


Message = Begin | Commit | Described | Change


class Decoder:
    """Remembers the tables of one connection and the transaction it is in.

    Under REPLICA IDENTITY FULL the publisher calls every column a key; `keys` says which really
    are. `encoding` says how values of a type become JSON. Transactions of an
    origin that `leaves_out` knows have no changes.
    """

    def __init__(
        self,
        keys: Keys | None = None,
        encoding: Encoding = encoder,
        leaves_out: Callable[[str], bool] = lambda origin: False,
    ) -> None:
        self._leaves_out = leaves_out
        self.is_left_out = False  # the transaction that is being read
        self.transaction = Transaction("", 0, 0)
        self._keys = keys
        self._encoding = encoding
        self._relations: dict[int, Relation] = {}
        self.seq = 0  # of the next change in its transaction

    def feed(self, message: bytes) -> list[Message]:
        """What one message says; a truncate says one thing per table."""
        kind = message[0:1]
        if self.is_left_out and kind in (*ROWS, b"T"):
            return []
        match kind:
            case b"I" | b"U" | b"D":
                relation = self.relation_of(message)
                return [self._change(relation.table, *decode_row(message, relation))]
            case b"T":
                return self._truncate(message)
            case b"B":
                return [self._begin(message)]
            case b"C":
                return [Commit(_COMMIT.unpack_from(message)[2])]
            case b"R":
                return [self._relation(message)]
            case b"O":
                self.is_left_out = self._leaves_out(_string(message, 9)[0])
                return []
            case b"Y" | b"M":  # type, logical message: nothing about rows
                return []
            case _:
                raise ValueError(f"pgoutput message of unknown kind {kind!r}")

    def relation_of(self, message: bytes) -> Relation:
        """The table that an insert, update or delete is about."""
        return self._relations[_U32.unpack_from(message, 1)[0]]

    def _begin(self, message: bytes) -> Begin:
        commit_lsn, committed_at, xid = _BEGIN.unpack_from(message)
        self.transaction = Transaction(lsn_text(commit_lsn), xid, committed_at + _EPOCH_2000_US)
        self.seq = 0
        self.is_left_out = False  # the origin follows, if there is one
        return Begin(xid, commit_lsn)

    def _relation(self, message: bytes) -> Described:
        schema, at = _string(message, 5)
        name, at = _string(message, at)
        table, is_full = f"{schema}.{name}", message[at] == _FULL
        (count,) = _U16.unpack_from(message, at + 1)
        at += 3
        columns = []
        for _ in range(count):
            is_key = bool(message[at] & 1)
            column, at = _string(message, at + 1)
            type_oid, modifier = _COLUMN_TYPE.unpack_from(message, at)
            columns.append(Column(column, type_oid, modifier, is_key))
            at += 8
        (oid,) = _U32.unpack_from(message, 1)
        if is_full and self._keys is not None:
            columns = _with_key(self._keys, table, columns, self._relations.get(oid))
        relation = Relation.of(table, tuple(columns), self._encoding)
        self._relations[oid] = relation
        return Described(relation)

    def _truncate(self, message: bytes) -> list[Message]:
        (count,) = _U32.unpack_from(message, 1)
        oids = Struct(f">{count}I").unpack_from(message, 6)
        tables = [self._relations[oid].table for oid in oids]
        return [self._change(table, "truncate", None, None, None, []) for table in tables]

    def _change(
        self,
        table: str,
        op: str,
        key: str | None,
        value: str | None,
        old: str | None,
        unchanged: list[str],
    ) -> Change:
        seq = self.seq
        self.seq += 1
        lsn, xid, at = self.transaction
        return Change(table, op, key, value, old, unchanged, lsn, seq, xid, at)


class Row(NamedTuple):
    """What a row message says; see `Change`."""

    op: str
    key: str | None
    value: str | None
    old: str | None
    unchanged: list[str]


def decode_row(message: bytes, relation: Relation) -> Row:
    """An insert, update or delete in a table that was described as `relation`."""
    first, at = _fields(message, 6, relation)
    kind, which = message[0:1], message[5]
    if kind == b"I":
        return Row("insert", relation.key_of(first), joined(first), None, [])
    known_by = joined(first) if which == _OLD_ROW else relation.key_of(first)
    if kind == b"D":
        return Row("delete", relation.key_of(first), None, known_by, [])
    if which not in (_OLD_KEY, _OLD_ROW):
        return _updated(relation, first, None)
    # A large value that did not change is only in the old tuple, which may be the key alone.
    second, _ = _fields(message, at + 1, relation)
    new = [
        was if now is None and (which == _OLD_ROW or column.is_key) else now
        for column, was, now in zip(relation.columns, first, second, strict=True)
    ]
    return _updated(relation, new, known_by)


def _updated(relation: Relation, new: list[str | None], known_by: str | None) -> Row:
    columns = zip(relation.columns, new, strict=True)
    unchanged = [column.name for column, sent in columns if sent is None]
    return Row("update", relation.key_of(new), joined(new), known_by, unchanged)


def _with_key(
    keys: Keys, table: str, columns: list[Column], previous: Relation | None
) -> list[Column]:
    before = (len(previous.columns), previous.keys) if previous is not None else None
    key = keys.among(table, [column.name for column in columns], before)
    return [replace(column, is_key=column.name in key) for column in columns]


def _fields(message: bytes, at: int, relation: Relation) -> tuple[list[str | None], int]:
    """The columns of one tuple as `"name":value`, None for one not sent; and where it ends."""
    (count,) = _U16.unpack_from(message, at)
    at += 2
    out: list[str | None] = []
    prefixes, encoders = relation.prefixes, relation.encoders
    for index in range(count):
        kind = message[at]
        at += 1
        if kind == _TEXT:
            (length,) = _U32.unpack_from(message, at)
            at += 4
            text = message[at : at + length].decode()
            out.append(prefixes[index] + encoders[index](text))
            at += length
        elif kind == _NULL:
            out.append(prefixes[index] + "null")
        else:
            assert kind == _UNCHANGED, f"a tuple field of kind {kind}; binary was not asked for"
            out.append(None)
    return out, at


def _string(message: bytes, at: int) -> tuple[str, int]:
    end = message.index(0, at)
    return message[at:end].decode(), end + 1
