"""All four modes give the same answers, whenever those that store are restarted."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from headrace.engine.creation import Confirmed
from headrace.engine.engine import Engine
from headrace.engine.reads import Chunk
from headrace.engine.stream_runtime import Stream
from headrace.errors import HeadraceError
from headrace.limits import Limits
from headrace.protocol.expiry import FOREVER, Lifetime
from headrace.protocol.json_mode import response_body
from headrace.protocol.names import REGISTRY_NAME
from headrace.protocol.offsets import START, Position
from headrace.protocol.producers import ProducerHeaders
from headrace.protocol.requests import Append, Create, ForkRequest
from headrace.protocol.stream import StreamConfig, StreamState
from headrace.storage.acid import acid_storage, transaction_writer
from headrace.storage.base import Storage
from headrace.storage.file import file_log, stream_files
from headrace.storage.memory import MemoryStorage
from headrace.testing.virtual_clock import VirtualClock
from tests.durability.modes import KEPT_MODES, open_storage

DEADLINE_SECS = 30.0
# Small enough that a few appends leave the hot tail, fill a chunk, and outlive a receipt.
LIMITS = Limits(stream_bytes_max=400, producer_receipts_max=3, read_chunk_bytes=24)
HOT_BYTES_MAX = 40
CHUNK_BYTES_MAX = 30

Reply = Callable[[Any], None]
# The first three exist from the beginning, and the first two for good: most steps should find
# something to work on.
NAMES = st.sampled_from(["text", "json", "bytes", "f", "g"])
PASSING = st.sampled_from(["bytes", "f", "g"])
TYPES = st.sampled_from(["text/plain", "application/octet-stream", "application/json"])
LIFETIMES = st.sampled_from([FOREVER, Lifetime(ttl_secs=3600)])
BODIES = st.one_of(
    st.binary(min_size=1, max_size=12),
    st.sampled_from(
        [b"1", b"[1,2,3]", b'[{"a":1},"b"]', b"[]", b"x" * 50, b'"' + b"y" * 30 + b'"']
    ),
)
APPENDS = st.builds(
    Append,
    BODIES,
    close=st.sampled_from([False] * 19 + [True]),
    stream_seq=st.sampled_from([None, None, None, b"1", b"2", b"3"]),
    producer=st.none() | st.builds(ProducerHeaders, st.just(b"p"), st.just(0), st.integers(0, 2)),
)


class Side:
    """One engine, and answers to compare with the other side's."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: VirtualClock) -> None:
        self._loop = loop
        self._clock = clock

    def open(self, storage: Storage) -> None:
        self.engine = Engine(storage, self._clock, LIMITS)

    def ask(self, *commands: Callable[[Engine, Reply], None]) -> list[Any]:
        """Hand in all commands, then wait for all answers."""
        answers = []
        for command in commands:
            answer = self._loop.create_future()
            try:
                command(self.engine, answer.set_result)
            except HeadraceError as refusal:
                answer.set_result(refusal)
            answers.append(answer)
        both = asyncio.wait_for(asyncio.gather(*answers), DEADLINE_SECS)
        return [comparable(found) for found in self._loop.run_until_complete(both)]

    def read_all(self, name: str) -> bytes:
        """A stream from its trim offset to its tail, window by window."""
        stream = self.engine.find(name)
        position, data = stream.state.trim_offset, b""
        while position != stream.visible:
            [chunk] = self.ask(read(name, position))
            assert isinstance(chunk, Chunk), chunk
            assert chunk.end != position, f"a read of {name} at {position} does not move on"
            data += chunk.data
            position = chunk.end
        return data


def comparable(outcome: Any) -> Any:
    if isinstance(outcome, HeadraceError):
        return type(outcome).__name__, outcome.facts(), outcome.detail
    if isinstance(outcome, Confirmed):
        state = outcome.state
        return comparable_config(state.config), state.created_at_ms, outcome.tail, outcome.created
    if isinstance(outcome, Chunk):
        return Chunk(*_fields(outcome))
    return outcome


def comparable_state(state: StreamState) -> tuple[Any, ...]:
    config = comparable_config(state.config)
    return config, state.tail, state.closed, state.deleted, state.stream_seq


def comparable_config(config: StreamConfig) -> tuple[Any, ...]:
    """Without the id of a fork's source: ids are each side's own."""
    fork = config.fork and (config.fork.request, config.fork.point)
    return config.content_type, config.lifetime, fork


