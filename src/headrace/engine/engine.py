"""The engine: one order of events for all streams of a server.

Commands are decided against state by `protocol`, made durable by `storage`, and become visible
to readers when storage says so. Every method runs to completion in the caller's stack frame;
whatever must wait for storage is answered through the reply callback.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.clock import Clock, SteadyClock
from headrace.engine import ttl_renewals
from headrace.engine.append_replies import translate
from headrace.engine.buckets import Buckets
from headrace.engine.creation import REGISTRY_METHODS, CreateOutcome, Creation
from headrace.engine.expiry_queue import ExpiryQueue
from headrace.engine.fan_out import GREW, LEFT, FanOut
from headrace.engine.feed import Feed, Feeds
from headrace.engine.housekeeping import Housekeeping
from headrace.engine.maintenance import Maintenance
from headrace.engine.reads import ReadOutcome, Reads, start_position
from headrace.engine.reclaim import Reclaimer
from headrace.engine.registry import Registry
from headrace.engine.removal import Removal
from headrace.engine.set_aside import SetAside
from headrace.engine.snapshots import Snapshots
from headrace.engine.stored_bytes import StoredBytes
from headrace.engine.stream_runtime import Stream, TailListener
from headrace.engine.trims import Trims
from headrace.engine.ttl_renewals import Renewals
from headrace.errors import (
    CommitDelayed,
    CommitFailed,
    HeadraceError,
    MethodNotAllowed,
    Overloaded,
    StreamDeleted,
    StreamNotFound,
)
from headrace.faults import hand_over, internal_fault, tell
from headrace.limits import Limits
from headrace.protocol.buckets import is_bucketed
from headrace.protocol.expiry import FOREVER, Moment
from headrace.protocol.names import REGISTRY_NAME
from headrace.protocol.offsets import BEGINNING, Position
from headrace.protocol.requests import Append, Create
from headrace.protocol.stream import (
    AlreadyClosed,
    Appended,
    Repeated,
    StreamState,
    apply_append,
    decide_append,
)
from headrace.storage.base import (
    Change,
    Created,
    Documents,
    Entry,
    Failed,
    Orphaned,
    Published,
    Recovered,
    Removed,
    Storage,
    Trimmed,
    Unrecovered,
    ignore,
)


@dataclass(frozen=True, slots=True)
class Deleted:
    name: str


AppendOutcome = Appended | Repeated | AlreadyClosed | HeadraceError
DeleteOutcome = Deleted | HeadraceError
ID_BITS_PER_MS = 10  # a thousand creations a millisecond
RUN_DISTANCE_BITS = 32


def run_distance() -> int:
    """How far the ids of one run begin behind those of the run before it."""
    return secrets.randbits(RUN_DISTANCE_BITS)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What all streams together may use."""

    memory_bytes_max: int = 100 * 1024 * 1024
    streams_max: int = 1_000_000
    readers_per_stream_max: int = 100_000
    polled_tails_max: int = 250_000  # 0.1 GB of waiting, and as much of answers


