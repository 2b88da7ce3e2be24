"""A disk that reads from another one and keeps what is written in memory.

`headrace verify` runs a start, its recovery and a checkpoint on it, without a change to the
directory.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import Final

from headrace.errors import HeadraceError
from headrace.storage.disk import Disk, DiskFile

_PAGE_BYTES: Final = 64 * 1024


class _Node:
    """A file: the pages that were written, and the file below them."""

    def __init__(self, below: DiskFile | None) -> None:
        self.below = below
        self.below_bytes = below.size() if below is not None else 0
        self.size = self.below_bytes
        self.pages: dict[int, bytearray] = {}

    def page(self, number: int) -> bytes | bytearray:
        """As long as a page, but for what lies behind the end of the file below."""
        written = self.pages.get(number)
        if written is not None:
            return written
        begin = number * _PAGE_BYTES
        if self.below is None or begin >= self.below_bytes:
            return b""
        return self.below.read(begin, min(_PAGE_BYTES, self.below_bytes - begin))

    def read(self, offset: int, size: int) -> bytes:
        end = min(offset + size, self.size)
        parts: list[bytes | bytearray] = []
        while offset < end:
            number, at = divmod(offset, _PAGE_BYTES)
            count = min(_PAGE_BYTES - at, end - offset)
            part = self.page(number)[at : at + count]
            parts += (part, bytes(count - len(part)))
            offset += count
        return b"".join(parts)

    def write(self, offset: int, data: bytes) -> None:
        at = 0
        while at < len(data):
            number, begin = divmod(offset + at, _PAGE_BYTES)
            count = min(_PAGE_BYTES - begin, len(data) - at)
            page = self.pages.setdefault(number, bytearray(self.page(number)))
            page.extend(bytes(max(0, begin + count - len(page))))
            page[begin : begin + count] = data[at : at + count]
            at += count
        self.size = max(self.size, offset + len(data))

    def truncate(self, size: int) -> None:
        if size < self.size:
            self.below_bytes = min(self.below_bytes, size)
            number, at = divmod(size, _PAGE_BYTES)
            self.pages = {n: page for n, page in self.pages.items() if n <= number}
            if number in self.pages:
                del self.pages[number][at:]
        self.size = size


class OverlayFile:
    def __init__(self, node: _Node) -> None:
        self._node = node

    def read(self, offset: int, size: int) -> bytes:
        return self._node.read(offset, size)

    def write(self, offset: int, *pieces: bytes) -> None:
        self._node.write(offset, b"".join(pieces))

    def sync(self) -> None:
        """Nothing of this lasts."""

    def size(self) -> int:
        return self._node.size

    def truncate(self, size: int) -> None:
        self._node.truncate(size)

    def punch(self, offset: int, size: int) -> None:
        self._node.write(offset, bytes(max(0, min(size, self._node.size - offset))))

    def close(self) -> None:
        """The file below is closed with the disk."""


class OverlayDisk:
    """What is on `below`, and what was changed since."""

    def __init__(self, below: Disk) -> None:
        self._below = below
        self.name = below.name
        self._nodes: dict[str, _Node | None] = {}
        """Files that were opened or made; None where one is gone."""

    def open(self, name: str, *, create: bool = False) -> OverlayFile:
        node = self._nodes.get(name)
        if node is None and name not in self._nodes:
            directory, _, last = name.rpartition("/")
            is_below = last in self._below.list(directory)
            node = _Node(self._below.open(name)) if is_below else None
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
            node = _Node(None)
        self._nodes[name] = node
        return OverlayFile(node)

    def list(self, directory: str) -> list[str]:
        names = set(self._below.list(directory))
        for name, is_here in self._changed_in(directory):
            (names.add if is_here else names.discard)(name)
        return sorted(names)

    def _changed_in(self, directory: str) -> Iterator[tuple[str, bool]]:
        """Names in a directory, and whether they are there."""
        prefix = f"{directory}/" if directory else ""
        for path, node in self._nodes.items():
            name, slash, _ = path.removeprefix(prefix).partition("/")
            if path.startswith(prefix) and (node is not None or not slash):
                yield name, node is not None

    def make_directory(self, name: str) -> None:
        """A directory that holds nothing is not missed."""

    def rename(self, old: str, new: str) -> None:
        self.open(old)
        self._nodes[new], self._nodes[old] = self._nodes[old], None

    def remove(self, name: str) -> None:
        self.open(name)
        self._nodes[name] = None

    def sync_directory(self, name: str) -> None:
        """Nothing of this lasts."""

    def sync_everything(self) -> None:
        """Nothing of this lasts."""

    def refusal(self, needed_bytes: int = 0) -> HeadraceError | None:
        return None

    def lock(self) -> None:
        self._below.lock()

    def close(self) -> None:
        for node in self._nodes.values():
            if node is not None and node.below is not None:
                node.below.close()
        self._below.close()
