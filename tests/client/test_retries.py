"""What is repeated, what is not, and how a failure is told."""

from __future__ import annotations

import threading
import time
from itertools import count

import pytest

from headrace import errors
from headrace.client import (
    BadAnswer,
    ConnectFailed,
    ConnectionLost,
    Forbidden,
    ProducerStamp,
    Retry,
    ServerBusy,
    ServerFault,
    Timeouts,
    Unauthorized,
    UnexpectedAnswer,
    status_of,
)
from headrace.errors import Indeterminate, Unavailable
from headrace.testing.ports import free_port
from tests.client.conftest import Connect
from tests.client.scripted import Reply, ScriptedServer

READ = Reply(200, {"Stream-Next-Offset": "1", "Stream-Up-To-Date": "true"}, b"data")
DONE = Reply(204, {"Stream-Next-Offset": "1"})
HEAD = Reply(200, {"Content-Type": "text/plain", "Stream-Next-Offset": "0"})


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504, 507])
def test_a_read_is_repeated_until_it_succeeds(connect: Connect, status: int) -> None:
    with ScriptedServer(Reply(status), Reply(status), READ) as server, connect(server.url) as c:
        assert c.stream("s").read_bytes() == b"data"
        assert len(server.asked) == 3


@pytest.mark.parametrize("lost", [Reply(hang_up=True), Reply(200, {}, b"da", cut=True)])
def test_a_read_survives_lost_connections(connect: Connect, lost: Reply) -> None:
    with ScriptedServer(lost, lost, READ) as server, connect(server.url) as c:
        assert c.stream("s").read_bytes() == b"data"


def test_retries_end(connect: Connect) -> None:
    with ScriptedServer(Reply(503)) as server, connect(server.url) as c:
        with pytest.raises(ServerBusy):
            c.stream("s").read_bytes()
        assert len(server.asked) == 1 + 3


def test_retry_after_is_waited_for(connect: Connect) -> None:
    with ScriptedServer(Reply(429, {"Retry-After": "1"}), READ) as server, connect(server.url) as c:
        began = time.monotonic()
        c.stream("s").read_bytes()
        assert time.monotonic() - began >= 1


@pytest.mark.parametrize("status", [400, 404, 409, 410, 413, 418])
def test_a_refusal_is_not_repeated(connect: Connect, status: int) -> None:
    with ScriptedServer(Reply(status)) as server, connect(server.url) as c:
        with pytest.raises(errors.Refused) as refused:
            c.stream("s").read_bytes()
        assert status_of(refused.value) == status
        assert len(server.asked) == 1


@pytest.mark.parametrize("doubt", [Reply(500), Reply(hang_up=True)])
def test_a_plain_append_in_doubt_is_not_repeated(connect: Connect, doubt: Reply) -> None:
    with ScriptedServer(HEAD, doubt, DONE) as server, connect(server.url) as c:
        with pytest.raises(Indeterminate):
            c.stream("s").append("x")
        assert [asked.method for asked in server.asked] == ["HEAD", "POST"]


def test_a_plain_append_that_did_not_happen_is_repeated(connect: Connect) -> None:
    with ScriptedServer(HEAD, Reply(503), DONE) as server, connect(server.url) as c:
        assert c.stream("s").append("x").next_offset == "1"


@pytest.mark.parametrize("doubt", [Reply(500), Reply(hang_up=True)])
def test_a_stamped_append_in_doubt_is_repeated_with_the_same_stamp(
    connect: Connect, doubt: Reply
) -> None:
    with ScriptedServer(HEAD, doubt, DONE) as server, connect(server.url) as c:
        c.stream("s").append("x", producer=ProducerStamp("p", 1, 2))
    stamps = [
        [asked.headers[f"producer-{part}"] for part in ("id", "epoch", "seq")]
        for asked in server.asked[1:]
    ]
    assert stamps == [["p", "1", "2"]] * 2


def test_an_append_may_be_sent_again_in_doubt_if_told_so(connect: Connect) -> None:
    with ScriptedServer(HEAD, Reply(500), DONE) as server, connect(server.url) as c:
        c.stream("s").append("x", repeat_in_doubt=True)


def test_a_delete_whose_answer_was_lost_succeeds_when_nothing_is_left(connect: Connect) -> None:
    with ScriptedServer(Reply(hang_up=True), Reply(404)) as server, connect(server.url) as c:
        assert c.stream("s").delete() is False


def test_no_server_is_unavailable_and_names_the_url(connect: Connect) -> None:
    with ScriptedServer(READ) as server:
        pass
    with connect(server.url) as c, pytest.raises(ConnectFailed) as failed:
        c.stream("s").head()
    assert isinstance(failed.value, Unavailable)
    assert server.url in str(failed.value)


def test_an_answer_that_never_comes_is_given_up(connect: Connect) -> None:
    never = threading.Event()
    with ScriptedServer(Reply(wait=never)) as server:
        quick = Timeouts(answer_secs=0.05)
        with connect(server.url, timeouts=quick, retry=Retry(retries_max=0)) as c:
            with pytest.raises(ConnectionLost):
                c.stream("s").head()
            never.set()


