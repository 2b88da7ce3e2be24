"""A simulated disk behind the seam of `headrace.storage.disk`: it forgets what was not synced.

The fault model. A write is in the page cache until its file is synced; at a power cut each write
that was not is kept, dropped, torn at any byte, or leaves zeros, and each independently of the
others. A name made, renamed or removed is certain only once its directory was synced; at a power
cut each such change is kept or dropped, a rename as a whole. A sync that fails leaves its writes
in the cache for good and on the medium perhaps: a later sync reports success and writes none of
them. A killed process loses nothing of the cache.

Every call through the seam is counted, and any one of them can be made to fail or to be the last.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import NamedTuple

from headrace.errors import DirectoryLocked, HeadraceError, InsufficientStorage
from headrace.storage.disk import SyncFailed


class PowerLost(BaseException):
    """The machine is off: nothing that runs on it goes on. Not an error that code may handle."""


class Fault(StrEnum):
    """How one call goes wrong."""

    EIO = "EIO"
    ENOSPC = "ENOSPC"
    SHORT = "short write"
    POWER = "power cut"


class _Write(NamedTuple):
    offset: int
    data: bytes


class _Truncate(NamedTuple):
    size: int


class _Entry(NamedTuple):
    """A change of one directory; `gone` is the name that goes, `name` the one that comes."""

    gone: str | None
    name: str | None
    node: _Node | None


@dataclass(eq=False)
class _Node:
    """A file (`entries` is None) or a directory: what reads see, and what is on the medium."""

    cached: bytearray = field(default_factory=bytearray)
    stable: bytearray = field(default_factory=bytearray)
    unsynced: list[_Write | _Truncate] = field(default_factory=list)
    entries: dict[str, _Node] | None = None
    stable_entries: dict[str, _Node] = field(default_factory=dict)
    unsynced_entries: list[_Entry] = field(default_factory=list)

    def change(self, change: _Write | _Truncate) -> None:
        self.unsynced.append(change)
        _apply(self.cached, change)

    def link(self, entry: _Entry) -> None:
        assert self.entries is not None, "only a directory has entries"
        self.unsynced_entries.append(entry)
        _relink(self.entries, entry)

    def sync(self) -> None:
        for change in self.unsynced:
            _apply(self.stable, change)
        self.unsynced.clear()
        if self.entries is not None:
            self.stable_entries = dict(self.entries)
            self.unsynced_entries.clear()

    def fail_sync(self, random: Random) -> None:
        """The kernel gives up: some of it may be on the medium, and all of it counts as clean."""
        for change in self.unsynced:
            if random.random() < 0.5:
                _apply(self.stable, change)
        self.unsynced.clear()

    def cut(self, random: Random) -> None:
        """Power is lost: every change that was not synced meets its own fate."""
        for change in self.unsynced:
            fate = _fate(change, random)
            if fate is not None:
                _apply(self.stable, fate)
        self.cached = bytearray(self.stable)
        self.unsynced.clear()
        if self.entries is None:
            return
        for entry in self.unsynced_entries:
            if random.random() < 0.5:
                _relink(self.stable_entries, entry)
        self.entries = dict(self.stable_entries)
        self.unsynced_entries.clear()
        for node in self.entries.values():
            node.cut(random)


def _apply(content: bytearray, change: _Write | _Truncate) -> None:
    size = change.size if isinstance(change, _Truncate) else change.offset + len(change.data)
    if len(content) < size:
        content.extend(bytes(size - len(content)))
    if isinstance(change, _Truncate):
        del content[size:]
    else:
        content[change.offset : size] = change.data


def _relink(entries: dict[str, _Node], entry: _Entry) -> None:
    if entry.gone is not None:
        entries.pop(entry.gone, None)
    if entry.name is not None:
        assert entry.node is not None, "a name that comes is the name of something"
        entries[entry.name] = entry.node


def _fate(change: _Write | _Truncate, random: Random) -> _Write | _Truncate | None:
    """What of an unsynced change reaches the medium: all, nothing, a part, or only its length."""
    chance = random.random()
    if isinstance(change, _Truncate):
        return change if chance < 0.5 else None
    if chance < 0.4:
        return change
    if chance < 0.7 and change.data:
        return _torn(change, random)
    if chance < 0.8:
        return _Write(change.offset, bytes(len(change.data)))
    return None


def _torn(change: _Write, random: Random) -> _Write:
    """Its beginning, its end, or a part between two places."""
    begin, end = sorted(
        (random.randrange(len(change.data) + 1), random.randrange(len(change.data)))
    )
    if random.random() < 0.5:
        begin = 0
    return _Write(change.offset + begin, change.data[begin:end])


class SimulatedFile:
    __slots__ = ("_disk", "_node")

    def __init__(self, disk: SimulatedDisk, node: _Node) -> None:
        self._disk = disk
        self._node = node

    def read(self, offset: int, size: int) -> bytes:
        self._disk.call("read")
        return bytes(self._node.cached[offset : offset + size])

    def write(self, offset: int, *pieces: bytes) -> None:
        write = _Write(offset, b"".join(pieces))
        half = _Write(offset, write.data[: len(write.data) // 2])
        self._disk.call("write", short=lambda: self._node.change(half))
        self._disk.take_room(offset + len(write.data) - len(self._node.cached))
        self._node.change(write)

    def sync(self) -> None:
        self._disk.call("sync", failed=lambda: self._node.fail_sync(self._disk.random))
        self._node.sync()

    def size(self) -> int:
        self._disk.call("size")
        return len(self._node.cached)

    def truncate(self, size: int) -> None:
        self._disk.call("truncate")
        self._disk.take_room(size - len(self._node.cached))
        self._node.change(_Truncate(size))

    def punch(self, offset: int, size: int) -> None:
        self._disk.call("punch")
        size = min(size, len(self._node.cached) - offset)
        if size > 0:
            self._node.change(_Write(offset, bytes(size)))

    def close(self) -> None:
        """Costs nothing and syncs nothing."""


class SimulatedDisk:
    """A data directory in memory; `random` decides what a power cut does."""

    name = "simulated"

    def __init__(self, random: Random | None = None) -> None:
        self.random = random or Random(0)
        self.faults: dict[int, Fault] = {}
        """Which calls fail, by number; a call other than a write cannot be short and gets EIO."""
        self.calls: dict[str, int] = {}
        self.call_count = 0
        self.room_bytes: int | None = None
        """How much larger all files together may become before the disk is full."""
        self.opened: list[str] = []
        self._root = _Node(entries={})
        self._is_on = True
        self._is_locked = False

    # -- what a test does to it --------------------------------------------------------------

    def call(
        self,
        name: str,
        short: Callable[[], None] | None = None,
        failed: Callable[[], None] | None = None,
    ) -> None:
        """Count a call; raise if the power is off, or if this call is to go wrong."""
        if not self._is_on:
            raise PowerLost
        self.call_count += 1
        self.calls[name] = self.calls.get(name, 0) + 1
        fault = self.faults.get(self.call_count) if self.faults else None
        if fault is None:
            return
        if fault is Fault.POWER:
            self._is_on = False
            raise PowerLost
        if fault is Fault.SHORT and short is not None:
            short()
        if failed is not None:
            failed()
        number = errno.EIO if fault is Fault.EIO else errno.ENOSPC
        kind = SyncFailed if name.startswith("sync") else OSError
        raise kind(number, os.strerror(number))

    def cut_power(self) -> None:
        """Forget what was not synced, and come back."""
        self._root.cut(self.random)
        self.kill()

    def kill(self) -> None:
        """The process that used the disk is gone; the page cache is not."""
        self._is_on = True
        self._is_locked = False
        self.faults = {}

    def files(self) -> dict[str, bytearray]:
        """Every file's content as reads see it, by name: change it to damage the disk."""
        found: dict[str, bytearray] = {}

        def walk(prefix: str, node: _Node) -> None:
            for name, child in (node.entries or {}).items():
                if child.entries is None:
                    found[prefix + name] = child.cached
                else:
                    walk(f"{prefix}{name}/", child)

        walk("", self._root)
        return found

    def copy(self) -> SimulatedDisk:
        """A disk with the same content, all of it on the medium."""
        twin = SimulatedDisk(Random(0))
        for name, content in self.files().items():
            directory = name.rpartition("/")[0]
            if directory:
                twin.make_directory(directory)
            twin.open(name, create=True).write(0, bytes(content))
        twin.sync_everything()
        return twin

    # -- the seam ----------------------------------------------------------------------------

    def _directory(self, name: str) -> _Node:
        node = self._root
        for part in filter(None, name.split("/")):
            found = (node.entries or {}).get(part)
            if found is None or found.entries is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
            node = found
        return node

    def _parent(self, name: str) -> tuple[_Node, str]:
        directory, _, last = name.rpartition("/")
        return self._directory(directory), last

    def open(self, name: str, *, create: bool = False) -> SimulatedFile:
        self.call("open")
        self.opened.append(name)
        parent, last = self._parent(name)
        assert parent.entries is not None, "a parent is a directory"
        node = parent.entries.get(last)
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
            node = _Node()
            parent.link(_Entry(None, last, node))
        return SimulatedFile(self, node)

    def list(self, directory: str) -> list[str]:
        self.call("list")
        try:
            return sorted(self._directory(directory).entries or ())
        except FileNotFoundError:
            return []

    def make_directory(self, name: str) -> None:
        self.call("make_directory")
        node = self._root
        for part in filter(None, name.split("/")):
            assert node.entries is not None, f"{name} leads through a file"
            if part not in node.entries:
                node.link(_Entry(None, part, _Node(entries={})))
            node = node.entries[part]

    def rename(self, old: str, new: str) -> None:
        self.call("rename")
        parent, first = self._parent(old)
        other, last = self._parent(new)
        assert parent is other, "a rename between directories is not simulated"
        assert parent.entries is not None, "a parent is a directory"
        if first not in parent.entries:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), old)
        parent.link(_Entry(first, last, parent.entries[first]))

    def remove(self, name: str) -> None:
        self.call("remove")
        parent, last = self._parent(name)
        if last not in (parent.entries or {}):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        assert parent.entries is not None, "a parent is a directory"
        self.take_room(-len(parent.entries[last].cached))
        parent.link(_Entry(last, None, None))

    def sync_directory(self, name: str) -> None:
        self.call("sync_directory")
        self._directory(name).sync()

    def sync_everything(self) -> None:
        self.call("sync_everything")
        nodes = [self._root]
        while nodes:
            node = nodes.pop()
            node.sync()
            nodes += (node.entries or {}).values()

    def take_room(self, byte_count: int) -> None:
        """So many bytes more, or fewer; raises where the disk is too full for them."""
        if self.room_bytes is None:
            return
        if byte_count > max(0, self.room_bytes):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room_bytes -= byte_count

    def refusal(self, needed_bytes: int = 0) -> HeadraceError | None:
        if self.room_bytes is None or self.room_bytes >= needed_bytes:
            return None
        return InsufficientStorage(self.room_bytes, needed_bytes)

    def lock(self) -> None:
        self.call("lock")
        if self._is_locked:
            raise DirectoryLocked(self.name)
        self._is_locked = True

    def close(self) -> None:
        self._is_locked = False
