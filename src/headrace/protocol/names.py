"""Stream names: what a URL path may name, and how a name is written back into a URL.

A name is the percent-decoded UTF-8 path below the stream root, so `a%2Fb` and `a/b` are the same
stream. Names whose first segment begins with `__ds` belong to the protocol's control resources.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote, unquote_to_bytes, urlsplit

from headrace.errors import InvalidName, InvalidRequest
from headrace.limits import STREAM_NAME_BYTES_MAX

CONTROL_PREFIX: Final = "__ds"
OWN_NAMES: Final = ("healthz", "readyz", "metrics", "openapi.json", "ui")
"""First segments of paths that the server answers itself: no bucket and no alias has one."""
REGISTRY_NAME: Final = "__registry__"
_URL_SAFE = "/-._~!$'()*+,:;=@"
# Expressions, not loops over characters: one request may bring a megabyte of names.
_EMPTY_SEGMENT = re.compile(r"(?:\A|/)\.{0,2}(?:/|\Z)")
_CONTROL_CHARACTER = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def decode_name(raw: str) -> str:
    """The stream name behind the raw URL path `raw` (relative to the stream root)."""
    try:
        name = unquote_to_bytes(raw).decode("utf-8") if "%" in raw else raw
    except UnicodeDecodeError:
        raise InvalidName("The stream name is not UTF-8 once percent-decoded.") from None
    check_name(name)
    return name


def check_name(name: str) -> None:
    if not name:
        raise InvalidName("The URL does not name a stream.")
    if len(name.encode("utf-8", "surrogatepass")) > STREAM_NAME_BYTES_MAX:
        raise InvalidName(f"The stream name exceeds {STREAM_NAME_BYTES_MAX} bytes.")
    if _EMPTY_SEGMENT.search(name) is not None:
        raise InvalidName("A stream name must not contain empty, '.' or '..' segments.")
    if _CONTROL_CHARACTER.search(name) is not None:
        raise InvalidName("A stream name must not contain control characters.")


def is_name_character(character: str) -> bool:
    return (
        character >= " "
        and not "\x7f" <= character <= "\x9f"
        and not ("\ud800" <= character <= "\udfff")
    )


def encode_name(name: str) -> str:
    """`name` encoded for a URL path."""
    return quote(name, safe=_URL_SAFE)


def path_of(reference: str) -> str:
    """The path of a URL, or the path that `reference` is already."""
    try:
        return urlsplit(reference).path if "://" in reference else reference
    except ValueError:
        return ""


def decode_source(value: str, stream_roots: Sequence[str]) -> str:
    """The stream behind a Stream-Forked-From path; a full URL is taken by its path.

    The first of `stream_roots` that the path is below counts.
    """
    path = path_of(value)
    for root in stream_roots:
        if path.startswith(f"{root}/"):
            return decode_name(path.removeprefix(f"{root}/"))
    raise InvalidRequest(
        f"Stream-Forked-From must be a stream's path, such as {stream_roots[0]}/source."
    )


def is_reserved(name: str) -> bool:
    """Whether the first segment of `name` belongs to the protocol's control resources."""
    return name.startswith(CONTROL_PREFIX)
