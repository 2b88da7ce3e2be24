"""Which tests one process runs: those that share something that takes long to start.

A scheduler of our own, because xdist's reads its groups from an attribute that pytest 9.2 no longer
has, and says nothing: every process then started a Spark, a Postgres and a stack, and each fought
the whole of every campaign.
"""

from __future__ import annotations

import re

from xdist.scheduler import LoadScopeScheduling

TOGETHER = ("conformance", "examples", "postgres", "shapes", "spark", "stack", "ui")
# Files whose tests look at a long campaign, one for each storage mode.
CAMPAIGNS = ("durability/test_kill.py", "durability/test_live.py")
# Files whose many tests share a server: it takes long to fill, or has settings of its own.
FILES = (
    "hostile/test_loop_stalls.py",
    "hostile/test_mixed_tenants.py",
    "http/test_openapi.py",
    "http/test_openapi_fuzz.py",
)
_TEST = re.compile(r"tests/(?P<file>(?P<folder>\w+)/[^:]*)::[^\[]*(\[(?P<mode>file-\w+|\w+))?")


def group_of(nodeid: str) -> str:
    """Tests of one group run in one process; most tests are a group of their own."""
    found = _TEST.match(nodeid)
    if found is not None and found["folder"] in TOGETHER:
        return found["folder"]
    if found is not None and found["file"] in CAMPAIGNS:
        return f"{found['file']} {found['mode']}"
    if found is not None and found["file"] in FILES:
        return str(found["file"])
    return nodeid


class Together(LoadScopeScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
