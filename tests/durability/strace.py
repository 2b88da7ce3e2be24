"""strace, with which a sync fails for real: the machine's own, or Debian's, unpacked here.

`python -m tests.durability.strace` finds one or fetches one.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests import debian

UNPACKED = Path(__file__).parent / ".strace"
MISSING = "no strace: none on the PATH, and none could be fetched with apt"


def find() -> Path | None:
    own = shutil.which("strace")
    if own is not None:
        return Path(own)
    fetched = UNPACKED / "usr/bin/strace"
    return fetched if fetched.exists() else None


def environment() -> dict[str, str]:
    return debian.environment(UNPACKED) if UNPACKED.exists() else dict(os.environ)


if __name__ == "__main__" and find() is None:
    try:
        debian.unpack(UNPACKED, "strace")
    except debian.CannotFetch as reason:
        print(f"{MISSING}: {reason}")
