"""Authentication through real Envoy: the reference's eight scenarios, and what else it promises."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from headrace.stack import envoy as envoy_config
from headrace.stack.health_check import check
from headrace.stack.ports import Ports
from headrace.stack.services import HealthProbe
from headrace.stack.tokens import AUDIENCE, ISSUER, TokenKeys, TokenKind
from headrace.testing.sse_reader import open_events
from headrace.testing.stack_process import StackProcess
from headrace.testing.waiting import DEADLINE_SECS, eventually

pytestmark = pytest.mark.slow
TEXT = {"Content-Type": "text/plain"}


# --- the eight scenarios ---


def test_health_needs_no_token(envoy: httpx.Client) -> None:
    answer = envoy.get("/healthz")
    assert (answer.status_code, answer.text) == (200, "ok")


def test_a_request_without_a_token_is_refused(envoy: httpx.Client, stream: str) -> None:
    answer = envoy.put(stream, headers=TEXT)
    assert answer.status_code == 401
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"] == "Jwt is missing"
    assert answer.headers["access-control-allow-origin"] == "*"


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (TokenKind.EXPIRED, 401),
        (TokenKind.FORGED, 401),
        (TokenKind.WRONG_ISSUER, 401),
        (TokenKind.WRONG_AUDIENCE, 403),
    ],
)
def test_a_bad_token_is_refused(
    stack: StackProcess, envoy: httpx.Client, stream: str, kind: TokenKind, status: int
) -> None:
    headers = {**TEXT, "Authorization": f"Bearer {stack.token(kind)}"}
    assert envoy.put(stream, headers=headers).status_code == status


def test_a_good_token_creates_a_stream_and_sees_it(signed: httpx.Client, stream: str) -> None:
    created = signed.put(stream, headers=TEXT)
    assert created.status_code == 201
    assert created.headers["location"] == f"{signed.base_url}{stream}".replace("//v1", "/v1")
    head = signed.head(stream)
    assert (head.status_code, head.headers["content-type"]) == (200, "text/plain")


def test_what_is_appended_is_read(signed: httpx.Client, stream: str) -> None:
    signed.put(stream, headers=TEXT)
    assert signed.post(stream, headers=TEXT, content="hello").status_code == 204
    assert signed.get(stream, params={"offset": "-1"}).text == "hello"


def test_a_reader_resumes_from_its_offset(signed: httpx.Client, stream: str) -> None:
    signed.put(stream, headers=TEXT, content="first")
    offset = signed.get(stream).headers["stream-next-offset"]
    signed.post(stream, headers=TEXT, content="second")
    assert signed.get(stream, params={"offset": offset}).text == "second"


def test_sse_delivers_each_append_at_once(
    stack: StackProcess, signed: httpx.Client, stream: str
) -> None:
    signed.put(stream, headers=TEXT)
    port = httpx.URL(stack.address("envoy")).port
    assert port is not None
    with open_events(port, f"{stream}?offset=-1&live=sse", **stack.authorization()) as events:
        assert events.batch().control["upToDate"] is True
        for text in ("one", "two"):
            # Nothing follows the append: a proxy that gathers bytes would hold it back for ever.
            signed.post(stream, headers=TEXT, content=text)
            assert events.batch().data == text


def test_a_stream_is_deleted(signed: httpx.Client, stream: str) -> None:
    signed.put(stream, headers=TEXT)
    assert signed.delete(stream).status_code == 204
    assert signed.get(stream).status_code == 404


# --- identity ---


def test_the_server_is_told_the_token_s_subject_and_never_the_client_s_word_for_it(
    tmp_path: Path,
) -> None:
    keys = TokenKeys(tmp_path)
    keys.ensure()
    with _echo() as upstream, _envoy(tmp_path, keys, upstream) as client:

        def seen(path: str, **headers: str) -> dict[str, str]:
            spoofed = {"X-JWT-Sub": "mallory", "X-Forwarded-Host": "evil.example"}
            answer = client.get(path, headers={**spoofed, **headers})
            assert answer.status_code == 200, answer.text
            return dict(answer.json())

        token = keys.mint(subject="alice")
        signed = seen("/v1/stream/x", Authorization=f"Bearer {token}")
        assert signed["x-jwt-sub"] == "alice"
        assert signed["x-forwarded-host"] == client.base_url.netloc.decode(), "what was asked for"
        assert signed["host"] == f"127.0.0.1:{upstream}", "the server's own, which it may insist on"
        assert "x-jwt-sub" not in seen("/healthz"), "also where no token is asked for"


def test_the_port_without_tokens_passes_the_host_on_and_no_word_about_identity(
    tmp_path: Path,
) -> None:
    """So that the server refuses a page whose name leads here, as it does on its own port."""
    keys, page_port = TokenKeys(tmp_path), Ports(any_free=True).give("ui")
    with _echo() as upstream, _envoy(tmp_path, keys, upstream, ui_port=page_port):
        spoofed = {"X-JWT-Sub": "mallory", "X-Forwarded-Host": "localhost"}
        headers = {**spoofed, "Host": "evil.example:3000"}
        seen = httpx.get(f"http://127.0.0.1:{page_port}/v1/stream/x", headers=headers).json()
        assert seen["host"] == "evil.example:3000"
        assert not {"x-jwt-sub", "x-forwarded-host"} & set(seen)


@contextmanager
def _echo() -> Iterator[int]:
    """An upstream that answers with the headers it received."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({name.lower(): value for name, value in self.headers.items()})
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def _envoy(
    directory: Path, keys: TokenKeys, upstream: int, ui_port: int | None = None
) -> Iterator[httpx.Client]:
    ports = Ports(any_free=True)
    setup = envoy_config.Setup(
        listen_port=ports.give("envoy"),
        admin_socket="admin.sock",
        stats_port=ports.give("envoy-stats"),
        server_port=upstream,
        jwks=keys.jwks(),
        issuer=ISSUER,
        audience=AUDIENCE,
        ui_port=ui_port,
    )
    config = directory / "envoy.json"
    envoy_config.write(setup, config)
    url = f"http://127.0.0.1:{setup.listen_port}"
    with (directory / "envoy.log").open("wb") as log:
        process = subprocess.Popen(
            envoy_config.command(config), stdout=log, stderr=log, cwd=directory
        )
    try:
        health = HealthProbe("http", f"{url}/healthz")
        eventually(lambda: check(health) == "ok", "Envoy answers")
        with httpx.Client(base_url=url, timeout=DEADLINE_SECS) as client:
            yield client
    finally:
        process.terminate()
        process.wait(DEADLINE_SECS)