def test_other_servers_are_understood_by_status_and_headers(connect: Connect) -> None:
    said: list[tuple[Reply, type[errors.HeadraceError]]] = [
        (Reply(401), Unauthorized),
        (Reply(403), Forbidden),
        (Reply(403, {"Producer-Epoch": "9"}), errors.ProducerFenced),
        (Reply(409, {"Stream-Closed": "true"}), errors.StreamClosed),
        (
            Reply(409, {"Producer-Expected-Seq": "1", "Producer-Received-Seq": "3"}),
            errors.ProducerGap,
        ),
        (Reply(409, {}, b"Content-type mismatch"), errors.ContentTypeMismatch),
        (Reply(418, {}, b"I am a teapot"), UnexpectedAnswer),
        (Reply(500), ServerFault),
        (Reply(507), ServerBusy),
    ]
    for reply, kind in said:
        with ScriptedServer(HEAD, reply) as server:
            with (
                connect(server.url, retry=Retry(retries_max=0)) as c,
                pytest.raises(kind) as caught,
            ):
                c.stream("s").append("x", producer=ProducerStamp("p", 0, 0))
            assert status_of(caught.value) == reply.status


def test_an_answer_without_its_offset_is_not_guessed_at(connect: Connect) -> None:
    with (
        ScriptedServer(Reply(200, {}, b"data")) as server,
        connect(server.url) as c,
        pytest.raises(BadAnswer),
    ):
        c.stream("s").read_bytes()


def test_dynamic_headers_and_parameters_are_asked_for_with_every_request(connect: Connect) -> None:
    numbers = count(1)
    with (
        ScriptedServer(Reply(503), READ) as server,
        connect(
            server.url, token=lambda: f"t{next(numbers)}", params={"n": lambda: str(next(numbers))}
        ) as c,
    ):
        c.stream("s", headers={"X-Own": "1"}).read_bytes()
    assert [asked.headers["authorization"] for asked in server.asked] == ["Bearer t1", "Bearer t3"]
    assert [asked.params["n"] for asked in server.asked] == ["2", "4"]
    assert {asked.headers["x-own"] for asked in server.asked} == {"1"}


def test_connections_are_reused(connect: Connect) -> None:
    with ScriptedServer(READ) as server, connect(server.url) as c:
        stream = c.stream("s")
        for _ in range(5):
            stream.read_bytes()
        assert len(server.connections) == 1


@pytest.mark.parametrize("failures", [1, 2, 5, 500])
def test_waits_grow_up_to_their_maximum_and_vary_by_half(failures: int) -> None:
    retry = Retry(delay_ms=100, delay_max_ms=1000, multiplier=2)
    longest = min(0.1 * 2 ** min(failures - 1, 10), 1.0)
    assert retry.delay_secs(failures, 0.0) == pytest.approx(longest)
    assert retry.delay_secs(failures, 1.0) == pytest.approx(longest / 2)


def test_a_redirect_is_not_followed_but_named(connect: Connect) -> None:
    moved = Reply(307, {"Location": "http://elsewhere/v1/stream/s"})
    with ScriptedServer(moved) as server:
        with connect(server.url, token="secret") as client:
            stream = client.stream("s")
            with pytest.raises(UnexpectedAnswer, match="http://elsewhere/v1/stream/s"):
                stream.read_bytes()
        assert len(server.asked) == 1


@pytest.mark.parametrize("secret", ["sch\u00f6n-secret", "secret\n", "\u2028secret"])
def test_a_header_that_cannot_be_sent_is_refused_without_its_value(
    secret: str, connect: Connect
) -> None:
    with ScriptedServer(Reply(200)) as server:
        with connect(server.url, token=secret) as client:
            stream = client.stream("s", content_type="text/plain")
            with pytest.raises(errors.InvalidRequest, match="Authorization") as refused:
                stream.head()
            assert "secret" not in str(refused.value)
            producer = stream.producer("p")
            producer.append("x")
            with pytest.raises(errors.InvalidRequest):
                producer.flush()
        assert server.asked == []


def test_a_first_connect_gives_up_soon_and_says_each_retry_with_the_url(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    client = connect(url, retry=Retry(delay_ms=1, delay_max_ms=2))
    with client, pytest.raises(ConnectFailed, match=url):
        client.stream("s").head()
    said = [record.getMessage() for record in caplog.records if record.name == "headrace.client"]
    assert len(said) == 5, "about three seconds with the usual waits"
    assert all(
        url in sentence and f"Retry {n} of 5" in sentence for n, sentence in enumerate(said, 1)
    )


def test_a_server_that_has_answered_before_gets_all_retries(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    # Cut, so that no connection outlives the server.
    head = Reply(200, {"Content-Type": "text/plain", "Stream-Next-Offset": "0"}, cut=True)
    with ScriptedServer(head) as server:
        client = connect(server.url, retry=Retry(retries_max=7, delay_ms=1, delay_max_ms=2))
        client.stream("s").head()
    with client, pytest.raises(errors.HeadraceError):
        client.stream("s").head()
    assert "Retry 7 of 7" in caplog.records[-1].getMessage()
