"""Running pipelines as a process: a session, a query each, their progress, and a clean end.

SIGTERM and SIGINT end it after the running batch's work is either done or safe to repeat; the next
start goes on from the checkpoint. Several pipelines may share the process: a Java machine costs
more to start and to keep than a query. One that fails then begins again after a pause, and the
others go on meanwhile.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace.backoff import NO_JITTER, Backoff
from headrace.spark.object_store import S3Path, StoreError
from headrace.spark.pipelines.base import (
    DEFAULT_STATE_DIR,
    ConfigError,
    ConfigFile,
    Pipeline,
    PipelineConfig,
    Run,
    state_dir,
)
from headrace.spark.pipelines.progress import (
    FAILED,
    RETRYING,
    RUNNING,
    STOPPED,
    Meter,
    Progress,
    continued,
)
from headrace.spark.pipelines.progress_stream import Publisher
from headrace.spark.pipelines.state_lock import locked
from headrace.spark.quarantine_count import QuarantineCount
from headrace.spark.runtime.keepalive import kept_alive
from headrace.spark.runtime.s3a import JarError, export_settings, with_connector
from headrace.spark.runtime.signals import java_ignores_sigterm
from headrace.spark.session import activate, build_session

_REPORT_SECS = 1.0
_S3_REPORT_SECS = 10.0
_RESTART_SECS = Backoff(1.0, 30.0, jitter=NO_JITTER)
_CROWDED_SECS = Backoff(20.0, 180.0)  # the load that kept a worker from starting is still there
_STABLE_SECS = 60.0  # one that ran this long begins again after the shortest pause
_EXIT_REFUSED = 2
_ERROR_CHARS_MAX = 2000

# Without checksum files next to a checkpoint's own: for each file that is made, Hadoop starts a
# process (chmod), and a batch makes two of them. A file that is cut short is still refused. Only
# for pipelines: RocksDB keeps state through a file system of checksums, and breaks on this one.
_LOCAL_FILES = {"spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem"}
_STATE_STORE = "spark.sql.streaming.stateStore.providerClass"
_TRACE = "Traceback (most recent call last):"
_GONE = ("java.io.EOFException", "java.net.SocketException")
_PLANNER_GONE = (
    "A Python process of Spark that plans what a source reads has ended without a reason: it was "
    "killed, perhaps because the machine ran out of memory (its log says so). Nothing is lost; "
    "start the pipeline again."
)
_CROWDED = "Python worker failed to connect back"
_CROWDED_SAID = (
    "A Python worker of Spark did not start in time: the machine is overloaded, nothing is lost. "
    "With less load, or with fewer cores for Spark (--master), the next attempt goes on."
)
_QUERY_DETAILS = "\n=== Streaming Query ==="

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
    """Run until it ends, fails, or is stopped. Its last progress says which."""
    (progress,) = run_pipelines(
        [PipelineSpec(pipeline, config, run)], master=master, spark_conf=spark_conf, watch=watch
    )
    return progress


def run_pipelines(
    specs: Sequence[PipelineSpec],
    *,
    master: str | None = None,
    spark_conf: Mapping[str, str] | None = None,
    watch: Watcher = lambda progress: None,
) -> list[Progress]:
    """Run all of them in one session until each has ended or they are stopped.

    Raises ConfigError, before anything has begun, if another run has the state of one of them.
    """
    export_settings(spark_conf or {})
    conf = _checked_conf(specs, spark_conf or {})
    with ExitStack() as held:
        for spec in specs:
            held.enter_context(locked(spec.run.state_dir))
            spec.config.check_run(spec.run)
        return _run_pipelines(specs, master, conf, watch)


def _checked_conf(specs: Sequence[PipelineSpec], given: Mapping[str, str]) -> Mapping[str, str]:
    """Spark's keys, with what a state on S3 needs; ConfigError if one cannot be there."""
    there = [spec for spec in specs if isinstance(spec.run.state_dir, S3Path)]
    for spec in there:
        if not spec.pipeline.may_be_on_s3:
            raise ConfigError(
                f"--state: {spec.run.state_dir} is on S3, where only archive, compact and replay "
                f"can have theirs. Give {spec.pipeline.name} a directory."
            )
    try:
        return with_connector(given) if there else given
    except JarError as error:
        raise ConfigError(str(error)) from None


def _run_pipelines(
    specs: Sequence[PipelineSpec],
    master: str | None,
    spark_conf: Mapping[str, str],
    watch: Watcher,
) -> list[Progress]:
    stopping = _stop_on_signals()
    runs = [
        PipelineRun(spec, may_begin_again=len(specs) > 1 and not spec.run.once) for spec in specs
    ]
    title = " ".join(spec.pipeline.name for spec in specs)
    with ExitStack() as publishing:
        for each in runs:
            publishing.enter_context(each.publisher())
        session = _built(f"headrace {title}", master, spark_conf)
        goes_on = any(not spec.run.once for spec in specs)
        try:
            with kept_alive(session) if goes_on else nullcontext():
                run_all(session, runs, stopping, watch)
        finally:
            for each in runs:
                each.write()
            session.stop()
    return [each.progress for each in runs]


