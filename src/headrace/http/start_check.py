"""Whether a server would start on a data directory, and go on: by starting one that writes nothing.

Recovery, the engine's own stock-taking, subscriptions and, in the file modes, a checkpoint of all
that the journal holds are gone through as a server does, so that nothing stops one that was not
found here. The directory is not changed.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from headrace.clock import SystemClock
from headrace.engine.engine import Engine
from headrace.errors import HeadraceError
from headrace.limits import Limits
from headrace.storage.acid.acid_storage import AcidStorage, shard_count_of
from headrace.storage.base import Storage
from headrace.storage.disk import RealDisk
from headrace.storage.file.file_storage import FileStorage
from headrace.storage.overlay_disk import OverlayDisk
from headrace.subscriptions.manager import SubscriptionManager, SubscriptionSettings

SEGMENT_BYTES: Final = 1024 * 1024  # in memory: no larger than need be


async def start_findings(directory: Path) -> list[str]:
    """What would keep a server on `directory` from starting or staying up, or from serving all."""
    loop = asyncio.get_running_loop()
    storage: Storage | None = None
    try:
        storage = _open(directory, loop)
        engine = Engine(storage, SystemClock(), Limits())
        manager = SubscriptionManager(engine, SubscriptionSettings(), loop)
        await manager.stop()
        engine.close()
        return [
            *(
                f"A server would set the stream {name!r} aside: {reason}"
                for name, reason in engine.aside
            ),
            *(
                f"A server would not use the document {name!r}: {reason}"
                for name, reason in engine.aside.documents.items()
            ),
        ]
    except HeadraceError as refusal:
        return [refusal.detail]
    except OSError as error:
        return [f"A file cannot be read: {error.filename}: {error.strerror or error}."]
    except Exception as defect:
        # Whatever it is, a server would end by it: the stored state is none that it can be in.
        return [f"A server does not start on this directory: {type(defect).__name__}: {defect}."]


def _open(directory: Path, loop: asyncio.AbstractEventLoop) -> Storage:
    disk = RealDisk(directory)
    if disk.list("acid"):
        return AcidStorage(directory, shard_count_of(disk), loop, read_only=True)
    return FileStorage(OverlayDisk(disk), Limits(), loop, sync=True, segment_bytes=SEGMENT_BYTES)
