"""Programs of Debian's for the tests, unpacked beside them.

Nothing is installed on the machine and no rights are needed: apt works in a directory of its own,
and the packages are only unpacked.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

_TIMEOUT_SECS = 600


class CannotFetch(Exception):
    """What apt said."""


def unpack(into: Path, *packages: str) -> None:
    """Packages and the libraries this machine lacks, below `into`; whole or not at all."""
    work = into.with_name(f"{into.name}.part")
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
    try:
        _run([*apt, "update"])
        _run([*apt, "install", "--yes", "--download-only", "--no-install-recommends", *packages])
        for package in sorted((work / "cache/archives").glob("*.deb")):
            _run(["dpkg", "-x", str(package), str(work / "root")])
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise CannotFetch(said.strip()) from error
    (work / "root").rename(into)
    shutil.rmtree(work)


def environment(unpacked: Path) -> dict[str, str]:
    """What a program in `unpacked` needs to find its libraries."""
    libraries = sorted({str(path.parent) for path in unpacked.rglob("*.so*")})
    paths = [*libraries, os.environ.get("LD_LIBRARY_PATH", "")]
    return os.environ | {"LD_LIBRARY_PATH": ":".join(filter(None, paths))}


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_SECS)
