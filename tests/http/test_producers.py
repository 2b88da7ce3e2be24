"""Idempotent producers over real connections: exactly once, whatever is repeated or races."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator

import httpx
import pytest

from headrace.testing.raw_http import RawConnection, RawResponse
from headrace.testing.server_process import ServerProcess
from headrace.testing.server_queries import catch_up
from tests.conftest import stop_cleanly

TEXT = "text/plain"
JSON = "application/json"
RECEIPTS = 8
PRODUCERS = 3
CONNECTIONS = 8
INTEGER_MAX = 2**53 - 1


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that remembers few receipts and few producers."""
    env = {
        "DS_LIMITS__PRODUCER_RECEIPTS": str(RECEIPTS),
        "DS_LIMITS__MAX_PRODUCERS_PER_STREAM": str(PRODUCERS),
    }
    process = ServerProcess(env, cwd=str(tmp_path_factory.mktemp("producers")))
    process.start()
    yield process
    stop_cleanly(process)


@pytest.fixture
def raw(server: ServerProcess) -> Iterator[RawConnection]:
    with RawConnection(server.port) as connection:
        yield connection


def send(
    client: RawConnection,
    path: str,
    seq: int | str,
    body: bytes = b"x",
    *,
    epoch: int | str = 0,
    id: str = "p",
    **headers: str,
) -> RawResponse:
    """One append of a producer."""
    fields = {
        "Content_Type": TEXT,
        "Producer_Id": id,
        "Producer_Epoch": str(epoch),
        "Producer_Seq": str(seq),
    }
    return client.request("POST", path, body, **(fields | headers))


# -- races -------------------------------------------------------------------------------------


def race(server: ServerProcess, work: Callable[[RawConnection, int], None]) -> None:
    """`work` on many connections at once; the first failure is raised."""
    failures: list[BaseException] = []
    start = threading.Barrier(CONNECTIONS)

    def run(number: int) -> None:
        try:
            with RawConnection(server.port) as client:
                start.wait()
                work(client, number)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def test_every_writer_sending_every_append_ends_with_each_once_and_in_order(
    server: ServerProcess, http: httpx.Client, stream: str
) -> None:
    appends = 60
    http.put(stream, headers={"Content-Type": JSON})
    accepted: list[int] = []

    def write(client: RawConnection, number: int) -> None:
        seq = 0
        while seq < appends:
            answer = send(client, stream, seq, b"%d" % seq, Content_Type=JSON)
            assert answer.status in (200, 204, 409), answer
            if answer.status == 200:
                accepted.append(seq)
            if answer.status == 409:
                seq = int(answer.headers["producer-expected-seq"])
            else:
                seq += 1

    race(server, write)
    read = [message for answer in catch_up(http, stream) for message in answer.json()]
    assert read == list(range(appends))
    assert sorted(accepted) == read


def test_writers_that_send_out_of_order_end_with_each_once_and_in_order(
    server: ServerProcess, http: httpx.Client, stream: str
) -> None:
    appends = 40
    http.put(stream, headers={"Content-Type": JSON})

    def write(client: RawConnection, number: int) -> None:
        mine = [seq for seq in range(appends) if seq % CONNECTIONS == number]
        random.Random(number).shuffle(mine)
        while mine:
            for seq in tuple(mine):
                answer = send(client, stream, seq, b"%d" % seq, Content_Type=JSON)
                if answer.status in (200, 204):
                    mine.remove(seq)

    race(server, write)
    read = [message for answer in catch_up(http, stream) for message in answer.json()]
    assert read == list(range(appends))