# --- what is open, and only that ---


def test_a_cors_preflight_needs_no_token(envoy: httpx.Client, stream: str) -> None:
    headers = {
        "Origin": "https://app.example",
        "Access-Control-Request-Method": "PUT",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    answer = envoy.options(stream, headers=headers)
    assert answer.status_code == 204
    assert "authorization" in answer.headers["access-control-allow-headers"].lower()


def test_options_that_is_no_preflight_needs_a_token(envoy: httpx.Client, stream: str) -> None:
    assert envoy.options(stream).status_code == 401


def test_the_webhook_keys_are_open(envoy: httpx.Client) -> None:
    answer = envoy.get("/v1/stream/__ds/jwks.json")
    assert answer.status_code == 200
    assert answer.json()["keys"][0]["alg"] == "EdDSA"


@pytest.mark.parametrize(
    "path",
    [
        "/healthz/../v1/stream/secret",
        "/healthz%2f..%2fv1/stream/secret",
        "//healthz/../v1/stream/secret",
        "/ui/../v1/stream/secret",
        "/ui/%2e%2e/v1/stream/secret",
        "/uix",
        "/v1/stream/__ds/jwks.json/../../secret",
        "/metrics",
        "/readyz",
        "/v1/stream/__registry__",
    ],
)
def test_no_other_path_is_open(stack: StackProcess, path: str) -> None:
    from headrace.testing.raw_http import RawConnection, request_bytes

    port = httpx.URL(stack.address("envoy")).port
    assert port is not None
    connection = RawConnection(port)
    try:
        connection.send(request_bytes("GET", path, b""))
        assert connection.head().status in (400, 401)
    finally:
        connection.close()


def test_the_page_s_own_files_pass_without_a_token(envoy: httpx.Client) -> None:
    """What the server says about them is the server's matter; Envoy asks for no token."""
    assert envoy.get("/ui/").status_code != 401


def test_answers_to_signed_requests_stay_out_of_shared_caches(
    signed: httpx.Client, stream: str
) -> None:
    signed.put(stream, headers=TEXT, content="a")
    first = signed.get(stream).headers["stream-next-offset"]
    signed.post(stream, headers=TEXT, content="b")
    assert first
    assert "public" not in signed.get(stream, params={"offset": "-1"}).headers["cache-control"]


# --- the connection itself ---


def test_clients_may_speak_http_2(stack: StackProcess) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl, which speaks HTTP/2 here, is not installed")
    asked = ["curl", "-sS", "--http2-prior-knowledge", "-o", "/dev/null"]
    asked += ["-w", "%{http_version} %{http_code}", f"{stack.address('envoy')}/healthz"]
    assert subprocess.run(asked, capture_output=True, text=True, check=True).stdout == "2 200"


def test_the_admin_page_knows_the_filter(stack: StackProcess, signed: httpx.Client) -> None:
    signed.head("/v1/stream/none")
    with admin_of(stack) as admin:
        stats = admin.get("/stats", params={"filter": "jwt_authn", "format": "json"}).json()
        counts = {stat["name"]: stat["value"] for stat in stats["stats"]}
        assert counts["http.public.jwt_authn.allowed"] > 0
        # Verified tokens are remembered, so a second request with one costs no signature check.
        signed.head("/v1/stream/none")
        stats = admin.get("/stats", params={"filter": "jwt_cache_hit", "format": "json"}).json()
        assert any(stat["value"] > 0 for stat in stats["stats"])


# --- the admin interface ---


def note_of(stack: StackProcess, what: str) -> str:
    note = next(service.note for service in stack.record.services if service.name == "envoy")
    return note.split(f"{what} ")[1].split(";")[0]


def admin_of(stack: StackProcess) -> httpx.Client:
    transport = httpx.HTTPTransport(uds=note_of(stack, "admin"))
    return httpx.Client(base_url="http://envoy", transport=transport, timeout=DEADLINE_SECS)


def test_the_admin_interface_is_a_socket_that_its_owner_alone_may_open(
    stack: StackProcess,
) -> None:
    socket = Path(note_of(stack, "admin"))
    assert stat.S_ISSOCK(socket.stat().st_mode)
    assert stat.S_IMODE(socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700


def test_a_port_shows_the_metrics_and_nothing_that_changes_anything(stack: StackProcess) -> None:
    pid = stack.pid("envoy")
    with httpx.Client(base_url=note_of(stack, "stats"), timeout=DEADLINE_SECS) as stats:
        assert "envoy_cluster_upstream_rq" in stats.get("/stats/prometheus").text
        assert stats.get("/ready").status_code == 200
        for path in ("/quitquitquit", "/", "/config_dump", "/stats", "/ready/../quitquitquit"):
            assert stats.post(path).status_code == 404, path
            assert stats.get(path).status_code == 404, path
        assert stats.post("/stats/prometheus").status_code == 404
        rebound = stats.get("/stats/prometheus", headers={"Host": "evil.example:9901"})
        assert rebound.status_code == 404
    assert stack.pid("envoy") == pid
    with admin_of(stack) as admin:
        assert admin.get("/ready").status_code == 200


def test_a_holder_of_a_token_cannot_have_the_server_end_the_proxy(
    stack: StackProcess, signed: httpx.Client
) -> None:
    """By a webhook to the admin interface, which used to be a port that asked nobody."""
    hook = {"url": f"{note_of(stack, 'stats')}/quitquitquit"}
    config = {"type": "webhook", "streams": ["kill"], "webhook": hook}
    refused = signed.put("/v1/stream/__ds/subscriptions/kill", json=config)
    assert refused.status_code == 400
    assert "webhooks.allow_loopback" in refused.json()["detail"]


def test_a_page_cannot_use_the_server_behind_the_proxy_or_its_own_port(
    stack: StackProcess, signed: httpx.Client, stream: str
) -> None:
    """The server is strict about Host though clients of Envoy may use any name."""
    named = signed.put(stream, headers={**TEXT, "Host": "streams.example"})
    assert named.status_code == 201
    assert named.headers["location"] == f"http://streams.example{stream}"
    with httpx.Client(base_url=stack.address("server"), timeout=DEADLINE_SECS) as direct:
        assert direct.get(stream, headers={"Host": "streams.example"}).status_code == 421
        page = {"Origin": "https://evil.example"}
        assert direct.post(stream, headers={**TEXT, **page}, content="x").status_code == 403
        assert "access-control-allow-origin" not in direct.get(stream, headers=page).headers


def test_a_page_of_the_proxy_s_own_origin_may_write(
    envoy: httpx.Client, signed: httpx.Client, stream: str
) -> None:
    own = {"Origin": f"http://{envoy.base_url.netloc.decode()}"}
    assert signed.put(stream, headers={**TEXT, **own}).status_code == 201
    foreign = {"Origin": "http://localhost:5173"}
    assert signed.post(stream, headers={**TEXT, **foreign}, content="x").status_code == 403
