"""A driver to be killed: a database into streams and those into another, until the process ends.

python -m tests.spark.mirror_driver MASTER STATE SERVER SOURCE TARGET
"""

from __future__ import annotations

import sys
from pathlib import Path

from headrace.spark.pipelines import apply_changes, postgres_to_stream
from headrace.spark.pipelines.base import Run
from headrace.spark.pipelines.runner import explain
from headrace.spark.session import build_session
from tests.spark import mirrored
from tests.spark.cluster import CONF

BUCKET = "mirror"
SLOT = "mirror"
TABLES = tuple(table.name for table in mirrored.TABLES)
_CHANGES_PER_BATCH = 2000


def feed(server: str, source: str) -> postgres_to_stream.Config:
    return postgres_to_stream.Config(
        server=server,
        postgres=source,
        tables=TABLES,
        slot=SLOT,
        format="changes",
        stream=f"/{BUCKET}/{{schema}}.{{table}}",
        changes_per_batch=_CHANGES_PER_BATCH,
    )


def applied(server: str, target: str) -> apply_changes.Config:
    return apply_changes.Config(
        server=server,
        bucket=BUCKET,
        postgres=target,
        quarantine="mirror-quarantine",
        messages_per_batch=_CHANGES_PER_BATCH,
    )


def main(master: str, state: str, server: str, source: str, target: str) -> None:
    spark = build_session("mirror", master=master, conf=CONF)
    postgres_to_stream.start(spark, feed(server, source), Run(False, Path(state, "out")))
    apply_changes.start(spark, applied(server, target), Run(False, Path(state, "into")))
    print("running", flush=True)
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Exception as error:
        sys.exit(explain(error))
