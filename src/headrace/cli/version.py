"""The version line of the command."""

from __future__ import annotations

from headrace import __version__
from headrace.build_info import is_compiled


def version_line() -> str:
    return f"headrace {__version__}{', compiled' if is_compiled() else ''}"
