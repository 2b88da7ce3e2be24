"""A first snapshot of wide rows, read by a query whose driver has a small heap.

As a program, because a heap is given to a Java machine when it starts:
`python -m tests.spark.wide_snapshot POSTGRES CHECKPOINT HEAP BYTES_PER_BATCH` prints how many rows
came.
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame

from headrace.spark.session import build_session

# An error of memory in one thread would leave the others waiting for it.
_JAVA = "-XX:+UseSerialGC -XX:+ExitOnOutOfMemoryError"


def main(postgres: str, checkpoint: str, heap: str, bytes_max: str) -> None:
    conf = {"spark.driver.memory": heap, "spark.driver.extraJavaOptions": _JAVA}
    session = build_session("wide-snapshot", master="local[2]", conf=conf)
    rows = 0

    def count(batch: DataFrame, number: int) -> None:
        nonlocal rows
        rows += batch.selectExpr("length(value) as size").where("size > 0").count()

    reader = session.readStream.format("headrace_postgres_changes").option("url", postgres)
    reader = reader.option("tables", "wide").option("slot", "wide")
    try:
        query = (
            reader.option("maxBytesPerTrigger", bytes_max)
            .load()
            .writeStream.foreachBatch(count)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        print(rows)
    finally:
        session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