def test_of_racing_epochs_the_highest_wins_and_none_is_torn(
    server: ServerProcess, http: httpx.Client, stream: str
) -> None:
    http.put(stream, headers={"Content-Type": JSON})
    written: dict[int, list[int]] = {}

    def write(client: RawConnection, number: int) -> None:
        epoch, seq = number + 1, 0
        while seq < 30:
            body = json.dumps([epoch, seq]).encode()
            answer = send(client, stream, seq, b"[" + body + b"]", epoch=epoch, Content_Type=JSON)
            if answer.status == 403:
                assert int(answer.headers["producer-epoch"]) > epoch
                break
            assert answer.status == 200, answer
            seq += 1
        written[epoch] = list(range(seq))

    race(server, write)
    read = [message for answer in catch_up(http, stream) for message in answer.json()]
    assert {epoch: [s for e, s in read if e == epoch] for epoch in written} == written
    assert [epoch for epoch, _ in read] == sorted(epoch for epoch, _ in read)
    assert len(written[CONNECTIONS]) == 30


# -- repeats -----------------------------------------------------------------------------------


def test_a_late_repeat_is_answered_with_its_own_offset(raw: RawConnection, stream: str) -> None:
    raw.request("PUT", stream, Content_Type=TEXT)
    receipts = [send(raw, stream, seq).headers["stream-next-offset"] for seq in range(RECEIPTS)]
    for seq in range(RECEIPTS):
        repeat = send(raw, stream, seq)
        assert repeat.status == 204
        assert repeat.headers["stream-next-offset"] == receipts[seq]
        assert repeat.headers["producer-seq"] == str(RECEIPTS - 1)
    assert raw.request("GET", stream).body == b"x" * RECEIPTS


def test_a_repeat_older_than_the_receipts_is_204_without_an_offset(
    raw: RawConnection, stream: str
) -> None:
    raw.request("PUT", stream, Content_Type=TEXT)
    for seq in range(RECEIPTS + 1):
        send(raw, stream, seq)
    assert "stream-next-offset" in send(raw, stream, 1).headers
    oldest = send(raw, stream, 0)
    assert oldest.status == 204
    assert "stream-next-offset" not in oldest.headers


@pytest.mark.parametrize("body", [b"x", b"another body"])
def test_a_repeat_writes_nothing_whatever_it_carries(
    raw: RawConnection, stream: str, body: bytes
) -> None:
    raw.request("PUT", stream, Content_Type=TEXT)
    first = send(raw, stream, 0, b"x")
    repeat = send(raw, stream, 0, body)
    assert (first.status, repeat.status) == (200, 204)
    assert repeat.headers["stream-next-offset"] == first.headers["stream-next-offset"]
    assert raw.request("GET", stream).body == b"x"


def test_a_repeat_is_known_by_others_appends_between(raw: RawConnection, stream: str) -> None:
    raw.request("PUT", stream, Content_Type=TEXT)
    mine = send(raw, stream, 0, b"mine", id="a").headers["stream-next-offset"]
    send(raw, stream, 0, b"other", id="b")
    raw.request("POST", stream, b"nobody", Content_Type=TEXT)
    assert send(raw, stream, 0, b"mine", id="a").headers["stream-next-offset"] == mine
    assert raw.request("GET", stream).body == b"mineothernobody"


def test_a_repeat_passes_although_its_stream_seq_is_no_longer_greater(
    raw: RawConnection, stream: str
) -> None:
    raw.request("PUT", stream, Content_Type=TEXT)
    assert send(raw, stream, 0, Stream_Seq="a").status == 200
    assert send(raw, stream, 0, Stream_Seq="a").status == 204
    assert send(raw, stream, 1, Stream_Seq="a").status == 409


# -- closed streams ----------------------------------------------------------------------------


def test_a_repeat_of_the_append_that_closed_is_204_and_closed(
    raw: RawConnection, stream: str
) -> None:
    raw.request("PUT", stream, Content_Type=TEXT)
    first = send(raw, stream, 0, b"last", Stream_Closed="true")
    repeat = send(raw, stream, 0, b"last", Stream_Closed="true")
    assert (first.status, repeat.status) == (200, 204)
    for name in ("stream-next-offset", "stream-closed", "producer-seq"):
        assert repeat.headers[name] == first.headers[name]
    assert raw.request("GET", stream).body == b"last"


