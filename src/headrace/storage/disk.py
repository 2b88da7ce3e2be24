"""The only door to the file system.

Names are relative to the data directory. A write is in the page cache until `sync`; a name made,
renamed or removed is certain only after `sync_directory`. Everything that stores goes through
this seam, so that a simulated disk can replace it: see `headrace.testing.simulated_disk`.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol, TypeVar

from headrace.clock import monotonic, sleep
from headrace.errors import (
    DirectoryLocked,
    HeadraceError,
    InsufficientStorage,
    Overloaded,
    StorageReadOnly,
)

logger = logging.getLogger(__name__)
T = TypeVar("T")

# Errors that pass on their own or when space is freed: nothing is in doubt, and the call can be
# done again later. Each of them is raised before anything is written.
_TRANSIENT: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE})
_PUNCH_HOLE: Final = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
_PIECES_MAX: Final = os.sysconf("SC_IOV_MAX")
LOCK_NAME: Final = "lock"
# Writing stops while there is still room for what is under way, and for deletes.
RESERVE_BYTES_MAX: Final = 256 * 1024 * 1024
RESERVE_SHARE: Final = 8

_NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE)
_RETRY_SECS: Final = 0.02
_SHORT_WAIT_SECS: Final = 1.0


def descriptor_refusal(error: BaseException | None) -> Overloaded | None:
    """The refusal for an error that means no free descriptors; None for other errors."""
    if not isinstance(error, OSError) or error.errno not in _NO_DESCRIPTOR:
        return None
    return Overloaded("open files", resource.getrlimit(resource.RLIMIT_NOFILE)[0])


class _DescriptorWait(threading.local):
    """How long a thread waits for a free descriptor: without end, unless it says otherwise."""

    secs: float | None = None


_descriptor_wait = _DescriptorWait()


def wait_briefly_for_descriptors() -> None:
    """Called on a worker thread whose caller can be refused if no descriptor is free."""
    _descriptor_wait.secs = _SHORT_WAIT_SECS


class SyncFailed(OSError):
    """A sync failed, for whatever reason: what it was to make durable is in doubt from then on.

    It is not tried again: the kernel marks the pages clean and the next call reports success for
    bytes that never reached the disk.
    """


def is_transient_disk_error(error: BaseException | None) -> bool:
    """Whether the same call may succeed later, and did nothing so far: no room, or no descriptor.

    A failed sync is never transient.
    """
    return (
        isinstance(error, OSError)
        and not isinstance(error, SyncFailed)
        and error.errno in _TRANSIENT
    )


@contextmanager
def suppress_transient() -> Iterator[None]:
    """For what may as well be left undone: a file that stays takes room, and does no harm."""
    try:
        yield
    except OSError as error:
        if not is_transient_disk_error(error):
            raise


@contextmanager
def _named(name: str) -> Iterator[None]:
    """The kernel does not say which file it was that could not be read or written."""
    try:
        yield
    except OSError as error:
        error.filename = name
        raise


@contextmanager
def _syncing(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SyncFailed(error.errno, error.strerror, name) from error


class DiskFile(Protocol):
    """An open file."""

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""
        ...

    def write(self, offset: int, *pieces: bytes) -> None:
        """Write pieces one behind the other, as one write of them together."""
        ...

    def sync(self) -> None:
        """Return when everything written before is on the medium."""
        ...

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def punch(self, offset: int, size: int) -> None:
        """Give the space of a range back; it reads as zeros from then on."""
        ...

    def close(self) -> None: ...


class Disk(Protocol):
    """A data directory."""

    name: str
    """What people call it."""

    def open(self, name: str, *, create: bool = False) -> DiskFile: ...

    def list(self, directory: str) -> list[str]:
        """Names in a directory, sorted; a directory that does not exist holds none."""
        ...

    def make_directory(self, name: str) -> None: ...

    def rename(self, old: str, new: str) -> None: ...

    def remove(self, name: str) -> None: ...

    def sync_directory(self, name: str) -> None: ...

    def sync_everything(self) -> None:
        """One call instead of a sync per file."""
        ...

    def refusal(self, needed_bytes: int = 0) -> HeadraceError | None:
        """Why nothing should be written at present: too little room, read-only, no descriptors.

        `needed_bytes` are spoken for: what has been accepted and has yet to be written.
        """
        ...

    def lock(self) -> None:
        """Take the directory for this process, or raise DirectoryLocked."""
        ...

    def close(self) -> None: ...


class RealFile:
    __slots__ = ("_fd", "_name")

    def __init__(self, fd: int, name: str) -> None:
        self._fd = fd
        self._name = name

    def read(self, offset: int, size: int) -> bytes:
        with _named(self._name):
            data = os.pread(self._fd, size, offset)
            while data and len(data) < size:
                more = os.pread(self._fd, size - len(data), offset + len(data))
                if not more:
                    break
                data += more
        return data

    def write(self, offset: int, *pieces: bytes) -> None:
        try:
            while pieces:
                # The kernel may take less than it was given, at the last free blocks for one.
                written = os.pwritev(self._fd, pieces[:_PIECES_MAX], offset)
                offset += written
                pieces = _unwritten(pieces, written)
        except OSError as error:
            error.filename = self._name
            raise

    def sync(self) -> None:
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            raise SyncFailed(error.errno, error.strerror, self._name) from error

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        with _named(self._name):
            os.ftruncate(self._fd, size)

    def punch(self, offset: int, size: int) -> None:
        if _libc.fallocate(self._fd, _PUNCH_HOLE, offset, size) != 0:
            number = ctypes.get_errno()
            # On a file system without holes the space stays taken; what is in it is not read again.
            if number not in (errno.EOPNOTSUPP, errno.ENOSYS):
                raise OSError(number, os.strerror(number), self._name)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        """Close the file of a write that failed half-way."""
        self.close()


class ReadOnlyFile(RealFile):
    """A file of a disk that is read-only: to be read, as far as that goes."""

    __slots__ = ()

    def write(self, offset: int, *pieces: bytes) -> None:
        raise self._refused()

    def truncate(self, size: int) -> None:
        raise self._refused()

    def punch(self, offset: int, size: int) -> None:
        raise self._refused()

    def _refused(self) -> OSError:
        return OSError(errno.EROFS, os.strerror(errno.EROFS), self._name)


def _unwritten(pieces: tuple[bytes, ...], written: int) -> tuple[bytes, ...]:
    """The rest of `pieces` after so many bytes were written."""
    for number, piece in enumerate(pieces):
        if written < len(piece):
            return (piece[written:], *pieces[number + 1 :])
        written -= len(piece)
    return ()


class RealDisk:
    """The file system, below `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.name = str(root)
        self._prefix = f"{root}/"
        self._lock_fd: int | None = None
        self._waiting = 0  # threads without a descriptor

    def _with_descriptor(self, call: Callable[[], T]) -> T:
        """Wait where no descriptor is free: others close theirs, and nothing is lost meanwhile.

        A journal that cannot open its next segment is not broken. The main thread does not wait:
        it is the one that closes connections.
        """
        try:
            return call()
        except OSError as error:
            is_main = threading.current_thread() is threading.main_thread()
            if error.errno not in _NO_DESCRIPTOR or is_main:
                raise
        deadline = None if _descriptor_wait.secs is None else monotonic() + _descriptor_wait.secs
        logger.warning("no file descriptor is free; waiting for one")
        self._waiting += 1
        try:
            while True:
                sleep(_RETRY_SECS)
                try:
                    return call()
                except OSError as error:
                    is_over = deadline is not None and monotonic() > deadline
                    if error.errno not in _NO_DESCRIPTOR or is_over:
                        raise
        finally:
            self._waiting -= 1

    def _open(self, path: str, flags: int) -> int:
        return self._with_descriptor(lambda: os.open(path, flags | os.O_CLOEXEC, 0o600))

    def open(self, name: str, *, create: bool = False) -> RealFile:
        path = self._prefix + name
        try:
            return RealFile(self._open(path, os.O_RDWR | (os.O_CREAT if create else 0)), path)
        except OSError as error:
            if error.errno != errno.EROFS:
                raise
            try:
                return ReadOnlyFile(self._open(path, os.O_RDONLY), path)
            except FileNotFoundError:
                if create:
                    raise error from None
                raise

    def list(self, directory: str) -> list[str]:
        try:
            return sorted(self._with_descriptor(lambda: os.listdir(self._prefix + directory)))
        except FileNotFoundError:
            return []

    def make_directory(self, name: str) -> None:
        os.makedirs(self._prefix + name, mode=0o700, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        os.rename(self._prefix + old, self._prefix + new)

    def remove(self, name: str) -> None:
        os.unlink(self._prefix + name)

    def sync_directory(self, name: str) -> None:
        fd = self._open(self._prefix + name, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with _syncing(self._prefix + name):
                os.fsync(fd)
        finally:
            os.close(fd)

    def sync_everything(self) -> None:
        fd = self._open(self._prefix, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if _libc.syncfs(fd) != 0:
                number = ctypes.get_errno()
                raise SyncFailed(number, os.strerror(number), self.name)
        finally:
            os.close(fd)

    def refusal(self, needed_bytes: int = 0) -> HeadraceError | None:
        if self._waiting:
            return descriptor_refusal(OSError(errno.EMFILE, ""))
        found = os.statvfs(self._root)
        if found.f_flag & os.ST_RDONLY:
            return StorageReadOnly()
        # What is free for anyone: root, too, must not use up what the file system keeps back.
        free_bytes = found.f_bavail * found.f_frsize
        total_bytes = found.f_blocks * found.f_frsize
        reserve_bytes = min(RESERVE_BYTES_MAX, total_bytes // RESERVE_SHARE) + needed_bytes
        if free_bytes < reserve_bytes:
            return InsufficientStorage(free_bytes, reserve_bytes)
        return None

    def total_bytes(self) -> int:
        """What the file system holds when it is empty; the directory need not exist yet."""
        place = self._root
        while not place.exists():
            place = place.parent
        found = os.statvfs(place)
        return found.f_blocks * found.f_frsize

    def lock(self) -> None:
        is_new = not self._root.exists()
        self.make_directory("")
        # A directory whose own entry is lost takes everything in it along.
        if is_new:
            self.sync_directory("..")
        fd = self._open_lock()
        try:
            # Held by the open file, so the kernel frees it however the process ends: no stale lock
            # file has to be recognised.
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise DirectoryLocked(str(self._root)) from None
        self._lock_fd = fd

    def _open_lock(self) -> int:
        """The directory itself if it has no lock file and none can be created."""
        path = self._prefix + LOCK_NAME
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.ENOSPC, errno.EDQUOT):
                raise
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return os.open(self._root, os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None


_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong)
_libc.syncfs.argtypes = (ctypes.c_int,)
