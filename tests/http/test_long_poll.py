"""Long-poll: who waits at the tail is answered by data, close, delete or time, and only once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from headrace.testing.raw_http import RawConnection, RawResponse, request_bytes
from headrace.testing.server_process import ServerProcess
from headrace.testing.server_queries import live_readers
from headrace.testing.waiting import DEADLINE_SECS, eventually
from tests.conftest import Serve, stop_cleanly

WAITERS = 50
JITTER_INTERVALS_MAX = 3600 // 20
BYTES = {"Content-Type": "application/octet-stream"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server on which nobody waits in vain during a test: time does not answer."""
    env = {"DS_SERVER__LONG_POLL_TIMEOUT_SECS": "600"}
    process = ServerProcess(env, cwd=str(tmp_path_factory.mktemp("long-poll")))
    process.start()
    yield process
    stop_cleanly(process)


@pytest.fixture(autouse=True)
def _nobody_waits_yet(http: httpx.Client) -> None:
    wait_for_waiters(http, 0)


def wait_for_waiters(http: httpx.Client, count: int) -> None:
    eventually(lambda: live_readers(http, "long-poll") == count, f"{count} wait")


@contextlib.contextmanager
def waiting(
    server: ServerProcess, http: httpx.Client, path: str, count: int = 1, offset: str = "now"
) -> Iterator[list[RawConnection]]:
    """Clients whose long-poll the server has taken."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(RawConnection(server.port)) for _ in range(count)]
        for client in clients:
            client.send(request_bytes("GET", f"{path}?offset={offset}&live=long-poll"))
        wait_for_waiters(http, count)
        yield clients


def test_an_append_does_not_end_a_wait_that_began_behind_it(
    server: ServerProcess, http: httpx.Client, stream: str
) -> None:
    http.put(stream, headers=BYTES)
    with RawConnection(server.port) as client:
        append = request_bytes("POST", stream, b"x", Content_Type=BYTES["Content-Type"])
        client.send(append + request_bytes("GET", f"{stream}?offset=now&live=long-poll"))
        assert client.response().status == 204
        wait_for_waiters(http, 1)
        http.post(stream, content=b"new", headers=BYTES)
        assert client.response().body == b"new"


# -- what ends the wait ------------------------------------------------------------------------


def test_an_append_answers_all_who_wait_with_its_data(
    server: ServerProcess, http: httpx.Client, stream: str
) -> None:
    http.put(stream, content=b"before", headers=BYTES)
    with waiting(server, http, stream, WAITERS) as clients:
        tail = http.post(stream, content=b"new", headers=BYTES).headers["Stream-Next-Offset"]
        answers = [client.response() for client in clients]
    assert {(answer.status, answer.body) for answer in answers} == {(200, b"new")}
    assert {answer.headers["stream-next-offset"] for answer in answers} == {tail}
    assert {answer.headers["stream-up-to-date"] for answer in answers} == {"true"}
    wait_for_waiters(http, 0)


def test_a_close_answers_with_204_and_the_closure(
    server: ServerProcess, http: httpx.Client, stream: str
) -> None:
    http.put(stream, content=b"before", headers=BYTES)
    with waiting(server, http, stream) as [client]:
        http.post(stream, headers={"Stream-Closed": "true"})
        answer = client.response()
    assert (answer.status, answer.headers["stream-closed"]) == (204, "true")
    assert answer.headers["stream-up-to-date"] == "true"


def test_an_append_that_closes_answers_with_data_and_closure(
    server: ServerProcess, http: httpx.Client, stream: str
) -> None:
    http.put(stream, headers=BYTES)
    with waiting(server, http, stream) as [client]:
        http.post(stream, content=b"last", headers=BYTES | {"Stream-Closed": "true"})
        answer = client.response()
    assert (answer.status, answer.body, answer.headers["stream-closed"]) == (200, b"last", "true")


def test_a_delete_answers_with_404(server: ServerProcess, http: httpx.Client, stream: str) -> None:
    http.put(stream, headers=BYTES)
    with waiting(server, http, stream, WAITERS) as clients:
        assert http.delete(stream).status_code == 204
        statuses = {client.response().status for client in clients}
    assert statuses == {404}
    wait_for_waiters(http, 0)


@pytest.mark.parametrize(("method", "status"), [("GET", 404), ("PUT", 201)])
def test_a_request_pipelined_behind_a_wait_that_a_delete_ends_finds_no_stream(
    server: ServerProcess, http: httpx.Client, stream: str, method: str, status: int
) -> None:
    http.put(stream, headers=BYTES)
    wait = request_bytes("GET", f"{stream}?offset=now&live=long-poll")
    with RawConnection(server.port) as client:
        client.send(wait + request_bytes(method, stream))
        wait_for_waiters(http, 1)
        http.delete(stream)
        assert [client.response().status, client.response().status] == [404, status]


def test_an_expiry_answers_with_404(server: ServerProcess, http: httpx.Client, stream: str) -> None:
    expiry = (datetime.now(UTC) + timedelta(seconds=2)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    http.put(stream, headers=BYTES | {"Stream-Expires-At": expiry})
    with RawConnection(server.port) as client:
        answer = client.request("GET", f"{stream}?offset=now&live=long-poll")
    assert answer.status == 404


def test_time_answers_with_204_and_the_tail(serve: Serve, stream: str) -> None:
    server = serve(DS_SERVER__LONG_POLL_TIMEOUT_SECS="0.05")
    with httpx.Client(base_url=server.url, timeout=DEADLINE_SECS) as http:
        tail = http.put(stream, content=b"x", headers=BYTES).headers["Stream-Next-Offset"]
        answer = http.get(stream, params={"offset": tail, "live": "long-poll"})
        assert (answer.status_code, answer.content) == (204, b"")
        assert answer.headers["Stream-Next-Offset"] == tail
        assert answer.headers["Stream-Up-To-Date"] == "true"
        assert answer.headers["Stream-Cursor"].isdigit()
        assert live_readers(http, "long-poll") == 0


def test_each_of_many_waits_in_a_row_gets_its_own_append(
    server: ServerProcess, http: httpx.Client, stream: str
) -> None:
    offset = http.put(stream, headers=BYTES).headers["Stream-Next-Offset"]
    with RawConnection(server.port) as client:
        for number in range(30):
            client.send(request_bytes("GET", f"{stream}?offset={offset}&live=long-poll"))
            http.post(stream, content=b"%d" % number, headers=BYTES)
            answer = client.response()
            assert answer.body == b"%d" % number
            offset = answer.headers["stream-next-offset"]


def test_an_append_to_another_stream_answers_nobody(
    server: ServerProcess, http: httpx.Client, stream: str
) -> None:
    http.put(stream, headers=BYTES)
    http.put(f"{stream}/other", headers=BYTES)
    with waiting(server, http, stream) as [client]:
        http.post(f"{stream}/other", content=b"x", headers=BYTES)
        assert live_readers(http, "long-poll") == 1
        http.post(stream, content=b"mine", headers=BYTES)
        assert client.response().body == b"mine"


def test_a_repeated_producer_append_answers_nobody(
    server: ServerProcess, http: httpx.Client, stream: str
) -> None:
    http.put(stream, headers=BYTES)
    producer = BYTES | {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0"}
    http.post(stream, content=b"once", headers=producer)
    with waiting(server, http, stream) as [client]:
        http.post(stream, content=b"once", headers=producer)
        assert live_readers(http, "long-poll") == 1
        http.post(stream, content=b"next", headers=BYTES)
        assert client.response().body == b"next"


# -- who need not wait -------------------------------------------------------------------------


def test_data_that_is_there_already_is_the_answer(http: httpx.Client, stream: str) -> None:
    http.put(stream, content=b"abc", headers=BYTES)
    answer = http.get(stream, params={"offset": "-1", "live": "long-poll"})
    assert (answer.status_code, answer.content) == (200, b"abc")


@pytest.mark.parametrize("offset", ["now", "tail"])
def test_the_end_of_a_closed_stream_is_the_answer(
    http: httpx.Client, stream: str, offset: str
) -> None:
    created = http.put(stream, content=b"abc", headers=BYTES | {"Stream-Closed": "true"})
    at = created.headers["Stream-Next-Offset"] if offset == "tail" else offset
    answer = http.get(stream, params={"offset": at, "live": "long-poll"})
    assert (answer.status_code, answer.headers["Stream-Closed"]) == (204, "true")


# -- leaving -----------------------------------------------------------------------------------


@pytest.mark.parametrize("half", [False, True], ids=["closes", "stops sending"])
def test_a_client_that_leaves_waits_no_more(
    server: ServerProcess, http: httpx.Client, stream: str, half: bool
) -> None:
    http.put(stream, headers=BYTES)
    with waiting(server, http, stream, WAITERS) as clients:
        for client in clients:
            client.finish_sending() if half else client.close()
        wait_for_waiters(http, 0)
    assert http.post(stream, content=b"x", headers=BYTES).status_code == 204


def test_those_who_stay_are_answered_when_others_leave(
    server: ServerProcess, http: httpx.Client, stream: str
) -> None:
    http.put(stream, headers=BYTES)
    with waiting(server, http, stream, WAITERS) as clients:
        for client in clients[::2]:
            client.close()
        wait_for_waiters(http, WAITERS // 2)
        http.post(stream, content=b"x", headers=BYTES)
        assert {client.response().body for client in clients[1::2]} == {b"x"}


def test_the_connection_serves_on_after_the_wait(
    server: ServerProcess, http: httpx.Client, stream: str
) -> None:
    http.put(stream, headers=BYTES)
    with waiting(server, http, stream) as [client]:
        http.post(stream, content=b"x", headers=BYTES)
        assert client.response().status == 200
        assert client.request("GET", stream).body == b"x"


def test_one_waiter_too_many_is_told_to_come_back(serve: Serve, stream: str) -> None:
    server = serve(DS_LIMITS__MAX_LIVE_READERS_PER_STREAM="2")
    with httpx.Client(base_url=server.url, timeout=DEADLINE_SECS) as http:
        http.put(stream, headers=BYTES)
        with waiting(server, http, stream, 2) as clients:
            answer = http.get(stream, params={"offset": "now", "live": "long-poll"})
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
            http.post(stream, content=b"x", headers=BYTES)
            assert {client.response().body for client in clients} == {b"x"}
        assert http.get(stream, params={"offset": "-1", "live": "long-poll"}).status_code == 200


# -- cursors -----------------------------------------------------------------------------------


def poll(http: httpx.Client, path: str, cursor: str | None = None) -> RawResponse:
    params = {"offset": "-1", "live": "long-poll"} | ({"cursor": cursor} if cursor else {})
    answer = http.get(path, params=params)
    return RawResponse(answer.status_code, dict(answer.headers), answer.content)


def cursor_of(http: httpx.Client, path: str, echoed: str | None = None) -> int:
    return int(poll(http, path, echoed).headers["stream-cursor"])


def test_an_echoed_cursor_is_always_passed(http: httpx.Client, stream: str) -> None:
    http.put(stream, content=b"x", headers=BYTES)
    cursor = cursor_of(http, stream)
    for _ in range(20):
        following = cursor_of(http, stream, str(cursor))
        assert cursor < following <= cursor + JITTER_INTERVALS_MAX
        cursor = following


def test_clients_that_echo_one_cursor_are_spread(http: httpx.Client, stream: str) -> None:
    http.put(stream, content=b"x", headers=BYTES)
    ahead = str(cursor_of(http, stream) + 1_000_000)
    assert len({cursor_of(http, stream, ahead) for _ in range(30)}) > 1


@pytest.mark.parametrize("cursor", ["junk", "-5", "1.5", "9" * 17, "0", "1", "\u0665", ""])
def test_a_cursor_that_was_not_ours_or_is_old_is_ignored(
    http: httpx.Client, stream: str, cursor: str
) -> None:
    http.put(stream, content=b"x", headers=BYTES)
    before = cursor_of(http, stream)
    assert before <= cursor_of(http, stream, cursor) <= cursor_of(http, stream)


def test_a_catch_up_read_has_no_cursor(http: httpx.Client, stream: str) -> None:
    http.put(stream, content=b"x", headers=BYTES)
    assert "Stream-Cursor" not in http.get(stream).headers
