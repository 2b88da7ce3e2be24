"""The pipelines by name: one short module each, listed here.

A module has a configuration (`Config`), a function that starts the query (`start`), and `PIPELINE`,
which names both. It runs by `headrace pipeline run`, by spark-submit of the module's file, or by
calling `start` from a program that has a session.
"""

from __future__ import annotations

from importlib import import_module

from headrace.spark.pipelines.base import Pipeline

_MODULES = {
    "apply-changes": "apply_changes",
    "archive": "archive",
    "compact": "compact",
    "postgres-to-stream": "postgres_to_stream",
    "replay": "replay",
    "sessions": "sessions",
    "stream-to-postgres": "stream_to_postgres",
}


def names() -> list[str]:
    return sorted(_MODULES)


def pipeline(name: str) -> Pipeline:
    """The pipeline of this name; KeyError if there is none."""
    module = import_module(f"{__name__}.{_MODULES[name]}")
    found: Pipeline = module.PIPELINE
    return found
