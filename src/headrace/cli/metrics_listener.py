"""`--metrics-listen`: a port where Prometheus scrapes the pipelines of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from typing import NamedTuple

from headrace.protocol.access import HostRules, is_loopback
from headrace.stack.page_handler import PageHandler

LOOPBACK = "127.0.0.1"
PORT_MAX = 65535


class Address(NamedTuple):
    host: str
    port: int

    @classmethod
    def of(cls, text: str) -> Address:
        """`PORT` on loopback, or `HOST:PORT`; ValueError for anything else."""
        host, colon, port = text.rpartition(":")
        if not (port.isascii() and port.isdigit() and int(port) <= PORT_MAX) or (
            colon and not host
        ):
            raise ValueError(f"--metrics-listen is PORT or HOST:PORT, not {text!r}.")
        return cls(host.strip("[]") or LOOPBACK, int(port))


@contextmanager
def served(address: Address, scrape: Callable[[], bytes]) -> Iterator[str]:
    """Serve `/metrics` while inside; the URL. OSError if nothing can listen there."""

    class MetricsHandler(PageHandler):
        # A listener on more than loopback has names that are not known here.
        hosts = HostRules(any_host=not is_loopback(address.host))

        def do_GET(self) -> None:  # noqa: N802
            if self.path != "/metrics":
                self.send_error(404)
                return
            body = scrape()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Scrapes are not news."""

    with ThreadingHTTPServer(address, MetricsHandler) as server:
        server.daemon_threads = True  # a scrape that waits for Postgres holds up no end
        serving = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
        serving.start()
        try:
            host = f"[{address.host}]" if ":" in address.host else address.host
            yield f"http://{host}:{server.server_address[1]}/metrics"
        finally:
            server.shutdown()
            serving.join()
