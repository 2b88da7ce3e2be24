"""Catching up and following: chunks, text, JSON, events, and when it is over."""

from __future__ import annotations

import threading
from itertools import islice

import msgspec
import pytest

from headrace import errors
from headrace.client import BadAnswer, Chunk, Client, Live, Reader, Retry, Stream
from headrace.testing.waiting import eventually
from tests.client.conftest import Connect
from tests.client.scripted import Reply, ScriptedServer

LIVE: list[Live] = ["auto", "long-poll", "sse"]


def json_stream(fresh: Stream, *values: object) -> Stream:
    fresh.create("application/json")
    if values:
        fresh.append_json(*values)
    return fresh


# -- catching up --------------------------------------------------------------------------------


def test_an_empty_stream_says_so_in_one_empty_chunk(fresh: Stream) -> None:
    fresh.create("text/plain")
    (chunk,) = fresh.read()
    assert (chunk.data, chunk.up_to_date, chunk.closed) == (b"", True, False)


def test_reading_goes_on_from_any_offset(fresh: Stream) -> None:
    fresh.create("text/plain")
    middle = fresh.append("one").next_offset
    assert middle is not None
    fresh.append("two")
    reader = fresh.read(middle)
    assert list(reader.bytes()) == [b"two"]
    assert reader.offset == fresh.head().next_offset
    assert fresh.read_bytes("now") == b""


def test_a_long_stream_comes_in_chunks(connect: Connect) -> None:
    def part(data: bytes, end: str, **flags: str) -> Reply:
        return Reply(200, {"Stream-Next-Offset": end, **flags}, data)

    last = part(b"c", "3", **{"Stream-Up-To-Date": "true"})
    with ScriptedServer(part(b"a", "1"), part(b"b", "2"), last) as server:
        with connect(server.url) as client:
            chunks = list(client.stream("s").read())
        assert [(c.data, c.offset, c.next_offset) for c in chunks] == [
            (b"a", "-1", "1"),
            (b"b", "1", "2"),
            (b"c", "2", "3"),
        ]
        assert [asked.params["offset"] for asked in server.asked] == ["-1", "1", "2"]


def test_a_server_that_never_says_up_to_date_is_not_asked_for_ever(connect: Connect) -> None:
    reply = Reply(200, {"Stream-Next-Offset": "5"})
    with ScriptedServer(reply) as server, connect(server.url) as client:
        assert client.stream("s").read_bytes("5") == b""
        assert len(server.asked) == 1


def test_text_is_not_cut_inside_a_character(fresh: Stream) -> None:
    fresh.create("text/plain")
    letter = "ü".encode()
    first = fresh.append(letter[:1])
    fresh.append(letter[1:], close=True)
    assert first.next_offset is not None
    assert "".join(fresh.read().text()) == "ü"


def test_an_unknown_offset_is_refused(fresh: Stream) -> None:
    fresh.create("text/plain")
    with pytest.raises(errors.InvalidOffset):
        fresh.read_bytes("never-heard-of-it")


def test_batches_carry_where_they_end(fresh: Stream) -> None:
    json_stream(fresh, 1, 2)
    (batch,) = fresh.read().batches()
    assert batch.items == [1, 2]
    assert batch.next_offset == fresh.head().next_offset
    assert batch.up_to_date


@pytest.mark.parametrize("live", [False, *LIVE])
@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
def test_events_have_the_offsets_of_their_messages(live: Live, kind: str, fresh: Stream) -> None:
    fresh.create(kind)
    values: list[object] = [{"text": "ü\r\n"}, [1, [2]], "x\ny", 2**70, None]
    parts = [msgspec.json.encode(value) for value in values]
    for part in parts:
        fresh.append(b"[%b]" % part if "json" in kind else part)
    fresh.close()
    events = list(fresh.read(live=live).events())
    assert [event.value for event in events] == (values if "json" in kind else parts)
    assert events[-1].next_offset == fresh.head().next_offset
    for number, event in enumerate(events, 1):
        assert event.next_offset is not None
        rest = [later.value for later in fresh.read(event.next_offset).events()]
        assert rest == [later.value for later in events[number:]]
        again = fresh.read(event.offset, skip=event.index + 1).events()
        assert [later.value for later in again] == rest


