"""The verbs of `headrace pipeline` that operate on a pipeline which does not run at that moment.

Verbs that forget something say first what will happen, and ask; `--yes` answers for scripts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import EXIT_FAILED, EXIT_REFUSED, fail

if TYPE_CHECKING:
    from headrace.spark.pipelines.base import PipelineConfig
    from headrace.spark.pipelines.progress import Progress
    from headrace.spark.pipelines.runner import PipelineSpec

DEFAULT_STATE = "data/pipelines"

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="A pipeline; see `headrace pipeline list`.")
]
StateOption = Annotated[
    str, typer.Option("--state", metavar="DIR", help="Directory for checkpoints and progress.")
]
ConfigOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="TOML file that the pipeline runs with.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
MasterOption = Annotated[
    str | None, typer.Option(metavar="URL", help="Spark master (default: all local cores).")
]


def reset(
    name: NameArgument,
    config: ConfigOption = None,
    state: StateOption = DEFAULT_STATE,
    checkpoint_lost: Annotated[
        bool,
        typer.Option(
            "--checkpoint-lost",
            help="The checkpoint that Postgres knows is lost: forget its ledger or slot, too.",
        ),
    ] = False,
    yes: YesOption = False,
) -> None:
    """Forget a pipeline's state, so that its next run starts from the beginning.

    Says what that means for this pipeline and asks before it changes anything. What belongs to
    another checkpoint is left alone, unless that is said to be lost.
    """
    need_spark()
    from headrace.spark.pipelines import reset as resetting
    from headrace.spark.pipelines.base import Run, state_dir
    from headrace.spark.pipelines.state_lock import locked

    with _refusals():
        found, _ = configured(name, config)
        run = Run(False, state_dir(state) / name)
        if not checkpoint_lost:
            resetting.refuse_without_state(name, found, run)
        with locked(run.state_dir):
            steps = resetting.plan(found, run, checkpoint_lost=checkpoint_lost)
            _confirm([step.sentence for step in steps], yes)
            resetting.carry_out(steps)
    typer.echo(f"{name} was reset.")


def drop_slot(config: ConfigOption = None, yes: YesOption = False) -> None:
    """Drop the replication slot of postgres-to-stream, with its publication and snapshot.

    Postgres may then remove the log that the slot holds. A later run makes a new slot.
    """
    need_spark()
    from headrace.postgres.slot_figures import slot_figures
    from headrace.postgres.slots import Slot
    from headrace.spark.pipelines.postgres_to_stream import Config

    with _refusals():
        found, _ = configured("postgres-to-stream", config)
        assert isinstance(found, Config), "each pipeline has its own configuration"
        slot = Slot(found.postgres, found.slot, found.tables)
        figures = slot_figures(found.postgres, slot.name)
        owner = slot.owner()
        if figures is None and owner is None:
            fail(f"there is no slot {slot.name} in this database.", EXIT_FAILED)
        if figures is not None and figures.reader_pid is not None:
            fail(
                f"the slot {slot.name} is being read (Postgres process {figures.reader_pid}). Stop "
                "its pipeline first.",
                EXIT_REFUSED,
            )
        held = 0 if figures is None else figures.retained_bytes
        of = f" It belongs to {owner[1] or owner[0]}." if owner else ""
        _confirm(
            [
                f"The slot {slot.name} is dropped, and the {held / 2**20:.0f} MiB of log that it "
                f"holds may go.{of}",
                "Its publication and a snapshot that was not delivered are dropped, too.",
                "A later run makes a new slot and starts with all rows of its tables; with "
                'snapshot = "never" changes until then are lost.',
            ],
            yes,
        )
        slot.drop()
    typer.echo(f"The slot {slot.name} was dropped.")


def redrive(
    name: NameArgument,
    config: ConfigOption = None,
    state: StateOption = DEFAULT_STATE,
    master: MasterOption = None,
) -> None:
    """Send quarantined records through the pipeline again, each of them once.

    What is refused again is quarantined again, with its new reason.
    """
    need_spark()
    from headrace.spark.pipelines.base import state_dir
    from headrace.spark.pipelines.redrive import redrive as plan

    with _refusals():
        found, spark = configured(name, config)
        ended = _run(plan(found, state_dir(state)), master, spark)
    typer.echo(f"Quarantined records read: {ended.rows}.", err=True)


def backfill(
    name: NameArgument,
    start: Annotated[
        str, typer.Option("--from", metavar="OFFSET", help="Read after this offset, or `earliest`.")
    ],
    end: Annotated[
        str, typer.Option("--to", metavar="OFFSET", help="Read up to this offset, inclusive.")
    ],
    config: ConfigOption = None,
    state: StateOption = DEFAULT_STATE,
    master: MasterOption = None,
) -> None:
    """Read a range of streams again and write it to the table of stream-to-postgres.

    Offsets are of the pipeline's stream, or JSON such as {"orders": "OFFSET"}. The same range with
    the same settings is written once, however often this runs.
    """
    need_spark()
    from headrace.spark.pipelines.backfill import backfill as plan
    from headrace.spark.pipelines.base import state_dir

    with _refusals():
        found, spark = configured(name, config)
        ended = _run(plan(found, state_dir(state), start, end), master, spark)
    typer.echo(f"Messages read: {ended.rows}; those written before were skipped.", err=True)


def configured(name: str, file: Path | None) -> tuple[PipelineConfig, dict[str, str]]:
    """The configuration of a pipeline, and Spark's keys."""
    from headrace.spark.pipelines import names, pipeline
    from headrace.spark.pipelines.base import ConfigError, ConfigFile
    from headrace.spark.runtime.s3a import export_settings

    if name not in names():
        raise ConfigError(f"there is no pipeline {name!r}; there are {', '.join(names())}.")
    found = ConfigFile.read(file)
    export_settings(found.spark)
    return found.of(pipeline(name)), found.spark


def need_spark() -> None:
    try:
        import pyspark  # noqa: F401
    except ModuleNotFoundError:
        fail("pipelines need Spark: pip install '.[spark]' in a clone of Headrace.", EXIT_REFUSED)


@contextmanager
def _refusals() -> Iterator[None]:
    """What is wrong with the command or the configuration, or out of reach, as one sentence."""
    import psycopg

    from headrace.errors import HeadraceError
    from headrace.postgres.slot_names import SlotError
    from headrace.spark.object_store import StoreError
    from headrace.spark.pipelines.base import ConfigError

    try:
        yield
    except (ConfigError, SlotError) as error:
        fail(str(error), EXIT_REFUSED)
    except psycopg.OperationalError as error:
        fail(f"Postgres cannot be reached: {str(error).strip()}", EXIT_FAILED)
    except (HeadraceError, StoreError) as error:
        fail(str(error), EXIT_FAILED)


def _confirm(sentences: list[str], yes: bool) -> None:
    for sentence in sentences:
        typer.echo(f"- {sentence}")
    if yes:
        return
    if not sys.stdin.isatty():
        fail("nothing was changed. Add --yes to do this.", EXIT_REFUSED)
    if not typer.confirm("Go on?"):
        fail("nothing was changed.", EXIT_FAILED)


def _run(spec: PipelineSpec, master: str | None, spark: dict[str, str]) -> Progress:
    from headrace.spark.pipelines.runner import run_pipelines

    (ended,) = run_pipelines([spec], master=master, spark_conf=spark)
    if ended.state == "failed":
        fail(f"{ended.pipeline} failed: {ended.last_error}", EXIT_FAILED)
    return ended
