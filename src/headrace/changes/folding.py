"""Changes of one table folded: what each key becomes, or every version that it has on the way.

A change may leave out columns that it did not touch. Where an earlier change of the batch has
them, they are filled in here. Where only the stored row has them, the result names that row
(`base`) and the columns (`missing`), and the writer looks them up in the table as it was
before the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from headrace.changes.events import Fields, Put, Row


@dataclass(frozen=True, slots=True)
class Version:
    """A row as one change left it; `is_gone` after a delete."""

    key: str
    fields: Fields
    missing: tuple[str, ...] = ()
    base: str | None = None
    at_us: int = 0
    is_gone: bool = False


def last_versions(changes: Iterable[Row], now_us: int) -> list[Version]:
    """What each key becomes: one version per key, in the order of the last change of each."""
    last: dict[str, Version] = {}
    for version in all_versions(changes, now_us):
        last.pop(version.key, None)
        last[version.key] = version
    return list(last.values())


def all_versions(changes: Iterable[Row], now_us: int) -> Iterator[Version]:
    """Every version, in order. Within a key their times strictly increase."""
    last: dict[str, Version] = {}
    for change in changes:
        for version in _versions(change, last, now_us):
            last[version.key] = version
            yield version


def _versions(change: Row, last: dict[str, Version], now_us: int) -> Iterator[Version]:
    assert change.key is not None, "keys are known before changes are folded"
    if not isinstance(change, Put):
        yield _gone(change.key, change.at_us, last, now_us)
        return
    # The row before, read before the delete of a moved key hides it.
    version = _put(change, change.key, last, now_us)
    if change.was is not None:
        # The key changed: both in one step, so that no batch ends with the row under two keys.
        yield _gone(change.was, change.at_us, last, now_us)
    yield version


def _put(change: Put, key: str, last: dict[str, Version], now_us: int) -> Version:
    at_us = _after(last.get(key), change.at_us, now_us)
    if not change.unchanged:
        return Version(key, change.fields, at_us=at_us)
    was = key if change.was is None else change.was
    before = last.get(was)
    left_out = tuple(name for name in change.unchanged if name not in change.fields)
    if before is None:
        return Version(key, change.fields, left_out, was, at_us)
    known = {name: before.fields[name] for name in left_out if name in before.fields}
    missing = tuple(name for name in left_out if name in before.missing)
    return Version(key, known | change.fields, missing, before.base if missing else None, at_us)


def _gone(key: str, at_us: int | None, last: dict[str, Version], now_us: int) -> Version:
    return Version(key, {}, at_us=_after(last.get(key), at_us, now_us), is_gone=True)


def _after(before: Version | None, at_us: int | None, now_us: int) -> int:
    at_us = now_us if at_us is None else at_us
    return at_us if before is None else max(at_us, before.at_us + 1)
