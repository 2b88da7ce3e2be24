"""A Chromium for the tests: the machine's own, or Debian's, unpacked beside the tests.

`python -m tests.ui.chromium` finds one or fetches one. Where that is impossible it says why, and
the browser tests are skipped with the same sentence.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests import debian

HERE = Path(__file__).parent
UNPACKED = HERE / ".chromium"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# The browser's text should look the same wherever its screenshots are taken.
PACKAGES = ("chromium", "fonts-inter", "fonts-jetbrains-mono")
MISSING = (
    "no Chromium: none on the PATH, none in $CHROMIUM, and none could be fetched with apt; "
    "the browser tests are skipped (set CHROMIUM=/path/to/chromium)"
)


def find() -> Path | None:
    """The browser to use, or None."""
    named = os.environ.get("CHROMIUM")
    if named:
        return Path(named)
    binary = UNPACKED / "usr/lib/chromium/chromium"
    if binary.exists():
        return binary
    return next((Path(found) for name in NAMES if (found := shutil.which(name))), None)


def environment() -> dict[str, str]:
    """What an unpacked browser needs to find its libraries and fonts."""
    if find() != UNPACKED / "usr/lib/chromium/chromium":
        return dict(os.environ)
    return debian.environment(UNPACKED) | {"XDG_DATA_HOME": str(UNPACKED / "usr/share")}


def main() -> None:
    if find() is not None:
        return
    try:
        debian.unpack(UNPACKED, *PACKAGES)
    except debian.CannotFetch as reason:
        print(f"{MISSING}: {reason}")


if __name__ == "__main__":
    main()