@pytest.mark.parametrize("live", LIVE)
def test_events_that_come_together_while_following_have_their_own_offsets(
    live: Live, fresh: Stream
) -> None:
    json_stream(fresh, "there already")
    events = iter(fresh.read(live=live).events())
    assert next(events).value == "there already"
    fresh.append_json(1, {"two": "ü"}, [3])
    fresh.close()
    followed = list(events)
    assert [event.value for event in followed] == [1, {"two": "ü"}, [3]]
    plain = list(fresh.read().events())[1:]
    assert [(e.offset, e.next_offset) for e in followed] == [
        (e.offset, e.next_offset) for e in plain
    ]


@pytest.mark.parametrize("live", LIVE)
def test_events_go_on_after_the_first_live_batch(live: Live, fresh: Stream) -> None:
    json_stream(fresh, 0)
    events = iter(fresh.read(live=live).events())
    assert next(events).value == 0
    for number in range(1, 5):
        fresh.append_json(number)
        assert next(events).value == number
    fresh.close()
    assert list(events) == []


@pytest.mark.parametrize("refuses", [False, True], ids=["ignores it", "refuses it"])
def test_a_server_without_frames_still_gives_events_to_go_on_from(
    refuses: bool, connect: Connect
) -> None:
    head = {"Stream-Next-Offset": "7", "Stream-Up-To-Date": "true"}
    plain = Reply(200, {**head, "Content-Type": "application/json"}, b"[1,2]")
    replies = [Reply(400), plain] if refuses else [plain]
    with ScriptedServer(*replies) as server, connect(server.url) as client:
        events = list(client.stream("s").read().events())
        assert [(e.value, e.offset, e.index, e.next_offset) for e in events] == [
            (1, "-1", 0, None),
            (2, "-1", 1, "7"),
        ]
        assert server.asked[0].params["format"] == "framed"


@pytest.mark.parametrize("body", [b"HRM1 cut", b"[1,2]", b""])
def test_a_frame_that_is_none_raises(body: bytes, connect: Connect) -> None:
    headers = {
        "Stream-Next-Offset": "1",
        "Content-Type": "application/vnd.headrace.messages",
        "Stream-Content-Type": "application/json",
    }
    with ScriptedServer(Reply(200, headers, body)) as server, connect(server.url) as client:
        events = client.stream("s").read().events()
        with pytest.raises(BadAnswer):
            list(events)


def test_data_events_before_their_control_event_count_on(connect: Connect) -> None:
    """Only the control event says an offset: before it there is but the place before them all."""
    caught_up = {"Stream-Next-Offset": "3", "Stream-Up-To-Date": "true"}
    first = Reply(200, {**caught_up, "Content-Type": "application/json"})
    end = ("control", '{"streamNextOffset":"5","streamClosed":true}')
    live = sse(("data", "[1,2]"), ("data", "[3]"), end)
    with ScriptedServer(first, live) as server, connect(server.url) as client:
        events = list(client.stream("s").read("3", live="sse").events())
        assert [(e.value, e.offset, e.index, e.next_offset) for e in events] == [
            (1, "3", 0, None),
            (2, "3", 1, None),
            (3, "3", 2, "5"),
        ]


@pytest.mark.parametrize("body", [b'[{"n":', b"[1,]", b'{"n":1}', b"\xff", b"[1] trailing"])
def test_json_that_is_none_raises_instead_of_looking_empty(body: bytes, connect: Connect) -> None:
    headers = {
        "Stream-Next-Offset": "1",
        "Stream-Up-To-Date": "true",
        "Content-Type": "application/json",
    }
    with ScriptedServer(Reply(200, headers, body)) as server, connect(server.url) as client:
        with pytest.raises(BadAnswer):
            client.stream("s").read_json()
        assert len(server.asked) == 1, "and is not asked for again"


# -- following ----------------------------------------------------------------------------------


