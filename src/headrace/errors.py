"""Everything that can go wrong, as one tree.

    HeadraceError
      Refused          it did not happen, and the same request will not help
      Unavailable      it did not happen; the same request may succeed later
      Indeterminate    it may have happened: retry only with producer headers
      Corrupt          stored bytes failed their checksum

Errors are grouped by whether the request took effect. They carry facts as fields, and `detail`, a
sentence that says what to do. Status codes and wire form belong to `protocol.responses`.

Below the tree they are in the order of what they are about: requests, streams and forks, producers,
buckets and snapshots, limits and load, faults, storage. They stay in one file, because what
matters about a new one is its place in the tree, and the list of all others next to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any


class HeadraceError(Exception):
    """Base of every error this package raises or returns."""

    @property
    def detail(self) -> str:
        """One sentence: what happened, and what to do."""
        return type(self).__name__

    def facts(self) -> dict[str, Any]:
        """The fields of this error, as they appear in a problem document."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.repr}  # type: ignore[arg-type]

    def __str__(self) -> str:
        return self.detail


class Refused(HeadraceError):
    """It did not happen, and the same request will not help."""


class Unavailable(HeadraceError):
    """It did not happen; the same request may succeed later."""

    retry_after_secs: int


class Indeterminate(HeadraceError):
    """It may have happened: retry only with producer headers."""


class Corrupt(HeadraceError):
    """Stored bytes failed their checksum."""


# -- requests ----------------------------------------------------------------------------------


@dataclass(eq=False)
class InvalidRequest(Refused):
    """A header, parameter or body that breaks a rule of the protocol."""

    reason: str

    @property
    def detail(self) -> str:
        return self.reason

    def facts(self) -> dict[str, Any]:
        return {}


class InvalidJson(InvalidRequest):
    """A body for a JSON stream that is not JSON."""


class InvalidOffset(InvalidRequest):
    """An offset this server never handed out for this stream."""


class InvalidName(InvalidRequest):
    """A stream name that breaks a rule of `protocol.names`."""


class MalformedHttp(InvalidRequest):
    """Bytes that are not one unambiguous HTTP request; the connection closes."""


@dataclass(eq=False)
class UnsupportedTransferCoding(Refused):
    coding: str

    @property
    def detail(self) -> str:
        return f"Transfer-Encoding {self.coding!r} is not supported; send chunked or a length."


@dataclass(eq=False)
class HeadersTooLarge(Refused):
    limit: str

    @property
    def detail(self) -> str:
        return f"The request head exceeds {self.limit}."


@dataclass(eq=False)
class UrlTooLong(Refused):
    limit_bytes: int

    @property
    def detail(self) -> str:
        return f"The URL exceeds {self.limit_bytes} bytes."


@dataclass(eq=False)
class BodyTooLarge(Refused):
    limit_bytes: int

    @property
    def detail(self) -> str:
        return (
            f"The body exceeds {self.limit_bytes} bytes. Split an append into several; a snapshot "
            "must be smaller."
        )


@dataclass(eq=False)
class RequestTimeout(Refused):
    waited_secs: float

    @property
    def detail(self) -> str:
        return f"The request did not arrive within {self.waited_secs:g} seconds."


@dataclass(eq=False)
class MisdirectedRequest(Refused):
    """A Host that this server does not answer for."""

    host: str

    @property
    def detail(self) -> str:
        return (
            f"This server does not answer for the host {self.host!r}. To allow that name, "
            "add it to server.allowed_hosts."
        )


@dataclass(eq=False)
class CrossOriginRequest(Refused):
    """A page of another origin tried to change something."""

    origin: str  # empty where the browser says only that it is another

    @property
    def detail(self) -> str:
        return (
            f"A page of {self.origin or 'another origin'} may not change anything on this server. "
            "If it is yours, list its origin in http.cors_origins."
        )


