"""Reading header values strictly: integers, times, media types, flags.

Every function takes the raw value and returns a typed one or raises InvalidRequest with a
sentence that names the header.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NoReturn

from headrace.errors import InvalidRequest
from headrace.limits import CONTENT_TYPE_BYTES_MAX, INTEGER_MAX, TTL_SECS_MAX

Headers = dict[bytes, bytes]
"""Lower-case names to values; repeated fields are joined by a comma."""

DEFAULT_CONTENT_TYPE = "application/octet-stream"
JSON = "application/json"
_ZERO = ord("0")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_MS_MAX = 253_402_300_799_999  # the last moment of the year 9999
_INTEGER_DIGITS_MAX = len(str(INTEGER_MAX))  # int() of a megabyte of digits takes minutes
_RFC3339 = re.compile(
    r"(\d{4}-\d{2}-\d{2})[Tt](\d{2}:\d{2}:\d{2})(\.\d+)?([Zz]|[+-]\d{2}:\d{2})", re.ASCII
)
_MEDIA_TYPE = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+/[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def is_true(value: bytes | None) -> bool:
    """The protocol's flag rule: exactly `true` in any case; everything else is absent."""
    return value is not None and value.lower() == b"true"


def parse_integer(name: str, value: bytes, maximum: int = INTEGER_MAX) -> int:
    """A non-negative decimal integer, without sign or leading zeros."""
    if value.isdigit() and (value[0] != _ZERO or len(value) == 1):
        if len(value) > _INTEGER_DIGITS_MAX or (number := int(value)) > maximum:
            raise InvalidRequest(f"{name} must not exceed {maximum}.")
        return number
    raise InvalidRequest(
        f"{name} must be a non-negative integer in plain decimal notation, not {show(value)}."
    )


def parse_ttl(value: bytes) -> int:
    return parse_integer("Stream-TTL", value, TTL_SECS_MAX)


def parse_expires_at(value: bytes) -> int:
    """An RFC 3339 time as milliseconds since the Unix epoch."""
    match = _RFC3339.fullmatch(value.decode("latin-1"))
    if match is not None:
        date, clock, fraction, zone = match.groups()
        zone = "+00:00" if zone in "Zz" else zone
        text = f"{date}T{clock}{(fraction or '.0')[:7]}{zone}"
        try:
            moment = datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%f%z")
        except ValueError:
            return _refuse_time(value)
        moment_ms = (moment - _EPOCH) // timedelta(milliseconds=1)
        if moment_ms <= _TIME_MS_MAX:
            return moment_ms
    return _refuse_time(value)


def _refuse_time(value: bytes) -> NoReturn:
    raise InvalidRequest(
        f"Stream-Expires-At must be an RFC 3339 time such as 2030-01-01T00:00:00Z, "
        f"not {show(value)}."
    )


def format_time(moment_ms: int) -> str:
    """RFC 3339 with milliseconds, in UTC."""
    moment = _EPOCH + timedelta(milliseconds=moment_ms)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment_ms % 1000:03d}Z"


@lru_cache(maxsize=256)
def media_type(content_type: str) -> str:
    """What two content types are compared by: type and subtype, lower case, no parameters."""
    return content_type.partition(";")[0].strip().lower()


def is_json(content_type: str) -> bool:
    """Whether a stream of this content type is one of JSON messages."""
    return media_type(content_type) == JSON


@lru_cache(maxsize=256)
def parse_content_type(value: bytes) -> str:
    """The header as sent, once it is known to hold a media type."""
    text = value.decode("latin-1").strip()
    well_formed = text.isascii() and _MEDIA_TYPE.fullmatch(text.partition(";")[0].strip())
    if not well_formed or len(value) > CONTENT_TYPE_BYTES_MAX:
        raise InvalidRequest(
            f"Content-Type must be a media type such as {JSON}, not {show(value)}."
        )
    return text


def show(value: bytes) -> str:
    """A header value, made safe for an error message."""
    return repr(value[:64].decode("utf-8", "backslashreplace"))
