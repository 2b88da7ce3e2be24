"""Which build this is: the Python sources, or those with the path of an append compiled to C."""

from __future__ import annotations

from importlib.util import find_spec

from headrace import __version__


def is_compiled() -> bool:
    found = find_spec("headrace.http.connection")
    return found is not None and not str(found.origin).endswith(".py")


def version_line() -> str:
    return f"headrace {__version__}{', compiled' if is_compiled() else ''}"
