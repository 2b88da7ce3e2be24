"""Reading as upstream's client harness asks it: offsets, live modes, encodings, refusals.

`conformance_cases.txt` says which of its cases each of these covers; here they run against our
own server, in every `make test`, with both clients.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

import pytest

from headrace import errors
from headrace.client import NOW, Client, Live, Stream, status_of
from headrace.testing.waiting import eventually
from tests.client.conftest import Connect
from tests.client.scripted import Reply, ScriptedServer
from tests.client.test_reading import LIVE

EVERY: list[Live] = [False, *LIVE]
TAIL = {"Stream-Next-Offset": "1", "Stream-Up-To-Date": "true"}
READ = Reply(200, TAIL, b"data")


def text_stream(fresh: Stream, *parts: str) -> list[str]:
    """Create it with these appends; the offset before each, and the tail."""
    offsets = [fresh.create("text/plain").next_offset]
    for part in parts:
        offset = fresh.append(part).next_offset
        assert offset is not None
        offsets.append(offset)
    return offsets


class Follower(threading.Thread):
    """Collects what a live read brings, until the stream is closed."""

    def __init__(self, stream: Stream, live: Live, offset: str) -> None:
        super().__init__(daemon=True)
        self.reader = stream.read(offset, live=live)
        self.parts: list[bytes] = []
        self.failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.parts.extend(self.reader.bytes())
        except BaseException as failure:
            self.failure = failure

    def finished(self) -> bytes:
        self.join(60)
        assert not self.is_alive(), "the read did not end with the stream"
        assert self.failure is None, self.failure
        return b"".join(self.parts)


# -- what is there stays as it is ---------------------------------------------------------------


def test_what_was_read_once_is_read_again_the_same(fresh: Stream) -> None:
    _, middle, tail = text_stream(fresh, "one", "two")
    first = fresh.read()
    assert list(first.bytes()) == list(fresh.read().bytes()) == [b"onetwo"]
    assert (first.up_to_date, first.offset) == (True, tail)
    fresh.append("three")
    assert fresh.read_text(middle) == fresh.read_text(middle) == "twothree"
    assert fresh.read_text() == "onetwothree"


def test_the_content_type_is_kept_as_it_was_given(fresh: Stream) -> None:
    fresh.create("text/plain; charset=utf-8")
    assert fresh.head().content_type == "text/plain; charset=utf-8"
    fresh.append("x")
    reader = fresh.read()
    assert list(reader.bytes()) == [b"x"]
    assert reader.content_type == "text/plain; charset=utf-8"


def test_offsets_rise_and_each_goes_on_exactly_behind_what_was_read(
    client: Client, fresh: Stream
) -> None:
    parts = [f"{number:02d}ü\x00" for number in range(12)]
    offsets = text_stream(fresh, *parts)
    assert offsets == sorted(set(offsets))
    for number, offset in enumerate(offsets):
        again = client.stream(fresh.url)
        assert again.read_text(offset) == "".join(parts[number:])
    reader = fresh.read(offsets[-1])
    assert list(reader.bytes()) == []
    assert (reader.offset, reader.up_to_date) == (offsets[-1], True)


def test_the_offset_of_head_is_where_the_next_append_begins(fresh: Stream) -> None:
    text_stream(fresh, "before")
    tail = fresh.head().next_offset
    fresh.append("after")
    assert fresh.read_text(tail) == "after"


def test_the_first_offset_and_the_beginning_are_the_same(fresh: Stream) -> None:
    first, *_ = text_stream(fresh, "all of it")
    assert fresh.read_text(first) == fresh.read_text("-1") == fresh.read_text() == "all of it"


@pytest.mark.parametrize("offset", ["ffffffffffffffff", "9999999999999999_9999999999999999"])
def test_an_offset_that_the_stream_never_gave_is_named(offset: str, fresh: Stream) -> None:
    text_stream(fresh, "small")
    with pytest.raises(errors.InvalidOffset, match=offset):
        fresh.read_text(offset)


def test_the_tail_of_a_closed_stream_reads_nothing_and_says_closed(fresh: Stream) -> None:
    *_, tail = text_stream(fresh, "small")
    fresh.close()
    reader = fresh.read(tail)
    assert list(reader.bytes()) == []
    assert reader.closed


# -- now ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [(), ("history",)], ids=["empty", "filled"])
def test_now_is_the_tail(parts: tuple[str, ...], fresh: Stream) -> None:
    *_, tail = text_stream(fresh, *parts)
    for _ in range(2):
        reader = fresh.read(NOW)
        assert list(reader.bytes()) == []
        assert (reader.offset, reader.up_to_date) == (tail, True)
        tail = fresh.append("next").next_offset or ""
    assert fresh.read_text(reader.offset) == "next"


@pytest.mark.parametrize("live", LIVE)
@pytest.mark.parametrize("kind", ["text/plain", "application/octet-stream"])
@pytest.mark.parametrize("history", [b"", b"history"], ids=["empty", "filled"])
def test_following_from_now_brings_only_what_comes(
    history: bytes, kind: str, live: Live, fresh: Stream
) -> None:
    fresh.create(kind)
    if history:
        fresh.append(history)
    follower = Follower(fresh, live, NOW)
    eventually(lambda: follower.reader.up_to_date, "it waits at the tail")
    for number in range(3):
        fresh.append(b"<%d>" % number)
        expected = b"".join(b"<%d>" % n for n in range(number + 1))
        eventually(lambda e=expected: b"".join(follower.parts) == e, "it follows")  # type: ignore[misc]
    fresh.close()
    assert follower.finished() == b"<0><1><2>"
    assert follower.reader.closed


# -- the modes agree ----------------------------------------------------------------------------


@pytest.mark.parametrize("live", EVERY)
def test_every_mode_reads_all_from_anywhere_in_order(live: Live, fresh: Stream) -> None:
    parts = [f"message {number}\n" for number in range(15)]
    offsets = text_stream(fresh, *parts)
    fresh.close()
    for start in (0, 1, 7, 15):
        reader = fresh.read(offsets[start], live=live)
        assert "".join(reader.text()) == "".join(parts[start:])
        assert (reader.offset, reader.up_to_date, reader.closed) == (offsets[-1], True, True)


@pytest.mark.parametrize("live", EVERY)
@pytest.mark.parametrize("kind", ["text/plain", "application/json", "application/octet-stream"])
def test_every_mode_says_that_an_empty_stream_is_empty(
    kind: str, live: Live, fresh: Stream
) -> None:
    fresh.create(kind, closed=True)
    chunks = list(fresh.read(live=live))
    assert b"".join(chunk.data for chunk in chunks).strip(b"[]") == b""
    assert (chunks[-1].up_to_date, chunks[-1].closed) == (True, True)


@pytest.mark.parametrize("live", LIVE)
def test_values_come_after_an_empty_beginning(live: Live, fresh: Stream) -> None:
    fresh.create("application/json")
    values = iter(fresh.read(live=live).json())
    fresh.append_json({"n": 1})
    assert next(values) == {"n": 1}
    fresh.append_json({"n": 2}, [3])
    assert next(values) == {"n": 2}
    assert next(values) == [3]


@pytest.mark.parametrize("live", LIVE)
def test_being_caught_up_is_said_while_the_stream_is_open(live: Live, fresh: Stream) -> None:
    *_, tail = text_stream(fresh, "there")
    with fresh.read(live=live) as reader:
        for chunk in reader:
            if chunk.up_to_date:
                break
        assert (reader.offset, reader.closed) == (tail, False)


def test_a_long_poll_that_ends_without_news_is_asked_again(connect: Connect) -> None:
    nothing = Reply(204, TAIL)
    end = Reply(200, {**TAIL, "Stream-Next-Offset": "2", "Stream-Closed": "true"}, b"news")
    with ScriptedServer(Reply(200, TAIL), nothing, nothing, end) as server:
        with connect(server.url) as client:
            reader = client.stream("s").read("1", live="long-poll")
            assert list(reader.bytes()) == [b"news"]
        assert [asked.params["offset"] for asked in server.asked] == ["1"] * 4


# -- bytes and characters -----------------------------------------------------------------------

PAYLOADS: dict[str, bytes] = {
    "1 byte": b"f",
    "2 bytes": b"fo",
    "3 bytes": b"foo",
    "6 bytes": b"foobar",
    "null": b"\x00",
    "every byte": bytes(range(256)),
    "high bytes": b"\xff\xfe\x00\x01\x80",
    "lines": b"one\ntwo\r\nthree\rfour\n\n",
    "printable": bytes(range(32, 127)),
    "json-like": b'{"data": [1, null], "event": "control"}',
    "4 KiB": bytes(range(256)) * 16,
    "1 MiB": b"0123456789abcdef" * 65536,
}


def test_bytes_come_as_they_were_appended_in_every_mode(client: Client, stream: str) -> None:
    for number, (name, payload) in enumerate(PAYLOADS.items()):
        binary = client.stream(f"{stream}-{number}")
        binary.create("application/octet-stream")
        for part in (payload, payload[:1], payload[1:3]):
            if part:
                binary.append(part)
        binary.close()
        whole = payload + payload[:3]
        for live in EVERY:
            assert b"".join(binary.read(live=live).bytes()) == whole, (name, live)


@pytest.mark.parametrize("kind", ["application/x-protobuf", "image/png", "audio/wav"])
def test_other_binary_kinds_come_whole_over_sse(kind: str, fresh: Stream) -> None:
    fresh.create(kind)
    parts = [bytes([number, 0, 255 - number]) for number in range(20)]
    for part in parts:
        fresh.append(part)
    middle = fresh.head().next_offset
    fresh.append(b"\r\n")
    fresh.close()
    assert b"".join(fresh.read(live="sse").bytes()) == b"".join(parts) + b"\r\n"
    assert b"".join(fresh.read(middle, live="sse").bytes()) == b"\r\n"


TEXTS = {
    "nel": "a\x85b",
    "line separator": "a\u2028b",
    "paragraph separator": "a\u2029b",
    "all separators": "\x85 \u2028 \u2029 \x0b \x0c \x1c",
    "two leading spaces": "  two",
    "blank lines": "\n\na\n\n",
    "looks like events": "event: control\ndata: {}\n\nid: 1",
    "beyond ascii": "héllo wörld 世界 🌍 \u0000",
}


def test_text_comes_as_it_was_appended_in_every_mode(client: Client, stream: str) -> None:
    for number, (name, text) in enumerate(TEXTS.items()):
        written = client.stream(f"{stream}-{number}")
        written.create("text/plain", data=text, closed=True)
        for live in EVERY:
            assert "".join(written.read(live=live).text()) == text, (name, live)


@pytest.mark.parametrize("live", ["auto", "long-poll"])
def test_following_text_keeps_what_an_event_stream_cannot_carry(live: Live, fresh: Stream) -> None:
    fresh.create("text/plain", data="before\r\n")
    follower = Follower(fresh, live, "-1")
    eventually(lambda: follower.parts == [b"before\r\n"], "it waits at the tail")
    fresh.append(b"a\rb\r\n\xff")
    fresh.close()
    assert follower.finished() == b"before\r\na\rb\r\n\xff"


def test_only_one_leading_space_of_an_event_is_left_out(connect: Connect) -> None:
    text = "event:data\ndata:  two\n\nevent: control\n"
    text += 'data: {"streamNextOffset":"1","streamClosed":true}\n\n'
    events = Reply(200, {"Content-Type": "text/event-stream"}, text.encode())
    with ScriptedServer(events) as server, connect(server.url) as client:
        assert list(client.stream("s").read(live="sse").bytes()) == [b" two"]


def test_base64_may_be_split_over_lines(connect: Connect) -> None:
    text = "event: data\ndata: AAEC\ndata: AwQ=\n\nevent: control\n"
    text += 'data: {"streamNextOffset":"1","streamClosed":true}\n\n'
    headers = {"Content-Type": "text/event-stream", "Stream-SSE-Data-Encoding": "base64"}
    reply = Reply(200, headers, text.encode())
    with ScriptedServer(reply) as server, connect(server.url) as client:
        assert list(client.stream("s").read(live="sse").bytes()) == [bytes(range(5))]


# -- what is not there --------------------------------------------------------------------------


@pytest.mark.parametrize("live", EVERY)
@pytest.mark.parametrize("offset", ["-1", NOW])
def test_a_stream_that_is_not_there_is_named_in_every_mode(
    offset: str, live: Live, fresh: Stream
) -> None:
    name = fresh.url.rpartition("/v1/stream/")[2]
    reader = fresh.read(offset, live=live)
    with pytest.raises(errors.StreamNotFound) as missing:
        list(reader)
    assert name in str(missing.value)
    assert status_of(missing.value) == 404


def test_every_verb_names_a_stream_that_is_not_there(fresh: Stream) -> None:
    name = fresh.url.rpartition("/v1/stream/")[2]
    verbs: Iterable[object] = (
        fresh.head,
        fresh.delete,
        fresh.close,
        lambda: fresh.append("x"),
        lambda: fresh.append_json(1),
        fresh.read_json,
    )
    for verb in verbs:
        with pytest.raises(errors.StreamNotFound) as missing:
            verb()  # type: ignore[operator]
        assert name in str(missing.value)


# -- faults -------------------------------------------------------------------------------------


def test_a_slow_answer_is_waited_for(connect: Connect) -> None:
    gate = threading.Event()
    timer = threading.Timer(0.1, gate.set)
    with ScriptedServer(Reply(200, TAIL, b"data", wait=gate), Reply(503), READ) as server:
        timer.start()
        with connect(server.url) as client:
            stream = client.stream("s", content_type="text/plain")
            assert stream.read_bytes() == b"data"
            assert stream.read_bytes() == b"data"
        timer.join()
        assert len(server.asked) == 3


def test_a_slow_append_is_sent_once(connect: Connect) -> None:
    gate = threading.Event()
    timer = threading.Timer(0.1, gate.set)
    with ScriptedServer(Reply(204, TAIL, wait=gate)) as server:
        timer.start()
        with connect(server.url) as client:
            assert client.stream("s", content_type="a/b").append("x").next_offset == "1"
        timer.join()
        assert len(server.asked) == 1


def test_reading_goes_on_after_an_answer_that_was_no_json(connect: Connect) -> None:
    headers = {**TAIL, "Content-Type": "application/json"}
    with (
        ScriptedServer(Reply(200, headers, b'[{"n":'), Reply(200, headers, b"[1]")) as server,
        connect(server.url) as client,
    ):
        stream = client.stream("s")
        with pytest.raises(errors.Refused):
            stream.read_json()
        assert stream.read_json() == [1]
