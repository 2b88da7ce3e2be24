"""Whether what clients saw of one stream can be put into one order: exact, in O(n log n).

The log's own offsets are the witness. Every append that took effect has a fixed place, every read
and HEAD names the tail it saw, closure comes after the last byte. So there is only one candidate
order, and it is legal unless some operation returned before an earlier one was even called.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

NEVER: Final = float("inf")
"""The return time of an operation whose outcome is unknown."""


class OperationKind(IntEnum):
    """What was done; at one tail the order is the one given here."""

    APPEND = 0
    READ = 1  # of an open stream: the bytes before a tail, or the tail alone
    CLOSE = 2
    READ_CLOSED = 3
    REFUSED = 4  # an append that was refused because the stream is closed


class Operation(NamedTuple):
    """One request: when it was sent and answered, and which tail it made or saw.

    `digest` is that of an append's own bytes, or of all bytes before the tail that a read saw;
    None where only the tail was seen.
    """

    called: float
    returned: float
    kind: OperationKind
    end: int
    digest: int | None = None


class Record(NamedTuple):
    """One append as the final read shows it."""

    end: int
    data: bytes


def digest_of(data: bytes, before: int = 0) -> int:
    return zlib.crc32(data, before)


def violation(history: Iterable[Operation], log: Sequence[Record]) -> str | None:
    """The first thing that cannot be; None where `history` is linearizable.

    Appended bytes must differ from one another: they say which append is which.
    """
    places = {digest_of(record.data): record.end for record in log}
    if len(places) != len(log):
        return "the log holds a record twice"
    prefixes = _prefixes(log)
    placed: list[Operation] = []
    for operation in history:
        found = _place(operation, places, prefixes)
        if isinstance(found, str):
            return found
        if found is not None:
            placed.append(found)
    return _out_of_order(placed)


def _prefixes(log: Sequence[Record]) -> dict[int, int]:
    """The digest of everything before each boundary."""
    digest = 0
    prefixes = {0: digest}
    for record in log:
        digest = digest_of(record.data, digest)
        prefixes[record.end] = digest
    return prefixes


def _place(
    operation: Operation, places: dict[int, int], prefixes: dict[int, int]
) -> Operation | str | None:
    """The operation at its place in the order, None if it had no effect, or what is wrong."""
    if operation.kind is OperationKind.APPEND:
        assert operation.digest is not None, "an append knows its bytes"
        end = places.get(operation.digest)
        if operation.returned == NEVER:
            return None if end is None else operation._replace(end=end)
        if end != operation.end:
            return f"an acknowledged append is at {end}: {operation}"
        return operation
    if operation.kind is OperationKind.REFUSED:
        if operation.digest in places:
            return f"a refused append is in the log: {operation}"
        # It changed nothing, so it commutes with other reads of the closed stream.
        return operation._replace(end=max(prefixes), kind=OperationKind.READ_CLOSED)
    if operation.kind is OperationKind.CLOSE:
        return operation._replace(end=max(prefixes))
    if operation.end not in prefixes:
        return f"a read saw a tail that never was: {operation}"
    if operation.digest is not None and operation.digest != prefixes[operation.end]:
        return f"a read saw bytes that are not a prefix of the log: {operation}"
    return operation


def _out_of_order(placed: list[Operation]) -> str | None:
    placed.sort(key=lambda operation: (operation.end, operation.kind, operation.called))
    latest: Operation | None = None
    for operation in placed:
        if latest is not None and operation.returned < latest.called:
            return f"{operation} returned before {latest} was called, which comes first"
        if latest is None or operation.called > latest.called:
            latest = operation
    return None
