"""Server-Sent Events over a socket: framing, resuming, whole characters, and every ending."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import httpx
import pytest

from headrace.protocol.sse import EventDecoder
from headrace.testing.raw_http import RawConnection
from headrace.testing.server_process import ServerProcess
from headrace.testing.server_queries import live_readers
from headrace.testing.sse_reader import EventBatch, EventStream, open_events
from headrace.testing.waiting import DEADLINE_SECS, eventually
from tests.conftest import Serve, stop_cleanly

CHUNK_BYTES = 64
ROTATION = {"DS_SERVER__SSE_RECONNECT_INTERVAL_SECS": "0.3"}
BYTES = "application/octet-stream"
TEXT = "text/plain"
JSON = "application/json"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose events are small and whose responses do not rotate during a test."""
    env = {
        "DS_LIMITS__READ_CHUNK_BYTES": str(CHUNK_BYTES),
        "DS_SERVER__SSE_RECONNECT_INTERVAL_SECS": "0",
    }
    process = ServerProcess(env, cwd=str(tmp_path_factory.mktemp("sse")))
    process.start()
    yield process
    stop_cleanly(process)


def follow(server: ServerProcess, path: str, offset: str = "-1", **headers: str) -> EventStream:
    return open_events(server.port, f"{path}?offset={offset}&live=sse", **headers)


def create(http: httpx.Client, path: str, content_type: str, *messages: bytes) -> list[str]:
    """The stream with each message appended on its own; every offset, the first one too."""
    headers = {"Content-Type": content_type}
    offsets = [http.put(path, headers=headers).headers["Stream-Next-Offset"]]
    return offsets + [append(http, path, content_type, message) for message in messages]


def append(http: httpx.Client, path: str, content_type: str, message: bytes) -> str:
    answer = http.post(path, content=message, headers={"Content-Type": content_type})
    assert answer.status_code == 204, answer.text
    tail: str = answer.headers["Stream-Next-Offset"]
    return tail


def close(http: httpx.Client, path: str) -> None:
    http.post(path, headers={"Stream-Closed": "true"}).raise_for_status()


def text_of(batches: list[EventBatch]) -> str:
    return "".join(batch.data or "" for batch in batches)


def decoded(batches: list[EventBatch], content_type: str) -> list[object]:
    """The messages behind the data events; what is not JSON is one."""
    data = [batch.data for batch in batches if batch.data is not None]
    if content_type == JSON:
        return [message for text in data for message in json.loads(text)]
    if content_type == TEXT:
        return ["".join(data)]
    return [b"".join(base64.b64decode(text, validate=True) for text in data)]


# -- framing and resuming ----------------------------------------------------------------------

CONTENTS: dict[str, list[bytes]] = {
    BYTES: [bytes([n, 13, 10, 255 - n]) * (n + 1) for n in range(30)],
    TEXT: ["é€😀 {}\n".format("x" * n).encode() for n in range(30)],
    JSON: [json.dumps({"n": n, "text": "\n\u2028" * n}).encode() for n in range(30)],
}


def expected(messages: list[bytes], content_type: str) -> list[object]:
    if content_type == JSON:
        return [json.loads(message) for message in messages]
    joined = b"".join(messages)
    return [joined.decode() if content_type == TEXT else joined]


@pytest.mark.parametrize("content_type", CONTENTS)
def test_a_closed_stream_arrives_whole_in_several_events(
    server: ServerProcess, http: httpx.Client, stream: str, content_type: str
) -> None:
    create(http, stream, content_type, *CONTENTS[content_type])
    close(http, stream)
    with follow(server, stream) as events:
        batches = events.rest()
    assert len(batches) > 3
    assert decoded(batches, content_type) == expected(CONTENTS[content_type], content_type)
    assert [batch.control.get("streamClosed") for batch in batches[:-1]] == [None] * (
        len(batches) - 1
    )
    assert batches[-1].control["streamClosed"] is True


@pytest.mark.parametrize("content_type", CONTENTS)
def test_resuming_at_any_control_offset_gives_exactly_the_rest(
    server: ServerProcess, http: httpx.Client, stream: str, content_type: str
) -> None:
    create(http, stream, content_type, *CONTENTS[content_type])
    close(http, stream)
    with follow(server, stream) as events:
        batches = events.rest()
    for number, batch in enumerate(batches):
        with follow(server, stream, batch.control["streamNextOffset"]) as events:
            rest = events.rest()
        following = batches[number + 1 :]
        assert decoded(rest, JSON if content_type == JSON else content_type) == decoded(
            following, content_type
        )


