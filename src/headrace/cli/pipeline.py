"""`headrace pipeline`: run pipelines, list them, see how they are doing, operate on them."""

from __future__ import annotations

import json
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import pipeline_operations as operations
from headrace.cli.options import EXIT_FAILED, EXIT_REFUSED, fail
from headrace.cli.pipeline_operations import DEFAULT_STATE, ConfigOption, StateOption, need_spark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.spark.pipelines.base import ConfigFile
    from headrace.spark.pipelines.progress import Progress
    from headrace.spark.pipelines.runner import PipelineSpec
    from headrace.spark.places import Place

app = typer.Typer(
    name="pipeline",
    help="Move streams to and from Postgres and the lake with Spark.",
    no_args_is_help=True,
)

NamesArgument = Annotated[
    list[str],
    typer.Argument(metavar="NAME", help="Pipelines to run; see `headrace pipeline list`."),
]


@app.command()
def run(
    names: NamesArgument,
    once: Annotated[
        bool, typer.Option("--once/--continuous", help="Stop once caught up, or run until stopped.")
    ] = False,
    master: Annotated[
        str | None, typer.Option(metavar="URL", help="Spark master (default: all local cores).")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="TOML file with one table per pipeline.")
    ] = None,
    state: StateOption = DEFAULT_STATE,
    metrics_listen: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT", help="Serve /metrics for Prometheus there (default: nowhere)."
        ),
    ] = None,
) -> None:
    """Run pipelines until they are stopped, or with --once until they have caught up.

    All of them run in one JVM. A pipeline that fails is restarted while the others continue; the
    exit code is 1 if one has failed in the end. With --once they run one after the other, in the
    order given, and what follows a failed one does not run.
    """
    need_spark()
    from headrace.spark.pipelines.base import ConfigError, ConfigFile, state_dir
    from headrace.spark.pipelines.runner import run_pipelines

    try:
        file = ConfigFile.read(config)
        works = [_work(name, file, state_dir(state), once=once) for name in dict.fromkeys(names)]
    except ConfigError as error:
        fail(str(error), EXIT_REFUSED)
    bar = _bar() if sys.stderr.isatty() and len(works) == 1 else _quiet
    with _metrics(metrics_listen, works) as saw:

        def watch(progress: Progress) -> None:
            saw(progress)
            bar(progress)

        try:
            ended = run_pipelines(works, master=master, spark_conf=file.spark, watch=watch)
        except ConfigError as error:
            fail(str(error), EXIT_REFUSED)
    failed = [f"{p.pipeline} failed: {p.last_error}" for p in ended if p.state == "failed"]
    if failed:
        fail("\n".join(failed), EXIT_FAILED)
    for progress in ended:
        typer.echo(f"{progress.pipeline} stopped after {progress.rows} rows.", err=True)


@contextmanager
def _metrics(listen: str | None, specs: list[PipelineSpec]) -> Iterator[Callable[[Progress], None]]:
    """Serve the metrics of the pipelines while inside; what to give each progress to."""
    if listen is None:
        yield _quiet
        return
    from headrace.cli.metrics_listener import Address, served
    from headrace.spark.pipelines.pipeline_metrics import PipelineMetrics

    metrics = PipelineMetrics(specs)
    with ExitStack() as serving:
        try:
            url = serving.enter_context(served(Address.of(listen), metrics.scrape))
        except ValueError as error:
            fail(str(error), EXIT_REFUSED)
        except OSError as error:
            fail(f"cannot listen on {listen} for metrics: {error.strerror}.", EXIT_FAILED)
        typer.echo(f"Metrics at {url}", err=True)
        yield metrics.saw


def _work(name: str, file: ConfigFile, state: Place, *, once: bool) -> PipelineSpec:
    from headrace.spark.pipelines import names, pipeline
    from headrace.spark.pipelines.base import Run
    from headrace.spark.pipelines.runner import PipelineSpec

    if name not in names():
        fail(f"there is no pipeline {name!r}; there are {', '.join(names())}.", EXIT_REFUSED)
    chosen = pipeline(name)
    return PipelineSpec(chosen, file.of(chosen), Run(once, state / name))


@app.command("list")
def list_() -> None:
    """List the pipelines."""
    need_spark()
    from headrace.spark.pipelines import names, pipeline

    for name in names():
        typer.echo(f"{name:<20} {pipeline(name).summary}")


@app.command()
def prepare(
    s3: Annotated[
        bool, typer.Option("--s3", help="Instead, fetch the jars for a --state on S3 (13 MB).")
    ] = False,
) -> None:
    """Create a class data archive for Spark's JVM, so that pipelines start faster."""
    need_spark()
    from headrace.spark.runtime import jvm_cds, s3a

    try:
        if s3:
            typer.echo(s3a.fetch())
            return
        made = jvm_cds.make()
    except (RuntimeError, OSError) as error:
        fail(str(error), EXIT_FAILED)
    typer.echo(f"{made} ({made.stat().st_size >> 20} MiB)")


