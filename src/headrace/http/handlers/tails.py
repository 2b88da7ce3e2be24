"""`POST {root}/__ds/tails`: the tails of many streams, now or once one of them has moved.

One request may name thousands of streams, and one append may end many requests. So everything
that is done for each stream of a request is done in slices; waking a poll costs the same however
many streams it waits at.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import orjson

from headrace.engine.engine import Engine
from headrace.engine.range_reads import seek
from headrace.engine.reads import start_position
from headrace.engine.slices import Slices
from headrace.engine.stream_runtime import Stream
from headrace.errors import (
    HeadraceError,
    InvalidRequest,
    MethodNotAllowed,
    Overloaded,
    StreamDeleted,
    StreamNotFound,
    StreamSetAside,
)
from headrace.http.exchange import Exchange, Request
from headrace.http.fault_answers import fault_answer
from headrace.http.handlers.body_work import BodyWork
from headrace.http.handlers.live import LiveReads
from headrace.http.permissions import Action, Guard
from headrace.protocol import responses
from headrace.protocol.offsets import Position
from headrace.protocol.requests import Live, parse_query
from headrace.protocol.tails import (
    TailQuery,
    describe,
    describe_problem,
    parse_tail_query,
    parse_tails,
)

STREAMS_PER_STEP: Final = 50  # half a millisecond
SHORT_BODY_BYTES_MAX: Final = 16 * 1024  # a hundred streams or two
T = TypeVar("T")


class TailRoutes:
    def __init__(self, engine: Engine, live: LiveReads, slices: Slices) -> None:
        self._engine = engine
        self._live = live
        self._slices = slices

    def handle(
        self, request: Request, exchange: Exchange, query: bytes, name_of: Callable[[str], str]
    ) -> None:
        """`name_of` gives the engine's name of a stream, and refuses what cannot be one."""
        request.operation = "tails"
        if request.method != b"POST":
            raise MethodNotAllowed("POST, OPTIONS")
        if request.guard is not None:
            name_of = _guarded(name_of, request.guard)
        live = parse_query(query.decode("latin-1")).get("live")
        if live not in (None, Live.LONG_POLL):
            raise InvalidRequest("The tails of many streams are read at once or by long-poll.")
        is_short = len(request.body) <= SHORT_BODY_BYTES_MAX
        begin = partial(self._ask, request.body, exchange, name_of, waits=live is not None)
        work = BodyWork(request, exchange, begin)
        exchange.hold(_Asking(work))
        if is_short:
            self._slices.run(work, fault_answer(exchange), is_short=True)
        else:
            self._slices.run_later(work, fault_answer(exchange))

    def _ask(
        self,
        body: bytes,
        exchange: Exchange,
        name_of: Callable[[str], str],
        *,
        waits: bool,
    ) -> Iterator[None]:
        queries: list[TailQuery] = []
        for batch in _batches(parse_tails(body)):
            queries += [parse_tail_query(value, name_of) for value in batch]
            yield
        if waits:
            yield from self._wait(queries, exchange)
        else:
            yield from self._answer(queries, exchange)

    def _wait(self, queries: list[TailQuery], exchange: Exchange) -> Iterator[None]:
        """Attach to each tail before checking it, so that no append in between is missed."""
        # Without a position there is nothing that could be compared when a stream moves.
        if not queries or any(query.start is None for query in queries):
            raise InvalidRequest("A long-poll needs the offset of each stream, in from.")
        limit = self._engine.bounds.polled_tails_max
        if self._live.polled_tails + len(queries) > limit:
            raise Overloaded("streams that all polls of many tails wait on", limit)
        answer = partial(self._answer, queries, exchange)
        poll = TailsPoll(self._live, self._slices, len(queries), exchange, answer)
        for batch in _batches(queries):
            try:
                if not all(self._is_at_tail(poll, query) for query in batch):
                    poll.wake()
            except Exception:
                poll.on_disconnect()
                raise
            if poll.is_over:
                return
            yield

    def _is_at_tail(self, poll: TailsPoll, query: TailQuery) -> bool:
        try:
            stream = self._engine.find_visible(query.name)
        except HeadraceError:
            return False
        limit = self._engine.bounds.readers_per_stream_max
        if len(stream.readers or ()) + len(stream.watchers or ()) >= limit:
            raise Overloaded("live readers on one of these streams", limit)
        poll.watch(stream, query.start)
        return query.start == stream.visible

    def _answer(
        self, queries: list[TailQuery], exchange: Exchange, gone: Container[str] = ()
    ) -> Iterator[None]:
        answer = _Answer(exchange, len(queries))
        for first, batch in enumerate(_batches(queries)):
            for index, query in enumerate(batch, first * STREAMS_PER_STEP):
                self._describe(query, gone, partial(answer.put, index))
            yield
        answer.one_done()

    def _describe(
        self, query: TailQuery, gone: Container[str], put: Callable[[dict[str, Any]], None]
    ) -> None:
        """`gone` are the streams that were deleted during the poll: another of that name is new."""
        try:
            stream = self._engine.find_visible(query.name)
            if query.name in gone:
                raise StreamNotFound(query.name)
        except (StreamNotFound, StreamDeleted, StreamSetAside) as refusal:
            self._engine.refuse_when_durable(
                query.name, refusal, lambda error: put(describe_problem(query, error))
            )
            return
        try:
            start = None if query.start is None else start_position(stream, query.start)
        except HeadraceError as refusal:
            put(describe_problem(query, refusal, stream.state))
            return
        described = describe(query, stream.state, stream.visible, closed=stream.visible_closed)
        if start is None or not query.seeks:
            put(described)
            return

        def sought(found: Position | HeadraceError) -> None:
            if isinstance(found, HeadraceError):
                put(describe_problem(query, found, stream.state))
            else:
                put({**described, "until_offset": found.token()})

        seek(self._engine, stream, start, query.messages_max, query.bytes_max, sought)


