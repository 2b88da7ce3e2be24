"""Changes folded by key, and keys as text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.changes.events import Gone, Put, Row, Source
from headrace.changes.folding import all_versions, last_versions
from headrace.changes.row_keys import key_text, key_values
from headrace.client import State

_SOURCE = Source("t")
_TABLE = {"a": {"x": "a-x", "y": "a-y"}, "b": {"x": "b-x", "y": "b-y"}}  # before the batch


def put(key: str, unchanged: tuple[str, ...] = (), was: str | None = None, **fields: str) -> Put:
    texts = {name: json.dumps(value).encode() for name, value in fields.items()}
    return Put(_SOURCE, key, texts, unchanged, was)


_keys = st.sampled_from("abcd")
_puts = st.builds(
    lambda key, n, part, was: put(
        key, ("y",) if part else (), was if was != key else None, x=n, **({} if part else {"y": n})
    ),
    _keys, st.text("0123", min_size=1, max_size=2), st.booleans(), st.none() | _keys,
)  # fmt: skip
_changes = st.lists(_puts | st.builds(lambda key: Gone(_SOURCE, key, {}), _keys), max_size=12)


@given(_changes, st.integers(0, 12))
def test_a_fold_of_any_batches_is_what_a_state_says(changes: list[Row], cut: int) -> None:
    """Wherever the batches end: each reads the table as the last one left it."""
    state, table = State(), {key: dict(row) for key, row in _TABLE.items()}
    for key, row in _TABLE.items():
        state.apply(_message(key, "insert", row))
    for change in changes:
        state.apply(_of(change))
        if isinstance(change, Put) and change.was is not None:
            state.apply(_message(change.was, "delete"))
    for batch in (changes[:cut], changes[cut:]):
        table = _written(table, batch)
    assert table == dict(state.rows("t"))


def _written(table: dict[str, dict[str, Any]], batch: list[Row]) -> dict[str, dict[str, Any]]:
    """What a table becomes by the versions of a batch."""
    after = {key: dict(row) for key, row in table.items()}
    for version in last_versions(batch, 0):
        after.pop(version.key, None)
        if not version.is_gone:
            stored = table.get(version.base or "", {})
            found = {name: stored[name] for name in version.missing if name in stored}
            fields = {name: json.loads(value) for name, value in version.fields.items()}
            after[version.key] = found | fields
    return after


def _of(change: Row) -> dict[str, Any]:
    assert change.key is not None
    if isinstance(change, Gone):
        return _message(change.key, "delete")
    fields = {name: json.loads(value) for name, value in change.fields.items()}
    headers = {"unchanged": list(change.unchanged)}
    if change.was is not None:
        headers["was"] = change.was  # type: ignore[assignment]
    return _message(change.key, "upsert", fields, **headers)


def _message(key: str, operation: str, value: Any = None, **headers: Any) -> dict[str, Any]:
    return {
        "type": "t", "key": key, "value": value, "headers": {"operation": operation, **headers}
    }  # fmt: skip


@given(_changes)
def test_times_of_a_key_strictly_increase(changes: list[Row]) -> None:
    last: dict[str, int] = {}
    for version in all_versions(changes, 5):
        assert version.at_us > last.get(version.key, 4)
        last[version.key] = version.at_us


_values = st.text("ab%/25mpty", max_size=6) | st.sampled_from(["%empty", "%25empty", "", "%null"])


@given(st.lists(_values, min_size=1, max_size=3))
def test_a_key_is_the_same_after_it_was_text(values: list[str]) -> None:
    assert key_values(key_text(values), len(values)) == values


def test_nulls_are_told_from_their_name_and_a_wrong_number_of_parts_is_refused() -> None:
    assert key_values(key_text([None, "%null"]), 2) == [None, "%null"]
    with pytest.raises(ValueError, match="has 3 parts, and the table's key 2"):
        key_values("a/b/c", 2)
    assert key_values("a/b", 1) == ["a/b"]