@pytest.mark.parametrize("content_type", CONTENTS)
def test_live_appends_arrive_in_order_and_once(
    server: ServerProcess, http: httpx.Client, stream: str, content_type: str
) -> None:
    messages = CONTENTS[content_type]
    create(http, stream, content_type)
    with follow(server, stream) as events:
        assert events.batch().data is None
        for message in messages:
            append(http, stream, content_type, message)
        close(http, stream)
        batches = events.rest()
    assert decoded(batches, content_type) == expected(messages, content_type)


def test_each_live_append_is_one_data_event_with_its_offset(
    server: ServerProcess, http: httpx.Client, stream: str
) -> None:
    create(http, stream, TEXT)
    with follow(server, stream) as events:
        events.batch()
        for number in range(20):
            tail = append(http, stream, TEXT, b"%d" % number)
            batch = events.batch()
            assert batch.data == str(number)
            assert batch.control["streamNextOffset"] == tail
            assert batch.control["upToDate"] is True


def test_a_reader_at_the_tail_is_told_at_once_where_it_stands(
    server: ServerProcess, http: httpx.Client, stream: str
) -> None:
    tail = create(http, stream, TEXT, b"abc")[-1]
    with follow(server, stream, "now") as events:
        batch = events.batch()
    assert batch.data is None
    assert batch.control["streamNextOffset"] == tail
    assert batch.control["upToDate"] is True


def test_only_the_batch_that_reaches_the_tail_is_up_to_date(
    server: ServerProcess, http: httpx.Client, stream: str
) -> None:
    create(http, stream, TEXT, *[b"x" * 40] * 3)
    with follow(server, stream) as events:
        flags = [events.batch().control.get("upToDate") for _ in range(3)]
    assert flags == [None, None, True]


def test_events_carry_no_id(server: ServerProcess, http: httpx.Client, stream: str) -> None:
    create(http, stream, TEXT, b"abc")
    close(http, stream)
    with follow(server, stream) as events:
        raw = b"".join(events.connection.chunks())
    fields = {line.partition(b":")[0] for line in raw.split(b"\n") if line}
    assert fields == {b"event", b"data"}


@pytest.mark.parametrize(
    ("content_type", "encoding"),
    [(BYTES, "base64"), ("image/png", "base64"), (TEXT, None), (JSON, None), ("text/x-y", None)],
)
def test_what_is_not_text_travels_as_base64_and_says_so(
    server: ServerProcess, http: httpx.Client, stream: str, content_type: str, encoding: str | None
) -> None:
    create(http, stream, content_type, b"1")
    with follow(server, stream) as events:
        assert events.head.headers.get("stream-sse-data-encoding") == encoding
        assert events.head.headers["content-type"] == "text/event-stream"
        data = events.batch().data
    assert data == {"base64": "MQ==", None: "[1]" if content_type == JSON else "1"}[encoding]


PAYLOADS = {
    "LF": ("a\nb", "a\nb"),
    "CR": ("a\rb", "a\nb"),
    "CRLF": ("a\r\nb", "a\nb"),
    "line ends only": ("\n\n\r\r\n", "\n\n\n\n"),
    "leading spaces": ("  a\n b", "  a\n b"),
    "trailing line end": ("a\n", "a\n"),
    "a forged event": (
        "x\n\nevent: control\ndata: {}\n\n",
        "x\n\nevent: control\ndata: {}\n\n",
    ),
    "a forged id": ("\rid: 7\rretry: 1\r\r", "\nid: 7\nretry: 1\n\n"),
    "other separators": ("a\u2028b\u2029c\x0bd\x0ce\x85f", "a\u2028b\u2029c\x0bd\x0ce\x85f"),
    "a byte order mark": ("\ufeffa", "\ufeffa"),
    "NUL": ("a\x00b", "a\x00b"),
    "a colon": (":comment", ":comment"),
}


@pytest.mark.parametrize(("sent", "received"), PAYLOADS.values(), ids=PAYLOADS.keys())
def test_no_payload_breaks_the_framing(
    server: ServerProcess, http: httpx.Client, stream: str, sent: str, received: str
) -> None:
    create(http, stream, TEXT, sent.encode())
    close(http, stream)
    with follow(server, stream) as events:
        [batch] = events.rest()
    assert batch.data == received
    assert batch.control["streamClosed"] is True


def test_line_ends_between_json_tokens_do_not_break_the_framing(
    server: ServerProcess, http: httpx.Client, stream: str
) -> None:
    create(http, stream, JSON, b'{"a":\r\n1,\r"b":\n\n2}')
    with follow(server, stream) as events:
        assert json.loads(events.batch().data or "") == [{"a": 1, "b": 2}]


