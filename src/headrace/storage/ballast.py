"""A file that reserves some room, to be released when the disk has none left.

A checkpoint or a delete frees space, and needs a little to begin with. Where other processes have
filled the disk to the last byte, that little comes from here.
"""

from __future__ import annotations

from contextlib import suppress

from headrace.storage.disk import Disk, is_transient_disk_error

NAME = "ballast"
BALLAST_BYTES = 4 * 1024 * 1024  # a checkpoint of deletes, or a transaction of them in each shard
_PIECE_BYTES = 1024 * 1024


class Ballast:
    """`fill` and `release` do file calls: call them on a worker thread, not on the event loop."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.is_held = NAME in disk.list("")

    def fill(self) -> None:
        """Hold the room, if there is enough of it."""
        if self.is_held or self._disk.refusal(BALLAST_BYTES) is not None:
            return
        self.is_held = True
        try:
            file = self._disk.open(NAME, create=True)
            try:
                for offset in range(0, BALLAST_BYTES, _PIECE_BYTES):
                    file.write(offset, bytes(min(_PIECE_BYTES, BALLAST_BYTES - offset)))
            finally:
                file.close()
        except OSError as error:
            self.release()
            if not is_transient_disk_error(error):
                raise

    def release(self) -> bool:
        """Give the room up; whether there was any."""
        was_held, self.is_held = self.is_held, False
        if was_held:
            with suppress(OSError):
                self._disk.remove(NAME)
        return was_held
