"""A server that never syncs: kill -9 cannot find it out, a power cut must."""

from __future__ import annotations

import os
from typing import Any

import lmdb

_open = lmdb.open


def open_without_sync(*args: Any, **options: Any) -> Any:
    return _open(*args, **(options | {"sync": False, "metasync": False}))


lmdb.open = open_without_sync  # type: ignore[assignment]
os.fdatasync = os.fsync = lambda fd: None
