"""Which hosts a server answers for, and which web pages may change what it holds.

A browser gives every web page a way to servers that only its own machine can reach. Two rules
close it. A request must name a host that the server answers for: a page whose name was made to
resolve to this machine (DNS rebinding) names a host of its own. And a request that may change
something must come from a page of the server itself or of an allowed origin; the rule is that of
Go's `http.CrossOriginProtection`. Programs that are not browsers send neither `Origin` nor
`Sec-Fetch-Site` and notice nothing of the second rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

SAFE_METHODS: Final = frozenset({b"GET", b"HEAD", b"OPTIONS"})
_OWN_PAGES: Final = frozenset({b"same-origin", b"none"})  # `none`: a person did it, not a page


def is_loopback(name: str) -> bool:
    """Whether a host name or address, without a port, always means this machine."""
    name = name.lower().removesuffix(".")
    # RFC 6761: nobody can own a name below .localhost, and browsers look none up.
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def host_of(authority: str) -> str:
    """The host of `host:port`: lower case, without port, brackets and the root's dot."""
    name = authority.lower()
    if not name.startswith("["):
        return name.partition(":")[0].removesuffix(".")
    try:
        return ip_address(name[1:].partition("]")[0]).compressed
    except ValueError:
        return name


class HostRules:
    """The hosts a server answers for: those of loopback always, and the listed ones.

    Listed are names and addresses without ports; IPv6 addresses have no brackets.
    """

    def __init__(self, names: Iterable[str] = (), *, any_host: bool = False) -> None:
        self._any = any_host
        self._names = frozenset(name.lower().removesuffix(".") for name in names)

    def admits(self, host: bytes) -> bool:
        """`host` is the value of a Host header."""
        if self._any:
            return True
        name = host_of(host.decode("latin-1"))
        return name in self._names or is_loopback(name)


class OriginRules:
    """The origins whose pages may change something: the server's own and the listed ones."""

    def __init__(self, origins: Iterable[str] = ()) -> None:
        self._origins = frozenset(origin.encode() for origin in origins)
        self._any = b"*" in self._origins

    def admits(
        self, method: bytes, headers: Mapping[bytes, bytes], own_hosts: Iterable[bytes]
    ) -> bool:
        """`own_hosts`: what the client may have called the server, each with its port if any."""
        if self._any or method in SAFE_METHODS:
            return True
        origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site")
        if origin in self._origins:
            return True
        if site is not None:
            return site in _OWN_PAGES
        if origin is None:
            return True
        # Schemes are not compared: a proxy that ends TLS need not say so, and a page that could
        # be had under the server's own name without TLS is the operator's to prevent.
        authority = _authority(origin)
        return authority is not None and authority in {host.lower() for host in own_hosts}


def _authority(origin: bytes) -> bytes | None:
    """The host and port of an Origin header; None for `null` and anything that is not an origin."""
    try:
        return urlsplit(origin.lower()).netloc or None
    except ValueError:
        return None