class Engine:
    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        limits: Limits | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        self.clock = clock
        self.steady = SteadyClock(clock)
        self.limits = limits or Limits()
        self.bounds = bounds or Bounds()
        self.streams: dict[str, Stream] = {}
        self.stored = StoredBytes(self.bounds.memory_bytes_max)
        self.reader_count = 0
        self.storage = storage
        self.reads = Reads(storage, accept_plus_one=self.limits.accept_offset_plus_one)
        self._next_id = 0
        self.maintenance = Maintenance()
        self.fan_out = FanOut()
        self.expiring = ExpiryQueue()
        self.aside = SetAside(self.streams, self.expiring, self.stored)
        self.creation = Creation(self)
        self.removal = Removal(self)
        self.feeds = Feeds(storage, clock, self.limits)
        self.buckets = Buckets(self)
        self.reclaimer = Reclaimer(self.streams, self.stored, storage)
        self.snapshots = Snapshots(
            self.streams,
            self.aside,
            storage,
            self.reads,
            self.stored,
            self.reclaimer,
            self.limits,
            new_id=self.new_id,
            touch=self.touch,
        )
        self.trims = Trims(self.reads, storage)
        # Names whose last stream is gone, until that is durable.
        self.pending_removals: dict[str, Stream] = {}
        self._on_create: list[Callable[[Stream], None]] = []
        storage.start(self._committed, self._commit_failed, self._commit_delayed)
        recovered = self._recover()
        self._documents = storage.take_documents()
        self._renewals = Renewals(self.expiring, storage, self.steady)
        self._renewals.resume(
            self.take_documents(ttl_renewals.PREFIX),
            self.take_documents(ttl_renewals.OLD_PREFIX),
            self.aside.ids,
            self.aside.leave_out_document,
        )
        # Cascades that a crash cut short come first: what follows lists, counts and announces only
        # streams that stay.
        self.removal.finish()
        self.buckets.recover()
        self.snapshots.recover()
        self.registry = Registry(self, self._registry_stream())
        self.registry.correct()
        self.reclaimer.recover(recovered, self.aside.attempt)
        self.housekeeping = Housekeeping(
            storage,
            self.reads,
            self.feeds,
            self._renewals,
            self.expiring,
            self.maintenance,
            self.now,
            self.removal.expire,
        )

    def _recover(self) -> list[Stream]:
        by_id: dict[int, Stream] = {}
        for found in self.storage.recover():
            try:
                self._take_in(found, by_id)
            except (MemoryError, OSError):
                raise
            except Exception as error:
                self._leave_out(found.state, error, by_id)
        for left_out in self.storage.unrecovered:
            source_id = left_out.source_id
            source = None if source_id is None else by_id.get(source_id)
            self._set_aside(left_out, source)
            self._next_id = max(self._next_id, left_out.id + 1)
        self._next_id = self._first_id()
        return list(by_id.values())

    def _take_in(self, found: Recovered, by_id: dict[int, Stream]) -> None:
        """One stream; nothing of it is known before all that might fail is done."""
        state = found.state
        self._next_id = max(self._next_id, state.id + 1)
        fork = state.config.fork
        source: Stream | None = None
        if fork is not None:
            source = by_id.get(fork.source_id)
            if source is None:
                raise Orphaned(f"Its source, {fork.request.source!r}, is missing or set aside.")
        stream = Stream(state, found.log, source)
        stream.creation_durable = True
        stream.visible_closed = state.closed
        for producer in (state.producers or {}).values():
            del producer.receipts[: -self.limits.producer_receipts_max]
        if not state.deleted:
            self.expiring.add(stream)
        # Two streams of one name: the older one's removal was decided, and a crash kept it from
        # storage.
        superseded = self.streams.get(state.name)
        if superseded is not None:
            self.removal.supersede(superseded)
        self.streams[state.name] = by_id[state.id] = stream
        self.stored.add_stream(stream)
        if source is not None:
            source.add_fork(stream)

    def _leave_out(self, state: StreamState, error: Exception, by_id: dict[int, Stream]) -> None:
        fork = state.config.fork
        source_id = None if fork is None else fork.source_id
        source = None if source_id is None else by_id.get(source_id)
        left_out = Unrecovered(state.id, state.name, error, source_id, state.snapshot)
        self._set_aside(left_out, source)

    def _set_aside(self, found: Unrecovered, source: Stream | None) -> None:
        older = self.streams.get(found.name)
        if older is not None and older.state.id < found.id:
            # The older stream of this name was being deleted when this one was created.
            self.removal.supersede(older)
            del self.streams[found.name]
        self.aside.leave_out(found, source)

    def _first_id(self) -> int:
        """Ids are never used twice, not even by a later run with another clock.

        Storage knows the highest that was ever durable, and nobody has seen one that was not; but
        of what file-fast acknowledged a power cut may leave nothing, not even the ids. A random
        distance from all that is known keeps clear of those.
        """
        by_clock = self.clock.now_ms() << ID_BITS_PER_MS
        return max(self._next_id, self.storage.last_id + 1, by_clock) + run_distance()

    # -- finding ---------------------------------------------------------------------------

    def find(self, name: str) -> Stream:
        """The stream called `name`; raises StreamNotFound or StreamDeleted."""
        stream = self.streams.get(name)
        if stream is None:
            self.aside.check(name)
            raise StreamNotFound(name)
        state = stream.state
        if state.deleted:
            if self.removal.remove_expired_forks(stream):
                return self.find(name)
            raise StreamDeleted(name)
        if state.config.lifetime is not FOREVER and stream.is_expired(self.now()):
            self.removal.expire(stream)
            return self.find(name)
        return stream

    def find_visible(self, name: str) -> Stream:
        """A stream as readers know it: one whose creation is not durable does not exist yet."""
        stream = self.find(name)
        if not stream.creation_durable:
            raise StreamNotFound(name)
        return stream

    def refuse_when_durable(
        self, name: str, refusal: HeadraceError, refuse: Callable[[HeadraceError], None]
    ) -> None:
        """Call `refuse` with `refusal` once the state of `name` that it rests on is durable.

        If that state will never be durable, `refuse` gets the failure instead: a 404 or 409 that a
        power cut could make untrue is never sent.
        """
        self.when_durable(name, lambda: refuse(refusal), refuse)

    def when_durable(
        self,
        name: str,
        done: Callable[[], None],
        failed: Callable[[HeadraceError], None] = ignore,
    ) -> None:
        """Call `done` once whatever is known of `name` is durable: that it is, or is not, there.

        `failed` is called instead where that will never be known.
        """
        leaving, stream = self.pending_removals.get(name), self.streams.get(name)
        when_durable = self.storage.when_durable
        if leaving is not None and stream is not None:
            # One after the other: in acid they may be in two shards, with a committer each.
            when_durable(leaving.log, lambda: when_durable(stream.log, done, failed), failed)
        elif leaving is not None or stream is not None:
            when_durable((leaving or self.streams[name]).log, done, failed)
        else:
            done()

    def touch(self, stream: Stream) -> None:
        """A read or write happened: a sliding TTL starts again."""
        if stream.state.config.lifetime is not FOREVER:
            stream.state.touched_ms = self.steady.now_ms()

    def now(self) -> Moment:
        """By which clock a stream's time is over depends on what it was created with."""
        return Moment(self.clock.now_ms(), self.steady.now_ms())

    def write_ms(self, feed: Feed | None) -> int:
        """The time of a write; in a bucket, never before what its feed has announced already.

        After a crash a feed goes by these times to find what it did not tell: a clock that was set
        back must not hide a change from it.
        """
        now_ms = self.clock.now_ms()
        return now_ms if feed is None else max(now_ms, feed.stream.state.written_ms)

    @property
    def write_refusal(self) -> HeadraceError | None:
        """Why nothing can be written at present, if so."""
        return self.storage.refusal

    def on_stream_created(self, callback: Callable[[Stream], None]) -> None:
        """Call `callback` with each new stream, before its first bytes become visible."""
        self._on_create.append(callback)

    # -- documents -------------------------------------------------------------------------

    def take_documents(self, prefix: str) -> dict[str, bytes]:
        """The documents that were kept under `prefix` before this run, by what follows it."""
        names = [name for name in self._documents if name.startswith(prefix)]
        return {name.removeprefix(prefix): self._documents.pop(name) for name in names}

    def keep(self, documents: Documents) -> None:
        """Make changes to documents durable: all of them, or none."""
        self.storage.put_documents(documents)

    def when_documents_durable(self, done: Callable[[], None], failed: Failed = ignore) -> None:
        """Call `done` once every document handed in so far is durable, or never will be."""
        self.storage.when_documents_durable(done, failed)

    # -- writing ---------------------------------------------------------------------------

    def append(
        self, stream: Stream, command: Append, reply: Callable[[AppendOutcome], None]
    ) -> None:
        if stream.read_only:
            reply(MethodNotAllowed(REGISTRY_METHODS))
            return
        state = stream.state
        limits = self.limits
        outcome = decide_append(state, command, limits)
        if type(outcome) is not Appended:
            if not isinstance(outcome, HeadraceError):
                self.touch(stream)
            # A refusal or a repeat rests on the stream's state, which must be durable first.
            self.storage.when_durable(stream.log, lambda: reply(outcome), reply)
            return
        # Only now: what changes nothing is answered on a full disk, too.
        if self.storage.refusal is not None:
            reply(self.storage.refusal)
            return
        if not self.stored.try_reserve(len(outcome.data)):
            reply(self.stored.refusal())
            return
        feed = stream.feed
        try:
            apply_append(
                state, outcome, self.clock.now_ms() if feed is None else self.write_ms(feed), limits
            )
            if state.config.lifetime is not FOREVER:
                state.touched_ms = self.steady.now_ms()
            self.storage.commit(stream.log, outcome, (stream, outcome, reply))
        except Exception as defect:
            self.storage.fail(defect)  # see `committing`
            raise

    def _committed(self, entries: Sequence[Entry]) -> None:
        """Changes are durable: show each, answer the client behind it, wake the listeners.

        An exception ends the one request or the one reader it came from: every entry is
        a client of its own. Readers are woken after the last entry, once for each stream.
        """
        due = self.fan_out.due
        stream: Stream
        for stream, change, reply in entries:
            if type(change) is Appended:
                # Before the answer: the next request of a client that got it must find what it
                # wrote.
                stream.visible = change.end
                if change.closes:
                    stream.visible_closed = True
                try:
                    reply(change)
                except Exception:
                    hand_over(reply, internal_fault("the answer to an append"))
                if stream.readers or stream.watchers:
                    due[stream] = due.get(stream, 0) | GREW
                if stream.feed is not None:
                    self._note(stream, stream.feed)
            else:
                self._existence_committed(stream, change, reply)
        if due:
            self.fan_out.call_listeners()

    def _existence_committed(
        self,
        stream: Stream,
        change: Created | Removed | Trimmed | Published,
        reply: Callable[[Change | HeadraceError], None],
    ) -> None:
        try:
            self._show(stream, change)
        except Exception:
            hand_over(reply, internal_fault("showing a change"))
        else:
            tell(reply, change)
        if isinstance(change, Created | Removed) and (stream.readers or stream.watchers):
            due = self.fan_out.due
            due[stream] = due.get(stream, 0) | (GREW if isinstance(change, Created) else LEFT)

    def _show(self, stream: Stream, change: Created | Removed | Trimmed | Published) -> None:
        """What readers may know from now on."""
        name = stream.state.name
        if isinstance(change, Trimmed):
            stream.visible_trim_offset = change.trim_offset
            self.reclaimer.reclaim(stream)
        elif isinstance(change, Published):
            self.snapshots.published(stream, change.snapshot)
        elif isinstance(change, Created):
            stream.creation_durable = True
            stream.visible = change.initial.end
            stream.visible_closed = change.initial.closes
            if is_bucketed(name):
                self.buckets.arrived(stream)
        else:
            # A source that forks still needed when it was deleted leaves with the last of them.
            if change.whole and self.pending_removals.get(name) is stream:
                del self.pending_removals[name]
            if is_bucketed(name):
                self.buckets.departed(stream)
                self.snapshots.forget(stream)

    def _note(self, stream: Stream, feed: Feed) -> None:
        try:
            feed.note(stream)
        except Exception:
            internal_fault("noting a change for the feed of a bucket")

    def _commit_failed(self, entries: Sequence[Entry]) -> None:
        for _, _, reply in entries:
            tell(reply, CommitFailed())

    def _commit_delayed(self, entries: Sequence[Entry], refusal: HeadraceError) -> list[Entry]:
        """Nobody is kept waiting for room; what they asked for happens when there is some.

        All but an append can be asked for again without harm, and so is refused like what comes
        after it.
        """
        for _, change, reply in entries:
            tell(reply, CommitDelayed() if type(change) is Appended else refusal)
        return [(stream, change, ignore) for stream, change, _ in entries]

    def create(self, name: str, command: Create, reply: Callable[[CreateOutcome], None]) -> None:
        self.creation.create(name, command, reply)

    def new_id(self) -> int:
        id, self._next_id = self._next_id, self._next_id + 1
        return id

    def check_writable(self) -> None:
        if self.storage.refusal is not None:
            raise self.storage.refusal

    def tell_created(self, stream: Stream) -> None:
        """Announce a new stream below the stream root to the registry and the subscriptions.

        The stream is in memory and not yet handed to storage: nothing may come between.
        """
        for callback in self._on_create:
            try:
                callback(stream)
            except Exception:
                internal_fault("telling a subscription of a new stream")
        self.registry.created(stream.state)

    # -- reading ---------------------------------------------------------------------------

    def start_position(self, stream: Stream, start: Position | str) -> Position:
        """Where a read begins; raises InvalidOffset or OffsetTrimmed."""
        if start == BEGINNING and stream is self.registry.stream:
            return stream.visible_trim_offset
        return start_position(stream, start, accept_plus_one=self.limits.accept_offset_plus_one)

    def read(
        self,
        stream: Stream,
        start: Position,
        reply: Callable[[ReadOutcome], None],
        bytes_max: int | None = None,
    ) -> None:
        """What follows `start`, up to one chunk; at once if it is in memory."""
        size_max = self.limits.read_chunk_bytes if bytes_max is None else bytes_max
        self.reads.chunk(stream, start, size_max, reply)

    def attach_reader(self, stream: Stream, reader: TailListener) -> None:
        limit = self.bounds.readers_per_stream_max
        if stream.readers is not None and len(stream.readers) >= limit:
            raise Overloaded("live readers on this stream", limit)
        stream.attach_reader(reader)
        self.reader_count += 1

    def detach_reader(self, stream: Stream, reader: TailListener) -> None:
        stream.detach_reader(reader, self.steady.now_ms())
        self.reader_count -= 1

    # -- ending ----------------------------------------------------------------------------

    def delete(self, name: str, reply: Callable[[DeleteOutcome], None]) -> None:
        try:
            if name == REGISTRY_NAME:
                raise MethodNotAllowed(REGISTRY_METHODS)
            if self.storage.removal_refusal is not None:
                reply(self.storage.removal_refusal)
                return
            self.removal.remove(self.find(name), translate(Deleted(name), reply))
        except HeadraceError as refusal:
            self.refuse_when_durable(name, refusal, reply)

    def _registry_stream(self) -> Stream:
        stream = self.streams.get(REGISTRY_NAME)
        if stream is None:
            stream = self.creation.create_internal(REGISTRY_NAME)
            self.creation.begin(stream, ignore)
            stream.creation_durable = True
        return stream

    def close(self) -> None:
        """An orderly end, after which nothing is forgotten and little has to be recovered."""
        self._renewals.finish()
        self.storage.close()
