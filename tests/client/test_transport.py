"""Over TLS, through a proxy, and from a settings file to a request."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.client import ConnectFailed, Retry
from headrace.errors import InvalidRequest
from headrace.testing.certificates import write_self_signed
from tests.client.conftest import Connect
from tests.client.scripted import Reply, ScriptedServer
from tests.conftest import Serve

READ = Reply(200, {"Stream-Next-Offset": "1", "Stream-Up-To-Date": "true"}, b"data")


def test_tls_is_checked_against_the_given_certificates(
    connect: Connect, serve: Serve, tmp_path: Path
) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    write_self_signed(cert, key)
    server = serve(DS_TLS__CERT_PATH=str(cert), DS_TLS__KEY_PATH=str(key))
    url = server.url.replace("127.0.0.1", "localhost")
    with connect(url, verify=str(cert)) as client:
        client.stream("s").create("text/plain", data="secret", closed=True)
        assert list(client.stream("s").read(live="auto").bytes()) == [b"secret"]
    with connect(url, retry=Retry(retries_max=0)) as client:
        stream = client.stream("s")
        with pytest.raises(ConnectFailed):
            stream.head()


def test_requests_go_through_a_proxy(connect: Connect) -> None:
    with ScriptedServer(READ) as proxy:
        with connect("http://streams.example", proxy=proxy.url) as client:
            assert client.stream("s").read_bytes() == b"data"
        assert proxy.asked[0].headers["host"] == "streams.example"


@pytest.mark.parametrize("url", ["ftp://x", "localhost:4437", ""])
def test_what_is_no_url_is_refused(url: str, connect: Connect) -> None:
    with connect(url) as client:
        stream = client.stream("s")
        with pytest.raises(InvalidRequest):
            stream.head()
