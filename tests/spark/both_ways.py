"""A driver to be killed: both Postgres pipelines in one session, until the end of the process.

python -m tests.spark.both_ways MASTER STATE SERVER POSTGRES [--at-least-once]
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace.spark.pipelines import postgres_to_stream, stream_to_postgres
from headrace.spark.pipelines.base import Run
from headrace.spark.pipelines.runner import explain
from headrace.spark.session import build_session
from tests.spark.cluster import CONF

STREAMS = ("in/0", "in/1", "in/2", "in/3")  # enough that tasks run on both workers


def main(master: str, state: str, server: str, postgres: str, exactly_once: bool) -> None:
    spark = build_session("both-ways", master=master, conf=CONF)
    start_there(spark, Run(False, there(Path(state))), server, postgres, exactly_once)
    back = postgres_to_stream.Config(
        server=server, postgres=postgres, exactly_once=exactly_once, changes_per_batch=2000
    )
    postgres_to_stream.start(spark, back, Run(False, Path(state, "back")))
    print("running", flush=True)
    spark.streams.awaitAnyTermination()


def start_there(
    spark: SparkSession, run: Run, server: str, postgres: str, exactly_once: bool
) -> StreamingQuery:
    config = stream_to_postgres.Config(
        server=server,
        streams=STREAMS,
        postgres=postgres,
        exactly_once=exactly_once,
        messages_per_batch=2000,
    )
    return stream_to_postgres.start(spark, config, run)


def there(state: Path) -> Path:
    """Where the way to Postgres keeps its checkpoint."""
    return state / "there"


if __name__ == "__main__":
    try:
        where, kept, streams, tables = sys.argv[1:5]
        main(where, kept, streams, tables, "--at-least-once" not in sys.argv)
    except Exception as error:
        sys.exit(explain(error))
