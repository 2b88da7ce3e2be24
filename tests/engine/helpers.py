"""An engine in memory under a virtual clock, and commands to it as plain calls."""

from __future__ import annotations

import json
from typing import Any

from headrace.engine.creation import Confirmed
from headrace.engine.engine import Bounds, Engine
from headrace.engine.reads import Chunk
from headrace.engine.stream_runtime import Stream
from headrace.errors import HeadraceError
from headrace.limits import Limits
from headrace.protocol.names import REGISTRY_NAME
from headrace.protocol.offsets import START, Position
from headrace.protocol.producers import ProducerHeaders
from headrace.protocol.requests import Append, Create, ForkRequest
from headrace.storage.memory import MemoryStorage
from headrace.testing.virtual_clock import VirtualClock

TEXT = "text/plain"


def new_engine(
    clock: VirtualClock | None = None, limits: Limits | None = None, bounds: Bounds | None = None
) -> Engine:
    return Engine(MemoryStorage(), clock or VirtualClock(), limits, bounds)


def put(engine: Engine, name: str, command: Create | None = None) -> object:
    outcomes: list[object] = []
    engine.create(name, command or Create(content_type=TEXT), outcomes.append)
    return outcomes[0]


def fork(engine: Engine, name: str, source: str) -> object:
    return put(engine, name, Create(fork=ForkRequest(source, None, 0)))


def post(
    engine: Engine, name: str, body: bytes, producer: bytes | None = None, content_type: str = TEXT
) -> object:
    claim = None if producer is None else ProducerHeaders(producer, 0, 0)
    outcomes: list[object] = []
    command = Append(body, content_type, producer=claim)
    engine.append(engine.find(name), command, outcomes.append)
    return outcomes[0]


def delete(engine: Engine, name: str) -> object:
    outcomes: list[object] = []
    engine.delete(name, outcomes.append)
    return outcomes[0]


def is_created(outcome: object) -> bool:
    """Whether a create made a new stream."""
    return isinstance(outcome, Confirmed) and outcome.created


def read(engine: Engine, stream: Stream, start: Position) -> Chunk:
    """One chunk; memory answers at once."""
    outcomes: list[object] = []
    engine.read(stream, start, outcomes.append)
    (chunk,) = outcomes
    assert isinstance(chunk, Chunk), chunk
    return chunk


def content(engine: Engine, name: str) -> bytes:
    stream = engine.find(name)
    data, position = b"", START
    while position != stream.visible:
        chunk = read(engine, stream, position)
        data, position = data + chunk.data, chunk.end
    return data


def registry_messages(engine: Engine, offset: Position | str = "-1") -> list[dict[str, Any]]:
    """What a reader of the registry gets from `offset` on."""
    registry = engine.find(REGISTRY_NAME)
    position = engine.start_position(registry, offset)
    messages: list[dict[str, Any]] = []
    while True:
        chunk = read(engine, registry, position)
        messages += json.loads(b"[" + chunk.data[:-1] + b"]")
        position = chunk.end
        if chunk.up_to_date:
            return messages


def announced(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Operation and name of each message."""
    return [(message["headers"]["operation"], message["key"]) for message in messages]


class Recorder:
    """A live reader that writes down what it is told."""

    def __init__(self, engine: Engine, name: str) -> None:
        self.engine = engine
        self.stream = engine.find(name)
        self.position = self.stream.visible
        self.received = b""
        self.gone = 0
        engine.attach_reader(self.stream, self)

    def on_advance(self, stream: Stream) -> None:
        chunk = read(self.engine, stream, self.position)
        self.received += chunk.data
        self.position = chunk.end

    def on_gone(self, stream: Stream) -> None:
        self.gone += 1
        self.leave()

    def on_fault(self, fault: HeadraceError) -> None:
        """The test fails: see `pytest_runtest_call` in tests/conftest.py."""

    def leave(self) -> None:
        self.engine.detach_reader(self.stream, self)
