"""Metrics of the pipelines of one process, for Prometheus, from their progress.

Progress is what the runner last heard from Spark; a scrape asks Postgres for the figures of a slot
and nothing else. Counters begin at 0 with the process, as Prometheus expects of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import psycopg
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)

from headrace import __version__
from headrace.postgres.slot_figures import SlotFigures, slot_figures
from headrace.postgres.slots import Slot
from headrace.spark.pipelines import postgres_to_stream
from headrace.spark.pipelines.progress import RUNNING, Progress
from headrace.spark.pipelines.runner import PipelineSpec

METRICS: Final[dict[str, str]] = {
    "headrace_pipeline_up": "1 while the pipeline runs; 0 while it starts, waits or has ended.",
    "headrace_pipeline_failures_total": "Ends by an error since the process started.",
    "headrace_pipeline_rows_total": "Rows read from the source.",
    "headrace_pipeline_quarantined_total": "Records quarantined since the checkpoint was made.",
    "headrace_pipeline_batches_total": "Batches with rows.",
    "headrace_pipeline_batch_step_seconds_total": "Seconds of these batches, by Spark's steps.",
    "headrace_pipeline_last_batch_seconds": "How long the last of them took.",
    "headrace_pipeline_last_batch_timestamp_seconds": "When it ended, in seconds since 1970.",
    "headrace_pipeline_lag_seconds": "Age of the oldest record that may not be delivered.",
    "headrace_pipeline_lag_rows": "Messages behind, if the source can count them.",
    "headrace_pipeline_lag_bytes": "Bytes behind: of messages, or of Postgres's log.",
    "headrace_pipeline_slot_up": "Whether Postgres answered with the slot's figures.",
    "headrace_pipeline_slot_retained_bytes": "Log that Postgres keeps because of the slot.",
    "headrace_pipeline_slot_lag_bytes": "Log behind what the pipeline has confirmed.",
    "headrace_pipeline_slot_limit_bytes": "What it may keep (max_slot_wal_keep_size); -1: all.",
    "headrace_pipeline_slot_active": "Whether something reads the slot.",
    "headrace_pipeline_build_info": "Always 1; the labels say what runs.",
}
_LABELS: Final = ("pipeline",)

ReadSlot = Callable[[], tuple[str, SlotFigures | None]]


@dataclass
class _Watched:
    progress: Progress | None = None  # none before the session is there
    slot: ReadSlot | None = None


class PipelineMetrics:
    """What a process exposes of its pipelines. `saw` takes each one's progress as it comes."""

    def __init__(self, specs: Sequence[PipelineSpec]) -> None:
        self._watched = {spec.pipeline.name: _Watched(slot=_slot_of(spec)) for spec in specs}
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def saw(self, progress: Progress) -> None:
        self._watched[progress.pipeline].progress = progress

    def scrape(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """The registry calls this for every scrape."""
        name = "headrace_pipeline_build_info"
        yield InfoMetricFamily(name.removesuffix("_info"), METRICS[name], {"version": __version__})
        known = [(name, each.progress or Progress(name, 0)) for name, each in self._watched.items()]
        yield from _counters(known)
        yield from _gauges(known)
        yield from self._slots()

    def _slots(self) -> Iterator[Metric]:
        labels = (*_LABELS, "slot")
        families = {
            what: GaugeMetricFamily(name, METRICS[name], labels=labels)
            for what in ("retained_bytes", "lag_bytes", "limit_bytes", "active")
            for name in [f"headrace_pipeline_slot_{what}"]
        }
        up = GaugeMetricFamily(
            "headrace_pipeline_slot_up", METRICS["headrace_pipeline_slot_up"], labels=_LABELS
        )
        for pipeline, watched in self._watched.items():
            if watched.slot is None:
                continue
            try:
                slot, found = watched.slot()
            except psycopg.Error:
                found = None
            up.add_metric([pipeline], found is not None)
            if found is not None:
                values = [found.retained_bytes, found.lag_bytes, found.limit_bytes]
                values.append(found.reader_pid is not None)
                for family, value in zip(families.values(), values, strict=True):
                    family.add_metric([pipeline, slot], value)
        yield from (up, *families.values())


def _slot_of(spec: PipelineSpec) -> ReadSlot | None:
    config = spec.config
    if not isinstance(config, postgres_to_stream.Config) or config.electric:
        return None
    slot = Slot(config.postgres, config.slot, config.tables)
    return lambda: (slot.name, slot_figures(config.postgres, slot.name))


def _counters(known: Sequence[tuple[str, Progress]]) -> Iterator[Metric]:
    for what in ("failures", "rows", "quarantined", "batches"):
        name = f"headrace_pipeline_{what}_total"
        family = CounterMetricFamily(name, METRICS[name], labels=_LABELS)
        for pipeline, progress in known:
            family.add_metric([pipeline], getattr(progress, what))
        yield family
    name = "headrace_pipeline_batch_step_seconds_total"
    steps = CounterMetricFamily(name, METRICS[name], labels=(*_LABELS, "step"))
    for pipeline, progress in known:
        for step, spent_ms in sorted(progress.steps_total_ms.items()):
            steps.add_metric([pipeline, step], spent_ms / 1000)
    yield steps


def _gauges(known: Sequence[tuple[str, Progress]]) -> Iterator[Metric]:
    def gauge(what: str, values: Iterable[tuple[str, float | None]]) -> Metric:
        name = f"headrace_pipeline_{what}"
        family = GaugeMetricFamily(name, METRICS[name], labels=_LABELS)
        for pipeline, value in values:
            if value is not None:
                family.add_metric([pipeline], value)
        return family

    yield gauge("up", ((name, p.state == RUNNING) for name, p in known))
    yield gauge("lag_seconds", ((name, p.lag_secs) for name, p in known))
    yield gauge("lag_rows", ((name, p.lag_rows) for name, p in known))
    yield gauge("lag_bytes", ((name, p.lag_bytes) for name, p in known))
    # Before the first batch there is neither a duration nor a time.
    ran = [(name, p) for name, p in known if p.batches]
    yield gauge("last_batch_seconds", ((name, p.batch_secs) for name, p in ran))
    yield gauge("last_batch_timestamp_seconds", ((name, p.last_batch_at) for name, p in ran))