# -- whole characters --------------------------------------------------------------------------

SPLITS = [pytest.param("é".encode(), cut, id=f"2 bytes at {cut}") for cut in (1,)] + [
    pytest.param(character.encode(), cut, id=f"{len(character.encode())} bytes at {cut}")
    for character in ("€", "😀")
    for cut in range(1, len(character.encode()))
]


@pytest.mark.parametrize(("character", "cut"), SPLITS)
def test_half_a_character_waits_for_its_other_half(
    server: ServerProcess, http: httpx.Client, stream: str, character: bytes, cut: int
) -> None:
    create(http, stream, TEXT)
    with follow(server, stream) as events:
        events.batch()
        append(http, stream, TEXT, b"a" + character[:cut])
        tail = append(http, stream, TEXT, character[cut:] + b"b")
        batch = events.batch()
    assert batch.data == f"a{character.decode()}b"
    assert batch.control["streamNextOffset"] == tail


def test_a_character_in_single_bytes_arrives_as_one(
    server: ServerProcess, http: httpx.Client, stream: str
) -> None:
    create(http, stream, TEXT, *[bytes([byte]) for byte in "😀😀".encode()])
    close(http, stream)
    with follow(server, stream) as events:
        assert text_of(events.rest()) == "😀😀"


def test_what_is_whole_does_not_wait_for_a_half_character_behind_it(
    server: ServerProcess, http: httpx.Client, stream: str
) -> None:
    _, whole, _ = create(http, stream, TEXT, b"whole", "é".encode()[:1])
    with follow(server, stream) as events:
        batch = events.batch()
        assert (batch.data, batch.control["streamNextOffset"]) == ("whole", whole)
        assert "upToDate" not in batch.control
        append(http, stream, TEXT, "é".encode()[1:])
        assert events.batch().data == "é"


def test_a_reader_that_begins_before_a_half_character_is_told_it_is_not_up_to_date(
    server: ServerProcess, http: httpx.Client, stream: str
) -> None:
    start = create(http, stream, TEXT, "é".encode()[:1])[0]
    with follow(server, stream) as events:
        batch = events.batch()
        assert (batch.data, batch.control["streamNextOffset"]) == (None, start)
        assert "upToDate" not in batch.control
        append(http, stream, TEXT, "é".encode()[1:])
        assert events.batch().data == "é"


@pytest.mark.parametrize("size", [CHUNK_BYTES - 1, CHUNK_BYTES, 3 * CHUNK_BYTES])
def test_a_character_split_over_messages_as_large_as_a_chunk_arrives_whole(
    server: ServerProcess, http: httpx.Client, stream: str, size: int
) -> None:
    text = ("a" * (size - 1) + "é" + "b" * (size - 2) + "é" + "c").encode()
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    assert len(pieces) == 3
    create(http, stream, TEXT, *pieces)
    close(http, stream)
    with follow(server, stream) as events:
        assert text_of(events.rest()) == text.decode()


def test_half_a_character_at_the_end_of_a_closed_stream_is_replaced(
    server: ServerProcess, http: httpx.Client, stream: str
) -> None:
    create(http, stream, TEXT)
    with follow(server, stream) as events:
        events.batch()
        append(http, stream, TEXT, b"a\xc3")
        close(http, stream)
        [batch] = events.rest()
    assert batch.data == "a\ufffd"
    assert batch.control["streamClosed"] is True


@pytest.mark.parametrize(
    ("sent", "received"),
    [
        (b"a\xffb", "a\ufffdb"),
        (b"\x80x", "\ufffdx"),
        (b"\xc3(", "\ufffd("),
        (b"\xed\xa0\x80.", "\ufffd\ufffd\ufffd."),
        (b"\xf0\x9f\x98.", "\ufffd."),
        (b"\x80\x80\x80\x80", "\ufffd" * 4),
    ],
)
def test_bytes_that_are_not_utf_8_are_replaced(
    server: ServerProcess, http: httpx.Client, stream: str, sent: bytes, received: str
) -> None:
    create(http, stream, TEXT, sent)
    with follow(server, stream) as events:
        assert events.batch().data == received


@pytest.mark.parametrize("last", [b"\xff", b"\xfe", b"\xc0", b"\xc1", b"\xf5", b"\xf8\x80"])
def test_a_byte_that_begins_no_character_does_not_hold_an_event_back(
    server: ServerProcess, http: httpx.Client, stream: str, last: bytes
) -> None:
    tail = create(http, stream, TEXT, b"abc" + last)[-1]
    with follow(server, stream) as events:
        batch = events.batch()
    assert batch.control["streamNextOffset"] == tail
    assert (batch.data or "").rstrip("\ufffd") == "abc"


