"""Forgetting a pipeline's state: what that means for each pipeline, and doing it.

A state is more than its checkpoint. The sink's Postgres has a ledger that knows the checkpoint, a
replication slot belongs to it, and streams know its producer: without them a run that lost its
checkpoint is refused, so that nothing is written twice by accident. A reset changes all of them
together, after saying what follows. Postgres comes first: if it cannot be reached, nothing has
changed, and a reset that was interrupted can be repeated.

What belongs to another checkpoint is left alone: with a wrong --state that is a pipeline which is
well. Only someone who knows that the other checkpoint is lost can say so (`checkpoint_lost`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from headrace.postgres.ledger_owners import APPLIED, LEDGER, forget, owner_of
from headrace.postgres.slots import Slot
from headrace.spark.applied_lake import stream_memory
from headrace.spark.offset_log import query_id
from headrace.spark.pipelines import (
    apply_changes,
    archive,
    compact,
    postgres_to_stream,
    replay,
    sessions,
    stream_to_postgres,
)
from headrace.spark.pipelines.base import RESETS_FILE, ConfigError, PipelineConfig, Run
from headrace.spark.pipelines.progress import PROGRESS_FILE
from headrace.spark.places import names_in, remove_tree, write_whole

LOST_OPTION = "--checkpoint-lost"
_WITHOUT_CHECKPOINT = (compact.Config, replay.Config)  # they have progress, or a version


@dataclass(frozen=True)
class Step:
    """One consequence, as a sentence, and what brings it about, if anything has to be done."""

    sentence: str
    carry_out: Callable[[], None] | None = None


def refuse_without_state(name: str, config: PipelineConfig, run: Run) -> None:
    """Refuse a state that has nothing to forget: --state is wrong, or the checkpoint is lost."""
    if isinstance(config, _WITHOUT_CHECKPOINT):
        files = (PROGRESS_FILE, replay.VERSION_FILE)
        if not any(file in names_in(run.state_dir) for file in files):
            raise ConfigError(
                f"{run.state_dir} has no state of {name}, so there is nothing to reset. Is --state "
                "the one that it runs with?"
            )
    elif not names_in(run.checkpoint):
        raise ConfigError(
            f"{run.state_dir} has no checkpoint of {name}, and nothing was changed. Give the "
            f"--state that it runs with. If its checkpoint is lost, add {LOST_OPTION}."
        )


def plan(config: PipelineConfig, run: Run, *, checkpoint_lost: bool = False) -> list[Step]:
    """What a reset does, in the order in which it is done.

    With `checkpoint_lost` also to what Postgres holds for another checkpoint than that of `run`.
    """
    return [*_outside(config, run, checkpoint_lost), _forget_files(run)]


def carry_out(steps: list[Step]) -> None:
    for step in steps:
        if step.carry_out is not None:
            step.carry_out()


def _outside(config: PipelineConfig, run: Run, lost: bool) -> list[Step]:
    match config:
        case stream_to_postgres.Config():
            return _after_forgetting(config, run, lost, LEDGER, _reads_again(config))
        case apply_changes.Config():
            if config.is_lake:
                return [_new_writer(config, run), _applies_again(config)]
            tables = (*LEDGER, *APPLIED)
            return _after_forgetting(config, run, lost, tables, _applies_again(config))
        case postgres_to_stream.Config():
            slot = [] if config.electric else [_release_slot(config, run, lost)]
            return [*slot, _new_producer(config, run)]
        case archive.Config():
            return [
                Step(
                    f"The table {config.table} keeps its messages. While it has messages of the "
                    "same streams, the next run is refused: name another table, remove this one, "
                    'or set starting = "latest".'
                )
            ]
        case sessions.Config():
            return [
                Step(
                    f"The next run counts from the streams again and overwrites {config.table}; "
                    f"the stream {config.stream} has each changed minute once more."
                )
            ]
        case replay.Config():
            return [
                Step(
                    "The next replay chooses the table's newest version. Streams that have "
                    "messages are still refused."
                )
            ]
        case compact.Config():
            return [Step("compact has no position: the next run works as before.")]
    raise AssertionError(f"a reset of {type(config)} is not described")


def _after_forgetting(
    config: stream_to_postgres.Config | apply_changes.Config,
    run: Run,
    lost: bool,
    tables: Sequence[str],
    follows: Step,
) -> list[Step]:
    """The ledger forgets the writer, if it knows it from this checkpoint; then `follows`."""
    url, writer = config.postgres, config.writer
    owner, own_query = owner_of(url, writer), run.query_id()
    if owner is not None and owner.query != own_query and not lost:
        return [
            Step(
                f"The ledger in Postgres knows the writer {writer} from another checkpoint, of the "
                f"query {owner.query} at batch {owner.batch}, and is left alone. The next run is "
                "refused until it has a writer of its own (set writer). If that checkpoint is "
                f"lost, add {LOST_OPTION}."
            )
        ]
    whose = "which has none of it"
    if owner is not None:
        of = "this checkpoint" if owner.query == own_query else "another checkpoint, said lost"
        whose = f"up to batch {owner.batch}: they are of {of}, of the query {owner.query}"
    query = owner.query if owner is not None else None
    return [
        Step(
            f"The ledger in Postgres forgets the batches of the writer {writer}, {whose}.",
            lambda: forget(url, writer, query, tables),
        ),
        follows,
    ]


def _reads_again(config: stream_to_postgres.Config) -> Step:
    if config.starting == "latest":
        return Step(
            "The next run writes only what is appended after it starts (starting = latest)."
        )
    return Step(
        f"The next run writes every message again, and the rows of {config.table} stay: they "
        'will be there twice. Empty the table first, or set starting = "latest".'
    )


def _applies_again(config: apply_changes.Config) -> Step:
    if config.starting == "latest":
        return Step(
            "The next run applies only what is appended after it starts (starting = latest)."
        )
    if config.scd_type == 2:
        return Step(
            "The next run applies every change again, and the history that is there stays: each "
            "version will be there twice. Empty the tables first."
        )
    return Step(
        "The next run applies every change again: the tables go through their past once more, and "
        "end as the streams say. Rows that the streams do not name stay: empty the tables first "
        "to be rid of them."
    )


def _release_slot(config: postgres_to_stream.Config, run: Run, lost: bool) -> Step:
    slot = Slot(config.postgres, config.slot, config.tables)
    owner = slot.owner()
    if owner is None:
        return Step(f"The slot {slot.name} has no owner, so the next run may use it.")
    owner_id, owner_name = owner
    is_own = owner_id == _owner_in(run) or owner_name == postgres_to_stream.consumer_name(run)
    if not (is_own or lost):
        return Step(
            f"The slot {slot.name} belongs to another consumer, {owner_id} of {owner_name}, and is "
            "left alone. The next run is refused until it has a slot of its own (set slot). If "
            f"the checkpoint of that consumer is lost, add {LOST_OPTION}."
        )
    follows = "a reset and all rows of its tables"
    if config.snapshot == "never":
        follows = "the changes that the slot still holds; the last batch may be repeated"
    of = "" if is_own else f", from the consumer {owner_id} of {owner_name}"
    return Step(
        f"The slot {slot.name} is released{of}. It holds log in Postgres until the next run, which "
        f"starts with {follows}. If there is no next run, use `headrace pipeline drop-slot`.",
        lambda: slot.release(owner_id),
    )


def _owner_in(run: Run) -> str | None:
    """The owner that the newest position of the checkpoint names."""
    offsets = run.checkpoint / "offsets"
    found = [int(name) for name in names_in(offsets) if name.isdigit()]
    if not found:
        return None
    newest = offsets / str(max(found))
    with suppress(ValueError, IndexError, OSError):
        position: Any = json.loads(newest.read_text("utf-8").splitlines()[-1])
        return (
            str(position["owner"]) if isinstance(position, dict) and "owner" in position else None
        )
    return None


def _new_producer(config: postgres_to_stream.Config, run: Run) -> Step:
    number = run.resets() + 1

    def count() -> None:
        run.state_dir.mkdir(parents=True, exist_ok=True)
        write_whole(run.state_dir / RESETS_FILE, str(number))

    return Step(
        f"From now on it appends as the producer {config.producer}.{number}, because the streams "
        "know the batches of the last one. Messages that are there stay.",
        lambda: _count_reset(run, number),
    )


def _new_writer(config: apply_changes.Config, run: Run) -> Step:
    number = run.resets() + 1

    def count() -> None:
        query = query_id(run.checkpoint)
        if query is not None:
            stream_memory.forget(apply_changes.lake_of(config).root, query)
        _count_reset(run, number)

    return Step(
        f"From now on it commits as the writer {config.writer}.{number}, because the tables know "
        "the batches of the last one. A snapshot that a stream has begun and not ended is "
        "forgotten.",
        count,
    )


def _count_reset(run: Run, number: int) -> None:
    run.state_dir.mkdir(parents=True, exist_ok=True)
    write_whole(run.state_dir / RESETS_FILE, str(number))


def _forget_files(run: Run) -> Step:
    def forget() -> None:
        # The position last: while it is there, a reset can be repeated in the same way.
        for name in (replay.VERSION_FILE, PROGRESS_FILE):
            (run.state_dir / name).unlink(missing_ok=True)
        remove_tree(run.checkpoint)

    what = "The checkpoint and the progress"
    return Step(f"{what} in {run.state_dir} are deleted.", forget)
