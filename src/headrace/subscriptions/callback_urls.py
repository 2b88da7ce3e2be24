"""Where webhooks may go: the rules against requests forged on the server's side (SSRF).

A URL is taken apart here, strictly, and only the parts are used afterwards, so that no second
parser can read it another way. The address it leads to is checked twice: as written when a
subscription is created, and as resolved each time a webhook is sent; the connection then goes to
an address that was checked, whatever the name resolves to later.

Addresses are judged by the tables below (the IANA special-purpose registries), not by
`ipaddress.is_global`, whose answers differ between Python versions.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from ipaddress import (
    AddressValueError,
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
)
from typing import Final

from headrace.subscriptions.errors import Code, SubscriptionRefused

Address = IPv4Address | IPv6Address

URL_BYTES_MAX: Final = 2048  # what every proxy and browser takes
ADDRESSES_MAX: Final = 16  # tried of one name
DEFAULT_PORTS: Final = {"http": 80, "https": 443}

_URL: Final = re.compile(r"(https?)://([^/?#]*)([/?][^#]*)?", re.IGNORECASE)
_AUTHORITY: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]@]+)(?::([0-9]{1,5}))?")
_LABEL: Final = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\.?")
# What inet_aton takes for (part of) an address: 127.1, 0x7f.1, 2130706433, 0177.0.0.1.
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")


class AddressScope(Enum):
    """The kind of network an address belongs to."""

    PUBLIC = "the public internet"
    LOOPBACK = "this machine"
    PRIVATE = "a private network"
    LINK_LOCAL = "a link-local or metadata address"
    UNROUTABLE = "a reserved address"


_SETTINGS: Final = {
    AddressScope.LOOPBACK: "webhooks.allow_loopback",
    AddressScope.PRIVATE: "webhooks.allow_private",
}

_PRIVATE_4: Final = tuple(
    map(IPv4Network, ("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16",
                      "198.18.0.0/15"))
)  # fmt: skip
# Where clouds hand a machine its credentials; nothing there is anybody's webhook. The second is
# Alibaba's and lies among the private addresses, as does Amazon's for IPv6 below.
_LINK_LOCAL_4: Final = tuple(map(IPv4Network, ("169.254.0.0/16", "100.100.100.200/32")))
# 0.0.0.0 reaches this machine on Linux; the rest is for documentation, multicast or nothing yet.
_UNROUTABLE_4: Final = tuple(
    map(IPv4Network, ("0.0.0.0/8", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24",
                      "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"))
)  # fmt: skip
_LOOPBACK_4: Final = IPv4Network("127.0.0.0/8")
_PRIVATE_6: Final = tuple(map(IPv6Network, ("fc00::/7", "fec0::/10")))
_LINK_LOCAL_6: Final = tuple(map(IPv6Network, ("fe80::/10", "fd00:ec2::254/128")))
_PUBLIC_6: Final = IPv6Network("2000::/3")
# 2001::/23 holds Teredo and 2002::/16 is 6to4: both carry an IPv4 address inside.
_UNROUTABLE_6: Final = tuple(
    map(IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"))
)
_NAT64: Final = IPv6Network("64:ff9b::/96")


def scope_of(address: Address) -> AddressScope:
    if isinstance(address, IPv4Address):
        return _scope_of_4(address)
    if address in _NAT64:
        # Where a network has no IPv4, its resolver gives public IPv4 hosts such addresses.
        inner = _scope_of_4(IPv4Address(int(address) & 0xFFFFFFFF))
        return inner if inner is AddressScope.PUBLIC else AddressScope.UNROUTABLE
    if address == IPv6Address("::1"):
        return AddressScope.LOOPBACK
    if any(address in network for network in _LINK_LOCAL_6):
        return AddressScope.LINK_LOCAL
    if any(address in network for network in _PRIVATE_6):
        return AddressScope.PRIVATE
    if address not in _PUBLIC_6 or any(address in network for network in _UNROUTABLE_6):
        return AddressScope.UNROUTABLE
    return AddressScope.PUBLIC


def _scope_of_4(address: IPv4Address) -> AddressScope:
    if address in _LOOPBACK_4:
        return AddressScope.LOOPBACK
    if any(address in network for network in _LINK_LOCAL_4):
        return AddressScope.LINK_LOCAL
    if any(address in network for network in _PRIVATE_4):
        return AddressScope.PRIVATE
    if any(address in network for network in _UNROUTABLE_4):
        return AddressScope.UNROUTABLE
    return AddressScope.PUBLIC


@dataclass(frozen=True, slots=True)
class TargetRules:
    """What the operator allows beyond the public internet."""

    allow_loopback: bool = False
    allow_private: bool = False

    def admits(self, address: Address) -> bool:
        match scope_of(address):
            case AddressScope.PUBLIC:
                return True
            case AddressScope.LOOPBACK:
                return self.allow_loopback
            case AddressScope.PRIVATE:
                return self.allow_private
            case AddressScope.LINK_LOCAL | AddressScope.UNROUTABLE:
                return False


@dataclass(frozen=True, slots=True)
class WebhookTarget:
    """A webhook URL in parts. `host` is lower case and has no brackets."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """The Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def address(self) -> Address | None:
        """The address, if the URL holds one instead of a name."""
        try:
            return ip_address(self.host)
        except ValueError:
            return None