@app.command()
def resnapshot(
    table: Annotated[
        str, typer.Option(metavar="TABLE", help="Table to copy, such as public.items.")
    ],
    config: ConfigOption = None,
) -> None:
    """Have postgres-to-stream copy one table again: a reset, all rows, then further changes.

    A running pipeline starts within seconds; a stopped one when it runs next.
    """
    need_spark()
    import psycopg

    from headrace.postgres.slot_names import SlotError
    from headrace.postgres.slots import Slot
    from headrace.spark.pipelines.base import ConfigError, ConfigFile
    from headrace.spark.pipelines.postgres_to_stream import PIPELINE, Config

    try:
        found = ConfigFile.read(config).of(PIPELINE)
        assert isinstance(found, Config), "each pipeline has its own configuration"
        slot = Slot(found.postgres, found.slot, found.tables)
        slot.request_copy(table)
    except (ConfigError, SlotError) as error:
        fail(f"{error}{_unless_given(config)}", EXIT_REFUSED)
    except psycopg.OperationalError as error:
        reason = str(error).strip()
        fail(f"Postgres cannot be reached: {reason}{_unless_given(config)}", EXIT_FAILED)
    typer.echo(f"{table} will be copied again by the consumer of the slot {slot.name}.")


def _unless_given(config: Path | None) -> str:
    if config is not None:
        return ""
    return " Without --config this asked the database of $POSTGRES_URL, or else of the local stack."


@app.command()
def status(
    name: Annotated[str | None, typer.Argument(help="Only this one.")] = None,
    state: StateOption = DEFAULT_STATE,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, one line each.")] = False,
) -> None:
    """Show state, rows, rows per second, lag and last error.

    Exit code 1 if one has failed, is gone, or has failed and not got any further since.
    """
    need_spark()
    from headrace.spark.object_store import StoreError
    from headrace.spark.pipelines.base import ConfigError, state_dir
    from headrace.spark.pipelines.progress import ProgressError

    try:
        found = [p for p in _all_progress(state_dir(state)) if name in (None, p.pipeline)]
    except (ConfigError, ProgressError) as error:
        fail(str(error), EXIT_REFUSED)
    except StoreError as error:
        fail(str(error), EXIT_FAILED)
    if not found:
        fail(f"no pipeline has run under {state}.{_stack_advice(state)}", EXIT_FAILED)
    for progress in found:
        typer.echo(json.dumps(asdict(progress)) if as_json else _line(progress))
    if any(progress.state in ("failed", "dead", "retrying") for progress in found):
        raise typer.Exit(EXIT_FAILED)


def _stack_advice(state: str) -> str:
    """Where the stack's pipelines have their state, if that may be meant."""
    from headrace.stack.state_directory import default_directory

    of_stack = default_directory() / "pipelines"
    if state != DEFAULT_STATE or not of_stack.is_dir():
        return ""
    return f" Those of the stack are under another directory: --state {of_stack}"


def _all_progress(state: Place) -> list[Progress]:
    from headrace.spark.pipelines.progress import read_progress
    from headrace.spark.places import directories_in

    found = [read_progress(place) for place in directories_in(state)]
    return [progress for progress in found if progress is not None]


def _line(progress: Progress) -> str:
    behind = "" if progress.lag_rows is None else f" ({progress.lag_rows} messages)"
    age = max(0.0, time.time() - progress.updated_at)
    line = (
        f"{progress.pipeline:<20} {progress.state:<8} {progress.rows:>10} rows "
        f"{progress.rows_per_sec:>9.0f}/s  lag {progress.lag_secs:.1f} s{behind}"
        f"  batch {progress.batch}  {age:.0f} s ago"
    )
    if progress.spark_ui and progress.state == "running":
        line += f"\n  Spark UI: {progress.spark_ui}"
    if progress.failures_in_row > 1:
        line += f"\n  {progress.failures_in_row} failures in a row; the last one:"
    return f"{line}\n  {progress.last_error}" if progress.last_error else line


def _quiet(progress: Progress) -> None:
    pass


def _bar() -> Callable[[Progress], None]:
    """A bar towards the end of the streams while catching up, then a line of figures."""
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars

    bars = Bars(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[figures]}"),
        transient=True,
    )
    task = bars.add_task("starting", total=None, figures="")
    bars.start()

    def show(progress: Progress) -> None:
        total = None if progress.lag_rows is None else progress.rows + progress.lag_rows
        figures = (
            f"{progress.rows} rows, {progress.rows_per_sec:.0f}/s, lag {progress.lag_secs:.1f} s"
        )
        bars.update(
            task,
            description=progress.pipeline,
            completed=progress.rows,
            total=total or None,
            figures=figures,
        )
        if progress.state != "running":
            bars.stop()

    return show


for _verb in (operations.reset, operations.drop_slot, operations.redrive, operations.backfill):
    app.command()(_verb)