# -- endings -----------------------------------------------------------------------------------


def test_a_rotated_response_ends_cleanly_and_the_next_one_goes_on(
    serve: Serve, stream: str
) -> None:
    server = serve(**ROTATION)
    with httpx.Client(base_url=server.url, timeout=DEADLINE_SECS) as http:
        create(http, stream, TEXT, b"a")
        received: list[EventBatch] = []
        offset = "-1"
        for message in (b"b", b"c", b"d"):
            with follow(server, stream, offset) as events:
                received += events.rest()
                assert events.connection.is_at_end()
            offset = received[-1].control["streamNextOffset"]
            append(http, stream, TEXT, message)
        with follow(server, stream, offset) as events:
            received += events.rest()
        assert text_of(received) == "abcd"
        eventually(lambda: live_readers(http, "sse") == 0, "no reader is left")


@pytest.mark.parametrize("offset", ["-1", "now"])
def test_a_closed_stream_ends_the_response_at_once(
    server: ServerProcess, http: httpx.Client, stream: str, offset: str
) -> None:
    create(http, stream, TEXT, b"abc")
    close(http, stream)
    with follow(server, stream, offset) as events:
        [batch] = events.rest()
        assert events.connection.is_at_end()
    assert batch.data == ("abc" if offset == "-1" else None)
    assert batch.control["streamClosed"] is True
    assert "streamCursor" not in batch.control


def test_a_close_ends_the_response_of_a_waiting_reader(
    server: ServerProcess, http: httpx.Client, stream: str
) -> None:
    create(http, stream, TEXT)
    with follow(server, stream) as events:
        events.batch()
        close(http, stream)
        [batch] = events.rest()
        assert events.connection.is_at_end()
    assert (batch.data, batch.control["streamClosed"]) == (None, True)


def test_a_delete_ends_the_response_without_another_event(
    server: ServerProcess, http: httpx.Client, stream: str
) -> None:
    create(http, stream, TEXT, b"abc")
    with follow(server, stream) as events:
        assert events.batch().data == "abc"
        http.delete(stream)
        assert events.rest() == []
        assert events.connection.is_at_end()
    assert http.get(stream, params={"offset": "-1", "live": "sse"}).status_code == 404


def test_a_reader_of_a_deleted_stream_sees_nothing_of_its_successor(
    server: ServerProcess, http: httpx.Client, stream: str
) -> None:
    create(http, stream, TEXT)
    with follow(server, stream) as events:
        events.batch()
        http.delete(stream)
        create(http, stream, TEXT, b"successor")
        assert events.rest() == []


def test_a_client_that_leaves_is_detached(
    server: ServerProcess, http: httpx.Client, stream: str
) -> None:
    create(http, stream, TEXT)
    eventually(lambda: live_readers(http, "sse") == 0, "earlier readers are gone")
    readers = [follow(server, stream) for _ in range(20)]
    eventually(lambda: live_readers(http, "sse") == 20, "20 readers")
    for reader in readers:
        reader.connection.close()
    eventually(lambda: live_readers(http, "sse") == 0, "no reader is left")
    append(http, stream, TEXT, b"x")


def test_an_http_1_0_client_gets_the_events_unchunked(
    server: ServerProcess, http: httpx.Client, stream: str
) -> None:
    tail = create(http, stream, TEXT, "é\n".encode())[-1]
    close(http, stream)
    with RawConnection(server.port) as client:
        client.send(f"GET {stream}?offset=-1&live=sse HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        head = client.head()
        body = client.rest()
    assert "transfer-encoding" not in head.headers
    data, control = EventDecoder().feed(body)
    assert data.data == "é\n"
    assert json.loads(control.data)["streamNextOffset"] == tail


# -- cursors -----------------------------------------------------------------------------------


def test_cursors_pass_the_echoed_one_and_never_go_back(
    server: ServerProcess, http: httpx.Client, stream: str
) -> None:
    create(http, stream, TEXT)
    echoed = 10**12
    with follow(server, stream, f"-1&cursor={echoed}") as events:
        cursors = [int(events.batch().control["streamCursor"])]
        for _ in range(3):
            append(http, stream, TEXT, b"x")
            cursors.append(int(events.batch().control["streamCursor"]))
    assert min(cursors) > echoed
    assert cursors == sorted(cursors)