def test_a_repeat_of_a_close_without_a_body_is_204_and_closed(
    raw: RawConnection, stream: str
) -> None:
    raw.request("PUT", stream, Content_Type=TEXT)
    answers = [send(raw, stream, 0, b"", Stream_Closed="true") for _ in range(2)]
    assert [answer.status for answer in answers] == [204, 204]
    assert [answer.headers["stream-closed"] for answer in answers] == ["true", "true"]


def test_a_repeat_of_an_append_before_the_close_is_204_with_its_offset(
    raw: RawConnection, stream: str
) -> None:
    raw.request("PUT", stream, Content_Type=TEXT)
    first = send(raw, stream, 0)
    send(raw, stream, 1, Stream_Closed="true")
    repeat = send(raw, stream, 0)
    assert (repeat.status, repeat.headers["stream-closed"]) == (204, "true")
    assert repeat.headers["stream-next-offset"] == first.headers["stream-next-offset"]


@pytest.mark.parametrize(
    ("seq", "epoch", "id"), [(1, 0, "p"), (0, 1, "p"), (5, 0, "p"), (0, 0, "stranger")]
)
def test_anything_new_on_a_closed_stream_is_409_and_names_the_end(
    raw: RawConnection, stream: str, seq: int, epoch: int, id: str
) -> None:
    raw.request("PUT", stream, Content_Type=TEXT)
    end = send(raw, stream, 0, Stream_Closed="true").headers["stream-next-offset"]
    refused = send(raw, stream, seq, epoch=epoch, id=id)
    assert (refused.status, refused.headers["stream-closed"]) == (409, "true")
    assert refused.headers["stream-next-offset"] == end


# -- fencing -----------------------------------------------------------------------------------


def test_a_new_epoch_fences_the_old_one(raw: RawConnection, stream: str) -> None:
    raw.request("PUT", stream, Content_Type=TEXT)
    send(raw, stream, 0, b"old", epoch=1)
    assert send(raw, stream, 0, b"new", epoch=7).status == 200
    for seq in (0, 1):
        fenced = send(raw, stream, seq, b"zombie", epoch=1)
        assert (fenced.status, fenced.headers["producer-epoch"]) == (403, "7")
        assert (fenced.json()["current_epoch"], fenced.json()["received_epoch"]) == (7, 1)
    assert raw.request("GET", stream).body == b"oldnew"


def test_a_new_epoch_starts_at_zero(raw: RawConnection, stream: str) -> None:
    raw.request("PUT", stream, Content_Type=TEXT)
    send(raw, stream, 0)
    assert send(raw, stream, 1, epoch=1).status == 400
    assert send(raw, stream, 1).status == 200


def test_a_gap_names_what_is_expected(raw: RawConnection, stream: str) -> None:
    raw.request("PUT", stream, Content_Type=TEXT)
    send(raw, stream, 0)
    gap = send(raw, stream, 2)
    assert gap.status == 409
    assert gap.headers["producer-expected-seq"] == "1"
    assert gap.headers["producer-received-seq"] == "2"
    assert send(raw, stream, 1).status == 200


def test_epochs_of_one_stream_say_nothing_about_another(raw: RawConnection, stream: str) -> None:
    for path in (stream, f"{stream}/other"):
        raw.request("PUT", path, Content_Type=TEXT)
    assert send(raw, stream, 0, epoch=9).status == 200
    assert send(raw, f"{stream}/other", 0, epoch=1).status == 200


def test_a_stream_created_again_knows_no_producer(raw: RawConnection, stream: str) -> None:
    raw.request("PUT", stream, Content_Type=TEXT)
    send(raw, stream, 0, epoch=9)
    raw.request("DELETE", stream)
    raw.request("PUT", stream, Content_Type=TEXT)
    assert send(raw, stream, 0, b"again", epoch=0).status == 200
    assert raw.request("GET", stream).body == b"again"


