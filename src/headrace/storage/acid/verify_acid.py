"""`headrace verify` for acid: starts a process that reads the shards, and reports if it dies.

LMDB maps its file and checks none of its pages, so a damaged one may end the process that reads it
with SIGBUS, SIGSEGV or a failed assertion. That process is a child, and its end is a finding.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from headrace.protocol.stream import Snapshot
from headrace.storage.acid import verify_shard
from headrace.storage.acid.acid_storage import READY
from headrace.storage.acid.verify_shard import Finding, Line, Started
from headrace.storage.disk import Disk
from headrace.storage.records import snapshot_of
from headrace.storage.verify_report import Report, check_snapshots, unreadable_file

# What a process dies of that follows a damaged page: to an address that is not there, or into an
# assertion of LMDB's.
_OF_DAMAGE: Final = (signal.SIGBUS, signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)


def verify_acid(directory: Path, disk: Disk) -> Report:
    """Every value of every shard, and that each stream's bytes follow one another."""
    findings: list[str] = []
    streams = data_bytes = 0
    snapshots: list[Snapshot | None] = []
    left = _shards(disk)
    while left:
        lines, end = _read_in_child(directory, left)
        reading = left[0]
        for line in lines:
            if isinstance(line, Started):
                reading = line.shard
            elif isinstance(line, Finding):
                findings.append(line.sentence)
            else:
                streams += line.streams
                data_bytes += line.data_bytes
                snapshots += map(snapshot_of, line.snapshots)
        if end is not None:
            findings.append(f"{reading}/data.mdb cannot be read: {end}")
        # Go on behind the shard that ended the child, or stop where it came to the last one.
        left = left[left.index(reading) + 1 :]
    try:
        findings += check_snapshots(disk, snapshots)
    except OSError as error:
        findings.append(unreadable_file(error))
    findings += _what_a_start_cannot_open(disk)
    return Report(findings, streams, data_bytes)


def _what_a_start_cannot_open(disk: Disk) -> Iterator[str]:
    """The files that hold nothing to check, but that a server opens."""
    for name in (READY, *(f"{shard}/lock.mdb" for shard in _shards(disk))):
        try:
            disk.open(name).close()
        except FileNotFoundError:
            pass  # it will be made
        except OSError as error:
            yield unreadable_file(error)


def _shards(disk: Disk) -> list[str]:
    return [f"acid/{name}" for name in disk.list("acid") if name.startswith("shard-")]


def _read_in_child(directory: Path, shards: list[str]) -> tuple[list[Line], str | None]:
    """What the child wrote, and how it ended if it did not reach the end."""
    command = [sys.executable, "-m", verify_shard.__name__, str(directory), *shards]
    child = subprocess.run(command, capture_output=True, check=False)
    decoder = msgspec.json.Decoder(Line)
    lines = [decoder.decode(line) for line in child.stdout.splitlines()]
    return lines, _end_of(child)


def _end_of(child: subprocess.CompletedProcess[bytes]) -> str | None:
    if child.returncode == 0:
        return None
    words = child.stderr.decode(errors="replace").strip().splitlines()
    last = f" ({words[-1]})" if words else ""
    if child.returncode > 0:
        return f"the check of it failed{last}."
    name = signal.Signals(-child.returncode).name
    if -child.returncode not in _OF_DAMAGE:
        return f"the process that read it was ended by {name}."
    return (
        f"LMDB ended the process that read it with {name}{last}: a page is damaged. "
        "Restore the data directory from a backup or an export."
    )
