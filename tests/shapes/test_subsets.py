"""Subset snapshots, and what a snapshot says of the transactions that it has."""

from __future__ import annotations

from typing import Any

import httpx
import psycopg
import pytest

from tests.shapes.conftest import Follow
from tests.shapes.helpers import Follower

pytestmark = pytest.mark.slow


@pytest.fixture
def changes(follow: Follow, db: psycopg.Connection) -> Follower:
    """A reader of changes alone, of a table of ten rows."""
    db.execute("insert into items (title, amount) select n, n from generate_series(1, 10) n")
    follower = follow(log="changes_only", where="amount > 2")
    assert follower.catch_up() == []
    return follower


def titles(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [entry["value"]["title"] for entry in answer.json()["data"]]


def test_a_subset_is_rows_of_the_shape_in_an_order(changes: Follower, schema: str) -> None:
    answer = changes.ask(
        subset__where="amount < $1",
        subset__params='{"1": "8"}',
        subset__order_by='"amount" DESC NULLS LAST, id',
        subset__limit="3",
        subset__offset="1",
    )
    assert titles(answer) == ["6", "5", "4"]
    entry, metadata = answer.json()["data"][0], answer.json()["metadata"]
    assert entry["key"] == f'"{schema}"."items"/"6"'
    assert entry["headers"]["operation"] == "insert"
    assert entry["headers"]["snapshot_mark"] == metadata["snapshot_mark"]
    assert set(metadata) == {"snapshot_mark", "database_lsn", "xmin", "xmax", "xip_list"}
    assert answer.headers["electric-handle"] == changes.handle
    assert answer.headers["cache-control"] == "no-store"
    assert "electric-schema" in answer.headers


def test_a_subset_comes_by_post_too(changes: Follower) -> None:
    body = {"where": "amount < $1", "params": {"1": 5}, "order_by": "id", "limit": 9}
    answer = changes.http.post("/v1/shape", params=changes.query(offset="now"), json=body)
    assert titles(answer) == ["3", "4"]


def test_a_subset_says_which_changes_it_has(changes: Follower, db: psycopg.Connection) -> None:
    with db.transaction():
        found = db.execute("select pg_current_xact_id()::xid::text::bigint").fetchone()
        db.execute("update items set title = 'seen' where id = 3")
    metadata = changes.ask(subset__where="id = 3").json()["metadata"]
    assert found is not None
    assert found[0] < int(metadata["xmax"])
    assert str(found[0]) not in metadata["xip_list"]
    (change,) = changes.live()
    assert change["headers"]["txids"] == [found[0]]


@pytest.mark.parametrize(
    ("params", "name"),
    [
        ({"subset__where": "nope = 1"}, "subset__where"),
        ({"subset__where": "title > 5"}, "subset__where"),
        ({"subset__where": "id = $1"}, "subset__params"),
        ({"subset__limit": "3"}, "subset__order_by"),
        ({"subset__limit": "-3", "subset__order_by": "id"}, "subset__limit"),
        ({"subset__order_by": "id; drop table items"}, "subset__order_by"),
        ({"subset__order_by": "random()"}, "subset__order_by"),
        ({"subset__order_by": "nope"}, "subset__order_by"),
        ({"subset__nope": "1"}, "subset__nope"),
    ],
)
def test_a_bad_subset_names_the_parameter(
    changes: Follower, params: dict[str, str], name: str
) -> None:
    answer = changes.ask(**params)
    assert answer.status_code == 400, answer.text
    assert list(answer.json()["errors"]) == [name]


@pytest.mark.parametrize("body", [b"[", b"[]", b'{"where": 5}', b'{"limit": "x"}'])
def test_a_bad_body_is_refused(changes: Follower, body: bytes) -> None:
    answer = changes.http.post("/v1/shape", params=changes.query(), content=body)
    assert answer.status_code == 400, answer.text


def test_a_body_has_a_bound(changes: Follower) -> None:
    answer = changes.http.post("/v1/shape", params=changes.query(), content=b" " * 70_000)
    assert answer.status_code == 413


def controls(answer: httpx.Response) -> list[dict[str, Any]]:
    headers = (message["headers"] for message in answer.json())
    return [each for each in headers if "control" in each]


def test_the_snapshot_ends_with_what_it_had_seen_and_does_not_grow(
    follow: Follow, db: psycopg.Connection
) -> None:
    db.execute("insert into items (title) values ('a')")
    follower = follow()
    first = follower.ask()
    (end,) = controls(first)
    assert end["control"] == "snapshot-end"
    assert int(end["xmin"]) <= int(end["xmax"])
    assert end["xip_list"] == []
    follower.catch_up()
    db.execute("insert into items (title) values ('b')")
    follower.live()
    again = httpx.get(first.url)
    assert again.json() == first.json()
    assert again.headers["etag"] == first.headers["etag"]
