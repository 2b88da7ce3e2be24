"""The durable modes, in one place: a mode that is added here is tested by everything beside it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from headrace.storage.acid import AcidStorage
from headrace.storage.base import Storage

DURABLE_MODES = ["acid"]
SHARDS = 4


def settings(mode: str, directory: Path) -> dict[str, str]:
    """The environment of a server that stores in `directory`."""
    return {
        "DS_STORAGE__MODE": mode,
        "DS_STORAGE__DATA_DIR": str(directory),
        "DS_STORAGE__ACID_SHARD_COUNT": str(SHARDS),
    }


def open_storage(mode: str, directory: Path, loop: asyncio.AbstractEventLoop) -> Storage:
    assert mode == "acid", f"{mode} is opened here once it exists"
    return AcidStorage(directory, SHARDS, loop)