def parse_target(url: str, rules: TargetRules) -> WebhookTarget:
    """The target of a URL, as far as it can be judged as written; else WEBHOOK_URL_REJECTED."""
    if len(url) > URL_BYTES_MAX:
        raise _rejected(f"it is longer than {URL_BYTES_MAX} bytes")
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise _rejected("it holds characters that must be percent-encoded")
    parts = _URL.fullmatch(url)
    if parts is None:
        raise _rejected("it is not an https URL without a fragment")
    scheme = parts[1].lower()
    authority = _AUTHORITY.fullmatch(parts[2])
    if "@" in parts[2] or authority is None:
        raise _rejected("between // and / there must be a host and perhaps a port, nothing else")
    port = int(authority[2]) if authority[2] else DEFAULT_PORTS[scheme]
    if not 0 < port < 65536:
        raise _rejected(f"there is no port {port}")
    path = parts[3] or "/"
    target = WebhookTarget(
        scheme, _parse_host(authority[1]), port, path if path[0] == "/" else f"/{path}"
    )
    _check_as_written(target, rules)
    return target


def _parse_host(text: str) -> str:
    if text.startswith("["):
        try:
            return IPv6Address(text[1:-1]).compressed
        except AddressValueError:
            raise _rejected("its IPv6 address is not valid") from None
    host = text.lower()
    if _NAME.fullmatch(host) is None or len(host) > 253:
        raise _rejected("its host is neither a name nor an address")
    if _NUMBER.fullmatch(host.rstrip(".").rpartition(".")[2]):
        try:
            return str(IPv4Address(host))
        except AddressValueError:
            raise _rejected("an IPv4 address is written as four decimal numbers") from None
    return host


def _check_as_written(target: WebhookTarget, rules: TargetRules) -> None:
    address = target.address
    name = target.host.rstrip(".")
    is_localhost = name == "localhost" or (
        address is not None and scope_of(address) is AddressScope.LOOPBACK
    )
    if target.scheme == "http" and not is_localhost:
        raise _rejected("http is for localhost only, everything else needs https")
    if (is_localhost or name.endswith(".localhost")) and not rules.allow_loopback:
        raise _forbidden(AddressScope.LOOPBACK, target.host)
    if address is not None:
        check_addresses(target, [address], rules)


def check_addresses(
    target: WebhookTarget, addresses: Sequence[Address], rules: TargetRules
) -> None:
    """Refuse the target if any address it leads to is refused: a name that has one good and one
    bad address is an attack, or may become one with the next lookup."""
    for address in addresses:
        if not rules.admits(address):
            raise _forbidden(scope_of(address), str(address))
        if target.scheme == "http" and scope_of(address) is not AddressScope.LOOPBACK:
            raise _rejected(f"http is for localhost only, and it leads to {address}")


async def resolve(
    target: WebhookTarget, rules: TargetRules, loop: asyncio.AbstractEventLoop
) -> list[Address]:
    """The addresses a webhook may be sent to now, all of them checked."""
    address = target.address
    if address is not None:
        addresses: list[Address] = [address]
    else:
        found = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        texts = dict.fromkeys(str(info[4][0]).partition("%")[0] for info in found)
        addresses = [ip_address(text) for text in texts]
    check_addresses(target, addresses, rules)
    return addresses[:ADDRESSES_MAX]


def _forbidden(where: AddressScope, host: str) -> SubscriptionRefused:
    setting = _SETTINGS.get(where)
    remedy = "" if setting is None else f". It is allowed where the server has {setting} = true"
    return _rejected(f"it leads to {where.value}, {host}{remedy}")


def _rejected(reason: str) -> SubscriptionRefused:
    return SubscriptionRefused(Code.WEBHOOK_URL_REJECTED, f"webhook.url cannot be used: {reason}.")
