"""Direct TLS: the same server, and a certificate that can be changed while it runs."""

from __future__ import annotations

import signal
import ssl
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.testing.certificates import write_self_signed
from headrace.testing.events import EventStream
from headrace.testing.raw import RawConnection, request_bytes
from headrace.testing.server import ServerProcess
from headrace.testing.waiting import eventually
from tests.conftest import Serve
from tests.http.helpers import MIB

STREAM = "/v1/stream/a"


@dataclass
class Secure:
    """A server with TLS, its certificate files, and a client context that trusts them."""

    server: ServerProcess
    cert: Path
    key: Path
    trust: ssl.SSLContext

    def connect(self) -> RawConnection:
        return RawConnection(self.server.port, tls=self.trust)

    def new_certificate(self) -> None:
        self.trust = write_self_signed(self.cert, self.key)

    def await_log(self, words: str) -> None:
        eventually(lambda: any(words in line for line in self.server.log), words)


@pytest.fixture
def secure(serve: Serve, tmp_path: Path) -> Secure:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    trust = write_self_signed(cert, key)
    env = {"DS_TLS__CERT_PATH": str(cert), "DS_TLS__KEY_PATH": str(key)}
    return Secure(serve(**env, DS_HTTP__HEADER_TIMEOUT_SECS="0.5"), cert, key, trust)


def test_requests_are_served_and_locations_are_https(secure: Secure) -> None:
    assert secure.server.url.startswith("https://")
    with secure.connect() as connection:
        created = connection.request("PUT", STREAM, b"hello", Content_Type="text/plain")
        assert created.headers["location"] == f"https://localhost{STREAM}"
        assert connection.request("GET", STREAM).body == b"hello"


def test_pipelining_and_large_answers_work(secure: Secure) -> None:
    body = bytes(range(256)) * 4096
    put = request_bytes("PUT", STREAM, body, Content_Type="text/plain")
    with secure.connect() as connection:
        connection.send(put + 5 * request_bytes("GET", STREAM))
        assert connection.response().status == 201
        assert all(connection.response().body == body for _ in range(5))
        assert len(body) == MIB


def test_events_arrive_and_a_close_ends_them(secure: Secure) -> None:
    with secure.connect() as writer:
        writer.request("PUT", STREAM, Content_Type="text/plain")
        with EventStream(secure.connect(), f"{STREAM}?offset=now&live=sse") as events:
            assert events.batch().data is None
            writer.request("POST", STREAM, b"x", Content_Type="text/plain", Stream_Closed="true")
            (last,) = events.rest()
            assert (last.data, last.control["streamClosed"]) == ("x", True)


def test_a_malformed_request_is_answered_and_the_connection_closed(secure: Secure) -> None:
    with secure.connect() as connection:
        connection.send(b"GARBAGE\r\n\r\n")
        assert connection.response().status == 400
        assert connection.is_at_end()


def test_a_plain_request_is_not_answered_and_disturbs_nobody(secure: Secure) -> None:
    with secure.connect() as other:
        with RawConnection(secure.server.port) as plain:
            plain.send(request_bytes("GET", "/healthz"))
            assert not plain.rest().startswith(b"HTTP/")
        assert other.request("GET", "/healthz").status == 200


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01"])
def test_a_handshake_that_does_not_come_is_ended(secure: Secure, sent: bytes) -> None:
    with RawConnection(secure.server.port) as silent:
        silent.send(sent)
        assert not silent.rest().startswith(b"HTTP/")


def test_sighup_changes_the_certificate_for_new_connections_only(secure: Secure) -> None:
    old = secure.trust
    with secure.connect() as open_before:
        assert open_before.request("GET", "/healthz").status == 200
        secure.new_certificate()
        secure.server.signal(signal.SIGHUP)
        secure.await_log("certificate reloaded")
        with secure.connect() as connection:
            assert connection.request("GET", "/healthz").status == 200
        with pytest.raises(ssl.SSLCertVerificationError):
            RawConnection(secure.server.port, tls=old)
        assert open_before.request("GET", "/healthz").status == 200


@pytest.mark.parametrize("broken", ["cert", "key"])
def test_a_certificate_that_cannot_be_loaded_leaves_the_old_one(
    secure: Secure, broken: str
) -> None:
    path = secure.cert if broken == "cert" else secure.key
    path.write_text("not a certificate")
    secure.server.signal(signal.SIGHUP)
    secure.await_log("the old one stays")
    with secure.connect() as connection:
        assert connection.request("GET", "/healthz").status == 200


def test_sighup_without_tls_changes_nothing(serve: Serve) -> None:
    server = serve()
    server.signal(signal.SIGHUP)
    with RawConnection(server.port) as connection:
        assert connection.request("GET", "/healthz").status == 200


def test_old_versions_of_tls_are_refused(secure: Secure) -> None:
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        secure.trust.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError):
        secure.connect()


def test_live_readers_are_let_go_on_sigterm(secure: Secure) -> None:
    with secure.connect() as writer:
        writer.request("PUT", STREAM, Content_Type="text/plain")
        with EventStream(secure.connect(), f"{STREAM}?offset=now&live=sse") as events:
            events.batch()
            secure.server.signal(signal.SIGTERM)
            assert events.rest() == []
    assert secure.server.wait() == 0