@pytest.mark.parametrize("live", LIVE)
def test_following_ends_with_the_stream(live: Live, fresh: Stream) -> None:
    fresh.create("text/plain")
    fresh.append("there already ")
    received: list[bytes] = []
    reader = fresh.read(live=live)
    follower = threading.Thread(target=lambda: received.extend(reader.bytes()))
    follower.start()
    eventually(lambda: received == [b"there already "], "the first chunk arrives")
    fresh.append("live ")
    eventually(lambda: b"".join(received) == b"there already live ", "the second, too")
    fresh.close("the end")
    follower.join(30)
    assert not follower.is_alive()
    assert b"".join(received) == b"there already live the end"
    assert (reader.closed, reader.up_to_date) == (True, True)


@pytest.mark.parametrize("live", LIVE)
def test_a_stream_that_is_closed_already_ends_at_once(live: Live, fresh: Stream) -> None:
    fresh.create("text/plain", data="all", closed=True)
    assert b"".join(fresh.read(live=live).bytes()) == b"all"
    end = fresh.head().next_offset
    assert list(fresh.read(end, live=live).bytes()) == []


def test_a_closed_stream_costs_one_long_poll_and_no_loop(connect: Connect) -> None:
    tail = {"Stream-Next-Offset": "9", "Stream-Up-To-Date": "true"}
    closed = Reply(204, {**tail, "Stream-Closed": "true"})
    with ScriptedServer(Reply(200, tail), closed) as server, connect(server.url) as client:
        reader = client.stream("s").read("9", live="long-poll")
        assert [chunk.closed for chunk in reader] == [False, True]
        assert len(server.asked) == 2


@pytest.mark.parametrize("live", LIVE)
@pytest.mark.parametrize("kind", ["application/json", "text/plain", "application/octet-stream"])
def test_live_modes_agree_with_catching_up(live: Live, kind: str, fresh: Stream) -> None:
    fresh.create(kind)
    for number in range(3):
        fresh.append(b'{"n":%d}' % number if "json" in kind else b"line %d\n\xc3\xbc" % number)
    fresh.close()
    plain = [event.value for event in fresh.read().events()]
    followed = [event.value for event in fresh.read(live=live).events()]
    if "json" in kind:
        assert followed == plain == [{"n": 0}, {"n": 1}, {"n": 2}]
    else:
        assert b"".join(followed) == b"".join(plain)


@pytest.mark.parametrize("live", LIVE)
def test_closing_a_reader_ends_a_wait(live: Live, fresh: Stream) -> None:
    fresh.create("text/plain")
    reader = fresh.read(live=live)
    seen: list[Chunk] = []
    follower = threading.Thread(target=lambda: seen.extend(reader))
    follower.start()
    eventually(lambda: bool(seen) or reader.up_to_date, "it waits at the tail")
    reader.close()
    follower.join(10)
    assert not follower.is_alive()


def test_the_cursor_is_echoed(connect: Connect) -> None:
    tail = {"Stream-Next-Offset": "1", "Stream-Up-To-Date": "true"}
    replies = [
        Reply(200, tail),
        Reply(200, {**tail, "Stream-Cursor": "77"}, b"x"),
        Reply(204, {**tail, "Stream-Cursor": "78", "Stream-Closed": "true"}),
    ]
    with ScriptedServer(*replies) as server, connect(server.url) as client:
        list(client.stream("s").read(live="long-poll"))
        assert [asked.params.get("cursor") for asked in server.asked] == [None, None, "77"]


def test_an_empty_long_poll_that_does_not_wait_is_not_hammered(connect: Connect) -> None:
    tail = {"Stream-Next-Offset": "1", "Stream-Up-To-Date": "true"}
    with ScriptedServer(Reply(200, tail), Reply(204, tail)) as server:
        slow = Retry(delay_ms=50, delay_max_ms=10_000)
        with connect(server.url, retry=slow) as client:
            reader = client.stream("s").read("1", live="long-poll")
            timer = threading.Timer(0.5, reader.close)
            timer.start()
            list(reader)
            timer.join()
        assert len(server.asked) < 10


