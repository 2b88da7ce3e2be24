"""Steps over one connection of their own: in order, several at once, through losses."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from headrace.client import Retry, Settings
from headrace.client.calls import ProducerStamp, Target, append, head
from headrace.client.exchange import Ask, Request, Steps
from headrace.client.failures import ConnectFailed, ConnectionLost
from headrace.client.ranges import read_framed
from headrace.client.wire import WireDriver, is_direct
from headrace.errors import InvalidRequest, StreamNotFound
from headrace.protocol import framed
from headrace.testing.ports import free_port
from tests.spark.helpers import put

NO_CONTENT = b"HTTP/1.1 204 No Content\r\nStream-Next-Offset: 1\r\n\r\n"
BUSY = b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"
GAP = b"HTTP/1.1 409 Conflict\r\nContent-Length: 0\r\n\r\n"
FAST = Retry(delay_ms=1, delay_max_ms=1)


@dataclass
class Scripted:
    """A server that answers each connection's requests from a list, then hangs up."""

    connections: list[list[bytes]]
    url: str = ""
    bodies: list[bytes] = field(default_factory=list)

    def __enter__(self) -> Scripted:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(60)
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.close()
        self._thread.join()

    def _serve(self) -> None:
        for answers in self.connections:
            connection, _ = self._listening.accept()
            with connection, connection.makefile("rb") as requests:
                for answer in answers:
                    self.bodies.append(_body(requests))
                    connection.sendall(answer)
                # A close over unread bytes is a reset, which may overtake the answers.
                connection.shutdown(socket.SHUT_WR)
                requests.read()


def _body(requests: Any) -> bytes:
    length = 0
    while (line := requests.readline().strip()) != b"":
        name, _, value = line.partition(b":")
        length = int(value) if name.lower() == b"content-length" else length
    found: bytes = requests.read(length)
    return found


def appends(url: str, count: int, *, retry: Retry = FAST) -> list[Steps[Any]]:
    target = Target(f"{url}/v1/stream/a", Settings(url=url, retry=retry))
    stamps = [ProducerStamp("p", 0, n) for n in range(count)]
    return [append(target, b"%d" % s.seq, "text/plain", producer=s) for s in stamps]


@pytest.fixture
def driver(http: httpx.Client) -> Iterator[WireDriver]:
    made = WireDriver(Settings(url=str(http.base_url).rstrip("/")))
    yield made
    made.close()


def test_many_appends_are_sent_at_once_and_stand_in_order(
    http: httpx.Client, driver: WireDriver
) -> None:
    put(http, "a", content_type="text/plain")
    several = appends(driver.settings.url, 300)
    assert not any(done.duplicate for done in driver.run_in_order(several))
    assert all(done.duplicate for done in driver.run_in_order(appends(driver.settings.url, 300)))
    text = http.get("/v1/stream/a", params={"offset": "-1"}).text
    assert text == "".join(map(str, range(300)))


def test_head_refusal_and_read_share_a_connection(http: httpx.Client, driver: WireDriver) -> None:
    put(http, "wire/read", b"1", b'"\xc3\xa9"')
    target = Target(f"{driver.settings.url}/v1/stream/wire/read", driver.settings)
    for _ in range(2):
        assert driver.run(head(target)).content_type == "application/json"
        with pytest.raises(StreamNotFound):
            driver.run(head(target.below("no such stream")))
        chunk = driver.run(read_framed(target, "-1"))
        assert bytes(framed.decode(chunk.body).data) == b'1,"\xc3\xa9",'


def test_what_follows_a_failure_is_asked_again_after_it() -> None:
    with Scripted([[NO_CONTENT, BUSY, GAP, GAP, NO_CONTENT, NO_CONTENT, NO_CONTENT]]) as server:
        driver = WireDriver(Settings(url=server.url))
        assert len(driver.run_in_order(appends(server.url, 4))) == 4
        driver.close()
    assert server.bodies == [b"0", b"1", b"2", b"3", b"1", b"2", b"3"]


def test_what_a_lost_connection_left_unanswered_is_asked_again_in_order() -> None:
    with Scripted([[NO_CONTENT], [NO_CONTENT, NO_CONTENT]]) as server:
        driver = WireDriver(Settings(url=server.url))
        assert len(driver.run_in_order(appends(server.url, 3))) == 3
        driver.close()
    assert server.bodies == [b"0", b"1", b"2"]


def test_a_server_that_hung_up_between_two_requests_is_called_again() -> None:
    with Scripted([[NO_CONTENT], [NO_CONTENT]]) as server:
        driver = WireDriver(Settings(url=server.url))
        for _ in range(2):
            [steps] = appends(server.url, 1, retry=Retry(retries_max=3, delay_ms=1))
            driver.run(steps)
        driver.close()


def test_what_must_not_be_repeated_is_not() -> None:
    with Scripted([[b""]]) as server:
        driver = WireDriver(Settings(url=server.url))
        target = Target(f"{server.url}/v1/stream/a", Settings(url=server.url, retry=FAST))
        with pytest.raises(ConnectionLost):
            driver.run(append(target, b"1", "text/plain"))
        driver.close()
    assert server.bodies == [b"1"]


def test_nobody_there_and_nothing_sendable_are_told_apart() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    driver = WireDriver(Settings(url=url))
    with pytest.raises(ConnectFailed):
        driver.run(appends(url, 1, retry=Retry(retries_max=0))[0])
    with Scripted([[]]) as server, pytest.raises(InvalidRequest, match="header X"):
        driver.run(_ask(Request("GET", f"{server.url}/", {"X": "secret\n"}, timeout_secs=5)))
    driver.close()


def _ask(request: Request) -> Steps[Any]:
    return (yield Ask(request))


@pytest.mark.parametrize(
    ("settings", "environment", "direct"),
    [
        (Settings(url="http://localhost:1"), {}, True),
        (Settings(url="http://localhost:1", proxy="http://p:1"), {}, False),
        (Settings(url="http://example.org"), {"http_proxy": "http://p:1"}, False),
        (Settings(url="http://a.org"), {"http_proxy": "http://p:1", "no_proxy": "a.org"}, True),
        (Settings(url="http://user:secret@example.org"), {}, False),
        (Settings(url="ftp://example.org"), {}, False),
    ],
)
def test_a_proxy_or_a_login_in_the_url_is_not_for_a_wire(
    settings: Settings,
    environment: dict[str, str],
    direct: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert is_direct(settings) is direct