def _fields(chunk: Chunk) -> tuple[Any, ...]:
    """Lengths as a tuple: one storage gives a list where another gives a tuple."""
    return chunk.start, chunk.end, chunk.data, chunk.up_to_date, chunk.closed, tuple(chunk.lengths)


def append(name: str, command: Append) -> Callable[[Engine, Reply], None]:
    return lambda engine, reply: engine.append(engine.find(name), command, reply)


def create(name: str, command: Create) -> Callable[[Engine, Reply], None]:
    return lambda engine, reply: engine.create(name, command, reply)


def delete(name: str) -> Callable[[Engine, Reply], None]:
    return lambda engine, reply: engine.delete(name, reply)


def read(name: str, start: Position) -> Callable[[Engine, Reply], None]:
    def ask(engine: Engine, reply: Reply) -> None:
        stream = engine.find(name)
        engine.read(stream, engine.start_position(stream, start), reply)

    return ask


class Agreement(RuleBasedStateMachine):
    """Memory, which never restarts, beside the modes that store, which do."""

    modes = KEPT_MODES

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.directory = Path(tempfile.mkdtemp(prefix="headrace-agreement-"))
        clock = VirtualClock()
        self.clock = clock
        self.memory = Side(self.loop, clock)
        self.memory.open(MemoryStorage())
        self.stored = {mode: Side(self.loop, clock) for mode in self.modes}
        for mode in self.stored:
            self.open(mode)
        self.offsets: dict[str, list[Position]] = {}
        self.ids: dict[tuple[str, int], tuple[str, int]] = {}
        self.create("text", "text/plain", FOREVER, b"", closed=False)
        self.create("json", "application/json", FOREVER, b"", closed=False)
        self.create("bytes", "application/octet-stream", FOREVER, b"initial", closed=False)

    def open(self, mode: str) -> None:
        self.stored[mode].open(open_storage(mode, self.directory / mode, self.loop))

    def both(self, *commands: Callable[[Engine, Reply], None]) -> list[Any]:
        self.clock.advance(ms=1)
        expected = self.memory.ask(*commands)
        for mode, side in self.stored.items():
            found = side.ask(*commands)
            assert found == expected, f"{mode} {found} and memory {expected}"
        return expected

    # -- what clients do ---------------------------------------------------------------------

    @rule(
        name=NAMES,
        content_type=TYPES,
        lifetime=LIFETIMES,
        body=st.just(b"") | BODIES,
        closed=st.sampled_from([False, False, False, True]),
    )
    def create(
        self, name: str, content_type: str, lifetime: Lifetime, body: bytes, closed: bool
    ) -> None:
        self.both(create(name, Create(body, content_type, lifetime, closed)))
        self.note_offset(name)

    @rule(name=NAMES, command=APPENDS)
    def append(self, name: str, command: Append) -> None:
        self.both(append(name, command))
        self.note_offset(name)

    @rule(name=NAMES, commands=st.lists(APPENDS, min_size=2, max_size=6))
    def append_without_waiting(self, name: str, commands: list[Append]) -> None:
        self.both(*(append(name, command) for command in commands))
        self.note_offset(name)

    @rule(name=NAMES, body=BODIES, count=st.integers(1, 5), back=st.integers(0, 7))
    def produce_and_repeat(self, name: str, body: bytes, count: int, back: int) -> None:
        following = self.next_seq(name)
        numbers = [
            *range(following, following + count),
            *range(max(0, following - back), following),
        ]
        self.both(
            *(append(name, Append(body, producer=ProducerHeaders(b"r", 1, n))) for n in numbers)
        )

    def next_seq(self, name: str) -> int:
        stream = self.memory.engine.streams.get(name)
        known = stream.state.producers if stream is not None else None
        return known[b"r"].seq + 1 if known and b"r" in known else 0

    @rule(name=NAMES, epoch=st.integers(0, 2), seq=st.integers(0, 1))
    def fence(self, name: str, epoch: int, seq: int) -> None:
        self.both(append(name, Append(b"1", producer=ProducerHeaders(b"q", epoch, seq))))

    @rule(name=PASSING)
    def close(self, name: str) -> None:
        self.both(append(name, Append(b"", close=True)))

    @rule(name=PASSING)
    def delete(self, name: str) -> None:
        self.both(delete(name))

    @rule(
        name=PASSING,
        source=NAMES,
        sub_offset=st.integers(0, 4),
        at=st.none() | st.integers(0, 30),
    )
    def fork(self, name: str, source: str, sub_offset: int, at: int | None) -> None:
        offset = None if at is None else self.offset_of(source, at)
        self.both(create(name, Create(fork=ForkRequest(source, offset, sub_offset))))

    @rule(name=PASSING, source=NAMES, content_type=TYPES)
    def replace_without_waiting(self, name: str, source: str, content_type: str) -> None:
        fork = Create(fork=ForkRequest(source, None, 0))
        plain = Create(b"1", content_type)
        self.both(delete(name), create(name, fork), delete(name), create(name, plain))

    @rule(name=NAMES, source=NAMES, at=st.integers(0, 30))
    def read(self, name: str, source: str, at: int) -> None:
        self.both(read(name, self.offset_of(source, at)))

    def note_offset(self, name: str) -> None:
        stream = self.memory.engine.streams.get(name)
        if stream is not None:
            self.offsets.setdefault(name, [START]).append(stream.visible)

    def offset_of(self, name: str, at: int) -> Position:
        """One that a stream of this name has returned, perhaps before it was deleted."""
        offsets = self.offsets.get(name, [START])
        return offsets[at % len(offsets)]

    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        """One of them, so that they are also compared at different ages."""
        mode = data.draw(st.sampled_from(sorted(self.stored)), "mode")
        self.stored[mode].engine.close()
        self.open(mode)

    # -- what holds --------------------------------------------------------------------------

    @invariant()
    def streams_are_the_same(self) -> None:
        expected = self.memory.engine.streams
        bytes_of = {
            name: self.memory.read_all(name)
            for name in expected.keys() - {REGISTRY_NAME}
            if not expected[name].state.deleted
        }
        for side in self.stored.values():
            found = side.engine.streams
            assert found.keys() == expected.keys()
            for name in expected.keys() - {REGISTRY_NAME}:
                one, other = expected[name].state, found[name].state
                assert comparable_state(other) == comparable_state(one)
            for name, data in bytes_of.items():
                assert side.read_all(name) == data

    @invariant()
    def an_id_is_never_used_again(self) -> None:
        for mode, side in self.stored.items():
            for name, stream in side.engine.streams.items():
                creation_durable = name, stream.state.created_at_ms
                assert (
                    self.ids.setdefault((mode, stream.state.id), creation_durable)
                    == creation_durable
                )

    @invariant()
    def registries_name_the_same_streams(self) -> None:
        expected = registered(self.memory)
        for side in self.stored.values():
            assert registered(side) == expected

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            for side in self.stored.values():
                side.engine.close()
            self.loop.close()
            shutil.rmtree(self.directory)


