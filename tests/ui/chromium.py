"""A Chromium for the tests: the machine's own, or Debian's, unpacked beside the tests.

`python -m tests.ui.chromium` finds one or fetches one; nothing is installed on the machine and no
rights are needed: apt works in a directory of its own, and the packages are only unpacked. Where
that is impossible it says why, and the browser tests are skipped with the same sentence.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
UNPACKED = HERE / ".chromium"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FETCH_TIMEOUT_SECS = 600
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
    libraries = sorted({str(path.parent) for path in UNPACKED.rglob("*.so*")})
    paths = [*libraries, os.environ.get("LD_LIBRARY_PATH", "")]
    return os.environ | {
        "LD_LIBRARY_PATH": ":".join(filter(None, paths)),
        "XDG_DATA_HOME": str(UNPACKED / "usr/share"),
    }


def fetch() -> None:
    """Unpack Debian's Chromium and the libraries this machine lacks into UNPACKED."""
    work = HERE / ".chromium.part"
    shutil.rmtree(work, ignore_errors=True)
    for directory in ("lists/partial", "cache/archives/partial", "root"):
        (work / directory).mkdir(parents=True)
    apt = [
        "apt-get",
        "--quiet",
        *("-o", f"Dir::State::lists={work / 'lists'}"),
        *("-o", f"Dir::Cache={work / 'cache'}"),
        *("-o", "Debug::NoLocking=1"),
        *("-o", "APT::Sandbox::User="),
    ]
    _run([*apt, "update"])
    _run([*apt, "install", "--yes", "--download-only", "--no-install-recommends", *PACKAGES])
    for package in sorted((work / "cache/archives").glob("*.deb")):
        _run(["dpkg", "-x", str(package), str(work / "root")])
    (work / "root").rename(UNPACKED)
    shutil.rmtree(work)


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=FETCH_TIMEOUT_SECS)


def main() -> None:
    if find() is not None:
        return
    try:
        fetch()
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        print(f"{MISSING}: {said.strip()}")


if __name__ == "__main__":
    main()
