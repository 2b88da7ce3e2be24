"""A driver to be killed: both Postgres pipelines in one session, until the end of the process.

python -m tests.spark.both_ways STATE SERVER POSTGRES [--at-least-once]
"""

from __future__ import annotations

import sys
from pathlib import Path

from headrace.spark.pipelines import postgres_to_stream, stream_to_postgres
from headrace.spark.pipelines.base import Run
from headrace.spark.pipelines.runner import explain
from headrace.spark.session import build_session


def main(state: str, server: str, postgres: str, exactly_once: bool) -> None:
    conf = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
    spark = build_session("both-ways", master="local[2]", conf=conf)
    there = stream_to_postgres.Config(
        server=server,
        streams=("in",),
        postgres=postgres,
        exactly_once=exactly_once,
        messages_per_batch=200,
    )
    back = postgres_to_stream.Config(
        server=server, postgres=postgres, exactly_once=exactly_once, changes_per_batch=200
    )
    stream_to_postgres.start(spark, there, Run(False, Path(state, "there")))
    postgres_to_stream.start(spark, back, Run(False, Path(state, "back")))
    print("running", flush=True)
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    try:
        main(sys.argv[1], sys.argv[2], sys.argv[3], "--at-least-once" not in sys.argv)
    except Exception as error:
        sys.exit(explain(error))
