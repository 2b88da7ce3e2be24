"""Row messages decoded together say what each says alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg.postgres import types

from headrace.postgres import change_buffer
from headrace.postgres.collector import Collector
from headrace.postgres.pgoutput import Change, Decoder
from headrace.postgres.positions import FeedPosition


@pytest.fixture(autouse=True, scope="module", params=[0, 3])
def few(request: pytest.FixtureRequest) -> Iterator[None]:
    """As if these were many messages: all of them, or those of groups that are not small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(change_buffer, "_FEW", request.param)
        yield


COMMITTED_AT_US = 850_000_000_000_000
NUMBERS = st.integers(-(2**63), 2**63 - 1).map(str)
TEXTS = {
    "int8": NUMBERS,
    "text": st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    "bool": st.sampled_from("tf"),
    "float8": st.sampled_from(["1.5", "-1e+300", "NaN", "Infinity", "-Infinity"]),
    "jsonb": st.sampled_from(["{}", '{"a": ["\\"", 1]}']),
    "int4[]": st.sampled_from(["{}", "{1,NULL}", "[0:1]={5,6}"]),
    "uuid": st.uuids().map(str),
}
UNSENT = object()


@dataclass(frozen=True)
class Table:
    oid: int
    types: tuple[str, ...]
    keys: tuple[int, ...]


def _oid(name: str) -> int:
    info = types[name.removesuffix("[]")]
    return info.array_oid if name.endswith("[]") else info.oid


def _tuple(values: list[object]) -> bytes:
    out = pack(">H", len(values))
    for value in values:
        if isinstance(value, str):
            text = value.encode()
            out += b"t" + pack(">I", len(text)) + text
        else:
            out += b"n" if value is None else b"u"
    return out


def described(table: Table) -> bytes:
    columns = b"".join(
        bytes([number in table.keys]) + b"c%d\0" % number + pack(">Ii", _oid(name), -1)
        for number, name in enumerate(table.types)
    )
    name = b"t%d" % table.oid
    head = b"R" + pack(">I", table.oid) + b"public\0" + name + b"\0d"
    return head + pack(">H", len(table.types)) + columns


@st.composite
def tables(draw: st.DrawFn, oid: int) -> Table:
    names = draw(st.lists(st.sampled_from(sorted(TEXTS)), max_size=5))
    keys = draw(st.sets(st.sampled_from(range(len(names))))) if names else set()
    return Table(oid, tuple(names), tuple(sorted(keys)))


def tuples(table: Table, *others: object) -> st.SearchStrategy[bytes]:
    values = [st.one_of(TEXTS[name], *map(st.just, others)) for name in table.types]
    return st.tuples(*values).map(lambda found: _tuple(list(found)))


def rows(table: Table) -> st.SearchStrategy[bytes]:
    oid = pack(">I", table.oid)
    old, new = tuples(table, None), tuples(table, None, UNSENT)
    known = st.tuples(st.sampled_from([b"K", b"O"]), old).map(b"".join)
    return st.one_of(
        old.map(lambda row: b"I" + oid + b"N" + row),
        new.map(lambda row: b"U" + oid + b"N" + row),
        st.tuples(known, new).map(lambda both: b"U" + oid + both[0] + b"N" + both[1]),
        known.map(lambda row: b"D" + oid + row),
        st.just(b"T" + pack(">IB", 1, 0) + oid),
    )


@st.composite
def logs(draw: st.DrawFn) -> list[bytes]:
    """Transactions over two tables, one of which is described anew on the way."""
    messages: list[bytes] = []
    known = [draw(tables(oid)) for oid in (1, 2)]
    messages += map(described, known)
    for number in range(draw(st.integers(0, 3))):
        begins = 10 * number + 1
        messages.append(pack(">cQqI", b"B", begins, COMMITTED_AT_US + number, number))
        messages += draw(st.lists(st.one_of(*map(rows, known)), max_size=8))
        if draw(st.booleans()):
            known[0] = draw(tables(1))
            messages.append(described(known[0]))
        messages += draw(st.lists(st.one_of(*map(rows, known)), max_size=4))
        messages.append(pack(">cBQQq", b"C", 0, begins, begins + 5, 0))
    return messages


@settings(max_examples=50, deadline=None)
@given(logs(), st.integers(1, 7))
def test_rows_of_many_messages_are_those_of_each(log: list[bytes], cut: int) -> None:
    decoder = Decoder()
    alone = [each for message in log for each in decoder.feed(message) if isinstance(each, Change)]
    # A table that was not known at the start is not announced when it is described.
    together = Collector(FeedPosition(1, 0, 0), Decoder(), lambda relation: "{}")
    for first in range(0, len(log), cut):
        together.take(log[first : first + cut])
    found = [change for change in together.changes() if change.op != "schema"]
    assert found == alone


@settings(max_examples=30, deadline=None)
@given(logs(), st.data())
def test_a_log_may_be_cut_into_batches_anywhere(log: list[bytes], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(log)))
    whole = Collector(FeedPosition(1, 0, 0), Decoder(), lambda relation: "{}")
    whole.take(log)
    decoder = Decoder()
    first = Collector(FeedPosition(1, 0, 0), decoder, lambda relation: "{}")
    first.take(log[:cut])
    same_connection = Collector(first.position, decoder, lambda relation: "{}")
    if not first.is_owing:  # else the feed takes another connection
        same_connection.take(log[cut:])
    other_connection = Collector(first.position, Decoder(), lambda relation: "{}")
    other_connection.take(_log_after(log, first.position.lsn))
    for onward in (other_connection, *([] if first.is_owing else [same_connection])):
        assert onward.position == whole.position
        assert [*first.changes(), *onward.changes()] == list(whole.changes())


def _log_after(log: list[bytes], lsn: int) -> list[bytes]:
    """What Postgres sends again: all that tables were, and the transactions behind `lsn`."""
    found, is_wanted = [], True
    for message in log:
        if message[:1] == b"B":
            is_wanted = int.from_bytes(message[1:9]) >= lsn
        if is_wanted or message[:1] == b"R":
            found.append(message)
    return found
