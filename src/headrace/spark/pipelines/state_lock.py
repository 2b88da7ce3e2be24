"""A pipeline's state has one run at a time: two would write over each other's checkpoint."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from headrace.spark.object_store import S3Path, StoreError
from headrace.spark.pipelines.base import ConfigError
from headrace.spark.pipelines.s3_lock import S3Lock
from headrace.spark.places import Place

FILE: Final = "lock"


@contextmanager
def locked(state_dir: Place) -> Iterator[None]:
    """Hold a state; ConfigError if another run does."""
    if isinstance(state_dir, S3Path):
        with _held_on_s3(state_dir / FILE):
            yield
    else:
        with _held_on_disk(state_dir):
            yield


@contextmanager
def _held_on_s3(path: S3Path) -> Iterator[None]:
    lock = S3Lock(path)
    try:
        lock.__enter__()
    except StoreError as error:
        raise ConfigError(f"--state cannot be used: {error}") from None
    try:
        yield
    finally:
        lock.__exit__()


@contextmanager
def _held_on_disk(state_dir: Path) -> Iterator[None]:
    """The kernel lets go of it with the process, however that ends."""
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