@pytest.mark.parametrize(
    ("status", "refused"),
    [
        (409, {"Content_Type": "image/png"}),
        (400, {"Content_Type": "nonsense"}),
        (409, {"Stream_Seq": "a"}),
    ],
)
def test_a_refused_append_does_not_use_up_its_seq(
    raw: RawConnection, stream: str, status: int, refused: dict[str, str]
) -> None:
    raw.request("PUT", stream, Content_Type=TEXT)
    raw.request("POST", stream, b"first", Content_Type=TEXT, Stream_Seq="b")
    assert send(raw, stream, 0, b"x", **refused).status == status
    assert send(raw, stream, 0).status == 200


def test_invalid_json_does_not_use_up_its_seq(raw: RawConnection, stream: str) -> None:
    raw.request("PUT", stream, Content_Type=JSON)
    assert send(raw, stream, 0, b"{", Content_Type=JSON).status == 400
    assert send(raw, stream, 0, b"{}", Content_Type=JSON).status == 200


# -- bounds ------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, 1, INTEGER_MAX])
def test_an_epoch_reaches_from_zero_to_two_to_the_53(
    raw: RawConnection, stream: str, value: int
) -> None:
    raw.request("PUT", stream, Content_Type=TEXT)
    answer = send(raw, stream, 0, epoch=value)
    assert (answer.status, answer.headers["producer-epoch"]) == (200, str(value))


BAD_NUMBERS = ["", "-1", "+1", "01", "1.0", "1e3", "0x1", " ", "a", "\xb2", str(INTEGER_MAX + 1)]


@pytest.mark.parametrize("value", [*BAD_NUMBERS, "9" * 4000])
@pytest.mark.parametrize("name", ["Producer_Epoch", "Producer_Seq"])
def test_what_is_no_plain_number_is_400(
    raw: RawConnection, stream: str, name: str, value: str
) -> None:
    raw.request("PUT", stream, Content_Type=TEXT)
    assert send(raw, stream, 0, b"x", **{name: value}).status == 400
    assert raw.request("GET", stream).body == b""


@pytest.mark.parametrize("length", [1, 512])
def test_an_id_of_up_to_512_bytes_is_taken(raw: RawConnection, stream: str, length: int) -> None:
    raw.request("PUT", stream, Content_Type=TEXT)
    assert send(raw, stream, 0, id="i" * length).status == 200


@pytest.mark.parametrize("id", ["", "i" * 513])
def test_an_id_that_is_empty_or_too_long_is_400(raw: RawConnection, stream: str, id: str) -> None:
    raw.request("PUT", stream, Content_Type=TEXT)
    assert send(raw, stream, 0, id=id).status == 400


@pytest.mark.parametrize("missing", ["Producer_Id", "Producer_Epoch", "Producer_Seq"])
def test_the_three_headers_come_together_or_not(
    raw: RawConnection, stream: str, missing: str
) -> None:
    raw.request("PUT", stream, Content_Type=TEXT)
    fields = {"Producer_Id": "p", "Producer_Epoch": "0", "Producer_Seq": "0"}
    del fields[missing]
    assert raw.request("POST", stream, b"x", Content_Type=TEXT, **fields).status == 400


def test_one_producer_too_many_is_409_and_the_known_ones_go_on(
    raw: RawConnection, stream: str
) -> None:
    raw.request("PUT", stream, Content_Type=TEXT)
    for number in range(PRODUCERS):
        assert send(raw, stream, 0, id=f"p{number}").status == 200
    refused = send(raw, stream, 0, id="one more")
    assert (refused.status, refused.json()["limit"]) == (409, PRODUCERS)
    assert send(raw, stream, 1, id="p0").status == 200
    assert raw.request("POST", stream, b"x", Content_Type=TEXT).status == 204