@dataclass(eq=False)
class NotAuthenticated(Refused):
    """A request without a user, for what only some may do."""

    @property
    def detail(self) -> str:
        return "This needs a user. Sign in, and send the request with your token."

    def facts(self) -> dict[str, Any]:
        return {}


@dataclass(eq=False)
class Forbidden(Refused):
    """A user who may not do this."""

    action: str
    stream: str  # empty where it is about none

    @property
    def detail(self) -> str:
        on = f"to {self.action} the stream {self.stream!r}" if self.stream else "for this"
        return f"You have no permission {on}. Ask the operator of this server for it."


@dataclass(eq=False)
class RouteNotFound(Refused):
    path: str

    @property
    def detail(self) -> str:
        return f"Nothing is served at {self.path!r}."


@dataclass(eq=False)
class MethodNotAllowed(Refused):
    allow: str

    @property
    def detail(self) -> str:
        return f"This resource supports {self.allow} only."


# -- streams and forks -------------------------------------------------------------------------


@dataclass(eq=False)
class StreamNotFound(Refused):
    stream: str

    @property
    def detail(self) -> str:
        return f"There is no stream {self.stream!r}. Create it with PUT first."


@dataclass(eq=False)
class StreamDeleted(Refused):
    """Soft-deleted: gone for clients, kept for the forks that still need its data."""

    stream: str

    @property
    def detail(self) -> str:
        return f"The stream {self.stream!r} was deleted; only its forks can still be read."


@dataclass(eq=False)
class StreamClosed(Refused):
    stream: str
    next_offset: str

    @property
    def detail(self) -> str:
        return f"The stream {self.stream!r} is closed and accepts no more appends."


@dataclass(eq=False)
class NameTaken(Refused):
    stream: str

    @property
    def detail(self) -> str:
        return (
            f"The stream {self.stream!r} was deleted but has live forks, so its name cannot be "
            "used again until they are deleted."
        )


@dataclass(eq=False)
class SourceDeleted(Refused):
    stream: str

    @property
    def detail(self) -> str:
        return f"The stream {self.stream!r} was deleted and cannot be forked."


@dataclass(eq=False)
class ForkTooDeep(Refused):
    stream: str
    limit: int

    @property
    def detail(self) -> str:
        return (
            f"The stream {self.stream!r} is already {self.limit} forks deep, the maximum "
            "(limits.max_fork_depth). Fork one of its sources, or copy its messages into a new "
            "stream."
        )


@dataclass(eq=False)
class ConfigurationMismatch(Refused):
    stream: str
    differs: str

    @property
    def detail(self) -> str:
        return (
            f"The stream {self.stream!r} exists with another configuration: {self.differs}. "
            "Use another name, or repeat the request it was created with."
        )


@dataclass(eq=False)
class ContentTypeMismatch(Refused):
    expected: str
    received: str

    @property
    def detail(self) -> str:
        return f"This stream holds {self.expected}; the request carries {self.received}."


@dataclass(eq=False)
class OffsetTrimmed(Refused):
    earliest_offset: str

    @property
    def detail(self) -> str:
        return (
            f"History before {self.earliest_offset} has been trimmed. Start from that offset, or, "
            "in a bucket, with GET .../bootstrap."
        )


@dataclass(eq=False)
class OffsetBeyondTail(Refused):
    offset: str
    tail: str

    @property
    def detail(self) -> str:
        return f"The offset {self.offset} is beyond the tail, {self.tail}."


# -- producers ---------------------------------------------------------------------------------


@dataclass(eq=False)
class SequenceRegression(Refused):
    last_seq: str
    received_seq: str

    @property
    def detail(self) -> str:
        return (
            f"Stream-Seq {self.received_seq!r} is not greater than {self.last_seq!r}, the last "
            "one accepted on this stream."
        )


@dataclass(eq=False)
class ProducerFenced(Refused):
    current_epoch: int
    received_epoch: int

    @property
    def detail(self) -> str:
        return (
            f"Producer-Epoch {self.received_epoch} is stale: epoch {self.current_epoch} has "
            "written since. Claim a higher epoch, starting at Producer-Seq 0."
        )


