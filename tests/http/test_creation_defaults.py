"""TTL and content type of streams that are created without one, by the beginning of their name."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from headrace.testing.server_process import ServerProcess
from tests.http.helpers import TEXT, client_of

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
