"""Running a pipeline as a process: a session, a query, its progress, and an end that is clean.

SIGTERM and SIGINT end it after the running batch's work is either done or safe to repeat; the next
start goes on from the checkpoint.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from headrace.spark.pipelines.base import ConfigFile, Pipeline, PipelineConfig, Run
from headrace.spark.pipelines.progress import FAILED, RUNNING, STOPPED, Meter, Progress
from headrace.spark.session import build_session

_REPORT_SECS = 1
_ERROR_CHARS_MAX = 2000

Watcher = Callable[[Progress], None]


def run_pipeline(
    pipeline: Pipeline,
    config: PipelineConfig,
    run: Run,
    *,
    master: str | None = None,
    spark_conf: Mapping[str, str] | None = None,
    watch: Watcher = lambda progress: None,
) -> Progress:
    """Run until it ends, fails, or is told to stop. Its last progress says which."""
    run.state_dir.mkdir(parents=True, exist_ok=True)
    progress = Progress(pipeline.name, os.getpid(), started_at=time.time(), updated_at=time.time())
    progress.write(run.state_dir)
    stopping = _stop_on_signals()
    session = build_session(f"headrace {pipeline.name}", master=master, conf=spark_conf)
    try:
        query = pipeline.start(session, config, run)
        progress.state = RUNNING
        _follow(query, Meter(progress, time.time()), run.state_dir, stopping, watch)
        progress.state = STOPPED
    except Exception as error:
        progress.state, progress.last_error = FAILED, explain(error)
    finally:
        progress.updated_at = time.time()
        progress.write(run.state_dir)
        session.stop()
    return progress


def _follow(
    query: StreamingQuery,
    meter: Meter,
    state_dir: Path,
    stopping: threading.Event,
    watch: Watcher,
) -> None:
    ended = False
    while not ended:
        ended = bool(query.awaitTermination(_REPORT_SECS))
        _report(query, meter)
        meter.progress.write(state_dir)
        watch(meter.progress)
        if stopping.is_set() and not ended:
            query.stop()


def _report(query: StreamingQuery, meter: Meter) -> None:
    now = time.time()
    for report in query.recentProgress:
        meter.saw(json.loads(report.json) if hasattr(report, "json") else dict(report), now)
    if not query.isActive or not query.status["isDataAvailable"]:
        meter.idle(now)
    meter.tick(now)


def _stop_on_signals() -> threading.Event:
    stopping = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.set()

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
    return stopping


def explain(error: BaseException) -> str:
    """The sentence a person needs out of Spark's pages of trace: the innermost Python error."""
    text = str(error)
    if not isinstance(error, StreamingQueryException) and "Traceback" not in text:
        return text[:_ERROR_CHARS_MAX]
    lines = [line.strip() for line in text.splitlines()]
    raised = [
        line
        for line in lines
        if line and not line.startswith(("at ", "File ", "Traceback", "^", "[", "===", "SQLSTATE"))
    ]
    ours = [line for line in raised if line.startswith(("headrace.", "pyspark.errors."))]
    first = (ours or raised or lines)[0]
    return first.split(" SQLSTATE")[0][:_ERROR_CHARS_MAX]


def main(pipeline: Pipeline) -> None:
    """The entry of a module that is given to spark-submit: `--config FILE --once --state DIR`."""
    import argparse
    import sys

    parser = argparse.ArgumentParser(description=pipeline.summary)
    parser.add_argument("--config", type=Path)
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--state", type=Path, default=Path("data/pipelines"))
    given = parser.parse_args()
    file = ConfigFile.read(given.config)
    run = Run(given.once, given.state / pipeline.name)
    progress = run_pipeline(pipeline, file.of(pipeline), run, spark_conf=file.spark)
    if progress.last_error:
        sys.exit(f"{pipeline.name}: {progress.last_error}")
