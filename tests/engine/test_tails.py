"""Who waits at the tail hears everything, once, in order."""

from __future__ import annotations

from headrace.engine.stream_runtime import Stream
from headrace.protocol.requests import Append
from tests.engine.helpers import Recorder, delete, new_engine, post, put, read


def test_every_reader_receives_every_append_in_order() -> None:
    engine = new_engine()
    put(engine, "a")
    early = Recorder(engine, "a")
    post(engine, "a", b"1")
    late = Recorder(engine, "a")
    post(engine, "a", b"2")
    post(engine, "a", b"3")
    assert (early.received, late.received) == (b"123", b"23")


def test_a_writer_is_answered_before_readers_are_woken() -> None:
    engine = new_engine()
    put(engine, "a")
    order: list[str] = []

    class Listener(Recorder):
        def on_advance(self, stream: Stream) -> None:
            order.append("reader")

    Listener(engine, "a")
    command = Append(b"x", "text/plain")
    engine.append(engine.find("a"), command, lambda _: order.append("writer"))
    assert order == ["writer", "reader"]


def test_a_reader_may_leave_while_it_is_called() -> None:
    engine = new_engine()
    put(engine, "a")

    class Once(Recorder):
        def on_advance(self, stream: Stream) -> None:
            super().on_advance(stream)
            self.leave()

    leaving, staying = Once(engine, "a"), Recorder(engine, "a")
    post(engine, "a", b"1")
    post(engine, "a", b"2")
    assert (leaving.received, staying.received) == (b"1", b"12")
    assert engine.reader_count == 1


def test_a_close_wakes_readers() -> None:
    engine = new_engine()
    put(engine, "a")
    seen: list[bool] = []

    class Listener(Recorder):
        def on_advance(self, stream: Stream) -> None:
            seen.append(read(self.engine, stream, self.position).closed)

    Listener(engine, "a")
    engine.append(engine.find("a"), Append(b"", close=True), lambda _: None)
    assert seen == [True]


def test_a_delete_tells_every_reader_once() -> None:
    engine = new_engine()
    put(engine, "a")
    readers = [Recorder(engine, "a") for _ in range(3)]
    delete(engine, "a")
    assert [reader.gone for reader in readers] == [1, 1, 1]
    assert engine.reader_count == 0


def test_a_reader_is_told_once_the_stream_has_left() -> None:
    engine = new_engine()
    put(engine, "a")
    held: list[bool] = []

    class Listener(Recorder):
        def on_gone(self, stream: Stream) -> None:
            held.append("a" in self.engine.streams)
            super().on_gone(stream)

    Listener(engine, "a")
    delete(engine, "a")
    assert held == [False]


def test_a_recreated_stream_is_not_heard_by_readers_of_the_first() -> None:
    engine = new_engine()
    put(engine, "a")
    reader = Recorder(engine, "a")
    delete(engine, "a")
    put(engine, "a")
    post(engine, "a", b"x")
    assert reader.received == b""
