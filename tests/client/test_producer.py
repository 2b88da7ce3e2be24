"""The idempotent producer: everything once, in order, or an error that says so."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import asdict

import httpx
import pytest

from headrace import errors
from headrace.client import (
    Client,
    ProducerBroken,
    ProducerOptions,
    ProducerOverlap,
    ProducerStamp,
    Retry,
    Stream,
)
from headrace.client.send_queue import Window
from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import eventually
from tests.client.conftest import Connect
from tests.client.scripted import Reply, ScriptedServer

HEAD = Reply(200, {"Content-Type": "text/plain", "Stream-Next-Offset": "0"})
TAKEN = Reply(200, {"Stream-Next-Offset": "1", "Producer-Epoch": "0", "Producer-Seq": "0"})
REPEATED = Reply(204, {"Producer-Epoch": "0", "Producer-Seq": "0"})


def posts(server: ScriptedServer) -> list[tuple[str, str, bytes]]:
    return [
        (asked.headers["producer-epoch"], asked.headers["producer-seq"], asked.body)
        for asked in server.asked
        if asked.method == "POST"
    ]


def test_messages_arrive_once_and_in_order(fresh: Stream) -> None:
    fresh.create("application/json")
    with fresh.producer(batch_items_max=7, linger_ms=0) as producer:
        for number in range(100):
            producer.append_json({"n": number})
    assert fresh.read_json() == [{"n": number} for number in range(100)]


def test_a_list_is_one_message_and_bytes_are_joined(client: Client, stream: str) -> None:
    as_json, as_bytes = client.stream(stream + "-j"), client.stream(stream + "-b")
    as_json.create("application/json")
    as_bytes.create("application/octet-stream")
    with as_json.producer() as producer:
        producer.append("[1, 2]")
        producer.append_json([])
    with as_bytes.producer() as producer:
        producer.append(b"\x00a")
        producer.append("ü")
    assert as_json.read_json() == [[1, 2], []]
    assert as_bytes.read_bytes() == b"\x00a\xc3\xbc"


def test_batches_are_cut_by_count_and_by_bytes(connect: Connect) -> None:
    with ScriptedServer(HEAD, TAKEN) as server, connect(server.url) as client:
        stream = client.stream("s")
        cut = ProducerOptions(0, batch_items_max=2, linger_ms=10_000, in_flight_max=1)
        with stream.producer("p", **asdict(cut)) as producer:
            for letter in "abcde":
                producer.append(letter)
        assert [body for _, _, body in posts(server)] == [b"ab", b"cd", b"e"]
    with ScriptedServer(HEAD, TAKEN) as server, connect(server.url) as client:
        stream = client.stream("s")
        cut = ProducerOptions(0, batch_bytes_max=3, linger_ms=10_000, in_flight_max=1)
        with stream.producer("p", **asdict(cut)) as producer:
            for word in ("aa", "bb", "toolong", "c"):
                producer.append(word)
        assert [body for _, _, body in posts(server)] == [b"aa", b"bb", b"toolong", b"c"]


def test_what_lingers_goes_by_itself(fresh: Stream) -> None:
    fresh.create("text/plain")
    with fresh.producer(linger_ms=20) as producer:
        producer.append("x")
        eventually(lambda: fresh.read_text() == "x", "it is sent without a flush")


def test_several_batches_are_in_flight_after_the_first(connect: Connect) -> None:
    gate = threading.Event()
    with (
        ScriptedServer(HEAD, TAKEN, Reply(200, TAKEN.headers, wait=gate)) as server,
        connect(server.url) as client,
    ):
        producer = client.stream("s").producer(
            "p", epoch=0, batch_items_max=1, in_flight_max=3, linger_ms=0
        )
        for number in range(8):
            producer.append(str(number))
        eventually(lambda: len(posts(server)) == 4, "three wait for an answer at once")
        gate.set()
        producer.detach()
        assert sorted(posts(server)) == [("0", str(n), b"%d" % n) for n in range(8)]


@pytest.mark.parametrize("trouble", [Reply(503), Reply(500), Reply(hang_up=True)])
def test_a_retry_keeps_its_number(trouble: Reply, connect: Connect) -> None:
    answer = TAKEN if trouble.status == 503 else REPEATED
    with ScriptedServer(HEAD, trouble, answer) as server, connect(server.url) as client:
        with client.stream("s").producer("p", epoch=0) as producer:
            producer.append("x")
        assert posts(server) == [("0", "0", b"x")] * 2


def test_a_batch_that_overtook_is_sent_again(fresh: Stream) -> None:
    # Many small batches over several connections: some arrive out of order and are refused.
    fresh.create("text/plain")
    with fresh.producer(batch_items_max=1, in_flight_max=5, linger_ms=0) as producer:
        for number in range(60):
            producer.append(f"{number:03d}")
    text = fresh.read_text()
    assert [text[i : i + 3] for i in range(0, len(text), 3)] == [f"{n:03d}" for n in range(60)]


def test_requests_that_overtake_each_other_do_so_only_a_few_times(
    fresh: Stream, server: ServerProcess
) -> None:
    fresh.create("text/plain")
    before = refused_appends(server)
    with fresh.producer(batch_items_max=1, linger_ms=0) as producer:
        for number in range(600):
            producer.append(f"{number:03d}")
    text = fresh.read_text()
    assert [text[i : i + 3] for i in range(0, len(text), 3)] == [f"{n:03d}" for n in range(600)]
    assert refused_appends(server) - before < 30


def refused_appends(server: ServerProcess) -> float:
    counted = httpx.get(f"{server.url}/metrics").text
    line = re.search(r'headrace_requests_total{operation="append",status="409"} (.+)', counted)
    return float(line[1]) if line else 0.0


def test_the_window_narrows_on_a_gap_and_widens_with_batches_in_order() -> None:
    window = Window(3)
    window.overtaken()
    window.overtaken()  # one of the same burst changes nothing more
    assert window.size == 1
    sizes = []
    for _ in range(70):
        window.arrived_in_order()
        sizes.append(window.size)
    assert sizes.index(2) == 31
    assert sizes[-1] == 3, "never more than it began with"
    window.overtaken()
    for _ in range(63):
        window.arrived_in_order()
    assert window.size == 1, "and more slowly after every gap"
    window.arrived_in_order()
    assert window.size == 2


@pytest.mark.parametrize("end", ["flush", "detach", "close"])
def test_nothing_lost_goes_unsaid(end: str, connect: Connect) -> None:
    with ScriptedServer(HEAD, Reply(503)) as server, connect(server.url) as client:
        producer = client.stream("s").producer("p", epoch=0)
        producer.append("precious")
        with pytest.raises(errors.Unavailable):
            getattr(producer, end)()
        assert producer.unaccepted() == [b"precious"]
        with pytest.raises(errors.Unavailable):
            producer.append("more")


def test_leaving_it_raises_too(connect: Connect) -> None:
    with ScriptedServer(HEAD, Reply(503)) as server, connect(server.url) as client:
        stream = client.stream("s")
        with pytest.raises(errors.Unavailable):
            _leave_with_a_message(stream)


def _leave_with_a_message(stream: Stream) -> None:
    with stream.producer("p", epoch=0) as producer:
        producer.append("precious")


def test_after_a_failure_flush_never_reports_success(connect: Connect) -> None:
    with ScriptedServer(HEAD, Reply(404), TAKEN) as server, connect(server.url) as client:
        producer = client.stream("s").producer("p", epoch=0, linger_ms=0)
        producer.append("lost")
        for _ in range(2):
            with pytest.raises(errors.StreamNotFound):
                producer.flush()


def test_nothing_behind_a_lost_batch_is_sent(connect: Connect) -> None:
    gate = threading.Event()
    with (
        ScriptedServer(HEAD, Reply(404, wait=gate)) as server,
        connect(server.url) as client,
    ):
        producer = client.stream("s").producer("p", epoch=0, batch_items_max=1, linger_ms=10_000)
        for letter in "abc":
            producer.append(letter)
        gate.set()
        with pytest.raises(errors.StreamNotFound):
            producer.flush()
        assert [body for _, _, body in posts(server)] == [b"a"]
        assert producer.unaccepted() == [b"a", b"b", b"c"]


def test_memory_is_bounded_and_append_waits(connect: Connect) -> None:
    gate = threading.Event()
    with (
        ScriptedServer(HEAD, Reply(200, TAKEN.headers, wait=gate)) as server,
        connect(server.url) as client,
    ):
        producer = client.stream("s").producer(
            "p", epoch=0, buffer_bytes_max=10, batch_items_max=1, linger_ms=0
        )
        sent: list[int] = []

        def write() -> None:
            for number in range(5):
                producer.append("12345")
                sent.append(number)

        writer = threading.Thread(target=write)
        writer.start()
        eventually(lambda: len(sent) == 2, "two messages fit")
        eventually(lambda: bool(posts(server)), "the first is on its way")
        assert len(sent) == 2, "the third waits"
        gate.set()
        writer.join(30)
        producer.detach()
        assert len(posts(server)) == 5


def test_a_fenced_producer_stops_and_says_by_whom(fresh: Stream) -> None:
    fresh.create("text/plain")
    fresh.append("newer", producer=ProducerStamp("p", 7, 0))
    producer = fresh.producer("p", epoch=3)
    producer.append("zombie")
    with pytest.raises(errors.ProducerFenced) as fenced:
        producer.flush()
    assert fenced.value.current_epoch == 7
    assert fresh.read_text() == "newer"


def test_a_producer_may_claim_the_next_epoch(fresh: Stream) -> None:
    fresh.create("text/plain")
    fresh.append("0 ", producer=ProducerStamp("p", 7, 0))
    with fresh.producer("p", epoch=0, auto_claim=True, batch_items_max=1, linger_ms=0) as producer:
        for number in range(1, 20):
            producer.append(f"{number} ")
        producer.flush()
        assert producer.epoch == 8
    assert fresh.read_text().split() == [str(number) for number in range(20)]


def test_a_later_instance_fences_an_earlier_one_by_itself(fresh: Stream) -> None:
    fresh.create("text/plain")
    first = fresh.producer("worker")
    first.append("first ")
    first.flush()
    eventually(lambda: time.time() * 1000 > first.epoch + 1, "the clock moves on")
    second = fresh.producer("worker")
    second.append("second ")
    second.flush()
    first.append("late")
    with pytest.raises(errors.ProducerFenced):
        first.flush()
    second.detach()
    assert fresh.read_text() == "first second "


def test_an_epoch_that_another_instance_used_is_noticed(fresh: Stream) -> None:
    fresh.create("text/plain")
    for data in ("a", "b"):
        producer = fresh.producer("p", epoch=0)
        producer.append(data)
        if data == "a":
            producer.detach()
            continue
        with pytest.raises(ProducerOverlap):
            producer.flush()
    assert fresh.read_text() == "a"


def test_a_fence_in_doubt_is_not_claimed_over(connect: Connect) -> None:
    # The first attempt may have happened; claiming and sending again could append it twice.
    fence = Reply(403, {"Producer-Epoch": "9"})
    with (
        ScriptedServer(HEAD, Reply(hang_up=True), fence) as server,
        connect(server.url) as client,
    ):
        producer = client.stream("s").producer("p", epoch=0, auto_claim=True)
        producer.append("x")
        with pytest.raises(errors.ProducerFenced):
            producer.flush()


def test_closing_sends_everything_and_closes_once(fresh: Stream) -> None:
    fresh.create("text/plain")
    producer = fresh.producer()
    producer.append("a")
    closed = producer.close("z")
    assert closed.closed
    assert closed == producer.close(), "closing again is the same"
    assert fresh.read_text() == "az"
    assert fresh.head().closed
    with pytest.raises(errors.StreamClosed):
        producer.append("more")


def test_closing_with_nothing_to_say_closes(fresh: Stream) -> None:
    fresh.create("application/json")
    assert fresh.producer().close().closed
    assert fresh.read_json() == []


def test_detaching_leaves_the_stream_open(fresh: Stream) -> None:
    fresh.create("text/plain")
    producer = fresh.producer()
    producer.append("a")
    producer.detach()
    producer.detach()
    assert not fresh.head().closed
    with pytest.raises(RuntimeError, match="detached"):
        producer.append("more")


def test_a_token_function_that_fails_is_heard_of(connect: Connect) -> None:
    def token() -> str:
        raise LookupError("no token today")

    with ScriptedServer(HEAD) as server, connect(server.url, token=token) as client:
        producer = client.stream("s").producer()
        producer.append("x")
        with pytest.raises(ProducerBroken, match="no token today"):
            producer.flush()


@pytest.mark.parametrize(
    "wrong",
    [
        {"epoch": -1},
        {"batch_bytes_max": 0},
        {"batch_items_max": -1},
        {"in_flight_max": 0},
        {"buffer_bytes_max": 0},
        {"linger_ms": -1},
    ],
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ProducerOptions(**wrong)  # type: ignore[arg-type]


def test_a_producer_waits_out_a_server_that_is_away(connect: Connect) -> None:
    away = [Reply(503), Reply(hang_up=True), Reply(502)]
    patience = Retry(retries_max=5, delay_ms=1, delay_max_ms=5)
    with (
        ScriptedServer(HEAD, *away, TAKEN) as server,
        connect(server.url, retry=patience) as client,
        client.stream("s").producer("p", epoch=0) as producer,
    ):
        producer.append("x")
        producer.flush()
        assert posts(server) == [("0", "0", b"x")] * 4


def test_leaving_with_an_error_does_not_wait_for_a_server_that_is_away() -> None:
    never = Retry(retries_max=None, delay_ms=60_000, delay_max_ms=60_000)
    with ScriptedServer(HEAD, Reply(503)) as server, Client(server.url, retry=never) as client:
        began = time.monotonic()
        with pytest.raises(LookupError):
            _fail_while_producing(client.stream("s"), server)
        assert time.monotonic() - began < 30


def _fail_while_producing(stream: Stream, server: ScriptedServer) -> None:
    with stream.producer("p", epoch=0, linger_ms=0) as producer:
        producer.append("x")
        eventually(lambda: bool(posts(server)), "it is under way")
        raise LookupError


def test_values_are_refused_where_they_would_run_together(fresh: Stream) -> None:
    fresh.create("text/plain")
    with pytest.raises(errors.InvalidRequest, match="holds text/plain"):
        fresh.append_json({"n": 1})
    producer = fresh.producer("p")
    producer.append_json({"n": 1})
    with pytest.raises(errors.InvalidRequest, match="holds text/plain"):
        producer.flush()
    assert producer.unaccepted() == [b'{"n":1}']
    assert fresh.read_bytes() == b""


@pytest.mark.parametrize("text", ["1,2", "1],[2", "{", "", "nul"])
def test_what_is_not_one_json_value_never_reaches_a_json_stream(text: str, fresh: Stream) -> None:
    fresh.create("application/json")
    producer = fresh.producer("p")
    producer.append_json("before")
    producer.flush()
    producer.append(text)
    with pytest.raises(errors.InvalidJson, match="not one JSON value"):
        producer.flush()
    assert producer.unaccepted() == [text.encode()]
    assert fresh.read_json() == ["before"]
