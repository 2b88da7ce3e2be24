"""`headrace verify`: is every stored byte of a data directory that no server has open intact?"""

from __future__ import annotations

from pathlib import Path

from headrace.storage.acid.verify_acid import verify_acid
from headrace.storage.disk import RealDisk
from headrace.storage.file.verify_files import verify_files
from headrace.storage.verify_report import Report, unreadable_file


def verify(directory: Path) -> Report | None:
    """Check a data directory of any durable mode; None where there is none."""
    disk = RealDisk(directory)
    try:
        is_acid, is_files = bool(disk.list("acid")), bool(disk.list("journal"))
        if not is_acid and not is_files:
            return None
        disk.lock()
        return verify_acid(directory, disk) if is_acid else verify_files(disk)
    except OSError as error:
        return Report([unreadable_file(error)], 0, 0)
    finally:
        disk.close()
