"""Reads LMDB's own pages with plain file reads, before LMDB maps the file.

LMDB trusts its file. A page that lies behind the end of a truncated file is still inside the
mapping, so touching it ends the process with SIGBUS and without a log line. `check_file` therefore
compares the size of the file with the last page that the newer of the two meta pages counts.

A sound file can be shorter than that: a page that one transaction takes and frees again is counted
and never written. Such pages are on LMDB's free list. Where the file is short, the free list is
read, and only a missing page that is not on it is damage.

Layout of LMDB 0.9 in the byte order of the machine. A page begins with a header of 16 bytes: its
number, two unused bytes, flags, and the bounds of its free space (an overflow page has the number
of its pages there). Pages 0 and 1 are the meta pages.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from headrace.errors import StoredBytesUnreadable
from headrace.storage.disk import Disk, DiskFile

_PAGE_HEADER = struct.Struct("=Q2xHHH")  # page number, flags, lower, upper
# Magic, version, then behind address and map size: page size, root of the free list, last page,
# number of the transaction.
_META = struct.Struct("=II16xI36xQ48xQQ")
_NODE = struct.Struct("=HHHH")  # size of the value (of a branch: page), its high part, flags, key
_PAGE_NUMBER = struct.Struct("=Q")
_MAGIC: Final = 0xBEEFC0DE
_BRANCH, _LEAF, _OVERFLOW = 1, 2, 4  # flags of a page
_VALUE_APART: Final = 1  # flag of a node: its value is on overflow pages
_NO_PAGE: Final = (1 << 64) - 1
_PAGE_BYTES_MIN, _PAGE_BYTES_MAX = 256, 65536
_DEPTH_MAX: Final = 32  # LMDB's own bound


class _Meta(NamedTuple):
    page_bytes: int
    free_root: int
    last_page: int
    transaction: int


def check_file(disk: Disk, name: str) -> None:
    """Raises StoredBytesUnreadable where LMDB would reach for a page that is not in the file.

    A file without two valid meta pages is left to LMDB, which refuses it.
    """
    file = disk.open(name)
    try:
        meta = _newer_meta(file)
        if meta is not None:
            _check_size(_Pages(file, name, meta.page_bytes), meta)
    finally:
        file.close()


def check_free_list(disk: Disk, name: str) -> None:
    """Raises StoredBytesUnreadable where the free list, which only writers read, is damaged."""
    file = disk.open(name)
    try:
        meta = _newer_meta(file)
        if meta is not None:
            for _ in _Pages(file, name, meta.page_bytes).free_pages(meta.free_root):
                pass
    finally:
        file.close()


def _newer_meta(file: DiskFile) -> _Meta | None:
    first = _read_meta(file, 0)
    second = None if first is None else _read_meta(file, first.page_bytes)
    if first is None or second is None:
        return None
    return max(first, second, key=lambda meta: meta.transaction)


def _read_meta(file: DiskFile, offset: int) -> _Meta | None:
    data = file.read(offset + _PAGE_HEADER.size, _META.size)
    if len(data) < _META.size:
        return None
    magic, _, *fields = _META.unpack(data)
    meta = _Meta(*fields)
    is_size = _PAGE_BYTES_MIN <= meta.page_bytes <= _PAGE_BYTES_MAX
    return meta if magic == _MAGIC and is_size else None


def _check_size(pages: _Pages, meta: _Meta) -> None:
    size = pages.size()
    present = size // meta.page_bytes
    if present > meta.last_page:
        return
    free: set[int] = set()
    with suppress(StoredBytesUnreadable):  # a free list that is missing, too, excuses nothing
        free.update(pages.free_pages(meta.free_root))
    if not free.issuperset(range(present, meta.last_page + 1)):
        needed = (meta.last_page + 1) * meta.page_bytes
        raise StoredBytesUnreadable(
            pages.name,
            f"the file ends at byte {size}, and LMDB's last page at byte {needed}: it was "
            "truncated; restore the data directory from a backup or an export",
        )


class _Pages:
    """The pages of one file; a page that is not what LMDB writes raises StoredBytesUnreadable."""

    def __init__(self, file: DiskFile, name: str, page_bytes: int) -> None:
        self.name = name
        self._file = file
        self._page_bytes = page_bytes
        self._seen: set[int] = set()

    def size(self) -> int:
        return self._file.size()

    def free_pages(self, root: int, depth: int = 0) -> Iterator[int]:
        """The numbers of all pages on the free list, which is a B+tree with lists as values."""
        if root == _NO_PAGE:
            return
        if depth > _DEPTH_MAX or root in self._seen:
            raise self._damaged(root)
        self._seen.add(root)
        flags, nodes = self._nodes(root)
        for at, page in nodes:
            low, high, node_flags, key_bytes = self._unpack(_NODE, page, at, root)
            if flags & _BRANCH:
                yield from self.free_pages(low | high << 16 | node_flags << 32, depth + 1)
                continue
            value_at, value_bytes = at + _NODE.size + key_bytes, low | high << 16
            value = page[value_at : value_at + value_bytes]
            if node_flags & _VALUE_APART:
                value = self._apart(
                    self._unpack(_PAGE_NUMBER, page, value_at, root)[0], value_bytes
                )
            yield from self._listed(value, value_bytes, root)

    def _nodes(self, number: int) -> tuple[int, list[tuple[int, bytes]]]:
        """The flags of a page, and the offsets of its nodes."""
        page = self._file.read(number * self._page_bytes, self._page_bytes)
        own, flags, lower, upper = self._unpack(_PAGE_HEADER, page, 0, number)
        is_tree_page = bool(flags & _BRANCH) != bool(flags & _LEAF)
        if own != number or not is_tree_page or not _PAGE_HEADER.size <= lower <= upper:
            raise self._damaged(number)
        count = (lower - _PAGE_HEADER.size) // 2
        places = self._unpack(struct.Struct(f"={count}H"), page, _PAGE_HEADER.size, number)
        return flags, [(at, page) for at in places]

    def _apart(self, number: int, size: int) -> bytes:
        page = self._file.read(number * self._page_bytes, _PAGE_HEADER.size + size)
        own, flags, _, _ = self._unpack(_PAGE_HEADER, page, 0, number)
        if own != number or not flags & _OVERFLOW:
            raise self._damaged(number)
        return page[_PAGE_HEADER.size :]

    def _listed(self, value: bytes, size: int, number: int) -> Iterator[int]:
        count = self._unpack(_PAGE_NUMBER, value, 0, number)[0]
        if len(value) < size or (count + 1) * _PAGE_NUMBER.size > size:
            raise self._damaged(number)
        for (page,) in _PAGE_NUMBER.iter_unpack(value[8 : 8 + count * 8]):
            yield page

    def _unpack(self, layout: struct.Struct, data: bytes, at: int, number: int) -> tuple[int, ...]:
        if at + layout.size > len(data):
            raise self._damaged(number)
        return layout.unpack_from(data, at)

    def _damaged(self, number: int) -> StoredBytesUnreadable:
        at = number * self._page_bytes
        return StoredBytesUnreadable(
            self.name,
            f"the page of LMDB's free list at byte {at} is damaged or missing; restore the data "
            "directory from a backup or an export",
        )
