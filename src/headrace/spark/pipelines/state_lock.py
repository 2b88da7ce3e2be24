"""A pipeline's state has one run at a time: two would write over each other's checkpoint."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from headrace.spark.pipelines.base import ConfigError

FILE: Final = "lock"


@contextmanager
def locked(state_dir: Path) -> Iterator[None]:
    """Hold a state directory; the kernel lets go of it with the process, however that ends."""
    state_dir.mkdir(parents=True, exist_ok=True)
    with (state_dir / FILE).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise ConfigError(
                f"{state_dir} is in use by the process {file.read().strip() or 'of another run'}. "
                "Stop that run, or give this one another --state."
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield
