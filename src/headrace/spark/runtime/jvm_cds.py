"""Spark's classes the way Java holds them in memory, in a file: Spark starts with less work.

Each Java machine that starts Spark reads, verifies and links some ten thousand classes. With an
archive of them (class data sharing) it maps a file instead. `headrace pipeline prepare` makes one
for the Java and the Spark of this environment, and sessions that start a Java machine use it where
there is one. Java does without an archive of other classes than it finds; so the file's name tells
what it was made from, and a new one takes its place when they have changed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from headrace.spark.runtime.java import cache_home, find_java_home

_DEADLINE_SECS = 600
_REHEARSAL = "headrace.spark.runtime.cds_training"
_SHARED = "-XX:SharedArchiveFile"
_AT_EXIT = "-XX:ArchiveClassesAtExit"
# A user who passes one of these options has an archive of their own, and Java takes only one.
_OTHERS = (_SHARED, _AT_EXIT, "-XX:+AutoCreateSharedArchive", "-Xshare:")
# Java says on its output, not on its log, what it cannot archive or use: nothing to act on.
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
_BRIEF = "-XX:TieredStopAtLevel=1"  # a run of seconds is over sooner without the second compiler


class NoArchive(RuntimeError):
    """Java made none."""


def options() -> str:
    """What to tell Java so that it uses the archive; nothing where there is none."""
    try:
        archive = _archive()
        if not archive.exists():
            return ""
    except (OSError, RuntimeError):  # no Java, no home directory, or one not to be looked into
        return ""
    files = [path for path in (_base(archive), archive) if path.exists()]
    return shlex.quote(f"{_SHARED}={':'.join(map(str, files))}") + f" {_QUIET}"


def added_to(java_options: str) -> str:
    """These options and the archive's, unless they are about archives themselves."""
    if any(other in java_options for other in _OTHERS):
        return java_options
    return f"{options()} {java_options}".strip()


def make() -> Path:
    """The archive, made unless it is there; what it takes the place of is removed."""
    archive = _archive()
    home = archive.parent
    home.mkdir(parents=True, exist_ok=True)
    with _alone(home):
        if archive.exists():
            return archive
        for old in home.glob("*.jsa"):
            old.unlink()
        below = _make_base(archive)
        new = home / "new"
        told = f"{below} {shlex.quote(f'{_AT_EXIT}={new}')} {_BRIEF} {_QUIET}"
        _run([sys.executable, "-m", _REHEARSAL, told])
        if not new.exists():
            raise NoArchive("Java ended without writing an archive of its classes.")
        new.replace(archive)
    return archive


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """A second process waits, and finds it created."""
    with (home / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make_base(archive: Path) -> str:
    """The classes of Java itself, which most runtimes bring; what to tell Java about them."""
    java = str(_java())
    if subprocess.run([java, "-Xshare:on", "-version"], capture_output=True).returncode == 0:
        return ""
    option = f"{_SHARED}={_base(archive)}"
    _run([java, "-Xshare:dump", option])
    return shlex.quote(option)


def _run(command: list[str]) -> None:
    try:
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_DEADLINE_SECS,
        )
    except subprocess.TimeoutExpired:
        raise NoArchive(f"{command[0]} was not done after {_DEADLINE_SECS} s.") from None
    if ended.returncode:
        raise NoArchive(f"{command[0]} failed: {(ended.stdout + ended.stderr)[-2000:]}")


def _archive() -> Path:
    """In a directory of this Java and this environment, named by what is in them now."""
    java, jars = _java(), Path(pyspark.__file__).parent / "jars"
    script = java.read_bytes() if java.stat().st_size < 2**16 else b""  # which names another Java
    release = java.parent.parent / "release"
    now: list[object] = [script, release.read_bytes() if release.exists() else b""]
    found = sorted(os.scandir(jars), key=lambda jar: jar.name)
    now += [(jar.name, jar.stat().st_size, jar.stat().st_mtime_ns) for jar in found]
    return cache_home() / f"classes-{_digest(java, jars)}" / f"spark-{_digest(*now)}.jsa"


def _digest(*facts: object) -> str:
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _java() -> Path:
    home = find_java_home()
    return (Path(home, "bin", "java") if home else Path(shutil.which("java") or "")).resolve()


def _base(archive: Path) -> Path:
    return archive.with_name(archive.name.replace("spark", "java"))
