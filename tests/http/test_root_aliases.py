"""Paths where the base protocol is served besides `server.stream_root`: the same streams."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from headrace.config import ConfigError
from headrace.config.settings import Server
from headrace.testing.server_process import ServerProcess
from tests.http.helpers import JSON, TEXT, client_of

SETTINGS = {
    "DS_SERVER__STREAM_ROOT_ALIASES": "/v1/streams,/",
    "DS_SERVER__BUCKET_ROOT": "/buckets",
}


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with ServerProcess(SETTINGS) as server, client_of(server) as client:
        yield client


def test_a_stream_is_the_same_below_every_root(client: httpx.Client) -> None:
    created = client.put("/v1/streams/one/two", headers=TEXT, content=b"a")
    assert created.status_code == 201
    assert created.headers["location"] == str(client.base_url.join("/v1/streams/one/two"))
    assert client.post("/one/two", headers=TEXT, content=b"b").status_code == 204
    for root in ("/v1/stream", "/v1/streams", ""):
        assert client.get(f"{root}/one/two").content == b"ab"
    assert client.delete("/one/two").status_code == 204
    assert client.get("/v1/stream/one/two").status_code == 404


@pytest.mark.parametrize("root", ["/v1/stream", "/v1/streams", ""])
def test_a_source_is_named_below_any_root(client: httpx.Client, root: str) -> None:
    client.put("/v1/stream/source", headers=TEXT, content=b"shared")
    for to in ("/v1/stream", "/v1/streams", ""):
        fork = f"{to}/fork-of-{root.replace('/', '-')}-at-{to.replace('/', '-')}"
        headers = TEXT | {"Stream-Forked-From": f"{root}/source"}
        assert client.put(fork, headers=headers).status_code == 201
        assert client.get(fork).content == b"shared"


def test_control_resources_are_below_every_root(client: httpx.Client) -> None:
    client.put("/v1/stream/listed", headers=JSON)
    for root in ("/v1/stream", "/v1/streams", ""):
        tails = client.post(f"{root}/__ds/tails", json={"streams": ["listed"]})
        assert tails.status_code == 200, tails.text
        assert "listed" in client.get(f"{root}/__ds/streams?name=listed").text
        assert client.get(f"{root}/__ds/jwks.json").json()["keys"]


def test_paths_of_the_server_come_before_the_alias_of_every_path(client: httpx.Client) -> None:
    assert client.get("/healthz").text == "ok"
    assert client.get("/ui/").status_code == 200
    assert client.put("/buckets/mine").json()["bucket_id"] == "mine"
    assert client.put("/buckets/mine/s", headers=TEXT, content=b"x").status_code == 201
    assert client.get("/buckets/mine/s").content == b"x"
    assert [s["stream_id"] for s in client.get("/buckets/mine/streams").json()["streams"]] == ["s"]
    assert client.put("/buckets/nowhere/s", headers=TEXT).status_code == 404


@pytest.mark.parametrize("name", ["v1/stream/a", "buckets/mine/s", "healthz", "ui/x"])
def test_a_name_that_looks_like_another_path_has_a_location_of_its_own(
    client: httpx.Client, name: str
) -> None:
    first, _, rest = name.partition("/")
    hidden = f"%{ord(first[0]):02x}{first[1:]}/{rest}".rstrip("/")
    created = client.put(f"/{hidden}", headers=TEXT, content=b"mine")
    assert created.status_code == 201
    assert client.get(created.headers["location"]).content == b"mine"


def test_the_longest_of_several_roots_is_the_one_that_serves() -> None:
    aliases = {"DS_SERVER__STREAM_ROOT_ALIASES": "/b/streams,/"}
    env = aliases | {"DS_SERVER__BUCKET_ROOT": "/b"}
    with ServerProcess(env) as server, client_of(server) as client:
        assert client.put("/b/mine").json()["bucket_id"] == "mine"
        assert client.put("/b/streams/s", headers=TEXT, content=b"x").status_code == 201
        assert client.put("/other/s", headers=TEXT, content=b"y").status_code == 201
        assert client.get("/v1/stream/s").content == b"x"
        assert client.get("/v1/stream/other/s").content == b"y"


@pytest.mark.parametrize(
    ("aliases", "reason"),
    [
        ("/", "server.bucket_root are both /"),
        ("/v1/stream", "would never be used"),
        ("/v1/stream/below", "would never be used"),
        ("/healthz", "would hide what the server serves"),
        ("/ui/streams", "would hide"),
        ("/api/__ds", "would hide"),
    ],
)
def test_an_alias_that_cannot_be_reached_is_refused(aliases: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Server(stream_root_aliases=aliases)  # type: ignore[arg-type]
