"""What the small HTTP servers of the stack share: they answer only under their own names.

None of them asks who is there. A web page whose name was made to resolve to this machine could
read them as if it were theirs; see `headrace.protocol.access`.
"""

from __future__ import annotations

from http import HTTPStatus
from http.server import BaseHTTPRequestHandler

from headrace.protocol.access import HostRules


class PageHandler(BaseHTTPRequestHandler):
    """A handler whose requests name a host that `hosts` admits; others get 421."""

    hosts = HostRules()

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        host = self.headers.get("Host", "").encode("latin-1", "replace")
        if self.hosts.admits(host):
            return True
        self.send_error(HTTPStatus.MISDIRECTED_REQUEST, explain="Not a host of this server.")
        return False

    def end_headers(self) -> None:
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Cache-Control", "no-store")
        super().end_headers()