def _guarded(name_of: Callable[[str], str], guard: Guard) -> Callable[[str], str]:
    def readable_name(asked: str) -> str:
        name = name_of(asked)
        guard(Action.READ, name)
        return name

    return readable_name


def _batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for first in range(0, len(items), STREAMS_PER_STEP):
        yield items[first : first + STREAMS_PER_STEP]


class _Asking:
    """A client whose request waits for its turn, and may take seconds of it.

    While it is held like a live read, a client that leaves gives its connection back at once, and
    its request is dropped. Else one that leaves after each request would take up all connections.
    """

    def __init__(self, work: BodyWork) -> None:
        self._work = work

    def on_disconnect(self) -> None:
        self._work.leave()

    def on_drain(self) -> None:
        """Its answer comes without more to wait for."""

    def on_writable(self) -> None:
        """Nothing was sent yet."""


class _Answer:
    """Collects what each stream says, as text; answers when the last of them has."""

    def __init__(self, exchange: Exchange, count: int) -> None:
        self._exchange = exchange
        self._found: list[bytes] = [b""] * count
        self._missing = count + 1

    def put(self, index: int, found: dict[str, Any]) -> None:
        self._found[index] = orjson.dumps(found)
        self.one_done()

    def one_done(self) -> None:
        self._missing -= 1
        if self._missing == 0:
            document = b'{"streams":[%b]}' % b",".join(self._found)
            self._exchange.respond(responses.json_text(responses.OK, document))


class TailsPoll:
    """Waits at the tails of many streams, until one moves, the time is up or the client leaves.

    `size` streams count against the bound of all polls until the poll has left them again.
    """

    def __init__(
        self,
        live: LiveReads,
        slices: Slices,
        size: int,
        exchange: Exchange,
        answer: Callable[..., Iterator[None]],
    ) -> None:
        self.is_over = False
        self._gone: set[str] = set()
        self._live = live
        self._slices = slices
        self._size = size
        self._exchange = exchange
        self._answer = answer
        self._streams: dict[Stream, Position | str | None] = {}  # and where it was left
        live.long_poll_count += 1
        live.polled_tails += size
        live.long_polls.add(self)
        exchange.hold(self)

    def watch(self, stream: Stream, start: Position | str | None) -> None:
        self._streams[stream] = start
        stream.attach_watcher(self)

    def wake(self) -> None:
        """Answer soon. An append may wake many polls, so nothing is done for each stream here."""
        if self._end():
            is_short = self._size <= STREAMS_PER_STEP
            self._slices.run_later(self._finish(), fault_answer(self._exchange), is_short=is_short)

    def on_advance(self, stream: Stream) -> None:
        """Nothing may be new: what is announced now may have come before this poll."""
        if stream.visible != self._streams.get(stream) or stream.visible_closed:
            self.wake()

    def on_gone(self, stream: Stream) -> None:
        self._gone.add(stream.state.name)
        self.wake()

    def on_deadline(self) -> None:
        self.wake()

    def on_drain(self) -> None:
        self.wake()

    def on_fault(self, fault: HeadraceError) -> None:
        self.on_disconnect()
        self._exchange.respond(responses.problem(fault))

    def on_disconnect(self) -> None:
        if self._end():
            self._slices.run_later(self._leave(), fault_answer(self._exchange))

    def on_writable(self) -> None:
        """Nothing was sent yet."""

    def _end(self) -> bool:
        """False where it was over before."""
        if self.is_over:
            return False
        self.is_over = True
        self._live.long_polls.remove(self)
        self._live.long_poll_count -= 1
        return True

    def _finish(self) -> Iterator[None]:
        # The next poll of this client is likely to come with its answer: leave first.
        yield from self._leave()
        yield from self._answer(gone=self._gone)

    def _leave(self) -> Iterator[None]:
        for batch in _batches(list(self._streams)):
            for stream in batch:
                stream.detach_watcher(self)
            yield
        self._live.polled_tails -= self._size
