"""How clients see us: the host they used, a public URL, or what a trusted proxy forwards."""

from __future__ import annotations

import pytest

from headrace.testing.raw_http import RawConnection
from headrace.testing.server_process import ServerProcess
from tests.conftest import Serve

FORWARDED = {"X_Forwarded_Proto": "https", "X_Forwarded_Host": "streams.example"}


def location(server: ServerProcess, path: str, source: str = "127.0.0.1", **headers: str) -> str:
    """Where the server says that a stream it has just created is."""
    with RawConnection(server.port, source=source) as connection:
        answer = connection.request("PUT", path, b"", **headers)
    assert answer.status == 201, answer.body
    return answer.headers["location"]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:4437", "[::1]:80", "LocalHost:"])
def test_a_location_is_at_the_host_the_client_used(
    server: ServerProcess, stream: str, host: str
) -> None:
    path = f"{stream}-{len(host)}"
    assert location(server, path, Host=host) == f"http://{host}{path}"


def test_forwarded_headers_of_a_stranger_are_ignored(server: ServerProcess, stream: str) -> None:
    assert location(server, stream, **FORWARDED) == f"http://localhost{stream}"


@pytest.mark.parametrize("trusted", ["loopback", "127.0.0.1", "127.0.0.0/24", "::1,127.0.0.1"])
def test_forwarded_headers_of_a_trusted_proxy_are_believed(
    serve: Serve, stream: str, trusted: str
) -> None:
    server = serve(DS_SERVER__TRUSTED_PROXIES=trusted)
    assert location(server, stream, **FORWARDED) == f"https://streams.example{stream}"


def test_trust_is_for_the_listed_addresses_only(serve: Serve, stream: str) -> None:
    server = serve(DS_SERVER__TRUSTED_PROXIES="127.0.0.2")
    assert location(server, f"{stream}-a", **FORWARDED).startswith("http://localhost/")
    trusted = location(server, f"{stream}-b", "127.0.0.2", **FORWARDED)
    assert trusted == f"https://streams.example{stream}-b"


def test_the_first_of_several_forwarded_hosts_is_the_client_s(serve: Serve, stream: str) -> None:
    server = serve(DS_SERVER__TRUSTED_PROXIES="loopback")
    headers = {"X_Forwarded_Proto": "https, http", "X_Forwarded_Host": "a.example, b.internal"}
    assert location(server, stream, **headers) == f"https://a.example{stream}"


@pytest.mark.parametrize(
    "headers",
    [
        {"X_Forwarded_Proto": "javascript"},
        {"X_Forwarded_Host": "a b"},
        {"X_Forwarded_Host": "user@evil.example"},
        {"X_Forwarded_Host": "evil.example/path"},
    ],
    ids=str,
)
def test_forwarded_values_that_make_no_url_are_refused(
    serve: Serve, stream: str, headers: dict[str, str]
) -> None:
    server = serve(DS_SERVER__TRUSTED_PROXIES="loopback")
    with RawConnection(server.port) as connection:
        assert connection.request("PUT", stream, b"", **headers).status == 400
        assert connection.request("HEAD", stream).status == 404


@pytest.mark.parametrize("trusted", ["", "loopback"])
@pytest.mark.parametrize("public", ["https://streams.example", "https://streams.example/"])
def test_a_public_url_comes_before_everything(
    serve: Serve, stream: str, trusted: str, public: str
) -> None:
    settings = {"DS_SERVER__TRUSTED_PROXIES": trusted} if trusted else {}
    server = serve(DS_SERVER__PUBLIC_URL=public, **settings)
    assert location(server, stream, X_Forwarded_Host="other") == f"https://streams.example{stream}"


def test_the_jwks_url_is_where_clients_see_us(serve: Serve, stream: str) -> None:
    server = serve(DS_SERVER__PUBLIC_URL="https://streams.example")
    body = b'{"type":"webhook","pattern":"x/*","webhook":{"url":"https://worker.example/"}}'
    with RawConnection(server.port) as connection:
        answer = connection.request(
            "PUT", "/v1/stream/__ds/subscriptions/p", body, Content_Type="application/json"
        )
    assert answer.status == 201, answer.body
    signing = answer.json()["webhook"]["signing"]
    assert signing["jwks_url"] == "https://streams.example/v1/stream/__ds/jwks.json"


def test_a_name_in_a_location_is_encoded_and_leads_back(server: ServerProcess) -> None:
    path = "/v1/stream/proxies/%E2%82%AC%20%22%3F%23%25"
    with RawConnection(server.port) as connection:
        created = connection.request("PUT", path).headers["location"]
        assert created.startswith("http://localhost/v1/stream/proxies/")
        assert connection.request("PUT", created.removeprefix("http://localhost")).status == 200
