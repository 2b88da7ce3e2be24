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
from tempfile import TemporaryDirectory

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
    directory.mkdir(parents=True, exist_ok=True)
    # A directory for each call: two processes may fetch the same packages at the same time.
    with TemporaryDirectory(dir=directory, prefix="fetch-", ignore_cleanup_errors=True) as name:
        archives, partial = Path(name, "packages"), Path(name, "root")
        archives.mkdir()
        try:
            _run("apt-get", "-o", "APT::Sandbox::User=", "download", *packages, cwd=archives)
            for archive in archives.glob("*.deb"):
                _run("dpkg", "-x", str(archive), str(partial), cwd=archives)
            _move(partial, root)
        except (OSError, subprocess.SubprocessError) as error:
            logger.warning("%s cannot be fetched: %s", packages[0], error)
            return None
    return root


def _move(partial: Path, root: Path) -> None:
    """Rename, unless another process was faster: its files are the same."""
    try:
        partial.rename(root)
    except OSError:
        if not root.exists():
            raise


def _run(*command: str, cwd: Path) -> None:
    subprocess.run(command, cwd=cwd, check=True, capture_output=True, timeout=DOWNLOAD_SECS)
