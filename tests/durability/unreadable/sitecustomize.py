"""A process in which the file with the inode `HEADRACE_UNREADABLE` cannot be read: EIO.

It is inherited, because what checks a directory of acid reads it in a process of its own.
"""

from __future__ import annotations

import errno
import os

_pread = os.pread
_unreadable = int(os.environ["HEADRACE_UNREADABLE"])


def pread(fd: int, size: int, offset: int) -> bytes:
    if os.fstat(fd).st_ino == _unreadable:
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    return _pread(fd, size, offset)


os.pread = pread
