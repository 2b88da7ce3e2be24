"""A power cut: an ext4 image on a loop device whose file system is shut down without a flush.

What was not synced is gone afterwards, as with the machine's power. Needs root and loop devices.
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Final

_GOING_DOWN: Final = 0x8004587D  # _IOR('X', 125, __u32): XFS's own, which ext4 honours too
_WITHOUT_LOG_FLUSH: Final = 2
IMAGE_BYTES: Final = 256 * 1024 * 1024


class CannotCutPower(Exception):
    """This machine does not let us mount an image; says why."""


class PowerCutDisk:
    """A file system of its own, mounted at `path`; use it as a context manager."""

    def __init__(self, directory: Path, image_bytes: int = IMAGE_BYTES) -> None:
        self.path = directory / "mounted"
        self._image = directory / "disk.img"
        self._image_bytes = image_bytes

    def __enter__(self) -> PowerCutDisk:
        if os.geteuid() != 0:
            raise CannotCutPower("mounting an image needs root")
        self.path.mkdir()
        with self._image.open("wb") as image:
            image.truncate(self._image_bytes)
        _run("mkfs.ext4", "-q", "-F", str(self._image))
        self._mount()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _run("umount", str(self.path))

    def cut(self) -> None:
        """From here on nothing reaches the disk; what was not synced never will."""
        fd = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, _GOING_DOWN, struct.pack("I", _WITHOUT_LOG_FLUSH))
        finally:
            os.close(fd)

    def restore(self) -> None:
        """Power is back: mount again what the disk holds. No process may have files open there."""
        _run("umount", str(self.path))
        self._mount()

    def _mount(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self.path))


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise CannotCutPower(f"{command[0]} is not installed") from None
    except subprocess.CalledProcessError as error:
        raise CannotCutPower(f"{' '.join(command)}: {error.stderr.strip()}") from None