@pytest.mark.parametrize("live", LIVE)
def test_a_follower_survives_failures_and_misses_nothing(live: Live, connect: Connect) -> None:
    tail = {"Stream-Next-Offset": "1", "Stream-Up-To-Date": "true", "Content-Type": "a/b"}
    first = Reply(200, tail, b"one")
    lost = [Reply(503), Reply(hang_up=True), Reply(500)]
    end = {**tail, "Stream-Next-Offset": "2", "Stream-Closed": "true"}
    if live == "long-poll":
        replies = [first, *lost, Reply(200, end, b"two")]
    else:
        events = sse(("data", "two"), ("control", '{"streamNextOffset":"2","streamClosed":true}'))
        start = [] if live == "sse" else [first]
        if live == "sse":
            start = [sse(("data", "one"), ("control", '{"streamNextOffset":"1"}'))]
        replies = [*start, *lost, events]
    with ScriptedServer(*replies) as server, connect(server.url) as client:
        assert list(client.stream("s").read(live=live).bytes()) == [b"one", b"two"]
        assert {asked.params["offset"] for asked in server.asked[1:]} == {"1"}


def sse(*events: tuple[str, str], **headers: str) -> Reply:
    text = "".join(f"event: {kind}\ndata: {data}\n\n" for kind, data in events)
    return Reply(200, {"Content-Type": "text/event-stream", **headers}, text.encode())


def test_data_without_its_control_event_is_brought_again_not_twice(connect: Connect) -> None:
    cut = sse(("data", "one"))
    whole = sse(("data", "one"), ("control", '{"streamNextOffset":"1","streamClosed":true}'))
    with ScriptedServer(cut, whole) as server, connect(server.url) as client:
        assert list(client.stream("s").read(live="sse").bytes()) == [b"one"]


def test_unknown_events_are_passed_over(connect: Connect) -> None:
    events = sse(
        ("news", "?"), ("data", "x"), ("control", '{"streamNextOffset":"1","streamClosed":true}')
    )
    with ScriptedServer(events) as server, connect(server.url) as client:
        assert list(client.stream("s").read(live="sse").bytes()) == [b"x"]


@pytest.mark.parametrize("control", ["{invalid", "", "[]", '{"upToDate":true}'])
def test_a_control_event_that_is_none_raises(control: str, connect: Connect) -> None:
    with ScriptedServer(sse(("control", control))) as server, connect(server.url) as client:
        reader = client.stream("s").read(live="sse")
        with pytest.raises(BadAnswer):
            list(reader)


def test_base64_that_is_none_raises(connect: Connect) -> None:
    events = sse(("data", "***"), **{"Stream-SSE-Data-Encoding": "base64"})
    with ScriptedServer(events) as server, connect(server.url) as client:
        reader = client.stream("s").read(live="sse")
        with pytest.raises(BadAnswer):
            list(reader)


def test_auto_falls_back_to_long_poll_where_events_do_not_get_through(connect: Connect) -> None:
    tail = {"Stream-Next-Offset": "1", "Stream-Up-To-Date": "true"}
    end = Reply(200, {**tail, "Stream-Closed": "true"}, b"polled")
    silent = sse()
    for obstacle in ([silent] * 3, [Reply(200, tail, b"no events")], [Reply(400)]):
        with ScriptedServer(Reply(200, tail), *obstacle, end) as server:
            with connect(server.url) as client:
                assert list(client.stream("s").read(live="auto").bytes()) == [b"polled"]
            assert server.asked[-1].params["live"] == "long-poll"


def test_a_follower_gives_up_when_told_to(connect: Connect) -> None:
    patience = Retry(retries_max=2, delay_ms=1)
    with ScriptedServer(Reply(503)) as server, connect(server.url, retry=patience) as client:
        reader = client.stream("s").read(live="sse")
        with pytest.raises(errors.Unavailable):
            list(reader)
        assert len(server.asked) == 3


@pytest.mark.parametrize("live", LIVE)
def test_a_stream_that_is_deleted_ends_its_followers_with_an_error(
    live: Live, fresh: Stream
) -> None:
    fresh.create("text/plain", data="x")
    chunks = iter(fresh.read(live=live))
    assert next(chunks).data == b"x"
    fresh.delete()
    with pytest.raises(errors.StreamNotFound):
        list(chunks)


def test_leaving_a_live_read_lets_go_of_it(client: Client, fresh: Stream) -> None:
    fresh.create("text/plain", data="x")
    for _ in range(3):
        reader: Reader = fresh.read(live="sse")
        assert [chunk.data for chunk in islice(reader, 1)] == [b"x"]
