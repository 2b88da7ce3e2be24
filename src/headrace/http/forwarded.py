"""Where a request came from and how its client sees us: trusted proxies, subjects, public URLs."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from functools import lru_cache
from urllib.parse import urlsplit

from headrace.errors import InvalidRequest
from headrace.http.exchange import Client, Request
from headrace.protocol.headers import Headers

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
LOOPBACK = ("127.0.0.0/8", "::1/128")
HOST = re.compile(rb"[A-Za-z0-9._~%!$&'()*+,;=-]+(:[0-9]*)?|\[[0-9A-Fa-f:.]+\](:[0-9]*)?")


class ForwardedOrigins:
    """Believes X-Forwarded-* and X-JWT-Sub only from the configured proxies."""

    def __init__(self, public_url: str | None, trusted_proxies: tuple[str, ...]) -> None:
        self._public_url = public_url.rstrip("/") if public_url else None
        self._networks: tuple[_Network, ...] = tuple(
            ipaddress.ip_network(network, strict=False)
            for proxy in trusted_proxies
            for network in (LOOPBACK if proxy == "loopback" else (proxy,))
        )
        self._is_trusted = lru_cache(maxsize=1024)(self._check_trusted)

    def base_url(self, request: Request) -> str:
        """The absolute URL that the client sees before our own paths."""
        if self._public_url is not None:
            return self._public_url + request.client.mount
        scheme, host = request.client.scheme, request.headers.get(b"host", b"localhost")
        if self._is_trusted(request.client.address):
            scheme = _first(request.headers.get(b"x-forwarded-proto")) or scheme
            host = request.headers.get(b"x-forwarded-host", host).split(b",")[0].strip()
            if not HOST.fullmatch(host):
                raise InvalidRequest("X-Forwarded-Host must be a host, or host and port.")
        if scheme not in ("http", "https"):
            raise InvalidRequest("X-Forwarded-Proto must be http or https.")
        return f"{scheme}://{host.decode('latin-1')}{request.client.mount}"

    def own_hosts(self, client: Client, headers: Headers) -> Iterator[bytes]:
        """What the client may have called us, each with its port if it named one."""
        if self._public_url is not None:
            yield urlsplit(self._public_url).netloc.encode("latin-1")
        yield headers.get(b"host", b"localhost")
        forwarded = headers.get(b"x-forwarded-host")
        if forwarded is not None and self._is_trusted(client.address):
            yield forwarded.split(b",")[0].strip()

    def subject(self, request: Request) -> str:
        """The client's identity as far as it is verified: a token subject, or an address."""
        if not self._is_trusted(request.client.address):
            return request.client.address
        subject = request.headers.get(b"x-jwt-sub")
        if subject:
            return "sub:" + subject.decode("latin-1")
        forwarded = request.headers.get(b"x-forwarded-for")
        # The last address is the one the trusted proxy itself saw.
        return (
            forwarded.split(b",")[-1].strip().decode("latin-1")
            if forwarded
            else request.client.address
        )

    def _check_trusted(self, peer: str) -> bool:
        try:
            address = ipaddress.ip_address(peer.partition("%")[0])
        except ValueError:
            return False
        return any(address in network for network in self._networks)


def _first(value: bytes | None) -> str:
    return value.split(b",")[0].strip().decode("latin-1").lower() if value else ""
