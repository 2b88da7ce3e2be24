"""What a trigger of Spark takes that has next to nothing to do: the floor under every latency.

    python -m bench.empty_trigger                     20 s of triggers, one row each, to nowhere
    python -m bench.empty_trigger --checksum-files    with Hadoop's checksum files, as Spark has it
    python -m bench.empty_trigger --report FILE       and as JSON

Beside Spark's own steps stands the CPU time of a trigger: of Java, and of the processes that Java
started meanwhile. Alternate the two to see what the checksum files cost.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bench.machine import TICKS_PER_SECOND, describe
from headrace.spark.session import build_session

WARM_UP_SECS = 10.0
KEPT = {"spark.sql.streaming.numRecentProgressUpdates": "2000"}


def _cpu_ms(java: int) -> tuple[float, float]:
    """Of Java itself, and of the processes it has started that ended."""
    fields = Path(f"/proc/{java}/stat").read_text().rpartition(")")[2].split()
    own, others = fields[11:13], fields[13:15]
    return tuple(sum(map(int, ticks)) / TICKS_PER_SECOND * 1000 for ticks in (own, others))  # type: ignore[return-value]


def _java(spark: SparkSession) -> int:
    assert spark._jvm is not None
    return int(spark._jvm.java.lang.ProcessHandle.current().pid())


def _started(spark: SparkSession, checkpoint: str) -> StreamingQuery:
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    writer = rows.writeStream.format("noop").option("checkpointLocation", checkpoint)
    return writer.trigger(processingTime="0 seconds").start()


def _batches(query: StreamingQuery) -> int:
    progress: Any = query.lastProgress
    return int(progress["batchId"]) if progress else 0


def measure(spark: SparkSession, checkpoint: str, secs: float) -> dict[str, Any]:
    java, query = _java(spark), _started(spark, checkpoint)
    time.sleep(WARM_UP_SECS)
    first, before = _batches(query), _cpu_ms(java)
    time.sleep(secs)
    last, after = _batches(query), _cpu_ms(java)
    steps = [each["durationMs"] for each in query.recentProgress if each["batchId"] > first]
    query.stop()
    triggers = last - first
    own, others = ((now - was) / triggers for was, now in zip(before, after, strict=True))
    return {
        "triggers": triggers,
        "ms": round(secs * 1000 / triggers, 1),
        "median_ms_by_step": {name: median(each[name] for each in steps) for name in steps[0]},
        "cpu_ms": {"java": round(own, 1), "processes it started": round(others, 1)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--secs", type=float, default=20)
    parser.add_argument("--checksum-files", action="store_true")
    parser.add_argument("--report", type=Path, help="write the figures here as JSON")
    given = parser.parse_args()
    spark = build_session("empty trigger", master="local[2]", conf=KEPT)
    if given.checksum_files:
        java = spark._jvm
        assert java is not None
        configuration = spark._jsparkSession.sparkContext().hadoopConfiguration()
        disk = java.org.apache.hadoop.fs.FileSystem.get(
            java.java.net.URI("file:///"), configuration
        )
        disk.setWriteChecksum(True)
    try:
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as home:
            found = measure(spark, f"{home}/checkpoint", given.secs)
    finally:
        spark.stop()
    machine = describe(["python -m bench.empty_trigger", *sys.argv[1:]])
    report = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "machine": machine, **found}
    print(json.dumps(found))
    if given.report is not None:
        given.report.write_text(json.dumps(report, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