def registered(side: Side) -> dict[str, Any]:
    """What a reader of the registry believes to exist."""
    side.ask(lambda engine, reply: engine.when_durable(REGISTRY_NAME, lambda: reply(None)))
    streams: dict[str, Any] = {}
    for message in orjson.loads(response_body(side.read_all(REGISTRY_NAME) or b",")):
        if message["headers"]["operation"] == "delete":
            streams.pop(message["key"], None)
        else:
            streams[message["key"]] = message["value"]
    return streams


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acid_storage, "HOT_BYTES_MAX", HOT_BYTES_MAX)
    monkeypatch.setattr(file_log, "HOT_BYTES_MAX", HOT_BYTES_MAX)
    monkeypatch.setattr(stream_files, "BLOCK_BYTES", CHUNK_BYTES_MAX)
    monkeypatch.setattr(transaction_writer, "CHUNK_BYTES_MAX", CHUNK_BYTES_MAX)


@pytest.mark.slow
@pytest.mark.usefixtures("small_windows")
def test_answers_are_those_of_memory_across_restarts() -> None:
    # Shrinking takes minutes where every step syncs: the failing steps are printed as they are.
    phases = (Phase.explicit, Phase.reuse, Phase.generate)
    run_state_machine_as_test(
        Agreement,
        settings=settings(max_examples=60, stateful_step_count=30, deadline=None, phases=phases),
    )


@pytest.mark.parametrize("mode", KEPT_MODES)
def test_a_storage_that_forgets_closure_is_caught(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recover = Engine._recover

    def forgetful(engine: Engine) -> list[Stream]:
        recovered = recover(engine)
        for stream in recovered:
            stream.state.closed = stream.visible_closed = False
        return recovered

    monkeypatch.setattr(Engine, "_recover", forgetful)
    machine = Agreement()
    machine.modes = [mode]
    machine.begin()
    try:
        machine.create("f", "text/plain", FOREVER, b"", closed=True)
        machine.stored[mode].engine.close()
        machine.open(mode)
        with pytest.raises(AssertionError):
            machine.streams_are_the_same()
    finally:
        machine.teardown()
