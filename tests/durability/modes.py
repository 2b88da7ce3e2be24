"""The durable modes, in one place: a mode that is added here is tested by everything beside it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from headrace.limits import Limits
from headrace.storage.acid.acid_storage import AcidStorage
from headrace.storage.base import Storage
from headrace.storage.disk import RealDisk
from headrace.storage.file.file_storage import FileStorage

DURABLE_MODES = ["acid", "file-durable"]
"""Those whose acknowledgements survive a power cut."""
KEPT_MODES = [*DURABLE_MODES, "file-fast"]
"""Those whose acknowledgements survive the process."""
ALL_MODES = ["memory", *KEPT_MODES]
SHARDS = 4
SEGMENT_BYTES = 64 * 1024  # so small that checkpoints and used segments are part of every test


def settings(mode: str, directory: Path) -> dict[str, str]:
    """The environment of a server that stores in `directory`."""
    return {
        "DS_STORAGE__MODE": mode,
        "DS_STORAGE__DATA_DIR": str(directory),
        "DS_STORAGE__ACID_SHARD_COUNT": str(SHARDS),
        "DS_STORAGE__JOURNAL_SEGMENT_BYTES": str(SEGMENT_BYTES),
    }


def open_storage(
    mode: str, directory: Path, loop: asyncio.AbstractEventLoop, limits: Limits | None = None
) -> Storage:
    if mode == "acid":
        return AcidStorage(directory, SHARDS, loop)
    return FileStorage(
        RealDisk(directory),
        limits or Limits(),
        loop,
        sync=mode == "file-durable",
        segment_bytes=SEGMENT_BYTES,
    )
