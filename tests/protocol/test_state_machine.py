"""The pure protocol on the memory engine agrees with a model that is a list of messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.engine.creation import Confirmed
from headrace.engine.engine import Deleted, Engine
from headrace.engine.reads import Chunk
from headrace.engine.stream_runtime import Stream
from headrace.errors import HeadraceError, InvalidOffset
from headrace.limits import Limits
from headrace.protocol.expiry import FOREVER, Lifetime
from headrace.protocol.names import REGISTRY_NAME
from headrace.protocol.offsets import BEGINNING, NOW, START, Position
from headrace.protocol.producers import ProducerHeaders
from headrace.protocol.requests import Append, Create, ForkRequest
from headrace.protocol.stream import Appended, Repeated
from headrace.storage.memory import MemoryStorage
from headrace.testing.virtual_clock import VirtualClock
from tests.engine.helpers import read, registry_messages
from tests.protocol.model import (
    RECEIPTS_MAX,
    STREAM_BYTES_MAX,
    Created,
    Existing,
    Model,
    ModelStream,
)
from tests.protocol.strategies import JSON_TEXTS, JSON_WHITESPACE

READ_CHUNK_BYTES = 24
TTL_SECS = 10
JSON = "application/json"
NAMES = ("a", "b", "c/d", "e", "é", "f", "g")
NEW = st.sampled_from(NAMES)
PICK = st.integers(0, 23)  # one of what is there; a few find nothing
SELDOM = st.sampled_from([False] * 9 + [True])
LIFETIMES = st.sampled_from([FOREVER, Lifetime(ttl_secs=TTL_SECS)])


class Content(NamedTuple):
    """A body of a content type, and the messages it must become."""

    content_type: str
    body: bytes
    messages: list[bytes]


def _opaque(content_type: str, body: bytes) -> Content:
    return Content(content_type, body, [body])


def _json(space: bytes, texts: list[bytes], batch: bool) -> Content:
    """A batch, or the first text on its own where that is no array."""
    if not batch and not texts[0].startswith(b"["):
        return Content(JSON, space + texts[0] + space, [texts[0] + b","])
    body = b"[" + space + (space + b"," + space).join(texts) + b"]"
    return Content(JSON, body, [text + b"," for text in texts])


BINARY = st.builds(_opaque, st.just("application/octet-stream"), st.binary(min_size=1, max_size=40))
TEXT = st.builds(_opaque, st.just("text/plain"), st.text(min_size=1, max_size=12).map(str.encode))
BATCHES = st.builds(
    _json, JSON_WHITESPACE, st.lists(JSON_TEXTS, min_size=1, max_size=3), st.booleans()
)
CONTENTS = {"application/octet-stream": BINARY, "text/plain": TEXT, JSON: BATCHES}
NOTHING = Content("", b"", [])


class Reader:
    """A live reader: at each call it reads on to the tail, as long-poll and SSE do."""

    def __init__(self, engine: Engine, stream: Stream, start: Position) -> None:
        self._engine, self._stream, self._position = engine, stream, start
        self.received = b""
        self.closed = self.gone = False
        engine.attach_reader(stream, self)
        self.on_advance(stream)

    def on_advance(self, stream: Stream) -> None:
        chunk = read(self._engine, stream, self._position)
        assert chunk.up_to_date or chunk.data, "a read goes on"
        self.received += chunk.data
        self._position, self.closed = chunk.end, chunk.closed
        if not chunk.up_to_date:
            self.on_advance(stream)

    def on_gone(self, stream: Stream) -> None:
        assert not self.gone
        held = self._engine.streams.get(stream.state.name)
        assert held is not stream or stream.fork_count, "it has left, unless forks need it"
        self.gone = True
        self.leave()

    def on_fault(self, fault: HeadraceError) -> None:
        """The test fails: see `pytest_runtest_call` in tests/conftest.py."""

    def leave(self) -> None:
        self._engine.detach_reader(self._stream, self)


class Streams(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.clock = VirtualClock()
        limits = Limits(
            stream_bytes_max=STREAM_BYTES_MAX,
            producer_receipts_max=RECEIPTS_MAX,
            read_chunk_bytes=READ_CHUNK_BYTES,
        )
        self.engine = Engine(MemoryStorage(), self.clock, limits)
        self.model = Model()
        self.readers: list[tuple[Reader, ModelStream, int]] = []
        self.swept = True

    def outcome(self, command: Callable[[Callable[[object], None]], None]) -> object:
        """What the engine answers; memory answers at once, and exactly once."""
        outcomes: list[object] = []
        command(outcomes.append)
        (outcome,) = outcomes
        return outcome

    def pick(self, which: int) -> str:
        """A name that is in use, mostly."""
        known = sorted(self.model.streams)
        return known[which % len(known)] if known and which < 22 else NAMES[which % len(NAMES)]

    def matching(self, name: str, data: st.DataObject, other: bool) -> Content:
        """Content that the stream takes, or another on purpose."""
        known = self.model.find(name)
        wanted = known.content_type if isinstance(known, ModelStream) else JSON
        types = [t for t in CONTENTS if (t == wanted) != other]
        return data.draw(CONTENTS[types[0]])

    def find(self, name: str) -> tuple[Stream, ModelStream] | None:
        """The stream in the engine and in the model, or the same refusal from both."""
        known = self.model.find(name)
        if not isinstance(known, ModelStream):
            with pytest.raises(known):
                self.engine.find(name)
            return None
        stream = self.engine.find(name)
        assert (stream.state.closed, stream.visible_closed) == (known.closed, known.closed)
        return stream, known

    # -- creation --------------------------------------------------------------------------

    @rule(
        name=NEW,
        content_type=st.sampled_from([*CONTENTS]),
        empty=SELDOM,
        lifetime=LIFETIMES,
        closed=SELDOM,
        data=st.data(),
    )
    def create(
        self,
        name: str,
        content_type: str,
        empty: bool,
        lifetime: Lifetime,
        closed: bool,
        data: st.DataObject,
    ) -> None:
        content = NOTHING if empty else data.draw(CONTENTS[content_type])
        self.put(name, Create(content.body, content_type, lifetime, closed), content.messages)

    @rule(
        name=NEW,
        which=PICK,
        where=st.none() | PICK,
        sub_offset=st.sampled_from([0, 0, 0, 1, 1, 2, 5]),
        empty=st.booleans(),
        lifetime=LIFETIMES,
        other=SELDOM,
        data=st.data(),
    )
    def fork(
        self,
        name: str,
        which: int,
        where: int | None,
        sub_offset: int,
        empty: bool,
        lifetime: Lifetime,
        other: bool,
        data: st.DataObject,
    ) -> None:
        source = self.pick(which)
        known = self.model.find(source)
        offset = None
        if isinstance(known, ModelStream) and where is not None:
            offset = list(known.offsets)[where % len(known.offsets)]
        command = Create(lifetime=lifetime, fork=ForkRequest(source, offset, sub_offset))
        messages: list[bytes] = []
        if not empty and isinstance(known, ModelStream):
            content_type, body, messages = self.matching(source, data, other)
            command = replace(command, content_type=content_type, body=body)
        self.put(name, command, messages)

    @rule(which=PICK, without_offset=st.booleans())
    def put_again(self, which: int, without_offset: bool) -> None:
        """What a stream was created with is asked for once more."""
        name = self.pick(which)
        known = self.model.find(name)
        if isinstance(known, ModelStream):
            command = known.created_as
            if command.fork is not None:
                offset = None if without_offset else known.point
                command = replace(command, fork=replace(command.fork, offset=offset))
            self.put(name, command, [])

    def put(self, name: str, command: Create, messages: list[bytes]) -> None:
        expected = self.model.judge_create(name, command, messages)
        outcome = self.outcome(lambda reply: self.engine.create(name, command, reply))
        if not isinstance(outcome, Confirmed):
            assert type(outcome) is expected
            return
        assert expected is (Created if outcome.created else Existing)
        if outcome.created:
            self.model.create(name, command, messages, outcome.tail, self.clock.now_ms())
            fork = outcome.state.config.fork
            if fork is not None:
                self.model.streams[name].point = fork.point
                self.read_on(self.engine.streams[name], self.model.streams[name], START, 0)
        known = self.model.streams[name]
        assert (known.offsets[outcome.tail], outcome.closed) == (len(known.content), known.closed)

    # -- appends ---------------------------------------------------------------------------

    @rule(which=PICK, other=SELDOM, close=SELDOM, data=st.data())
    def append(self, which: int, other: bool, close: bool, data: st.DataObject) -> None:
        name = self.pick(which)
        content = self.matching(name, data, other)
        self.post(name, content, Append(content.body, content.content_type, close))

    @rule(which=PICK, seq=st.sampled_from([b"1", b"10", b"2", b"B", b"a"]), data=st.data())
    def append_in_sequence(self, which: int, seq: bytes, data: st.DataObject) -> None:
        name = self.pick(which)
        content = self.matching(name, data, other=False)
        self.post(name, content, Append(content.body, content.content_type, stream_seq=seq))

    @rule(
        which=PICK,
        id=st.sampled_from([b"p"] * 5 + [b"q"]),
        epochs_on=st.sampled_from([0] * 8 + [-1, 1]),
        steps=st.lists(st.sampled_from([1] * 6 + [0, -1, -2, -3, 2]), min_size=1, max_size=6),
        close=SELDOM,
        only_close=SELDOM,
        data=st.data(),
    )
    def append_by_producer(
        self,
        which: int,
        id: bytes,
        epochs_on: int,
        steps: list[int],
        close: bool,
        only_close: bool,
        data: st.DataObject,
    ) -> None:
        """A producer's next appends, with retries, gaps, stale and new epochs among them."""
        name = self.pick(which)
        content = NOTHING if only_close else self.matching(name, data, other=False)
        for number, step in enumerate(steps, start=1):
            claim = self.claim(name, id, epochs_on if number == 1 else 0, step)
            ends = only_close or (close and number == len(steps))
            sent_type = content.content_type or None
            self.post(name, content, Append(content.body, sent_type, ends, None, claim))

    def claim(self, name: str, id: bytes, epochs_on: int, seqs_on: int) -> ProducerHeaders:
        """So many epochs and sequence numbers on from the producer's last append."""
        known = self.model.find(name)
        last = known.producers.get(id) if isinstance(known, ModelStream) else None
        epoch, seq = (last.epoch, last.seq) if last else (1, -1)
        seq = 0 if epochs_on > 0 and seqs_on == 1 else max(0, seq + seqs_on)
        return ProducerHeaders(id, max(0, epoch + epochs_on), seq)

    @rule(which=PICK, really=SELDOM)
    def close(self, which: int, really: bool) -> None:
        if really:
            self.post(self.pick(which), NOTHING, Append(b"", close=True))

    def post(self, name: str, content: Content, command: Append) -> None:
        found = self.find(name)
        if found is None:
            return
        stream, known = found
        expected = known.judge(command, content.messages)
        before = stream.visible
        outcome = self.outcome(lambda reply: self.engine.append(stream, command, reply))
        assert type(outcome) is expected
        if isinstance(outcome, Appended):
            assert outcome.start == before
            known.append(command, content.messages, outcome.end)
        else:
            assert stream.visible == before, "a refusal and a repeat change nothing"
        if isinstance(outcome, Repeated):
            assert command.producer is not None
            original = known.producers[command.producer.id].receipt(command.producer.seq)
            assert outcome.repeat.receipt == original
        if not isinstance(outcome, HeadraceError):
            known.touched_ms = self.clock.now_ms()

    # -- reads -----------------------------------------------------------------------------

    @rule(which=PICK, where=st.none() | PICK)
    def read_to_the_tail(self, which: int, where: int | None) -> None:
        """Resume from any offset ever returned: exactly what follows it, in whole messages."""
        found = self.find(self.pick(which))
        if found is None:
            return
        stream, known = found
        offset: Position | str = BEGINNING
        count = 0
        if where is not None:
            offset, count = list(known.offsets.items())[where % len(known.offsets)]
        position = self.engine.start_position(stream, offset)
        self.engine.touch(stream)
        known.touched_ms = self.clock.now_ms()
        self.read_on(stream, known, position, count)

    def read_on(self, stream: Stream, known: ModelStream, position: Position, count: int) -> None:
        while True:
            chunk = read(self.engine, stream, position)
            assert chunk.up_to_date or chunk.data, "a read goes on"
            self.check_chunk(known, chunk, count)
            position, count = chunk.end, count + len(chunk.data)
            known.note_offset(position, count)
            if chunk.up_to_date:
                break
        assert count == len(known.content)
        assert self.engine.start_position(stream, NOW) == position

    def check_chunk(self, known: ModelStream, chunk: Chunk, count: int) -> None:
        end = count + len(chunk.data)
        assert chunk.data == known.content[count:end]
        assert end in known.boundaries, "a chunk ends between two messages"
        inside = [boundary for boundary in known.boundaries if count <= boundary <= end]
        assert [*chunk.lengths] == [after - before for before, after in pairwise(inside)]
        following = min((b for b in known.boundaries if b > count), default=count)
        assert end - count <= max(READ_CHUNK_BYTES, following - count)
        assert chunk.up_to_date == (end == len(known.content))
        assert chunk.closed == (chunk.up_to_date and known.closed)

    @rule(which=PICK, one=PICK, another=PICK)
    def read_and_fork_where_no_message_ends(self, which: int, one: int, another: int) -> None:
        """Half of one offset and half of another make none of this stream."""
        name = self.pick(which)
        found = self.find(name)
        if found is None:
            return
        stream, known = found
        offsets = list(known.offsets)
        first, second = offsets[one % len(offsets)], offsets[another % len(offsets)]
        if first == second:
            return
        mixed = Position(first.messages, second.bytes)
        if mixed > stream.visible:
            with pytest.raises(InvalidOffset):
                self.engine.start_position(stream, mixed)
        else:
            assert self.engine.start_position(stream, mixed) == mixed
            refusal = self.outcome(lambda reply: self.engine.read(stream, mixed, reply))
            assert type(refusal) is InvalidOffset
        command = Create(fork=ForkRequest(name, mixed, 0))
        refusal = self.outcome(lambda reply: self.engine.create("never", command, reply))
        assert type(refusal) is InvalidOffset

    @rule(which=PICK)
    def attach(self, which: int) -> None:
        found = self.find(self.pick(which))
        if found is None:
            return
        stream, known = found
        self.engine.touch(stream)
        known.touched_ms = self.clock.now_ms()
        known.readers += 1
        reader = Reader(self.engine, stream, stream.visible)
        self.readers.append((reader, known, len(known.content)))

    @precondition(lambda self: self.readers)
    @rule(which=PICK)
    def detach(self, which: int) -> None:
        reader, known, _ = self.readers.pop(which % len(self.readers))
        if not reader.gone:
            reader.leave()
            known.readers -= 1
            known.touched_ms = self.clock.now_ms()

    # -- endings ---------------------------------------------------------------------------

    @rule(which=PICK, really=st.booleans())
    def delete(self, which: int, really: bool) -> None:
        if really:
            self.remove(self.pick(which))

    def remove(self, name: str) -> None:
        known = self.model.find(name)
        outcome = self.outcome(lambda reply: self.engine.delete(name, reply))
        if isinstance(known, ModelStream):
            assert type(outcome) is Deleted
            self.model.remove(known)
        else:
            assert type(outcome) is known

    @rule(secs=st.sampled_from([1, TTL_SECS - 1, TTL_SECS]), sweep=st.booleans())
    def advance(self, secs: int, sweep: bool) -> None:
        self.clock.advance(secs=secs)
        kin = self.model.expire(self.clock.now_ms())
        self.swept = False
        # A source learns that its fork is over when the fork is found or swept, not before.
        if sweep or kin:
            self.sweep()

    @rule()
    def sweep(self) -> None:
        self.engine.housekeeping.run()
        self.swept = True

    # -- what always holds -----------------------------------------------------------------

    @invariant()
    def live_readers_have_received_everything_since_they_came(self) -> None:
        for reader, known, start in self.readers:
            assert reader.gone == known.deleted
            if not reader.gone:
                assert reader.received == known.content[start:]
                assert reader.closed == known.closed

    @invariant()
    def memory_is_what_the_streams_hold_themselves(self) -> None:
        if self.swept:
            assert set(self.engine.streams) == {REGISTRY_NAME, *self.model.streams}
            own = sum(stream.own_bytes for stream in self.model.streams.values())
            assert self.engine.stored.total == own

    @rule()
    def the_registry_names_the_streams_there_are(self) -> None:
        self.sweep()
        names: set[str] = set()
        for message in registry_messages(self.engine):
            inserted = message["headers"]["operation"] == "insert"
            (names.add if inserted else names.remove)(message["key"])
        assert names == {n for n, stream in self.model.streams.items() if not stream.deleted}

    def teardown(self) -> None:
        """Once everything is deleted, nothing is held."""
        if not hasattr(self, "engine"):
            return
        for name in [*self.model.streams]:
            self.remove(name)
        self.sweep()
        assert set(self.engine.streams) == {REGISTRY_NAME}
        assert self.engine.stored.total == 0


Streams.TestCase.settings = settings(
    settings.get_profile("headrace"), max_examples=100, stateful_step_count=60
)
TestStreams = Streams.TestCase
