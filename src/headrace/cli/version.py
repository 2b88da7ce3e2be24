"""The version line, and whether this is the build whose append path is compiled to C."""

from __future__ import annotations

from importlib.util import find_spec

from headrace import __version__


def is_compiled() -> bool:
    found = find_spec("headrace.http.connection")
    return found is not None and not str(found.origin).endswith(".py")


def version_line() -> str:
    return f"headrace {__version__}{', compiled' if is_compiled() else ''}"
