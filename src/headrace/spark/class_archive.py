"""Spark's classes the way Java holds them in memory, in a file: Spark starts with half the work.

Each Java machine that starts Spark reads, verifies and links some ten thousand classes. With an
archive of them (class data sharing) it maps a file instead. `headrace pipeline prepare` makes one
for the Java and the Spark of this machine; a session uses it where there is one. Java compares it
with itself and with Spark's jars, and does without it where they have changed.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import DataFrame

from headrace.spark.java import cache_home, find_java_home

_DEADLINE_SECS = 600
_SHARED = "-XX:SharedArchiveFile"
# Java says on its output, not on its log, what it cannot archive or use: nothing to act on.
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
_BRIEF = "-XX:TieredStopAtLevel=1"  # a run of seconds is over sooner without the second compiler


class NoArchive(RuntimeError):
    """Java made none."""


def options() -> str:
    """What to tell Java so that it uses the archive; nothing where there is none."""
    home = _home()
    if not _spark(home).exists():
        return ""
    files = [path for path in (_base(home), _spark(home)) if path.exists()]
    return shlex.quote(f"{_SHARED}={':'.join(map(str, files))}") + f" {_QUIET}"


def added_to(java_options: str) -> str:
    """These options and the archive's, unless they name an archive themselves."""
    return java_options if _SHARED in java_options else f"{options()} {java_options}".strip()


def make() -> Path:
    """The archive, made unless it is there."""
    home = _home()
    made = _spark(home)
    if made.exists():
        return made
    home.mkdir(parents=True, exist_ok=True)
    below = _make_base(home)
    new = home / f"spark-{os.getpid()}.new"
    told = f"{below} {shlex.quote(f'-XX:ArchiveClassesAtExit={new}')} {_BRIEF} {_QUIET}"
    try:
        _run([sys.executable, "-m", __name__, told])
        if not new.exists():
            raise NoArchive("Java ended without writing an archive of its classes.")
        new.replace(made)
    finally:
        new.unlink(missing_ok=True)
    return made


def _make_base(home: Path) -> str:
    """The classes of Java itself, which most runtimes bring; what to tell Java about them."""
    java = str(_java())
    if subprocess.run([java, "-Xshare:on", "-version"], capture_output=True).returncode == 0:
        return ""
    option = f"{_SHARED}={_base(home)}"
    _run([java, "-Xshare:dump", option])
    return shlex.quote(option)


def _run(command: list[str]) -> None:
    ended = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_DEADLINE_SECS
    )
    if ended.returncode:
        raise NoArchive(f"{command[0]} failed: {(ended.stdout + ended.stderr)[-2000:]}")


def _home() -> Path:
    """Where the archive of this Java and this Spark is; others have theirs beside it."""
    java = _java()
    known = (java, java.stat().st_mtime_ns, pyspark.__version__, pyspark.__file__)
    return cache_home() / f"classes-{hashlib.sha256(repr(known).encode()).hexdigest()[:16]}"


def _java() -> Path:
    home = find_java_home()
    return (Path(home, "bin", "java") if home else Path(shutil.which("java") or "")).resolve()


def _base(home: Path) -> Path:
    return home / "java.jsa"


def _spark(home: Path) -> Path:
    return home / "spark.jsa"


def _load_classes(java_options: str) -> None:
    """Do what pipelines do, so that Java loads what they need; it writes the archive at its end."""
    from headrace.spark.session import build_session  # which asks this module for the archive

    spark = build_session(
        "headrace-classes",
        master="local[1]",
        conf={"spark.driver.extraJavaOptions": java_options},
    )
    rates = spark.readStream.format("rate").load()
    with tempfile.TemporaryDirectory() as checkpoint:
        counted = rates.mapInArrow(lambda batches: batches, rates.schema).groupBy("value").count()
        query = (
            counted.writeStream.outputMode("update")
            .option("checkpointLocation", checkpoint)
            .foreachBatch(_collect)
            .trigger(once=True)
            .start()
        )
        query.awaitTermination()
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_DEADLINE_SECS)


def _collect(frame: DataFrame, batch: int) -> None:
    frame.collect()


if __name__ == "__main__":
    _load_classes(sys.argv[1])
