"""Programs from Debian's packages without installing anything: fetched by name and unpacked.

Nothing outside the given directory is touched and no rights are needed. Where that cannot be done
(no apt, no network) `unpacked` says None, and its caller does without.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

DOWNLOAD_SECS = 120
logger = logging.getLogger(__name__)


def unpacked(packages: Sequence[str], directory: Path) -> Path | None:
    """Where the packages' files are, from an earlier call or this one."""
    root = directory / "root"
    if root.exists():
        return root
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        logger.warning("no apt-get and dpkg here: %s cannot be fetched", packages[0])
        return None
    archives = directory / "packages"
    archives.mkdir(parents=True, exist_ok=True)
    partial = directory / "root.tmp"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        _run("apt-get", "-o", "APT::Sandbox::User=", "download", *packages, cwd=archives)
        for archive in archives.glob("*.deb"):
            _run("dpkg", "-x", str(archive), str(partial), cwd=archives)
        partial.rename(root)
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("%s cannot be fetched: %s", packages[0], error)
        return None
    shutil.rmtree(archives, ignore_errors=True)
    return root


def _run(*command: str, cwd: Path) -> None:
    subprocess.run(command, cwd=cwd, check=True, capture_output=True, timeout=DOWNLOAD_SECS)
