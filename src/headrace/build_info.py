"""Whether this is the compiled build, for the command line and for metrics."""

from __future__ import annotations

from importlib.util import find_spec


def is_compiled() -> bool:
    """Whether the path of an append runs as C extensions, or from the Python sources."""
    found = find_spec("headrace.http.connections.connection")
    return found is not None and not str(found.origin).endswith(".py")
