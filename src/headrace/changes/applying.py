"""The messages of one stream in one batch, passed to the tables they are of, wherever those are.

A snapshot that a stream sends between snapshot-start and snapshot-end is kept aside until its end,
and then replaces everything; what is kept aside outlives the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

import msgspec
import pyarrow as pa

from headrace.changes.events import (
    Clear,
    Event,
    Gone,
    NotAChange,
    Put,
    Row,
    SnapshotEnd,
    SnapshotStart,
    Source,
    TableShape,
)
from headrace.changes.messages import events_of, events_of_snapshot
from headrace.changes.rejected import Rejected
from headrace.changes.rules import CannotApply, Rules, qualified

# Of messages whose changes are held in memory before they are merged; parsed they take several
# times as much.
_HELD_BYTES_MAX: Final = 16 * 1024 * 1024


class Message(NamedTuple):
    stream: str
    offset: str
    value: bytes
    is_snapshot: bool


class Pending(NamedTuple):
    """A message of a snapshot that has begun and not ended."""

    offset: str
    message: bytes


class AppliedTable(Protocol):
    """One table as one stream feeds it. `columns` are what the stream has named so far."""

    name: str
    columns: list[str]
    was_widened: bool

    def add(self, change: Row, reject: Callable[[str], None]) -> None:
        """Take a change; NotAChange if it is not one of this table."""

    def reshape(self, shape: TableShape) -> None:
        """The source has these columns from here on."""

    def clear(self, at_us: int | None) -> None:
        """Remove all rows, those that are not merged yet too."""

    def flush(self) -> None:
        """Merge what was taken, if it is not merged all at once."""


class Memory(Protocol):
    """What is remembered of a stream from one batch to the next."""

    def targets(self) -> dict[str, list[str]]:
        """The tables that the stream feeds, and the columns that it has named in each."""
        ...

    def save(self, target: str, columns: Sequence[str]) -> None: ...

    def other_stream(self, target: str) -> str | None:
        """Another stream that feeds `target` too."""
        ...

    def has_pending(self) -> bool: ...

    def add_pending(self, messages: Sequence[Pending]) -> None: ...

    def pending(self) -> Iterator[Pending]:
        """In their order."""
        ...

    def drop_pending(self) -> None: ...


def messages_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Message]:
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in Message._fields)
        yield from map(Message._make, zip(*columns, strict=True))


class StreamChanges:
    """The messages of one stream in one batch."""

    def __init__(
        self,
        rules: Rules,
        memory: Memory,
        stream: str,
        open_table: Callable[[str, list[str]], AppliedTable],
    ) -> None:
        self._rules = rules
        self._memory = memory
        self._stream = stream
        self._open_table = open_table
        self._tables: dict[str, AppliedTable] = {}
        self._fed = memory.targets()
        self._pending: list[Pending] | None = [] if memory.has_pending() else None
        self._held_bytes = 0
        self.rejected: list[Rejected] = []

    def apply(self, messages: Iterable[Message]) -> int:
        rows = 0
        for message in messages:
            self._take(message)
            rows += 1
        if self._pending:
            self._memory.add_pending(self._pending)
        self._flush()
        for table in self._tables.values():
            if table.was_widened or table.name not in self._fed:
                self._memory.save(table.name, table.columns)
        return rows

    def _take(self, message: Message) -> None:
        try:
            read = events_of_snapshot if message.is_snapshot else events_of
            events = read(message.value)
        except NotAChange as error:
            self._reject(message, str(error))
            return
        if self._pending is not None and not message.is_snapshot:
            self._take_aside(message, events)
            return
        for event in events:
            self._apply(event, message)
        self._held_bytes += len(message.value)
        if self._held_bytes >= _HELD_BYTES_MAX:
            self._flush()

    def _take_aside(self, message: Message, events: Sequence[Event]) -> None:
        """A message inside a snapshot of the stream, which counts once that is complete."""
        assert self._pending is not None
        if any(isinstance(event, SnapshotStart | SnapshotEnd | Clear) for event in events):
            for event in events:
                self._apply(event, message)
        else:
            self._pending.append(Pending(message.offset, message.value))

    def _apply(self, event: Event, message: Message) -> None:
        try:
            self._take_event(event, message)
        except NotAChange as error:
            self._refuse(event, message, str(error))

    def _take_event(self, event: Event, message: Message) -> None:
        match event:
            case SnapshotStart():
                self._drop_pending()
                self._pending = [Pending(message.offset, message.value)]
            case SnapshotEnd():
                if self._pending is not None:
                    self._end_snapshot(self._pending)
            case Clear():
                if event.source is None:
                    self._drop_pending()
                self._clear(event)
            case TableShape():
                self._table(event.source).reshape(event)
            case Put() | Gone():
                self._table(event.source).add(event, partial(self._refuse, event, message))

    def _end_snapshot(self, last: list[Pending]) -> None:
        self._memory.add_pending(last)
        self._pending = None
        self._clear(Clear())
        for pending in self._memory.pending():
            message = Message(self._stream, pending.offset, pending.message, False)
            for event in events_of(message.value):
                if not isinstance(event, SnapshotStart):
                    self._apply(event, message)
            self._held_bytes += len(message.value)
            if self._held_bytes >= _HELD_BYTES_MAX:
                self._flush()
        self._flush()
        self._memory.drop_pending()

    def _drop_pending(self) -> None:
        if self._pending is not None:
            self._memory.drop_pending()
            self._pending = None

    def _clear(self, event: Clear) -> None:
        if event.source is not None:
            tables = [self._table(event.source)]
        else:
            if "{table}" not in self._rules.table and "{schema}" not in self._rules.table:
                self._named(self._name(Source("")))
            tables = [self._named(name) for name in {**self._fed, **self._tables}]
        for table in tables:
            other = self._memory.other_stream(table.name)
            if other is not None:
                raise CannotApply(
                    f"A reset of the stream {self._stream} would empty {table.name}, which the "
                    f"stream {other} feeds too. Give each stream a table of its own: set table."
                )
            table.clear(event.at_us)

    def _flush(self) -> None:
        for table in self._tables.values():
            table.flush()
        self._held_bytes = 0

    def _table(self, source: Source) -> AppliedTable:
        if "{table}" in self._rules.table and not source.type:
            raise NotAChange("the message does not say which table it is of")
        return self._named(self._name(source))

    def _name(self, source: Source) -> str:
        name = self._rules.table
        for mark, value in (
            ("{stream}", self._stream.rsplit("/", 1)[-1]),
            ("{table}", source.type),
            ("{schema}", source.schema or "public"),
        ):
            name = name.replace(mark, value)
        return qualified(name)

    def _named(self, name: str) -> AppliedTable:
        found = self._tables.get(name)
        if found is None:
            found = self._open_table(name, self._fed.get(name, []))
            self._tables[name] = found
        return found

    # -- what is refused ------------------------------------------------------------------------

    def _refuse(self, event: Event, message: Message, reason: str) -> None:
        if message.is_snapshot and isinstance(event, Put | Gone):  # this is one of its rows
            fields = {name: msgspec.Raw(value) for name, value in event.fields.items()}
            row = {"type": event.source.type, "key": event.key, "value": fields}
            message = message._replace(value=msgspec.json.encode(row))
        self._reject(message, reason)

    def _reject(self, message: Message, reason: str) -> None:
        try:
            text = message.value.decode()
        except UnicodeDecodeError:
            reason = f"{reason} (it is not UTF-8 text; message is base64 of its bytes)"
            self._add(message, message.value, reason)
        else:
            self._add(message, text, reason)

    def _add(self, message: Message, shown: str | bytes, reason: str) -> None:
        record = {"stream": self._stream, "offset": message.offset, "message": shown}
        self.rejected.append(Rejected(record, reason))