@dataclass(frozen=True)
class PipelineSpec:
    """A pipeline with its configuration."""

    pipeline: Pipeline
    config: PipelineConfig
    run: Run


class PipelineRun:
    """One pipeline of this process: its query while there is one, and what is known of it."""

    def __init__(self, spec: PipelineSpec, *, may_begin_again: bool) -> None:
        self._spec = spec
        self._may_begin_again = may_begin_again
        self._query: StreamingQuery | None = None
        self._failures = 0
        self._has_failed = False  # in this process, and not got over it
        self._begun_at = 0.0
        self._written = ("", 0.0)  # the state that was reported last, and when
        self._next_at = 0.0
        self.is_over = False
        now = time.time()
        self.progress = continued(spec.pipeline.name, spec.run.state_dir, now)
        self._meter = Meter(self.progress, now)
        self._meter.tick(now)
        spec.run.state_dir.mkdir(parents=True, exist_ok=True)
        self.write()

    @property
    def is_once(self) -> bool:
        return self._spec.run.once

    def write(self) -> None:
        """On S3, where each costs a request and money, only now and then if nothing happened."""
        place, state, now = self._spec.run.state_dir, self.progress.state, time.monotonic()
        is_due = state != self._written[0] or now - self._written[1] >= _S3_REPORT_SECS
        if isinstance(place, S3Path) and not is_due:
            return
        self._written = (state, now)
        with suppress(StoreError):  # what a pipeline does matters more than what it says of it
            self.progress.quarantined = QuarantineCount(self._spec.run.checkpoint).total()
            self.progress.write(place)

    def publisher(self) -> AbstractContextManager[object]:
        config = self._spec.config
        if not config.progress:
            return nullcontext()
        return Publisher(config.server, config.token, config.progress, self.progress)

    def poll(self, session: SparkSession, wait_secs: float, stopping: threading.Event) -> None:
        """Go on: begin if it is time, else wait for the query a little and note how it does."""
        try:
            if self._query is not None:
                self._follow(self._query, wait_secs, stopping)
            elif stopping.is_set():
                self.is_over = True
                self.progress.state = FAILED if self._has_failed else STOPPED
            elif time.monotonic() >= self._next_at:
                self._begun_at = time.monotonic()
                self._query = self._spec.pipeline.start(session, self._spec.config, self._spec.run)
                if not self.progress.failures_in_row:
                    self.progress.state = RUNNING
                self.progress.spark_ui = session.sparkContext.uiWebUrl
            else:
                stopping.wait(wait_secs)
        except Exception as error:
            self._failed(error, session)
        if self._query is None and not self.is_over:
            self._meter.tick(time.time())  # nothing else measures the lag meanwhile
        self.progress.updated_at = time.time()
        self.write()

    def _follow(self, query: StreamingQuery, wait_secs: float, stopping: threading.Event) -> None:
        has_ended = bool(query.awaitTermination(wait_secs))  # type: ignore[arg-type]
        has_got_on = _report(query, self._meter)
        if has_got_on:
            self.progress.state = RUNNING
        if has_ended or (has_got_on and self._is_stable()):
            self._has_failed = False
            self.progress.failures_in_row, self.progress.last_error = 0, None
        if has_ended:
            self.progress.state, self.is_over = STOPPED, True
        elif stopping.is_set():
            query.stop()

    def _failed(self, error: Exception, session: SparkSession) -> None:
        self._query, self._has_failed = None, True
        self.progress.state, self.progress.last_error = RETRYING, explain(error)
        self.progress.failures += 1
        self.progress.failures_in_row += 1
        if not self._may_begin_again or not _has_java(session):
            self.progress.state, self.is_over = FAILED, True
            return
        if self._is_stable():
            self._failures = 0
        self._failures += 1
        pause = _pause_secs(error, self._failures)
        self._next_at = time.monotonic() + pause
        sentence = f"{self.progress.pipeline} failed and begins again in {pause:g} s: "
        print(sentence + self.progress.last_error, file=sys.stderr, flush=True)

    def _is_stable(self) -> bool:
        return time.monotonic() - self._begun_at > _STABLE_SECS


def _pause_secs(error: Exception, failures: int) -> float:
    if _is_crowded(_texts(error)):
        return round(_CROWDED_SECS.after(failures, random.random()), 1)
    return _RESTART_SECS.after(failures)


