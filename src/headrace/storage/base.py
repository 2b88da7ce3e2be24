"""What the engine asks of a storage mode.

Changes are handed to `commit` in order. What a change was about comes back through the
completion callback once it is durable; `when_durable` calls back once everything handed in before
for that stream is. In memory both happen at once. A log holds exactly the bytes a reader receives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from headrace.errors import HeadraceError
from headrace.protocol.offsets import Position
from headrace.protocol.stream import Appended, Snapshot, StreamState
from headrace.storage.blobs import Blobs

Lengths = Sequence[int]


class Range(msgspec.Struct, frozen=True, gc=False):
    """Whole messages of a stream, and where they end."""

    end: Position
    data: bytes
    lengths: Lengths


Failed = Callable[[HeadraceError], None]


def ignore(_: object) -> None:
    """A callback that does nothing."""


ColdRead = Callable[[], Range | None]
"""A read that touches a disk and no memory that changes: to be done off the loop."""


class CheckResult(NamedTuple):
    """Some of what is stored, read again: how much, and what is not as it was written."""

    data_bytes: int
    damage: list[HeadraceError]
    stream: str = ""
    """The name of the stream that the damage belongs to, where it is known."""


Check = Callable[[], CheckResult]
CHECK_BYTES: Final = 1024 * 1024  # one check reads about so much


class Log(Protocol):
    """The bytes of one stream and the boundaries of its messages."""

    def read(self, start: Position, limit: Position, bytes_max: int) -> Range | ColdRead | None:
        """Messages from `start` up to `limit`: at most `bytes_max`, but at least one.

        None where `start` is not a boundary between two messages.
        """
        ...

    def seek(
        self, start: Position, messages_max: int | None, bytes_max: int | None
    ) -> Position | None:
        """The end of the messages from `start` within both bounds, and of at least one.

        None where memory alone cannot tell, or `start` is not a boundary.
        """
        ...

    def is_tier_boundary(self, position: Position) -> bool:
        """Whether a cold read ends at `position` only because another part goes on there."""
        ...

    @property
    def stored_bytes(self) -> int:
        """Bytes this log itself holds, without those of the logs it branched from."""
        ...


class Created(msgspec.Struct, frozen=True):
    """A change: a stream exists, with its first content."""

    state: StreamState
    initial: Appended


class Removed(msgspec.Struct, frozen=True):
    """A change: a stream is gone for clients; `whole` says that its bytes go too."""

    state: StreamState
    whole: bool


class Trimmed(msgspec.Struct, frozen=True):
    """A change: clients read from `trim_offset` on."""

    state: StreamState
    trim_offset: Position


class Adopted(msgspec.Struct, frozen=True):
    """A change: a stream from elsewhere has its bytes, and all the rest is as `state` says."""

    state: StreamState


class Published(msgspec.Struct, frozen=True):
    """A change: `snapshot`, whose blob is stored, takes the place of what came before it."""

    state: StreamState
    snapshot: Snapshot


class Reclaimed(msgspec.Struct, frozen=True):
    """A change: no reader or fork needs the bytes before `retained_from`.

    `freed_bytes` of them are this log's own.
    """

    state: StreamState
    retained_from: Position
    freed_bytes: int


Change = Appended | Created | Removed | Trimmed | Published | Reclaimed | Adopted
Documents = Mapping[str, bytes | None]
"""Values by name, for everything that is not a stream; None removes one."""
Entry = tuple[Any, Any, Any]
"""What one commit is about; storage hands it back unread."""


class Postponed(Exception):
    """Nothing of a batch was written, for want of room or of a descriptor: it is to be tried again.

    Carries the error that prevented it.
    """

    def __init__(self, reason: OSError) -> None:
        super().__init__(str(reason))
        self.reason = reason


Delayed = Callable[[Sequence[Entry], HeadraceError], list[Entry]]


class Recovered(msgspec.Struct):
    """One stream as it was when the storage was last open."""

    state: StreamState
    log: Log


class Orphaned(LookupError):
    """A stream that cannot be recovered without a missing part; the text says which."""


class Unrecovered(NamedTuple):
    """One stream that is stored and cannot be recovered; what is stored of it is left alone."""

    id: int
    name: str  # empty where it is not known
    error: Exception
    source_id: int | None = None  # of a fork
    snapshot: Snapshot | None = None
    is_known: bool = True  # whether `source_id` and `snapshot` are


def reason_of(error: Exception) -> str:
    """Why a stream cannot be recovered, in a sentence."""
    if isinstance(error, HeadraceError | Orphaned):
        return str(error)
    return f"{type(error).__name__}: {error}".rstrip(":. ") + "."


@dataclass(slots=True)
class Commits:
    """Batches of changes made durable, and the seconds spent writing and syncing them."""

    batches: int = 0
    changes: int = 0
    seconds: float = 0.0


class Storage(Protocol):
    """One storage mode."""

    @property
    def blobs(self) -> Blobs:
        """Where snapshots are."""
        ...

    @property
    def refusal(self) -> HeadraceError | None:
        """Why nothing can be added at present: the disk is full, or read-only."""
        ...

    @property
    def removal_refusal(self) -> HeadraceError | None:
        """Why nothing at all can be written at present, not even that something is removed."""
        ...

    def start(
        self,
        committed: Callable[[Sequence[Entry]], None],
        failed: Callable[[Sequence[Entry]], None],
        delayed: Delayed | None = None,
    ) -> None:
        """Begin; `committed` receives entries in order, once their changes are durable.

        `failed` receives those whose outcome will never be known; storage stops with it. `delayed`
        receives those that wait for room, with the refusal for further requests, and returns what
        `committed` is to receive in their places.
        """
        ...

    def recover(self) -> Iterable[Recovered]:
        """The streams that exist, sources before their forks."""
        ...

    @property
    def unrecovered(self) -> Sequence[Unrecovered]:
        """After `recover`: the streams that it had to leave out."""
        ...

    def take_documents(self) -> dict[str, bytes]:
        """After `recover`, once: the documents that exist."""
        ...

    @property
    def last_id(self) -> int:
        """After `recover`: the highest id that any stream or blob has ever durably had.

        That of a stream which is gone counts, too: ids are in ETags, which outlive streams.
        """
        ...

    def reserve_ids(self, id: int) -> None:
        """Ids up to this one were used elsewhere: durable with the next checkpoint or commit."""
        ...

    def new_log(self, state: StreamState, source: Log | None) -> Log:
        """An empty log; a fork's continues `source` from the fork's own tail."""
        ...

    def commit(self, log: Log, change: Change, entry: Entry | None) -> None:
        """Make `change`, which is in `log.state` already, durable.

        Never raises: a change that cannot be handed in is a failed commit, and storage stops.
        """
        ...

    def fail(self, defect: Exception) -> None:
        """Memory and disk no longer agree: fail the waiting entries, write nothing more, stop."""
        ...

    def when_durable(
        self, log: Log, done: Callable[[], None], failed: Callable[[HeadraceError], None] = ignore
    ) -> None:
        """Call `done` once everything handed in for `log` is durable; `failed` if it never is."""
        ...

    def put_documents(self, documents: Documents) -> None:
        """Make changes to documents durable: all of them, or none."""
        ...

    def when_documents_durable(self, done: Callable[[], None], failed: Failed) -> None:
        """Call back once every document handed in so far is durable, or never will be."""
        ...

    def run_in_thread(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Do `work`, which touches a disk, off the loop; then call `done` with its result.

        Where `work` raises, an error is its result; where `done` raises, it is called once more
        with an error.
        """
        ...

    def checks(self) -> Iterator[Check]:
        """One pass over all that is stored: each to be done off the loop before the next."""
        ...

    async def failed(self) -> None:
        """Returns never, or raises what a commit died of."""
        ...

    def commits(self) -> Commits:
        """What has been made durable so far, and how long that took."""
        ...

    def tick(self) -> None:
        """Called about once a second: look whether there is room."""
        ...

    def close(self) -> None: ...

    def abandon(self) -> None:
        """Release the directory without writing to it: the start has failed."""
        ...


@contextmanager
def committing(storage: Storage) -> Iterator[None]:
    """Around a change that is made in memory and then handed to `commit`.

    What raises in between leaves memory with something that the disk will never have, and later
    changes would be built on it. Storage stops instead.
    """
    try:
        yield
    except Exception as defect:
        storage.fail(defect)
        raise
