"""Kinds of value: what a setting may be, in words and as a parser."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Generic, Literal, TypeVar
from urllib.parse import urlsplit

from headrace.errors import InvalidRequest
from headrace.logs import FILTER_ALLOWED, parse_filter
from headrace.protocol.headers import parse_content_type, parse_ttl

T = TypeVar("T")

AUTO = "auto"  # the value follows other settings; the help of each such setting says how
LOOPBACK = "loopback"  # among trusted proxies: 127.0.0.0/8 and ::1
SECONDS_MAX = 86_400.0  # a day: nothing here should wait longer, and timers overflow at some point
INTEGER_MAX = 2**63 - 1  # TOML's own bound


@dataclass(frozen=True)
class ValueKind(Generic[T]):
    """A set of values: in words, and as a function from TOML values and strings into it.

    `parse` raises ValueError or TypeError for anything else, and returns its own results unchanged.
    """

    allowed: str
    parse: Callable[[object], T]


def _text(raw: object) -> str:
    if not isinstance(raw, str):
        raise TypeError("not a string")
    return raw.strip()


def whole(low: int, high: int = INTEGER_MAX) -> ValueKind[int]:
    """Integers from low to high, written in decimal digits."""

    def parse(raw: object) -> int:
        if isinstance(raw, str) and re.fullmatch(r"[0-9]{1,19}", raw.strip()):
            raw = int(raw)
        if not isinstance(raw, int) or isinstance(raw, bool) or not low <= raw <= high:
            raise ValueError("out of range")
        return raw

    upper = f"from {low} to {high}" if high != INTEGER_MAX else f"of at least {low}"
    return ValueKind(f"a whole number {upper}", parse)


def or_auto(kind: ValueKind[T]) -> ValueKind[T | Literal["auto"]]:
    """Also the word auto: the value then follows another setting."""

    def parse(raw: object) -> T | Literal["auto"]:
        if isinstance(raw, str) and raw.strip().lower() == AUTO:
            return "auto"
        return kind.parse(raw)

    return ValueKind(f"{kind.allowed}, or auto", parse)


def seconds(*, zero: bool) -> ValueKind[float]:
    """A duration; fractions are fine."""

    def parse(raw: object) -> float:
        if isinstance(raw, str) and re.fullmatch(r"[0-9]+(\.[0-9]+)?|\.[0-9]+", raw.strip()):
            raw = float(raw)
        if not isinstance(raw, int | float) or isinstance(raw, bool) or not math.isfinite(raw):
            raise ValueError("not a number")
        if not 0 <= raw <= SECONDS_MAX or (raw == 0 and not zero):
            raise ValueError("out of range")
        return float(raw)

    lower = "from 0" if zero else "above 0 and"
    return ValueKind(
        f"a number of seconds {lower} up to {SECONDS_MAX:.0f}, fractions allowed", parse
    )


def words(*allowed: str, also: Mapping[str, str] | None = None) -> ValueKind[str]:
    """One of a few words; `also` maps other spellings to them."""
    spellings = {word: word for word in allowed} | dict(also or {})

    def parse(raw: object) -> str:
        if isinstance(raw, bool | int):
            raw = str(raw).lower()
        word = _text(raw).lower()
        if word not in spellings:
            raise ValueError("not one of the words")
        return spellings[word]

    return ValueKind(f"one of {', '.join(spellings)}", parse)


def _flag(raw: object) -> bool:
    word = str(raw).strip().lower() if isinstance(raw, str | int) else ""
    if word not in ("true", "false", "1", "0"):
        raise ValueError("not a boolean")
    return word in ("true", "1")


def optional(kind: ValueKind[T]) -> ValueKind[T | None]:
    """Also unset, which is written as the empty string."""

    def parse(raw: object) -> T | None:
        unset = raw is None or (isinstance(raw, str) and not raw.strip())
        return None if unset else kind.parse(raw)

    return ValueKind(f"{kind.allowed}, or empty for none", parse)


def _items(raw: object) -> list[object]:
    if isinstance(raw, str):
        return [item.strip() for item in raw.split(",") if item.strip()]
    if isinstance(raw, list | tuple):
        return list(raw)
    raise TypeError("not a list")


def _host(raw: object) -> str:
    host = _text(raw)
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if ":" in bare or re.fullmatch(r"[0-9.]+", bare):
        return str(ip_address(bare))
    if not re.fullmatch(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?", bare):
        raise ValueError("not a host name")
    return bare


def _public_url(raw: object) -> str:
    url = _text(raw).rstrip("/")
    parts = urlsplit(url)
    port_is_fine = parts.port is None or parts.port > 0  # .port raises ValueError above 65535
    plain = re.fullmatch(r"[!-~]+", url) and not re.search(r"[?#@\\\"<>]", url)
    if parts.scheme not in ("http", "https") or not parts.hostname or not plain or not port_is_fine:
        raise ValueError("not an absolute URL")
    return url


def _path_root(raw: object) -> str:
    root = _text(raw)
    segment = r"/[A-Za-z0-9_~-][A-Za-z0-9._~-]*"  # a leading dot is refused: no `.` and no `..`
    if not re.fullmatch(f"({segment})+", root):
        raise ValueError("not a plain path")
    return root


def _any_root(raw: object) -> str:
    return "/" if _text(raw) == "/" else _path_root(raw)


def _any_roots(raw: object) -> tuple[str, ...]:
    return tuple(_any_root(item) for item in _items(raw))


def _by_prefix(check: Callable[[bytes], object]) -> Callable[[object], tuple[str, ...]]:
    def parse(raw: object) -> tuple[str, ...]:
        items = [f"{k}={v}" for k, v in raw.items()] if isinstance(raw, Mapping) else _items(raw)
        return tuple(_pair(_text(item), check) for item in items)

    return parse


def _pair(text: str, check: Callable[[bytes], object]) -> str:
    prefix, _, value = map(str.strip, text.partition("="))
    if not prefix or not value.isascii():
        raise ValueError("not a prefix and a value")
    try:
        check(value.encode())
    except InvalidRequest as refusal:
        raise ValueError(refusal.detail) from None
    return f"{prefix}={value}"


def _origins(raw: object) -> tuple[str, ...]:
    origins = tuple(_origin(item) for item in _items(raw))
    if "*" in origins and len(origins) > 1:
        raise ValueError("* cannot be combined")
    return origins


def _origin(raw: object) -> str:
    origin = _text(raw).lower()
    if origin == "*":
        return origin
    if not re.fullmatch(r"[a-z][a-z0-9+.-]*://[a-z0-9._\[\]:-]+", origin):
        raise ValueError("not an origin")
    _ = urlsplit(origin).port  # raises ValueError for a port that cannot be
    # Browsers leave the scheme's own port out of Origin; an entry that names it would never match.
    return re.sub(r"^(http://.+):80$|^(https://.+):443$", r"\1\2", origin)


def _allowed_hosts(raw: object) -> tuple[str, ...]:
    hosts = tuple(_allowed_host(item) for item in _items(raw))
    if not hosts or (len(hosts) > 1 and {AUTO, "*"} & set(hosts)):
        raise ValueError("auto and * cannot be combined")
    return hosts


def _allowed_host(raw: object) -> str:
    text = _text(raw).lower()
    return text if text in (AUTO, "*") else _host(text)


def _networks(raw: object) -> tuple[str, ...]:
    texts = [_text(item).lower() for item in _items(raw)]
    return tuple(t if t == LOOPBACK else str(ip_network(t)) for t in texts)


def _file_path(raw: object) -> Path:
    text = str(raw) if isinstance(raw, Path) else _text(raw)
    if not text or "\0" in text:
        raise ValueError("not a path")
    return Path(text)


def _log_filter(raw: object) -> str:
    text = _text(raw)
    parse_filter(text)
    return text


def _power_of_two(raw: object) -> int:
    number = whole(1, 256).parse(raw)
    if number.bit_count() != 1:
        raise ValueError("not a power of two")
    return number


COUNT = whole(1)
COUNT_OR_OFF = whole(0)
SECONDS = seconds(zero=False)
SECONDS_OR_OFF = seconds(zero=True)
FLAG = ValueKind("true or false (or 1 or 0)", _flag)
HOST = ValueKind("a host name or an IP address", _host)
PUBLIC_URL = ValueKind("an absolute http or https URL without a query", _public_url)
PATH_ROOT = ValueKind("an absolute path such as /v1/stream, without a slash at the end", _path_root)
BUCKET_ROOT = ValueKind("/ or a path such as /buckets, without a slash at the end", _any_root)
TTLS_BY_PREFIX = ValueKind(
    "a list of prefix=seconds, such as chat/=86400; * is every name", _by_prefix(parse_ttl)
)
CONTENT_TYPES_BY_PREFIX = ValueKind(
    "a list of prefix=type, such as chat/=application/json; * is every name",
    _by_prefix(parse_content_type),
)
PATH_ROOTS = ValueKind("a list of / and of paths such as /v1/streams", _any_roots)
FILE_PATH = ValueKind("a path", _file_path)
LOG_FILTER = ValueKind(FILTER_ALLOWED, _log_filter)
POWER_OF_TWO = ValueKind("a power of two from 1 to 256", _power_of_two)
ORIGINS = ValueKind(
    "* alone, or a list of origins such as https://app.example.com, no path; empty for none",
    _origins,
)
ALLOWED_HOSTS = ValueKind(
    "auto, * for any, or a list of host names and addresses without ports", _allowed_hosts
)
NETWORKS = ValueKind("a list of IP addresses, CIDRs such as 10.0.0.0/8, or loopback", _networks)
STORAGE_MODE = words("memory", "file-fast", "file-durable", "acid", also={"redb": "acid"})
