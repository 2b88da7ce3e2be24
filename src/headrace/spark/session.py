"""The Spark session every pipeline, test and benchmark uses: addresses, interpreter, Java.

On some machines Spark picks the wrong one of each, and the error then names something
else: a wrong interpreter shows up as "worker crashed", a wrong address as a hang.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession

from headrace.spark.runtime import jvm_cds
from headrace.spark.runtime.java import find_java_home

LOOPBACK = "127.0.0.1"

# Renames within one file system: 40-60 ms less per batch than the default, which goes through
# Hadoop's FileContext.
_CHECKPOINT_FILES = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)

_DRIVER_JAVA = "spark.driver.extraJavaOptions"
_WORKER_DAEMON = "headrace.spark.runtime.worker_daemon"


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
    java_options = jvm_cds.added_to(chosen.get(_DRIVER_JAVA, ""))
    if java_options:  # an empty one would override spark-defaults.conf
        chosen[_DRIVER_JAVA] = java_options
    builder: SparkSession.Builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    elif "SPARK_ENV_LOADED" not in os.environ:
        builder = builder.master("local[*]")
    for key, value in chosen.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    _write_no_checksum_files(session)
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


def activate(session: SparkSession) -> None:
    """Make `session` that of this thread: Java finds data sources by it."""
    java = SparkSession._get_j_spark_session_class(session._jvm)
    java.setActiveSession(session._jsparkSession)


def _write_no_checksum_files(session: SparkSession) -> None:
    """Let Hadoop write the files of a checkpoint on this machine's disk alone.

    It would keep a second file for each, and start a process, chmod, for both: four of them in
    every batch. Checksums that are there are still checked.
    """
    assert session._jvm is not None
    java = session._jvm
    configuration = session._jsparkSession.sparkContext().hadoopConfiguration()
    disk = java.org.apache.hadoop.fs.FileSystem.get(java.java.net.URI("file:///"), configuration)
    disk.setWriteChecksum(False)  # of one object for all of this JVM, which Hadoop keeps


def _defaults(*, ui: bool) -> dict[str, str]:
    local = os.environ["SPARK_LOCAL_IP"]
    return {
        "spark.driver.host": local,
        "spark.driver.bindAddress": local,
        "spark.pyspark.python": sys.executable,
        "spark.python.daemon.module": _WORKER_DAEMON,
        "spark.ui.enabled": str(ui).lower(),
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINT_FILES,
        # The state kept of finished batches, for a console that is not there.
        "spark.sql.streaming.numRecentProgressUpdates": "20",
    }