@dataclass(eq=False)
class ProducerGap(Refused):
    expected_seq: int
    received_seq: int

    @property
    def detail(self) -> str:
        return (
            f"Producer-Seq {self.received_seq} leaves a gap: {self.expected_seq} is expected next."
        )


@dataclass(eq=False)
class TooManyProducers(Refused):
    limit: int

    @property
    def detail(self) -> str:
        return (
            f"This stream already has {self.limit} producers, the maximum "
            "(limits.max_producers_per_stream)."
        )


# -- buckets and snapshots ---------------------------------------------------------------------


@dataclass(eq=False)
class BucketNotFound(Refused):
    bucket: str

    @property
    def detail(self) -> str:
        return f"There is no bucket {self.bucket!r}. Create it with PUT, at its own URL, first."


@dataclass(eq=False)
class BucketExists(Refused):
    bucket: str

    @property
    def detail(self) -> str:
        return f"The bucket {self.bucket!r} already exists."


@dataclass(eq=False)
class BucketNotEmpty(Refused):
    bucket: str

    @property
    def detail(self) -> str:
        return f"The bucket {self.bucket!r} still has streams. Delete them first."


@dataclass(eq=False)
class SnapshotNotFound(Refused):
    stream: str

    @property
    def detail(self) -> str:
        return (
            f"The stream {self.stream!r} has no such snapshot, or a later one replaced it. "
            "GET .../snapshot redirects to the latest."
        )


@dataclass(eq=False)
class SnapshotInUse(Refused):
    stream: str

    @property
    def detail(self) -> str:
        return (
            f"This is the latest snapshot of {self.stream!r}, the only copy of the history before "
            "it. Publish another one to replace it, or delete the stream."
        )


@dataclass(eq=False)
class SnapshotMismatch(Refused):
    received: str
    current: str

    @property
    def detail(self) -> str:
        return (
            f"Stream-Snapshot-Match names {self.received!r}, but the latest snapshot is "
            f"{self.current!r}: another one was published meanwhile."
        )


@dataclass(eq=False)
class SnapshotTooLarge(Refused):
    limit_bytes: int

    @property
    def detail(self) -> str:
        return f"The snapshot exceeds {self.limit_bytes} bytes (limits.max_snapshot_bytes)."


# -- limits and load ---------------------------------------------------------------------------


@dataclass(eq=False)
class TooManyMessages(Refused):
    limit: int

    @property
    def detail(self) -> str:
        return f"One append holds at most {self.limit} messages. Split it into several."


@dataclass(eq=False)
class StreamFull(Refused):
    stream: str
    limit_bytes: int

    @property
    def detail(self) -> str:
        return (
            f"The append would make the stream {self.stream!r} larger than {self.limit_bytes} "
            "bytes (limits.max_stream_bytes)."
        )


@dataclass(eq=False)
class MemoryFull(Refused):
    limit_bytes: int

    @property
    def detail(self) -> str:
        return (
            f"The append would make stored data exceed {self.limit_bytes} bytes "
            "(limits.max_memory_bytes). Delete streams or raise the limit."
        )


@dataclass(eq=False)
class RateLimited(Unavailable):
    retry_after_secs: int

    @property
    def detail(self) -> str:
        return f"Too many requests. Try again in {self.retry_after_secs} seconds."


@dataclass(eq=False)
class Overloaded(Unavailable):
    """A bound of the whole server is reached: connections, bodies in flight, live readers."""

    what: str
    limit: int
    retry_after_secs: int = 1

    @property
    def detail(self) -> str:
        return f"The server is at its limit of {self.limit} {self.what}. Try again shortly."


@dataclass(eq=False)
class Draining(Unavailable):
    retry_after_secs: int = 1

    @property
    def detail(self) -> str:
        return "The server is shutting down. Reconnect and try again."


# -- faults ------------------------------------------------------------------------------------


