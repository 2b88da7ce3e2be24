"""What the engine asks of a storage mode.

A change handed to `commit` is durable when its entry comes back through the completion callback,
in the order of the commits. A log holds exactly the bytes a reader receives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from headrace.protocol.offsets import Position
from headrace.protocol.stream import Appended


class Log(Protocol):
    """The bytes of one stream and the boundaries of its messages."""

    def append(self, change: Appended) -> None: ...

    def read(self, start_bytes: int, end_bytes: int) -> bytes: ...

    def is_boundary(self, position: Position) -> bool: ...

    def after(self, messages: int) -> Position: ...

    def chunk_end(self, start: Position, end: Position, bytes_max: int) -> Position:
        """The last boundary within `bytes_max` of `start`, but at least one message on."""
        ...

    def trim(self, floor: Position) -> int:
        """Forget everything before `floor`; the number of bytes given back."""
        ...

    def branch(self, point: Position) -> Log:
        """A log that continues from `point` of this one."""
        ...

    @property
    def stored_bytes(self) -> int:
        """Bytes this log itself holds, without those of the logs it branched from."""
        ...


Entry = tuple[Any, Any, Any]
"""What one commit is about; storage hands it back unread."""


class Storage(Protocol):
    """One storage mode."""

    def start(self, committed: Callable[[Sequence[Entry]], None]) -> None:
        """Begin; `committed` receives entries in order, once what they stand for is durable."""
        ...

    def new_log(self) -> Log: ...

    def commit(self, log: Log, change: Appended, entry: Entry) -> None: ...

    def close(self) -> None: ...
