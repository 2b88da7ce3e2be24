"""Whether a request is taken at all: its Host, and the page it comes from.

The rules are `protocol.access`; here they meet the configuration and what a trusted proxy forwards.
Both are checked when a head is first parsed. A head that equals the last one, byte for byte, was
checked with it.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from headrace.config import Config
from headrace.errors import CrossOriginRequest, HeadraceError, MisdirectedRequest
from headrace.http.exchange import Client
from headrace.http.forwarded import ForwardedOrigins
from headrace.protocol.access import HostRules, OriginRules
from headrace.protocol.headers import Headers

ANY: Final = ("*",)
AUTO: Final = ("auto",)


class Access:
    """Which hosts and origins the server answers; without arguments, all."""

    def __init__(
        self,
        hosts: HostRules | None = None,
        pages: OriginRules | None = None,
        origins: ForwardedOrigins | None = None,
    ) -> None:
        self._hosts = hosts or HostRules(any_host=True)
        self._pages = pages or OriginRules(ANY)
        self._origins = origins or ForwardedOrigins(None, ())

    def host_refusal(self, host: bytes) -> HeadraceError | None:
        """Why a request with this Host header is not answered."""
        return None if self._hosts.admits(host) else MisdirectedRequest(host.decode("latin-1"))

    def page_refusal(self, method: bytes, headers: Headers, client: Client) -> HeadraceError | None:
        """Why a request with an Origin or Sec-Fetch-Site header is not answered."""
        if self._pages.admits(method, headers, self._origins.own_hosts(client, headers)):
            return None
        return CrossOriginRequest(headers.get(b"origin", b"").decode("latin-1"))


def access_of(config: Config, origins: ForwardedOrigins, *, listens: bool) -> Access:
    """`listens`: the server has a listener of its own, at `server.host`."""
    allowed = config.server.allowed_hosts
    if allowed == AUTO:
        allowed = () if listens and config.server.is_loopback else ANY
    public = urlsplit(config.server.public_url or "").hostname
    names = [*allowed, public] if public else allowed
    hosts = HostRules(names, any_host=allowed == ANY)
    return Access(hosts, OriginRules(config.http.cors_origins), origins)