def _built(title: str, master: str | None, conf: Mapping[str, str]) -> SparkSession:
    """The session, built in a thread: in the main one Spark would take SIGINT for itself."""
    with ThreadPoolExecutor(1) as aside:
        session = aside.submit(_build, title, master, session_conf(conf)).result()
    activate(session)
    return session


def _build(title: str, master: str | None, conf: Mapping[str, str]) -> SparkSession:
    with java_ignores_sigterm():
        return build_session(title, master=master, conf=conf)


def session_conf(given: Mapping[str, str]) -> dict[str, str]:
    """Spark's keys of a session for pipelines: what is given, and what only they can do with."""
    usual = {} if "RocksDB" in given.get(_STATE_STORE, "") else _LOCAL_FILES
    return usual | dict(given)


def run_all(
    session: SparkSession, runs: Sequence[PipelineRun], stopping: threading.Event, watch: Watcher
) -> None:
    """Poll each until it is over. Those that end by themselves take turns, in their order: what
    one writes may be what the next one reads."""
    while left := [each for each in runs if not each.is_over]:
        if all(each.is_once for each in left):
            left = left[:1]
        for each in left:
            each.poll(session, _REPORT_SECS / len(left), stopping)
            watch(each.progress)
        if any(each.is_over and each.progress.state == FAILED for each in runs):
            stopping.set()


def _has_java(session: SparkSession) -> bool:
    """Whether the session's Java machine still answers; without it nothing can begin again."""
    try:
        return not session.sparkContext._jsc.sc().isStopped()
    except Exception:
        return False


def _report(query: StreamingQuery, meter: Meter) -> bool:
    """Measure; whether the query has got through a batch, or found that there is none.

    Before that it may be about to fail, as the last time, on what has waited since then.
    """
    now = time.time()
    reports = query.recentProgress
    for report in reports:
        meter.saw(json.loads(report.json) if hasattr(report, "json") else dict(report), now)
    if not query.isActive or (reports and not query.status["isDataAvailable"]):
        meter.idle(now)
    meter.tick(now)
    return bool(reports)


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
    texts = _texts(error)
    text = texts[0]
    if _is_crowded(texts):
        return _CROWDED_SAID
    if raised := next(filter(None, (_raised(each.splitlines()) for each in texts)), None):
        ours = [line for line in raised if line.startswith("headrace.")]
        text = (ours or raised)[-1]
    elif isinstance(error, StreamingQueryException):
        text = text.partition(" terminated with exception: ")[2] or text
        text = text.partition("\n")[0]
    else:
        return (text or repr(error))[:_ERROR_CHARS_MAX]
    said = text.split(" SQLSTATE")[0].strip()
    if not raised and (not said or any(each.startswith(_GONE) for each in texts)):
        said = f"{_PLANNER_GONE} Spark says: {texts[-1].splitlines()[0]}"
    return said[:_ERROR_CHARS_MAX]


def _texts(error: BaseException) -> list[str]:
    return [str(each).partition(_QUERY_DETAILS)[0] for each in _causes(error)]


def _is_crowded(texts: Iterable[str]) -> bool:
    return any(_CROWDED in text for text in texts)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """It and the Java errors behind it: of some Spark says no more than `Writing job failed`."""
    while error is not None:
        yield error
        error = getattr(error, "_cause", None)


def _raised(lines: Iterable[str]) -> list[str]:
    """What each Python trace ends with: the first line that is not indented, and its detail."""
    raised: list[str] = []
    in_trace = in_error = False
    for line in lines:
        if line.endswith(_TRACE):
            in_trace, in_error = True, False
        elif in_trace and line and not line[0].isspace():
            raised.append(line)
            in_trace, in_error = False, True
        elif in_error and line.startswith("DETAIL:"):
            raised[-1] += " " + " ".join(line.split())
    return raised


def main(pipeline: Pipeline) -> None:
    """The entry of a module that is given to spark-submit: `--config FILE --once --state DIR`."""
    import argparse

    parser = argparse.ArgumentParser(description=pipeline.summary)
    parser.add_argument("--config", type=Path)
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--state", default=DEFAULT_STATE_DIR)
    given = parser.parse_args()
    try:
        file = ConfigFile.read(given.config)
        config = file.of(pipeline)
        run = Run(given.once, state_dir(given.state) / pipeline.name)
    except ConfigError as error:
        parser.exit(_EXIT_REFUSED, f"{pipeline.name}: {error}\n")
    try:
        progress = run_pipeline(pipeline, config, run, spark_conf=file.spark)
    except ConfigError as error:
        parser.exit(_EXIT_REFUSED, f"{pipeline.name}: {error}\n")
    if progress.state == FAILED:
        sys.exit(f"{pipeline.name}: {progress.last_error}")