@dataclass(eq=False)
class InternalFault(Indeterminate):
    """A defect of ours: the log has the traceback under this reference."""

    reference: str

    @property
    def detail(self) -> str:
        return f"The server failed on this request; search its log for {self.reference}."


@dataclass(eq=False)
class AnswerTimeout(Indeterminate):
    """A request was taken, and nothing came of it in time."""

    waited_secs: float

    @property
    def detail(self) -> str:
        return (
            f"The server did not finish this request within {self.waited_secs:.0f} s, and it may "
            "or may not have taken effect. Retry with producer headers; see the server's log."
        )


# -- storage -----------------------------------------------------------------------------------


@dataclass(eq=False)
class DirectoryLocked(Unavailable):
    """Another process has the data directory."""

    directory: str
    retry_after_secs: int = 1

    @property
    def detail(self) -> str:
        return (
            f"The data directory {self.directory} is in use by a running server: stop that first, "
            "or use another directory."
        )


@dataclass(eq=False)
class DirectoryMismatch(Refused):
    """A data directory that was made for something else."""

    directory: str
    found: str
    wanted: str

    @property
    def detail(self) -> str:
        return (
            f"The data directory {self.directory} was created as {self.found}, but the "
            f"configuration says {self.wanted}. Restore the setting, or use another directory."
        )


@dataclass(eq=False)
class StoredBytesDamaged(Corrupt):
    place: str
    at: str

    @property
    def detail(self) -> str:
        return f"Stored bytes are damaged: {self.place} at {self.at} fails its checksum."


@dataclass(eq=False)
class StoredBytesUnreadable(Corrupt):
    place: str
    reason: str

    @property
    def detail(self) -> str:
        return f"Stored bytes cannot be read: {self.place}: {self.reason}."


@dataclass(eq=False)
class StreamSetAside(Corrupt):
    """A stream that the start could not recover: its bytes are kept, and nothing serves them."""

    stream: str
    reason: str

    @property
    def detail(self) -> str:
        return (
            f"The stream {self.stream!r} could not be recovered when the server started, and is "
            f"set aside: {self.reason} Its bytes are kept; the server's log has the cause."
        )


@dataclass(eq=False)
class StorageFailed(Unavailable):
    """Storage failed before this was asked for; nothing more is written."""

    retry_after_secs: int = 5

    @property
    def detail(self) -> str:
        return (
            "Storage has failed and accepts no more writes. Reads continue until the server stops, "
            "which will be soon."
        )


@dataclass(eq=False)
class CommitFailed(Indeterminate):
    """Storage could not confirm a change; the server stops rather than guess."""

    @property
    def detail(self) -> str:
        return (
            "Storage failed while this change was being written, and it may or may not have taken "
            "effect. The server is stopping; retry with producer headers once it is back."
        )


@dataclass(eq=False)
class CommitDelayed(Indeterminate):
    """There was no room left to write an append down that had been accepted."""

    @property
    def detail(self) -> str:
        return (
            "The disk is full. This append was accepted and will be written once there is room, "
            "unless the server stops first. Retry with producer headers."
        )


@dataclass(eq=False)
class InsufficientStorage(Unavailable):
    free_bytes: int
    reserve_bytes: int
    retry_after_secs: int = 5
    is_stuck: bool = field(default=False, repr=False)  # not even a delete can be stored

    @property
    def detail(self) -> str:
        if self.is_stuck:
            return (
                f"The disk is full: {self.free_bytes} bytes are free, and not even a delete can be "
                "recorded. Reads continue; free disk space to write again."
            )
        return (
            f"The disk is full: {self.free_bytes} bytes are free and {self.reserve_bytes} are "
            "reserved. Reads and deletes continue; free disk space to write again."
        )


@dataclass(eq=False)
class StorageReadOnly(Unavailable):
    retry_after_secs: int = 5

    @property
    def detail(self) -> str:
        return "The data directory is read-only. Reads continue; make it writable to write again."
