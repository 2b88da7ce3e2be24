"""Direct TLS: the same server, and a certificate that can be changed while it runs."""

from __future__ import annotations

import signal
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.testing.certificates import write_self_signed
from headrace.testing.raw_http import RawConnection, request_bytes
from headrace.testing.server_process import ServerProcess
from headrace.testing.sse_reader import EventStream
from headrace.testing.waiting import eventually
from tests.conftest import Serve, stop_cleanly
from tests.http.helpers import MIB


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


def start(directory: Path) -> Secure:
    cert, key = directory / "cert.pem", directory / "key.pem"
    trust = write_self_signed(cert, key)
    env = {
        "DS_TLS__CERT_PATH": str(cert),
        "DS_TLS__KEY_PATH": str(key),
        "DS_HTTP__HEADER_TIMEOUT_SECS": "2",
    }
    server = ServerProcess(env, cwd=str(directory))
    server.start()
    return Secure(server, cert, key, trust)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    """One server for the tests that leave it as it is."""
    secure = start(tmp_path_factory.mktemp("tls"))
    yield secure
    stop_cleanly(secure.server)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Secure]:
    """A server whose certificate a test may change, or that it may stop."""
    secure = start(tmp_path)
    yield secure
    if secure.server.is_running:
        stop_cleanly(secure.server)


def test_requests_are_served_and_locations_are_https(shared: Secure, stream: str) -> None:
    assert shared.server.url.startswith("https://")
    with shared.connect() as connection:
        created = connection.request("PUT", stream, b"hello", Content_Type="text/plain")
        assert created.headers["location"] == f"https://localhost{stream}"
        assert connection.request("GET", stream).body == b"hello"


def test_large_bodies_arrive_as_they_are(shared: Secure, stream: str) -> None:
    kind = "application/octet-stream"
    with shared.connect() as connection:
        offset = connection.request("PUT", stream, Content_Type=kind).headers["stream-next-offset"]
        for number in range(3):
            body = bytes([number]) * (MIB + number)
            posted = connection.request("POST", stream, body, Content_Type=kind)
            assert connection.request("GET", f"{stream}?offset={offset}").body == body
            offset = posted.headers["stream-next-offset"]


def test_pipelining_and_large_answers_work(shared: Secure, stream: str) -> None:
    body = bytes(range(256)) * 4096
    put = request_bytes("PUT", stream, body, Content_Type="text/plain")
    with shared.connect() as connection:
        connection.send(put + 5 * request_bytes("GET", stream))
        assert connection.response().status == 201
        assert all(connection.response().body == body for _ in range(5))
        assert len(body) == MIB


def test_events_arrive_and_a_close_ends_them(shared: Secure, stream: str) -> None:
    with shared.connect() as writer:
        writer.request("PUT", stream, Content_Type="text/plain")
        with EventStream(shared.connect(), f"{stream}?offset=now&live=sse") as events:
            assert events.batch().data is None
            writer.request("POST", stream, b"x", Content_Type="text/plain", Stream_Closed="true")
            (last,) = events.rest()
            assert (last.data, last.control["streamClosed"]) == ("x", True)


def test_a_malformed_request_is_answered_and_the_connection_closed(shared: Secure) -> None:
    with shared.connect() as connection:
        connection.send(b"GARBAGE\r\n\r\n")
        assert connection.response().status == 400
        assert connection.is_at_end()


def test_a_plain_request_is_not_answered_and_disturbs_nobody(shared: Secure) -> None:
    with shared.connect() as other:
        with RawConnection(shared.server.port) as plain:
            plain.send(request_bytes("GET", "/healthz"))
            assert not plain.rest().startswith(b"HTTP/")
        assert other.request("GET", "/healthz").status == 200


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01"])
def test_a_handshake_that_does_not_come_is_ended(shared: Secure, sent: bytes) -> None:
    with RawConnection(shared.server.port) as silent:
        silent.send(sent)
        assert not silent.rest().startswith(b"HTTP/")


def test_sighup_changes_the_certificate_for_new_connections_only(own: Secure) -> None:
    old = own.trust
    with own.connect() as open_before:
        assert open_before.request("GET", "/healthz").status == 200
        own.new_certificate()
        own.server.signal(signal.SIGHUP)
        own.await_log("certificate reloaded")
        with own.connect() as connection:
            assert connection.request("GET", "/healthz").status == 200
        with pytest.raises(ssl.SSLCertVerificationError):
            RawConnection(own.server.port, tls=old)
        assert open_before.request("GET", "/healthz").status == 200


@pytest.mark.parametrize("broken", ["cert", "key"])
def test_a_certificate_that_cannot_be_loaded_leaves_the_old_one(own: Secure, broken: str) -> None:
    path = own.cert if broken == "cert" else own.key
    path.write_text("not a certificate")
    own.server.signal(signal.SIGHUP)
    own.await_log("the old one stays")
    with own.connect() as connection:
        assert connection.request("GET", "/healthz").status == 200


def test_sighup_without_tls_changes_nothing(serve: Serve) -> None:
    server = serve()
    server.signal(signal.SIGHUP)
    with RawConnection(server.port) as connection:
        assert connection.request("GET", "/healthz").status == 200


def test_old_versions_of_tls_are_refused(shared: Secure) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(shared.cert)
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError):
        RawConnection(shared.server.port, tls=context)


def test_live_readers_are_let_go_on_sigterm(own: Secure, stream: str) -> None:
    with own.connect() as writer:
        writer.request("PUT", stream, Content_Type="text/plain")
        with EventStream(own.connect(), f"{stream}?offset=now&live=sse") as events:
            events.batch()
            own.server.signal(signal.SIGTERM)
            assert events.rest() == []
    assert own.server.wait() == 0
