"""Put the checkpoint of a query back to the last batch that Postgres still has of it.

    python -m headrace.spark.rewind CHECKPOINT --postgres URL --writer NAME

After a restore of the sink's Postgres, or a failover that lost commits: what is lost is then
written once more from the source, if that still has it. The query must not run.
"""

from __future__ import annotations

import argparse

import psycopg

from headrace.postgres.ledger import SinkError, last_planned
from headrace.spark.commit_note import FILE
from headrace.spark.offset_log import Planned, put_back, query_id
from headrace.spark.places import Place, place_of


def rewind(checkpoint: Place, postgres: str, writer: str) -> int:
    """The batch that the query goes on with."""
    query = query_id(checkpoint)
    if query is None:
        raise SinkError(f"{checkpoint} is not a checkpoint of Spark: it has no metadata.")
    with psycopg.connect(postgres) as connection:
        found = last_planned(connection, writer, query)
    if found is None:
        raise SinkError(
            f"The ledger does not say how the last batch of the writer {writer!r} under the "
            f"checkpoint {checkpoint} was planned. Start with another checkpoint, and empty the "
            "table if it still has rows."
        )
    batch, files = found
    put_back(checkpoint, Planned(batch, tuple(files)))
    (checkpoint / FILE).unlink(missing_ok=True)
    return batch


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m headrace.spark.rewind", description=__doc__)
    parser.add_argument("checkpoint")
    parser.add_argument("--postgres", required=True)
    parser.add_argument("--writer", required=True)
    given = parser.parse_args()
    try:
        place = place_of("checkpoint", given.checkpoint)
        batch = rewind(place, given.postgres, given.writer)
    except (SinkError, ValueError, psycopg.Error) as error:
        parser.exit(1, f"{error}\n")
    print(f"The next run goes on with batch {batch}, which it writes again as far as it is lost.")


if __name__ == "__main__":
    main()
