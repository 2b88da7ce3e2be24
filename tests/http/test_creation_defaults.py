"""TTL and content type of streams that are created without one, by the beginning of their name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from headrace.config import ConfigError
from headrace.config.settings import Streams
from headrace.testing.server_process import ServerProcess
from tests.http.helpers import JSON, TEXT, client_of

SETTINGS = {
    "DS_STREAMS__DEFAULT_TTL_SECS": "chat/=3600,chat/short/=60,/mine/=120",
    "DS_STREAMS__DEFAULT_CONTENT_TYPE": "chat/=application/json,*=text/plain; charset=utf-8",
}
ROOT = "/v1/stream"


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with ServerProcess(SETTINGS) as server, client_of(server) as client:
        client.put("/mine")
        yield client


@pytest.mark.parametrize(
    ("path", "ttl", "content_type"),
    [
        (f"{ROOT}/chat/one", "3600", "application/json"),
        (f"{ROOT}/chat/short/one", "60", "application/json"),
        (f"{ROOT}/chatter", None, "text/plain; charset=utf-8"),
        ("/mine/one", "120", "text/plain; charset=utf-8"),
    ],
)
def test_what_a_put_leaves_open_follows_the_longest_prefix(
    client: httpx.Client, path: str, ttl: str | None, content_type: str
) -> None:
    assert client.put(path).status_code == 201
    head = client.head(path).headers
    assert (head.get("stream-ttl"), head["content-type"]) == (ttl, content_type)
    assert client.put(path).status_code == 200, "an equal PUT confirms the stream"


def test_what_a_put_says_counts(client: httpx.Client) -> None:
    lasting = {"Stream-Expires-At": "2999-01-01T00:00:00Z"}
    client.put(f"{ROOT}/chat/lasting", headers=TEXT | lasting)
    head = client.head(f"{ROOT}/chat/lasting").headers
    assert head["content-type"] == "text/plain"
    assert (head.get("stream-ttl"), head["stream-expires-at"][:4]) == (None, "2999")


def test_a_default_type_of_json_is_json_mode(client: httpx.Client) -> None:
    assert client.put(f"{ROOT}/chat/bad", content=b"{").status_code == 400
    assert client.put(f"{ROOT}/chat/json", content=b"[1,[2]]").status_code == 201
    assert client.get(f"{ROOT}/chat/json").json() == [1, [2]]


def test_a_fork_keeps_what_its_source_has(client: httpx.Client) -> None:
    client.put(f"{ROOT}/source", headers=TEXT)
    fork = client.put(f"{ROOT}/chat/fork", headers={"Stream-Forked-From": f"{ROOT}/source"})
    head = client.head(f"{ROOT}/chat/fork").headers
    assert fork.status_code == 201
    assert (head.get("stream-ttl"), head["content-type"]) == (None, "text/plain")


def test_a_stream_from_before_a_default_is_confirmed(tmp_path: Path) -> None:
    before = {"DS_STORAGE__MODE": "file-durable"}
    with ServerProcess(before, cwd=str(tmp_path)) as server, client_of(server) as client:
        client.put(f"{ROOT}/chat/old", headers=JSON)
        client.put(f"{ROOT}/chat/octets")
    with ServerProcess(before | SETTINGS, cwd=str(tmp_path)) as server, client_of(server) as client:
        assert client.put(f"{ROOT}/chat/old").status_code == 200
        assert client.put(f"{ROOT}/chat/octets").status_code == 200
        assert client.put(f"{ROOT}/chat/old", headers={"Stream-TTL": "5"}).status_code == 409
        assert "stream-ttl" not in client.head(f"{ROOT}/chat/old").headers


def test_two_values_for_one_prefix_are_refused() -> None:
    with pytest.raises(ConfigError, match="two values for 'chat/'"):
        Streams(default_ttl_secs="chat/=1,chat/=2")  # type: ignore[arg-type]
