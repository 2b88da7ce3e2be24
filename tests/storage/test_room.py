"""How much of a disk is kept free, and what counts as a full one: the figures of operating.md."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from headrace.errors import HeadraceError, InsufficientStorage, StorageReadOnly
from headrace.protocol.responses import PROBLEMS
from headrace.storage.committer import refusal_of
from headrace.storage.disk import RealDisk, is_transient_disk_error
from headrace.storage.file.journal import SEGMENT_BYTES, fitting_segment_bytes

MIB = 1024 * 1024
GIB = 1024 * MIB


def statvfs(total_bytes: int, free_bytes: int, flags: int = 0) -> os.statvfs_result:
    blocks, free = total_bytes // 4096, free_bytes // 4096
    return os.statvfs_result((4096, 4096, blocks, free, free, 0, 0, 0, flags, 255))


@pytest.mark.parametrize(
    ("total_bytes", "reserved_bytes"),
    [(64 * MIB, 8 * MIB), (GIB, 128 * MIB), (100 * GIB, 256 * MIB)],
)
def test_an_eighth_of_a_disk_is_reserved_and_at_most_256_mib(
    total_bytes: int, reserved_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusal(free_bytes: int, needed_bytes: int = 0) -> HeadraceError | None:
        monkeypatch.setattr(os, "statvfs", lambda path: statvfs(total_bytes, free_bytes))
        return RealDisk(tmp_path).refusal(needed_bytes)

    assert refusal(reserved_bytes) is None
    assert isinstance(refusal(reserved_bytes - 4096), InsufficientStorage)
    assert refusal(reserved_bytes + MIB, MIB) is None
    assert isinstance(refusal(reserved_bytes + MIB - 4096, MIB), InsufficientStorage)


@pytest.mark.parametrize(
    ("number", "status"), [(errno.ENOSPC, 507), (errno.EDQUOT, 507), (errno.EROFS, 503)]
)
def test_a_quota_counts_as_a_full_disk(number: int, status: int) -> None:
    error = OSError(number, os.strerror(number))
    assert is_transient_disk_error(error), "it is tried again"
    assert PROBLEMS[type(refusal_of(error))].status == status


def test_a_file_system_that_is_mounted_read_only_is_noticed_before_a_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: statvfs(GIB, GIB, os.ST_RDONLY))
    assert isinstance(RealDisk(tmp_path).refusal(), StorageReadOnly)


def test_a_segment_is_at_most_a_thirty_second_of_a_disk_below_2_gib() -> None:
    assert fitting_segment_bytes(SEGMENT_BYTES, 2 * GIB) == SEGMENT_BYTES
    assert fitting_segment_bytes(SEGMENT_BYTES, GIB) == GIB // 32
    assert fitting_segment_bytes(SEGMENT_BYTES, 320 * MIB) == 10 * MIB
