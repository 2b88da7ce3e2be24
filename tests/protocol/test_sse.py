"""Whatever a stream holds arrives through Server-Sent Events, however the bytes are sliced."""

from __future__ import annotations

import codecs
import json
import re
from base64 import b64decode
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.protocol.json_mode import wire_bytes
from headrace.protocol.offsets import Position
from headrace.protocol.sse import (
    EventDecoder,
    ReceivedEvent,
    control_event,
    data_event,
    data_event_part,
    ends_inside_character,
    payload_of,
)
from tests.protocol.states import new_state
from tests.protocol.strategies import AWKWARD_TEXTS, JSON_TEXTS

CUTS = st.lists(st.integers(0, 400), max_size=8).map(sorted)
BYTE_BY_BYTE = list(range(400))
TAIL = Position(3, 12)


def decode(encoded: bytes, cuts: list[int]) -> list[ReceivedEvent]:
    """The events in `encoded`, fed to a decoder in slices."""
    decoder = EventDecoder()
    edges = [0, *cuts, len(encoded)]
    slices = [encoded[start:end] for start, end in pairwise(edges)]
    return [event for piece in slices for event in decoder.feed(piece)]


def batch(content_type: str, data: bytes) -> bytes:
    """What a reader is sent for a range of a stream: a data event and its control event."""
    control = control_event(TAIL, cursor=5, up_to_date=True, closed=False)
    return data_event(payload_of(new_state(content_type), data)) + control


def received(content_type: str, data: bytes, cuts: list[int]) -> str:
    """The payload of that data event; it is followed by one control event and nothing else."""
    event, control = decode(batch(content_type, data), cuts)
    assert event.type == "data"
    assert control.type == "control"
    assert json.loads(control.data)["streamNextOffset"] == TAIL.token()
    return event.data


def with_line_feeds(text: str) -> str:
    return re.sub("\r\n|\r", "\n", text)


@given(AWKWARD_TEXTS, CUTS)
@example(" lead\n  two", BYTE_BY_BYTE)
@example("\ufeffdata: x\r\n\r\nevent: control\r\ndata: {}\r\n\r\n", BYTE_BY_BYTE)
@example("a\u2028b\u2029c\x85d\x0be\0f", BYTE_BY_BYTE)
@example("", BYTE_BY_BYTE)
def test_text_arrives_with_its_line_ends_as_line_feeds(text: str, cuts: list[int]) -> None:
    assert received("text/plain", text.encode(), cuts) == with_line_feeds(text)


@given(st.binary(max_size=80), CUTS)
@example(bytes(range(256)), BYTE_BY_BYTE)
def test_bytes_arrive_exactly(data: bytes, cuts: list[int]) -> None:
    assert b64decode(received("image/png", data, cuts), validate=True) == data


@given(st.binary(max_size=40), CUTS)
def test_bytes_in_a_text_stream_that_are_not_utf_8_become_replacement_characters(
    data: bytes, cuts: list[int]
) -> None:
    expected = with_line_feeds(data.decode("utf-8", "replace"))
    assert received("text/plain", data, cuts) == expected


@given(st.lists(JSON_TEXTS, min_size=1, max_size=4), CUTS)
@example([b'{\r\n"a": 1,\r"b":\n2}'], BYTE_BY_BYTE)
def test_json_messages_arrive_as_one_array(texts: list[bytes], cuts: list[int]) -> None:
    arrived = json.loads(received("application/json", wire_bytes(texts), cuts))
    assert arrived == [json.loads(text) for text in texts]


@given(st.lists(st.tuples(st.sampled_from(["text/a", "x/y"]), AWKWARD_TEXTS), max_size=4), CUTS)
def test_every_data_event_is_followed_by_its_control_event(
    ranges: list[tuple[str, str]], cuts: list[int]
) -> None:
    encoded = b"".join(batch(content_type, text.encode()) for content_type, text in ranges)
    assert [event.type for event in decode(encoded, cuts)] == ["data", "control"] * len(ranges)


@pytest.mark.parametrize(
    ("up_to_date", "closed", "expected"),
    [
        (False, False, {"streamCursor": "5"}),
        (True, False, {"streamCursor": "5", "upToDate": True}),
        (True, True, {"upToDate": True, "streamClosed": True}),
    ],
)
def test_a_control_event_is_json_that_says_where_the_reader_stands(
    up_to_date: bool, closed: bool, expected: dict[str, object]
) -> None:
    encoded = control_event(TAIL, cursor=5, up_to_date=up_to_date, closed=closed)
    (event,) = decode(encoded, [])
    assert json.loads(event.data) == {"streamNextOffset": TAIL.token(), **expected}


@pytest.mark.parametrize("cuts", [[], [1], [2], [1, 2], [3]])
def test_a_byte_order_mark_before_the_first_event_is_dropped_however_it_is_sliced(
    cuts: list[int],
) -> None:
    assert decode(b"\xef\xbb\xbfdata:x\n\n", cuts) == [ReceivedEvent("message", "x")]


@pytest.mark.parametrize(
    ("encoded", "events"),
    [
        (b"data\n\n", [ReceivedEvent("message", "")]),
        (b"data:a\ndata: b\ndata:  c\n\n", [ReceivedEvent("message", "a\nb\n c")]),
        (b":comment\nid: 3\nretry: 1\ndata:x\n\n", [ReceivedEvent("message", "x")]),
        (
            b"event: a\nevent: b\ndata:x\n\ndata:y\n\n",
            [ReceivedEvent("b", "x"), ReceivedEvent("message", "y")],
        ),
        (b"event: a\n\ndata:y\n\n", [ReceivedEvent("message", "y")]),
        (
            b"data:x\r\n\r\ndata:y\r\r\n",
            [ReceivedEvent("message", "x"), ReceivedEvent("message", "y")],
        ),
        (b"data:unfinished\n", []),
        (b"da\xffta:x\ndata:\xff\n\n", [ReceivedEvent("message", "\ufffd")]),
    ],
)
def test_the_decoder_follows_the_html_standard(encoded: bytes, events: list[ReceivedEvent]) -> None:
    assert decode(encoded, []) == events
    assert decode(encoded, BYTE_BY_BYTE) == events


@given(AWKWARD_TEXTS, st.integers(0, 60))
def test_a_cut_inside_a_character_is_seen(text: str, cut: int) -> None:
    data = text.encode()[:cut]
    assert ends_inside_character(data) == (data.decode("utf-8", "ignore").encode() != data)


@given(st.binary(max_size=6))
@example(b"a\xff")
@example(b"\xc0")
@example(b"\xe0\x80")
@example(b"\xf5\x80")
def test_only_bytes_that_could_become_a_character_are_waited_for(data: bytes) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    assert ends_inside_character(data) == bool(decoder.getstate()[0])


@given(
    st.lists(st.sampled_from([b"\r", b"\n", b"\r\n", b" ", b"a", b"  b", b"xyz" * 9]), min_size=1),
    st.integers(4, 70),
)
def test_an_event_in_parts_is_the_event(pieces: list[bytes], size: int) -> None:
    payload, at, parts = b"".join(pieces), 0, []
    while at < len(payload):
        part, at = data_event_part(payload, at, size)
        parts.append(part)
    assert b"".join(parts) == data_event(payload)
