"""Frames and batches: large data goes to the disk from where it is, in the same bytes."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocol.stream import StreamConfig, StreamState
from headrace.storage.disk import RealDisk
from headrace.storage.file.batch_body import decode_frames, frame_offsets, stream_id_at
from headrace.storage.file.frames import (
    HEADER_BYTES,
    AppendFrame,
    body_matches,
    decode_header,
    documents_frame,
    encode_batch,
    encode_change,
    encode_frame,
    frame_of,
)

LARGE = 1 << 16
INTEGERS = st.integers(0, 2**53)
FRAMES = st.builds(
    AppendFrame,
    INTEGERS,
    INTEGERS,
    st.tuples(INTEGERS, INTEGERS),
    st.lists(st.integers(0, 2**32), max_size=20).map(tuple),
    st.sampled_from([0, 1, LARGE - 1, LARGE, LARGE + 7, 3 * LARGE]).map(lambda n: b"x" * n),
    st.booleans(),
    st.none() | st.binary(max_size=20),
    st.none() | st.tuples(st.binary(max_size=20), INTEGERS, INTEGERS),
)


@given(FRAMES)
def test_a_frame_in_pieces_is_the_frame_that_the_encoder_makes(frame: AppendFrame) -> None:
    encoded = encode_frame(frame)
    assert isinstance(encoded, tuple) == (len(frame.data) >= LARGE)
    if isinstance(encoded, tuple):
        assert encoded[1] is frame.data
        encoded = b"".join(encoded)
    assert encoded[4:] == msgspec.msgpack.encode(frame)
    assert int.from_bytes(encoded[:4], "little") == len(encoded) - 4


@given(FRAMES)
def test_an_append_is_encoded_as_the_frame_it_makes(frame: AppendFrame) -> None:
    state = StreamState(frame.stream_id, "name", StreamConfig("text/plain"), frame.now_ms)
    state.written_ms = frame.now_ms
    change = frame.change()
    assert encode_change(state, change) == encode_frame(frame_of(state, change))


@given(st.lists(FRAMES, max_size=5))
def test_a_batch_is_read_as_it_was_written(frames: list[AppendFrame]) -> None:
    header, pieces = encode_batch([encode_frame(frame) for frame in frames], 3, 10, 9)
    data = b"".join(pieces)
    assert len(data) == header.size
    assert decode_header(data[:HEADER_BYTES]) == header
    body = data[HEADER_BYTES : HEADER_BYTES + header.body_bytes]
    assert body_matches(header, body)
    assert list(decode_frames(body)) == frames
    assert [stream_id_at(body, place) for place in frame_offsets(body)] == [
        f.stream_id for f in frames
    ]


def test_documents_belong_to_no_stream() -> None:
    frame = encode_frame(documents_frame({"keys/token": b"secret"}))
    assert isinstance(frame, bytes)
    assert stream_id_at(frame, 0) is None


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_pieces_that_the_system_takes_in_parts_are_written_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """A write may end early, in the middle of a piece or at the end of one."""
    whole = os.pwritev

    def short(fd: int, pieces: list[bytes], offset: int) -> int:
        return whole(fd, [b"".join(pieces)[:step]], offset)

    monkeypatch.setattr(os, "pwritev", short)
    file = RealDisk(tmp_path).open("file", create=True)
    file.write(2, b"abc", b"", b"defgh", b"i", b"")
    file.write(0, b"12")
    assert file.read(0, 100) == b"12abcdefghi"
    file.close()


def test_more_pieces_than_one_call_takes_are_written(tmp_path: Path) -> None:
    file = RealDisk(tmp_path).open("file", create=True)
    pieces = [b"%04d" % number for number in range(3000)]
    file.write(0, *pieces)
    assert file.read(0, 100_000) == b"".join(pieces)
    file.close()
