"""Bad records are set aside once for each checkpoint, and never taken for those of another."""

from __future__ import annotations

import httpx
import psycopg
import pytest

from headrace.changes.rejected import Rejected
from headrace.client import Settings
from headrace.postgres.ledger import Claim, digest, prepare
from headrace.postgres.sink import write
from headrace.spark.quarantine import Quarantine
from headrace.spark.streams.offset_tracker import StreamProblem
from tests.conftest import Serve
from tests.postgres.test_sink import batch, target
from tests.spark.helpers import stored

pytestmark = pytest.mark.slow


def test_a_new_checkpoint_sets_its_own_bad_records_aside(http: httpx.Client, database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("create table events (id int primary key, note text, doc jsonb)")
    prepare(database)
    quarantine = Quarantine(Settings(url=str(http.base_url)), "quarantine/checkpoints")

    def put(query: str, number: int, row_id: int) -> None:
        rows = batch((row_id, "bad", "not json"))
        claim = Claim("w", query, 0, number, query, digest([rows]))
        write(target(database), claim, [rows], quarantine.of(claim).send)

    put("first", 5, 1)
    put("first", 5, 1)
    for query, number, row_id in (("second", 5, 2), ("third", 0, 3)):
        with psycopg.connect(database) as connection:  # as the ledger's refusal says
            connection.execute("delete from headrace.ledger where writer = 'w'")
        put(query, number, row_id)
    aside = stored(http, "quarantine/checkpoints")
    assert [record["record"]["id"] for record in aside] == [1, 2, 3]


def test_a_full_quarantine_says_which_setting_to_raise(serve: Serve) -> None:
    settings = Settings(url=serve(DS_LIMITS__MAX_STREAM_BYTES="100").url)
    with pytest.raises(StreamProblem, match=r"^bad: .*DS_LIMITS__MAX_STREAM_BYTES"):
        Quarantine(settings, "bad").of(None).send([Rejected({"payload": "x" * 200}, "reason")])


def test_a_record_larger_than_the_server_takes_goes_aside_cut(http: httpx.Client) -> None:
    quarantine = Quarantine(Settings(url=str(http.base_url)), "quarantine/large")
    row = {"stream_name": "s" * 200, "ds_offset": "0_1", "payload": '"' * (9 * 1024 * 1024)}
    claim = Claim("w", "query", 0, 0)
    bad = [Rejected(row, "x"), Rejected({"payload": "small", "raw": b"\xff"}, "y")]
    for _ in range(2):
        quarantine.of(claim).send(bad)
    large, small = stored(http, "quarantine/large")
    assert large["cut"] == {"payload": len(row["payload"])}
    assert (large["reason"], large["record"].pop("payload")[:500]) == ("x", '"' * 500)
    assert large["record"] == {"stream_name": "s" * 200, "ds_offset": "0_1"}
    assert small == {"reason": "y", "record": {"payload": "small", "raw": "/w=="}}
