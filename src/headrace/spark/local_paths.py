"""Where files are: a path, or a URL of the scheme `file`. Every other scheme is refused by name.

Taken for a path, `s3://bucket/table` would be a directory called `s3:` on this machine.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.*)")
_FILE_URL: Final = re.compile(r"file:(?://(?P<host>[^/]*))?(?P<path>/.*)", re.IGNORECASE)
_THIS_MACHINE: Final = ("", "localhost")


class PlaceError(ValueError):
    """A place that this package cannot write to or read from."""


def local_path(name: str, place: str, *, other: str = "") -> Path:
    """The path of `place`, which `name` was set to. As in Spark, `%20` is not decoded.

    `other` is what else would do there, for the sentence of a refusal.
    """
    if _URL.match(place) is None:
        return Path(place)
    found = _FILE_URL.fullmatch(place)
    if found is None:
        scheme = place.partition(":")[0]
        raise PlaceError(
            f"{name}: {place!r} has the scheme {scheme}, which is not supported here. Give a "
            f"directory of this machine, such as /path or file:///path{other}; an object store can "
            "be mounted as one."
        )
    if (found["host"] or "").lower() not in _THIS_MACHINE:
        raise PlaceError(f"{name}: {place!r} is on {found['host']}. Write file:/// and the path.")
    return Path(found["path"])
