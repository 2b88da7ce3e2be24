"""A file of LMDB is refused where a page that counts is missing, and only there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import lmdb
import pytest

from headrace.errors import StoredBytesUnreadable
from headrace.storage.acid.lmdb_pages import check_file, check_free_list
from headrace.storage.disk import Disk, RealDisk

NAME = "data.mdb"
MAP_BYTES = 1 << 26
PAGE_BYTES = 4096


def write(directory: Path, seed: int, transactions: int = 60) -> int:
    """Puts and deletes in the same transactions; how many bytes LMDB counts."""
    random = Random(seed)
    with lmdb.open(str(directory), map_size=MAP_BYTES, sync=False) as environment:
        for _ in range(transactions):
            with environment.begin(write=True) as transaction:
                key = bytes([random.randrange(20)])
                transaction.put(key, random.randbytes(random.choice((10, 3000, 100_000))))
                transaction.delete(random.choice((key, bytes([random.randrange(20)]))))
        return int(environment.info()["last_pgno"] + 1) * PAGE_BYTES


def read_all(directory: Path) -> list[tuple[bytes, bytes]]:
    with (
        lmdb.open(str(directory), map_size=MAP_BYTES, readonly=True, lock=False) as environment,
        environment.begin() as transaction,
    ):
        return list(transaction.cursor())


def is_refused(check: Callable[[Disk, str], None], directory: Path, words: str) -> bool:
    try:
        check(RealDisk(directory), NAME)
    except StoredBytesUnreadable as refusal:
        if words not in refusal.detail:
            raise
        return True
    return False


def test_a_sound_file_that_is_shorter_than_lmdb_counts_is_accepted(tmp_path: Path) -> None:
    """A page that one transaction takes and frees again is counted and never written."""
    shorter = 0
    for seed in range(20):
        directory = tmp_path / str(seed)
        counted_bytes = write(directory, seed)
        check_file(RealDisk(directory), NAME)
        check_free_list(RealDisk(directory), NAME)
        shorter += (directory / NAME).stat().st_size < counted_bytes
    assert shorter, "none of these files shows what this test is about"


def test_whatever_of_a_truncated_file_is_accepted_holds_everything(tmp_path: Path) -> None:
    write(tmp_path, 7)
    stored = read_all(tmp_path)
    size = (tmp_path / NAME).stat().st_size
    refused = 0
    for cut in range(size - PAGE_BYTES // 2, 2 * PAGE_BYTES, -PAGE_BYTES):
        os.truncate(tmp_path / NAME, cut)
        if is_refused(check_file, tmp_path, f"read: {NAME}: "):
            refused += 1
        else:
            assert read_all(tmp_path) == stored
    assert refused > size // PAGE_BYTES // 2


def test_a_damaged_free_list_is_found(tmp_path: Path) -> None:
    write(tmp_path, 3)
    content = (tmp_path / NAME).read_bytes()
    found = 0
    for page in range(2, len(content) // PAGE_BYTES):
        damaged = bytearray(content)
        damaged[page * PAGE_BYTES + 10] = 0  # its flags: it is of no kind now
        (tmp_path / NAME).write_bytes(damaged)
        found += is_refused(check_free_list, tmp_path, f"at byte {page * PAGE_BYTES} is damaged")
    assert found


@pytest.mark.parametrize("content", [b"", b"not a file of LMDB", bytes(3 * PAGE_BYTES)])
def test_what_is_not_lmdbs_is_left_to_lmdb(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)
    check_file(RealDisk(tmp_path), NAME)
    check_free_list(RealDisk(tmp_path), NAME)
