"""Steps over one connection of their own: in order, several at once, through losses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace.client import Retry, Settings
from headrace.client.effects import Ask, Request, Steps
from headrace.client.errors import ConnectFailed, ConnectionLost
from headrace.client.range_reads import read_framed
from headrace.client.raw_http import RawHttpDriver, is_direct
from headrace.client.requests import ProducerStamp, Target, append, create, head
from headrace.errors import InvalidRequest, StreamNotFound
from headrace.protocol import framed
from headrace.testing.certificates import write_self_signed
from headrace.testing.ports import free_port
from tests.client.scripted import Reply, ScriptedServer
from tests.conftest import Serve
from tests.spark.helpers import put

DONE = Reply(204, {"Stream-Next-Offset": "1"})
BUSY, GAP, LOST = Reply(503), Reply(409), Reply(hang_up=True)
FAST = Retry(delay_ms=1, delay_max_ms=1)


def appends(url: str, count: int, *, retry: Retry = FAST) -> list[Steps[Any]]:
    target = Target(f"{url}/v1/stream/a", Settings(url=url, retry=retry))
    stamps = [ProducerStamp("p", 0, n) for n in range(count)]
    return [append(target, b"%d" % s.seq, "text/plain", producer=s) for s in stamps]


@pytest.fixture
def driver(http: httpx.Client) -> Iterator[RawHttpDriver]:
    made = RawHttpDriver(Settings(url=str(http.base_url).rstrip("/")))
    yield made
    made.close()


def test_many_appends_are_sent_at_once_and_stand_in_order(
    http: httpx.Client, driver: RawHttpDriver
) -> None:
    put(http, "a", content_type="text/plain")
    several = appends(driver.settings.url, 300)
    assert not any(done.duplicate for done in driver.run_in_order(several))
    assert all(done.duplicate for done in driver.run_in_order(appends(driver.settings.url, 300)))
    text = http.get("/v1/stream/a", params={"offset": "-1"}).text
    assert text == "".join(map(str, range(300)))


def test_head_refusal_and_read_share_a_connection(
    http: httpx.Client, driver: RawHttpDriver
) -> None:
    put(http, "wire/read", b"1", b'"\xc3\xa9"')
    target = Target(f"{driver.settings.url}/v1/stream/wire/read", driver.settings)
    for _ in range(2):
        assert driver.run(head(target)).content_type == "application/json"
        with pytest.raises(StreamNotFound):
            driver.run(head(target.below("no such stream")))
        chunk = driver.run(read_framed(target, "-1"))
        assert bytes(framed.decode(chunk.body).data) == b'1,"\xc3\xa9",'


def bodies(server: ScriptedServer) -> list[bytes]:
    return [asked.body for asked in server.asked]


@pytest.mark.parametrize(
    ("replies", "asked"),
    [
        ([DONE, BUSY, GAP, GAP, DONE, DONE, DONE], b"0123123"),
        ([BUSY, DONE, GAP, DONE, DONE, DONE], b"012302"),
        ([DONE, LOST, DONE, DONE, DONE], b"01123"),
    ],
)
def test_what_a_failure_leaves_open_is_asked_again_in_order(
    replies: list[Reply], asked: bytes
) -> None:
    with ScriptedServer(*replies) as server:
        driver = RawHttpDriver(Settings(url=server.url))
        assert len(driver.run_in_order(appends(server.url, 4))) == 4
        driver.close()
    assert b"".join(bodies(server)) == asked


def test_a_server_that_hung_up_between_two_requests_is_called_again() -> None:
    with ScriptedServer(Reply(204, cut=True)) as server:
        driver = RawHttpDriver(Settings(url=server.url))
        for _ in range(3):
            driver.run(appends(server.url, 1)[0])
        driver.close()
    assert len(server.connections) == 3


def test_what_must_not_be_repeated_is_not() -> None:
    with ScriptedServer(LOST) as server:
        driver = RawHttpDriver(Settings(url=server.url))
        target = Target(f"{server.url}/v1/stream/a", Settings(url=server.url, retry=FAST))
        with pytest.raises(ConnectionLost):
            driver.run(append(target, b"1", "text/plain"))
        driver.close()
    assert bodies(server) == [b"1"]


def test_nobody_there_and_nothing_sendable_are_told_apart() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    driver = RawHttpDriver(Settings(url=url))
    with pytest.raises(ConnectFailed):
        driver.run(appends(url, 1, retry=Retry(retries_max=0))[0])
    with ScriptedServer(DONE) as server, pytest.raises(InvalidRequest, match="header X"):
        driver.run(_ask(Request("GET", f"{server.url}/", {"X": "secret\n"}, timeout_secs=5)))
    driver.close()


def test_tls_is_checked_against_the_given_certificates(serve: Serve, tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    write_self_signed(cert, key)
    server = serve(DS_TLS__CERT_PATH=str(cert), DS_TLS__KEY_PATH=str(key))
    url = server.url.replace("127.0.0.1", "localhost")
    trusting = RawHttpDriver(Settings(url=url, verify=str(cert)))
    target = Target(f"{url}/v1/stream/s", trusting.settings)
    trusting.run(create(target, "application/json"))
    assert trusting.run(head(target)).content_type == "application/json"
    trusting.close()
    doubting = RawHttpDriver(Settings(url=url))
    with pytest.raises(ConnectFailed):
        doubting.run(appends(url, 1, retry=Retry(retries_max=0))[0])


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
