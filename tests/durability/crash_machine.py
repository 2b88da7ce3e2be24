"""Lives of engine and file storage over a simulated disk: random histories, crashes, recoveries.

One seed decides everything: what clients ask, what runs when, at which disk call the machine
stops, and what of the unsynced writes survives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from random import Random
from typing import Any

from headrace.engine import engine, registry
from headrace.engine.buckets import Bucket
from headrace.engine.creation import Confirmed
from headrace.engine.engine import Engine
from headrace.engine.reads import Chunk
from headrace.errors import (
    BucketNotEmpty,
    CommitDelayed,
    CommitFailed,
    Corrupt,
    HeadraceError,
    InsufficientStorage,
    StorageFailed,
    Unavailable,
)
from headrace.limits import Limits
from headrace.protocol.offsets import Position
from headrace.protocol.requests import Append, Create
from headrace.protocol.snapshots import Publish
from headrace.protocol.stream import Appended, Snapshot, StreamState
from headrace.protocol.trims import Trim
from headrace.storage import ballast
from headrace.storage.base import (
    Change,
    Created,
    Documents,
    Entry,
    Log,
    Published,
    Recovered,
    Removed,
)
from headrace.storage.file import (
    catalog,
    checkpoint,
    file_log,
    frames,
    pack_allocator,
    pack_format,
    stream_files,
)
from headrace.storage.file.file_log import FileLog
from headrace.storage.file.file_storage import FileStorage
from headrace.subscriptions import dispatcher, manager, store
from headrace.subscriptions.manager import SubscriptionManager, SubscriptionSettings
from headrace.subscriptions.signing import SigningKey
from headrace.testing.simulated_disk import Fault, PowerLost, SimulatedDisk
from headrace.testing.simulated_loop import SimulatedLoop
from headrace.testing.virtual_clock import VirtualClock
from tests.durability.crash_actions import any_action, stream_action
from tests.durability.crash_model import Described, Model, describe_recovered, difference

LIMITS = Limits(
    stream_bytes_max=4000, producer_receipts_max=3, producers_max=8, read_chunk_bytes=64
)
SEGMENT_BYTES = [700, 1500, 4000]
_KEY = SigningKey.generate()
_wake_ids = Random()


# A day and an hour, both ways: past every window and lease, and what a zone's mistake makes.
CLOCK_STEPS_SECS = [86_400, -86_400, 3_600, -3_600]
NOTHING_CERTAIN = (CommitDelayed, CommitFailed, Unavailable, Corrupt, BucketNotEmpty)


class Violation(AssertionError):
    """What a crash should have left is not what is there."""


def _new_wake_id() -> str:
    return f"w_{_wake_ids.getrandbits(96):024x}"


@contextmanager
def small_windows() -> Iterator[None]:
    """Sizes at which a few appends leave memory, a pack and a block, and compact the registry."""
    sizes: list[tuple[Any, str, Any]] = [
        (file_log, "HOT_BYTES_MAX", 40),
        (stream_files, "BLOCK_BYTES", 50),
        (pack_format, "PACK_BYTES_MAX", 300),
        (pack_allocator, "OWN_FILES_BYTES_MIN", 200),
        (pack_allocator, "PARTS_MAX", 4),
        (pack_allocator, "STABLE_AFTER_PACKS", 1),
        (frames, "ZERO_COPY_BYTES_MIN", 8),
        (checkpoint, "SYNC_EACH_MAX", 2),
        (catalog, "STALE_BYTES_MIN", 200),
        (registry, "STALE_MESSAGES_MIN", 4),
        (registry, "COMPACTED_AT_ONCE", 2),
        # One seed is one history, so that it can be looked at again.
        (SigningKey, "generate", lambda: _KEY),
        (store, "new_token_key", lambda: bytes(32)),
        (dispatcher, "new_wake_id", _new_wake_id),
        (engine, "run_distance", lambda: 0),
        (ballast, "BALLAST_BYTES", 64),
        (manager, "new_wake_id", _new_wake_id),
    ]
    before = [(module, name, getattr(module, name)) for module, name, _ in sizes]
    for module, name, value in sizes:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


@dataclass
class Witness:
    """The changes of one life, and how many of them answers and reads have rested on."""

    model: Model
    changes: list[Callable[[Model], None]] = field(default_factory=list)
    required: int = 0
    by_name: dict[str, int] = field(default_factory=dict)
    by_end: dict[tuple[int, Position], int] = field(default_factory=dict)
    by_close: dict[int, int] = field(default_factory=dict)
    by_blob: dict[int, int] = field(default_factory=dict)
    by_removal: dict[int, int] = field(default_factory=dict)

    def note(self, state: StreamState, change: Change) -> None:
        inherited, trimmed = state.snapshot, state.trim_offset
        self.changes.append(lambda model: model.apply(state, change, inherited, trimmed))
        number = len(self.changes)
        if isinstance(change, Published):
            self.by_blob[change.snapshot.blob_id] = number
        if isinstance(change, Removed):
            self.by_removal[state.id] = number
        self.by_name[state.name] = number
        added = change.initial if isinstance(change, Created) else change
        if isinstance(added, Appended):
            if added.data:  # else a reader who is there has seen nothing of it
                self.by_end.setdefault((state.id, added.end), number)
            if added.closes:
                self.by_close[state.id] = number

    def note_documents(self, documents: Documents) -> None:
        self.changes.append(lambda model: model.keep(documents))

    def rest_on(self, number: int) -> None:
        self.required = max(self.required, number)

    def rest_on_name(self, name: str) -> None:
        self.rest_on(self.by_name.get(name, 0))

    def rest_on_read(self, state: StreamState, chunk: Chunk) -> None:
        self.rest_on(self.by_end.get((state.id, chunk.end), 0))
        if chunk.closed:
            self.rest_on(self.by_close.get(state.id, 0))

    def judge(self, found: Described) -> Model:
        """The model that `found` is; raises where it is none of those allowed."""
        model = self.model.copy()
        for change in self.changes[: self.required]:
            change(model)
        least = model.describe()
        if least == found:
            return model
        for change in self.changes[self.required :]:
            change(model)
            if model.describe() == found:
                return model
        raise Violation(
            f"{len(self.changes)} changes, {self.required} of them answered for; "
            + difference(least, found)
        )


class WitnessedStorage(FileStorage):
    """A storage that tells its witness what it is handed and what it recovers."""

    witness: Witness
    recovered: Callable[[Model], None]
    used_ids: set[int]
    """Of all streams that clients can have known, in this life and in those before."""

    def recover(self) -> Iterable[Recovered]:
        recovered = list(super().recover())
        described = describe_recovered(recovered, dict(self._documents), self.blobs, LIMITS)
        # Whatever was recovered may be served from here on, so it must not be lost any more.
        self.recovered(self.witness.judge(described))
        return recovered

    def commit(self, log: Log, change: Change, entry: Entry | None) -> None:
        assert isinstance(log, FileLog), "a storage commits to its own logs"
        if isinstance(change, Created) and log.state.id in self.used_ids:
            raise Violation(f"{log.state.name} has the id of a stream that was there before")
        self.witness.note(log.state, change)
        super().commit(log, change, entry)

    def put_documents(self, documents: Documents) -> None:
        self.witness.note_documents(documents)
        super().put_documents(documents)


class Machine:
    """A computer with one disk, on which one server lives again and again."""

    def __init__(
        self,
        seed: int,
        *,
        sync: bool = True,
        streams_only: bool = False,
        is_troubled: bool = False,
    ) -> None:
        """`is_troubled`: somebody sets the clock now and then, and fills the disk."""
        self.random = Random(seed)
        self.trouble = Random(seed + 2) if is_troubled else None
        self.used_ids: set[int] = set()
        self.disk = SimulatedDisk(Random(seed + 1))
        self.clock = VirtualClock()
        self.witness = Witness(Model(LIMITS))
        self.segment_bytes = self.random.choice(SEGMENT_BYTES)
        self.unanswered = 0
        self.answers: list[tuple[str, Any]] = []
        self.sync = sync
        self._streams_only = streams_only
        self.claims: list[dict[str, Any]] = []
        _wake_ids.seed(seed)

    def start(self) -> None:
        """Open the storage and recover; raises Violation where something is not as it should be."""
        self.loop = SimulatedLoop(self.random)
        self.unanswered = 0
        self.clock.advance(ms=50)
        if self.trouble is not None and self.trouble.random() < 0.5:
            self.clock.step(secs=self.trouble.choice(CLOCK_STEPS_SECS))
        storage = WitnessedStorage(
            self.disk,
            LIMITS,
            self.loop.as_loop,
            sync=self.sync,
            segment_bytes=self.segment_bytes,
            worker_factory=self.loop.lane,
        )

        def recovered(model: Model) -> None:
            self.witness = storage.witness = Witness(model)
            self.used_ids.update(model.streams)

        storage.witness, storage.recovered = self.witness, recovered
        storage.used_ids = self.used_ids
        self.storage = storage
        self.engine = Engine(storage, self.clock, LIMITS)
        self.engine.maintenance.wake = lambda: None  # so that a crash may come between two slices
        if not self._streams_only:
            self.subscriptions = SubscriptionManager(
                self.engine, SubscriptionSettings(), self.loop.as_loop
            )

    def start_unwitnessed(self) -> None:
        """Open as a server does, without a look at what is there."""
        self.loop = SimulatedLoop(self.random)
        storage = FileStorage(
            self.disk,
            LIMITS,
            self.loop.as_loop,
            sync=self.sync,
            segment_bytes=self.segment_bytes,
            worker_factory=self.loop.lane,
        )
        self.engine = Engine(storage, self.clock, LIMITS)

    # -- what clients do -----------------------------------------------------------------------

    def ask(self, name: str, command: Callable[[Callable[[Any], None]], None], *also: str) -> None:
        """Ask; when the answer comes, it must rest on what is durable of `name` and `also`."""
        self.unanswered += 1
        rests_on = [self.witness.by_name.get(one, 0) for one in (name, *also)]

        def reply(outcome: Any) -> None:
            self.unanswered -= 1
            self.answers.append((name, outcome))
            if isinstance(outcome, NOTHING_CERTAIN):
                return  # it says nothing of what is durable
            if isinstance(outcome, Confirmed):
                self.used_ids.add(outcome.state.id)
            self.witness.rest_on(max(rests_on))
            # These are decided anew when something they wait for is done.
            if isinstance(outcome, Snapshot):
                self.witness.rest_on(self.witness.by_blob[outcome.blob_id])
            elif isinstance(outcome, Bucket):
                self.witness.rest_on(self.witness.by_removal.get(outcome.stream.state.id, 0))

        try:
            command(reply)
        except HeadraceError as refusal:
            error = refusal
            self.engine.when_durable(name, lambda: reply(error), reply)
        finally:
            rests_on[:] = [self.witness.by_name.get(one, 0) for one in (name, *also)]

    def create(self, name: str, command: Create, *also: str) -> None:
        self.ask(name, lambda reply: self.engine.create(name, command, reply), *also)

    def append(self, name: str, command: Append) -> None:
        def act(reply: Callable[[Any], None]) -> None:
            self.engine.append(self.engine.find(name), command, reply)

        self.ask(name, act)

    def delete(self, name: str) -> None:
        self.ask(name, lambda reply: self.engine.delete(name, reply))

    def publish(self, name: str, offset: Position, body: bytes) -> None:
        def act(reply: Callable[[Any], None]) -> None:
            self.engine.snapshots.publish(self.engine.find(name), Publish(offset, body), reply)

        self.ask(name, act)

    def trim(self, name: str, command: Trim) -> None:
        def act(reply: Callable[[Any], None]) -> None:
            self.engine.trims.trim(self.engine.find(name), command, reply)

        self.ask(name, act)

    def create_bucket(self, bucket_id: str) -> None:
        self.ask(f"/{bucket_id}", lambda reply: self.engine.buckets.create(bucket_id, reply))

    def delete_bucket(self, bucket_id: str) -> None:
        self.ask(f"/{bucket_id}", lambda reply: self.engine.buckets.delete(bucket_id, reply))

    def keep(self, documents: Documents) -> None:
        self.engine.keep(documents)
        self._await_documents()

    def control(self, command: Callable[[SubscriptionManager], object]) -> None:
        """Something asked of the subscriptions; what they answer rests on all they decided."""
        with suppress(HeadraceError):
            command(self.subscriptions)
        self._await_documents()

    def _await_documents(self) -> None:
        self.unanswered += 1
        witness, number = self.witness, len(self.witness.changes)

        def durable() -> None:
            self.unanswered -= 1
            witness.rest_on(number)

        def failed(error: HeadraceError) -> None:
            self.unanswered -= 1
            self.answers.append(("documents", error))

        self.engine.when_documents_durable(durable, failed)

    def read_snapshot(self, name: str) -> None:
        """What readers know as the snapshot is durable, and is what was published."""
        stream = self.engine.streams.get(name)
        snapshot = (
            stream.visible_snapshot if stream is not None and stream.creation_durable else None
        )
        if snapshot is None:
            return
        self.witness.rest_on(self.witness.by_blob.get(snapshot.blob_id, 0))
        self.unanswered += 1
        self.engine.snapshots.hold(snapshot)

        def seen(outcome: Any) -> None:
            self.unanswered -= 1
            self.answers.append((name, outcome))
            self.engine.snapshots.release(snapshot)
            if isinstance(outcome, bytes) and sha256(outcome).digest() != snapshot.digest:
                raise Violation(f"the snapshot of {name} is not what was published")

        self.engine.snapshots.read(snapshot, 0, snapshot.size_bytes, seen)

    def read(self, name: str) -> None:
        stream = self.engine.streams.get(name)
        if stream is None or stream.state.deleted or not stream.creation_durable:
            return
        self.unanswered += 1
        witness = self.witness

        def seen(outcome: Any) -> None:
            self.unanswered -= 1
            self.answers.append((name, outcome))
            if isinstance(outcome, Chunk) and witness is self.witness:
                witness.rest_on_read(stream.state, outcome)

        self.engine.read(stream, stream.visible_trim_offset, seen)

    # -- a random history ----------------------------------------------------------------------

    def step(self) -> None:
        """One thing a client does, and some of what the machine does meanwhile."""
        self.clock.advance(ms=self.random.randrange(1, 60))
        if self.trouble is not None:
            self._make_trouble(self.trouble)
        (stream_action if self._streams_only else any_action)(self)
        for _ in range(self.random.choice((0, 1, 3, 8))):
            self.loop.step()
        if self.random.random() < 0.1:
            self.loop.run()

    def _make_trouble(self, random: Random) -> None:
        chance = random.random()
        if chance < 0.02:
            self.clock.step(secs=random.choice(CLOCK_STEPS_SECS))
        elif chance < 0.10:
            # Somebody else fills the disk, to the last byte or nearly, or makes room again.
            self.disk.room_bytes = random.choice((0, 0, 64, 300, 2000, None, None))

    def finish(self) -> None:
        """Let everything be answered, and stop as a server does that was told to."""
        if self.trouble is not None:
            self.disk.room_bytes = None
            for _ in range(40):  # what met a full disk is tried again, a checkpoint less often
                self.engine.housekeeping.run()
                self.loop.run()
        self.loop.run()
        if self.unanswered or self.loop.errors:
            raise Violation(f"{self.unanswered} without an answer; {self.loop.errors}")
        self.engine.close()

    def seq_of(self, name: str, producer: bytes) -> int:
        stream = self.engine.streams.get(name)
        known = stream.state.producers if stream is not None else None
        return known[producer].seq + 1 if known and producer in known else 0


# -- lives and deaths --------------------------------------------------------------------------


def live(machine: Machine, steps: int, crash_within: int) -> None:
    """One life: start, a random history, and an end of one kind or another."""
    random = machine.random
    disk = machine.disk
    if random.random() < 0.7:
        disk.faults = {disk.call_count + random.randrange(1, crash_within): Fault.POWER}
    try:
        machine.start()
        for _ in range(steps):
            machine.step()
        if random.random() < 0.3:
            machine.finish()
        if isinstance(machine.storage.refusal, StorageFailed):
            raise Violation("the server ended though nothing had failed for good")
    except PowerLost:
        pass
    except InsufficientStorage as refusal:
        if machine.used_ids:
            raise Violation(f"a start was refused: {refusal}") from refusal
    if random.random() < 0.5:
        disk.cut_power()
    else:
        disk.kill()


def run_seed(
    seed: int,
    lives: int = 4,
    steps: int = 25,
    crash_within: int = 200,
    *,
    streams_only: bool = False,
    is_troubled: bool = False,
) -> Machine:
    """Lives of one machine, and a last look at what it holds; raises Violation."""
    machine = Machine(seed, streams_only=streams_only, is_troubled=is_troubled)
    for _ in range(lives):
        live(machine, steps, crash_within)
    machine.disk.room_bytes = None
    machine.start()
    machine.disk.cut_power()
    machine.start()
    return machine
