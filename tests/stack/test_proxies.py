"""The nginx and Caddy snippets of docs/production.md, with the real programs in front of a server.

The programs are Debian's, the machine's own or unpacked beside the tests; where neither can be
had, these tests are skipped and say so.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from headrace.stack.apt_fetch import unpacked
from headrace.stack.ports import Ports
from headrace.testing.server_process import ServerProcess
from headrace.testing.sse_reader import open_events
from headrace.testing.waiting import DEADLINE_SECS, eventually

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
PAGE = (HERE.parents[1] / "docs/production.md").read_text("utf-8")
GOOD = {"Authorization": "Bearer good"}
JSON = {"Content-Type": "application/json"}

_NGINX = """
daemon off;
master_process off;
pid {home}/nginx.pid;
error_log {home}/error.log;
events {{}}
http {{
  access_log off;
  client_body_temp_path {home}/body;
  proxy_temp_path {home}/proxy;
  fastcgi_temp_path {home}/fastcgi;
  uwsgi_temp_path {home}/uwsgi;
  scgi_temp_path {home}/scgi;
  server {{
    listen 127.0.0.1:{port};
    {snippet}
  }}
}}
"""
_CADDY = """
{{
  admin off
  auto_https off
  storage file_system {home}/storage
}}
{snippet}
"""


def snippet(language: str, server: str, verifier: str) -> str:
    """The page's block, with its addresses exchanged for the test's."""
    (block,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(block).replace("127.0.0.1:4437", server).replace("127.0.0.1:9000", verifier)


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        root = unpacked([name], HERE / ".proxies" / name)
        candidates = [] if root is None else [root / "usr/sbin" / name, root / "usr/bin" / name]
        found = next((str(path) for path in candidates if path.exists()), None)
    if found is None:
        pytest.skip(f"no {name} here, and apt could not fetch it")
    return found


def nginx(home: Path, port: int, server: str, verifier: str) -> list[str]:
    text = _NGINX.format(home=home, port=port, snippet=snippet("nginx", server, verifier))
    (home / "nginx.conf").write_text(text)
    early = str(home / "early.log")
    return [program("nginx"), "-p", str(home), "-e", early, "-c", str(home / "nginx.conf")]


def caddy(home: Path, port: int, server: str, verifier: str) -> list[str]:
    site = snippet("caddy", server, verifier).replace("streams.example.com", f"http://:{port}")
    (home / "Caddyfile").write_text(_CADDY.format(home=home, snippet=site))
    return [program("caddy"), "run", "--adapter", "caddyfile", "--config", str(home / "Caddyfile")]


class _Echo(BaseHTTPRequestHandler):
    """Answers with what reached it."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = json.dumps({"path": self.path, "headers": dict(self.headers.items())}).encode()
        self._answer(200, body)

    do_OPTIONS = do_GET  # noqa: N815

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Not news."""


class _Verifier(_Echo):
    """Knows one good token, and one without a subject."""

    def do_GET(self) -> None:
        subjects = {"Bearer good": "alice", "Bearer nameless": ""}
        subject = subjects.get(self.headers.get("Authorization", ""))
        if subject is None:
            self._answer(401)
        else:
            self._answer(200, X_Subject=subject)


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True  # a proxy keeps its connections
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def proxied(kind: str, home: Path, server: str) -> Iterator[httpx.Client]:
    """A client of the proxy in front of `server`."""
    port = Ports(any_free=True).give("envoy")
    home.mkdir()
    with listening(_Verifier) as verifier:
        make = {"nginx": nginx, "caddy": caddy}[kind]
        command = make(home, port, server, verifier)
        with (home / "output.log").open("wb") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, env={"HOME": str(home), "PATH": "/usr/bin:/bin"}
            )
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=DEADLINE_SECS) as client:
                eventually(
                    lambda: process.poll() is not None or _answers(client), f"{kind} answers"
                )
                assert process.poll() is None, (home / "output.log").read_text()
                yield client
        finally:
            process.kill()
            process.wait(DEADLINE_SECS)


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.parametrize("kind", ["nginx", "caddy"])
def test_streams_work_through_the_proxy(kind: str, tmp_path: Path, server: ServerProcess) -> None:
    """Appends of any size, catch-up, long-poll, and SSE that is not held back."""
    stream = f"/v1/stream/through-{kind}"
    address = server.url.removeprefix("http://")
    with proxied(kind, tmp_path / kind, address) as client:
        assert client.put(stream, headers=JSON).status_code == 401
        client.headers.update(GOOD)
        assert client.put(stream, headers=JSON).status_code == 201
        large = "x" * (2 * 1024 * 1024)
        assert client.post(stream, json=[large]).status_code == 204
        read = client.get(stream)
        assert read.json() == [large]
        tail = read.headers["stream-next-offset"]
        port = client.base_url.port
        assert port is not None
        live = f"{stream}?offset={tail}&live=sse"
        with open_events(port, live, **GOOD) as events:
            assert events.batch().control["upToDate"]
            for number in range(3):  # each comes before the next is sent
                assert client.post(stream, json=[number]).status_code == 204
                assert json.loads(events.batch().data or "") == [number]
        waited = client.get(stream, params={"offset": tail, "live": "long-poll"})
        assert waited.json() == [0, 1, 2]
        end = waited.headers["stream-next-offset"]
        nothing = client.get(stream, params={"offset": end, "live": "long-poll"})
        assert nothing.status_code == 204
        assert client.delete(stream).status_code == 204


@pytest.mark.parametrize("kind", ["nginx", "caddy"])
def test_only_the_token_says_who_it_is(kind: str, tmp_path: Path) -> None:
    forged = {"X-JWT-Sub": "root", "X-Forwarded-Host": "evil.example"}
    with listening(_Echo) as echo, proxied(kind, tmp_path / kind, echo) as client:

        def seen(path: str, method: str = "GET", **headers: str) -> dict[str, str]:
            answer = client.request(method, path, headers={**forged, **headers})
            assert answer.status_code == 200, answer.text
            assert answer.json()["path"] == path
            return {k.lower(): v for k, v in answer.json()["headers"].items()}

        assert client.get("/v1/stream/x", headers=forged).status_code == 401
        assert client.get("/healthz/../v1/stream/x", headers=forged).status_code == 401
        known = seen("/v1/stream/a%2Fb?offset=-1", **GOOD)
        assert known["x-jwt-sub"] == "alice"
        assert known["authorization"] == GOOD["Authorization"], "so that answers stay private"
        open_paths = [("/healthz", "GET"), ("/ui/app.js", "GET"), ("/v1/stream/x", "OPTIONS")]
        found = [known, seen("/v1/stream/x", Authorization="Bearer nameless")]
        found += [seen(path, method) for path, method in open_paths]
        found.append(seen("/v1/stream/__ds/jwks.json"))
        assert [headers.get("x-jwt-sub", "") for headers in found[1:]] == [""] * 5
        assert all(headers.get("x-forwarded-host") != "evil.example" for headers in found)
