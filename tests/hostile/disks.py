"""File systems of their own for tests: a small one, and one that turns read-only under a server."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

DISK_BYTES = 64 * 1024 * 1024
EXT4 = Path("/sys/fs/ext4")


def mount(path: Path, *options: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a disk needs root")
    mounted = subprocess.run(["mount", *options, str(path)], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"a disk cannot be mounted here: {mounted.stderr.strip()}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 64 MiB."""
    path = tmp_path / "small"
    path.mkdir()
    mount(path, "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "headrace")
    yield path
    subprocess.run(["umount", str(path)], check=True)


class FailingDisk:
    """An ext4 image that its kernel makes read-only when it meets an error; mounted at `path`."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "failing"
        self._image = directory / "failing.img"

    def make(self) -> None:
        with self._image.open("wb") as image:
            image.truncate(DISK_BYTES)
        made = subprocess.run(["mkfs.ext4", "-q", "-F", str(self._image)], capture_output=True)
        if made.returncode != 0:
            pytest.skip(f"no ext4 image can be made here: {made.stderr.decode().strip()}")
        self.path.mkdir()
        self.mount()

    def mount(self) -> None:
        mount(self.path, "-o", "loop,errors=remount-ro", str(self._image))

    def fail(self) -> None:
        """The kernel's own switch for it: `mount -o remount,ro` waits for open files."""
        source = ["findmnt", "--noheadings", "--output", "SOURCE", str(self.path)]
        device = subprocess.run(source, check=True, capture_output=True, text=True).stdout.strip()
        switch = EXT4 / Path(device).name / "trigger_fs_error"
        if not switch.exists():
            pytest.skip(f"this kernel has no {switch}")
        switch.write_text("a test\n")

    def repair(self) -> None:
        """As an operator would. Nobody may have files open there."""
        self.unmount()
        # 1 says that errors were corrected.
        done = subprocess.run(["fsck.ext4", "-p", "-f", str(self._image)], capture_output=True)
        assert done.returncode in (0, 1), done.stdout
        self.mount()

    def unmount(self) -> None:
        subprocess.run(["umount", str(self.path)], check=True)


@pytest.fixture
def failing_disk(tmp_path: Path) -> Iterator[FailingDisk]:
    disk = FailingDisk(tmp_path)
    disk.make()
    yield disk
    disk.unmount()
