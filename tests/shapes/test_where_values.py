"""Clauses mean the same of a row that is read and of a row that changes."""

from __future__ import annotations

import psycopg
import pytest

from tests.shapes.conftest import Follow

pytestmark = pytest.mark.slow

DOMAINS = """
create domain document as jsonb;
create domain positive as int not null check (value > 0);
alter table items add column cover document, add column plain json, add column parts jsonb[],
    add column count positive default 1;
"""


@pytest.mark.parametrize(
    ("where", "column", "value"),
    [
        ("meta->>'price' = '1.50'", "meta", '{"price": 1.50}'),
        ("meta->>'n' = '0.12345678901234567890'", "meta", '{"n": 0.12345678901234567890}'),
        ("meta->>'n' = '1e400'::numeric::text", "meta", '{"n": 1e400}'),
        ('plain::text = \'{"b": 1,  "a":2, "a": 3.0}\'', "plain", '{"b": 1,  "a":2, "a": 3.0}'),
        ("cover->>'colour' = 'red'", "cover", '{"colour": "red"}'),
        ("parts[1]->>'price' = '1.50'", "parts", '{"{\\"price\\": 1.50}"}'),
        ("count > 6", "count", "7"),
        ("title = 'text'", "title", "text"),
    ],
)
def test_a_clause_holds_for_a_change_as_for_a_row(
    follow: Follow, db: psycopg.Connection, where: str, column: str, value: str
) -> None:
    db.execute(DOMAINS.encode())
    insert = f"insert into items (title, {column}) values ('a', %s)"
    if column == "title":
        insert = "insert into items (title) values (%s)"
    db.execute(insert.encode(), (value,))
    follower = follow(where=where)
    (row,) = follower.catch_up()
    db.execute(insert.encode(), (value,))
    (change,) = follower.live()
    assert change["headers"]["operation"] == "insert"
    assert change["value"] == {**row["value"], "id": "2"}
