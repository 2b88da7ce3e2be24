"""A checkpoint makes of a stream's record what the engine made of the stream."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.limits import Limits
from headrace.protocol.stream import StreamConfig, StreamState
from headrace.storage.file.catalog_entries import entry_of
from headrace.storage.file.frames import (
    AdoptFrame,
    AppendFrame,
    ReclaimFrame,
    RemoveFrame,
    TrimFrame,
)
from headrace.storage.file.replay import apply
from headrace.storage.file.stream_changes import StreamChanges
from headrace.storage.file.stream_files import NO_FILES
from headrace.storage.records import HeadRecord

ID = 1_000_000_000_000
LIMITS = Limits()
PRODUCERS = st.none() | st.tuples(st.sampled_from([b"p", b"q"]), st.integers(0, 2), st.just(0))
APPENDS = st.tuples(
    st.just("append"),
    st.lists(st.binary(min_size=1, max_size=5), max_size=3),
    st.booleans(),
    st.sampled_from([None, b"", b"a", b"b"]),
    PRODUCERS,
)
POSITIONS = st.tuples(st.integers(0, 9), st.integers(0, 99))
OTHERS = st.one_of(
    st.builds(TrimFrame, st.just(ID), POSITIONS),
    st.builds(ReclaimFrame, st.just(ID), POSITIONS),
    st.builds(RemoveFrame, st.just(ID), st.just(False)),
    st.just(AdoptFrame(ID, HeadRecord((7, 70), (1, 10), False, False, b"s", 5), [])),
)


@given(st.lists(APPENDS | OTHERS, max_size=8))
def test_the_record_is_that_of_the_stream(steps: list[object]) -> None:
    state = StreamState(ID, "name", StreamConfig("text/plain"), 1)
    stream = StreamChanges(entry_of(state, NO_FILES), LIMITS)
    data = b""
    lengths: list[int] = []
    for number, step in enumerate(steps):
        if isinstance(step, tuple):
            _, messages, closes, stream_seq, producer = step
            sizes = tuple(map(len, messages))
            joined = b"".join(messages)
            frame = AppendFrame(
                ID, number, (*state.tail,), sizes, joined, closes, stream_seq, producer
            )
            apply(state, frame, LIMITS)
            data, lengths = data + joined, [*lengths, *sizes]
            stream.apply(frame)
        else:
            assert isinstance(step, RemoveFrame | AdoptFrame | TrimFrame | ReclaimFrame)
            apply(state, step, LIMITS)
            stream.apply(step)
    run = stream.take_run()
    assert stream.entry == entry_of(state, NO_FILES)
    found = (b"", []) if run is None else (run.data, run.lengths)
    assert found == (data, lengths)
