"""A server in which every read from the disk ends with a defect of its own, which is no damage."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import current_thread, main_thread

from headrace.cli import main
from headrace.storage.acid.acid_storage import AcidLog
from headrace.storage.base import ColdRead, Range
from headrace.storage.file.file_log import FileLog
from headrace.testing.server_process import ServerProcess


class DefectiveReadsServer(ServerProcess):
    module = "tests.hostile.defective_reads"

    def __init__(self, env: Mapping[str, str], cwd: str) -> None:
        paths = (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", ""))
        path = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
        super().__init__({**env, **path}, cwd=cwd)


def defective(cold_read: Callable[..., ColdRead]) -> Callable[..., ColdRead]:
    """A start reads on the main thread, and must not fail of it."""

    def open_read(*arguments: object) -> ColdRead:
        read = cold_read(*arguments)

        def fail() -> Range | None:
            if current_thread() is main_thread():
                return read()
            raise RuntimeError("a defect in a read of the disk")

        return fail

    return open_read


if __name__ == "__main__":
    for log in (FileLog, AcidLog):
        log.cold_read = defective(log.cold_read)  # type: ignore[method-assign]
    main()
