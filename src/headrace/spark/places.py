"""Where states and lake tables are: on a disk of this machine, or in an S3 bucket."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final, TypeAlias

from headrace.spark.local_paths import PlaceError, local_path
from headrace.spark.object_store import SCHEMES, S3Path

Place: TypeAlias = Path | S3Path
_OTHER: Final = ", or s3://bucket/path"


def place_of(name: str, given: str) -> Place:
    """The place that `name` was set to: a path, `file:///path`, `s3://bucket/path` or s3a."""
    scheme, _, rest = given.partition(":")
    if scheme.lower() not in SCHEMES or not rest.startswith("//"):
        return local_path(name, given, other=_OTHER)
    found = S3Path.of(given)
    if found is None:
        raise PlaceError(f"{name}: {given!r} names nothing in a bucket. Write s3://bucket/path.")
    return found


def write_whole(place: Place, text: str, *, durable: bool = False) -> None:
    """Replace a small file: a reader sees the old text or the new one.

    `durable` is for what must outlast a power cut. On S3 everything does.
    """
    if isinstance(place, S3Path):
        place.write_bytes(text.encode())
        return
    new = place.with_name(place.name + ".new")
    with new.open("w", encoding="utf-8") as file:
        file.write(text)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    new.replace(place)
    if durable:
        _sync_directory(place.absolute().parent)


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def names_in(directory: Place) -> list[str]:
    """Its files and directories; none if it is not there."""
    if isinstance(directory, S3Path):
        files, directories = directory.names()
        return [*files, *directories]
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []


def directories_in(directory: Place) -> list[Place]:
    """In the order of their names."""
    if isinstance(directory, S3Path):
        return [directory / name for name in sorted(directory.names()[1])]
    return [*sorted(directory.glob("*/"))]


def remove_tree(directory: Place) -> None:
    if isinstance(directory, S3Path):
        directory.remove_tree()
    else:
        shutil.rmtree(directory, ignore_errors=True)
