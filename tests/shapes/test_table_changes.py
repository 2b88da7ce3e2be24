"""Tables that become others while shapes of them are followed: readers are sent to fetch anew."""

from __future__ import annotations

import threading
from pathlib import Path

import httpx
import psycopg
import pytest

from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import eventually
from tests.shapes.conftest import Follow
from tests.shapes.helpers import ITEMS, Follower, ShapesProcess

pytestmark = pytest.mark.slow

PARTED = """
create table parted (id int, region text, title text, primary key (id, region))
    partition by list (region);
create table parted_north partition of parted for values in ('north');
create table parted_south (title text, region text not null, id int not null);
alter table parted attach partition parted_south for values in ('south');
"""


def titles(follower: Follower) -> list[str]:
    return [message["value"]["title"] for message in follower.catch_up()]


def until_refetched(follower: Follower) -> None:
    """Live, until the reader is sent back."""
    eventually(lambda: not follower.live() and follower.refetched > 0, "409")


@pytest.fixture
def parted(shapes: ShapesProcess, db: psycopg.Connection, schema: str, follow: Follow) -> Follower:
    """Depends on `follow`, which closes it."""
    db.execute(PARTED.encode())
    return follow(table=f"{schema}.parted")


def test_changes_of_partitions_reach_the_shape_of_their_table(
    parted: Follower, db: psycopg.Connection, schema: str
) -> None:
    db.execute("insert into parted values (1, 'north', 'a')")
    assert titles(parted) == ["a"]
    db.execute("insert into parted values (2, 'south', 'b'), (3, 'north', 'c')")
    db.execute("update parted set title = 'B' where id = 2")
    db.execute("update parted set region = 'south' where id = 3")  # into the other partition
    db.execute("delete from parted where id = 1")
    found = parted.live()
    while len(found) < 6:
        found += parted.live()
    assert [(m["headers"]["operation"], m["key"].partition("/")[2]) for m in found] == [
        ("insert", '"2"/"south"'),
        ("insert", '"3"/"north"'),
        ("update", '"2"/"south"'),
        ("delete", '"3"/"north"'),
        ("insert", '"3"/"south"'),
        ("delete", '"1"/"north"'),
    ]
    assert found[0]["headers"]["relation"] == [schema, "parted"]
    assert found[2]["value"] == {"id": "2", "region": "south", "title": "B"}


def test_a_partition_has_a_shape_of_its_own(
    parted: Follower, follow: Follow, db: psycopg.Connection, schema: str
) -> None:
    one = follow(table=f"{schema}.parted_south")
    assert titles(parted) == titles(one) == []
    db.execute("insert into parted values (1, 'north', 'a'), (2, 'south', 'b')")
    assert [m["value"]["title"] for m in one.live()] == ["b"]


@pytest.mark.parametrize(
    "statement",
    [
        "truncate parted_north",
        "alter table parted detach partition parted_north",
        "create table parted_west partition of parted for values in ('west')",
        "drop table parted_north",
    ],
)
def test_other_partitions_end_a_shape(
    parted: Follower, db: psycopg.Connection, statement: str
) -> None:
    db.execute("insert into parted values (1, 'north', 'a'), (2, 'south', 'b')")
    assert titles(parted) == ["a", "b"]
    db.execute(statement.encode())
    until_refetched(parted)
    expected = ["a", "b"] if "west" in statement else ["b"]
    assert titles(parted) == expected
    if "west" in statement:
        db.execute("insert into parted values (3, 'west', 'c')")
        assert [m["value"]["title"] for m in parted.live()] == ["c"]


def test_rows_of_tables_that_inherit_reach_the_shape(
    follow: Follow, db: psycopg.Connection
) -> None:
    db.execute("create table more_items (extra int) inherits (items)")
    db.execute("insert into more_items (title) values ('inherited')")
    follower = follow()
    assert titles(follower) == ["inherited"]
    db.execute("insert into more_items (title) values ('live')")
    assert [m["value"]["title"] for m in follower.live()] == ["live"]


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("drop table items; {items}; insert into items (title) values ('new')", ["new"]),
        (
            "alter table items rename to was; {items}; insert into items (title) values ('new')",
            ["new"],
        ),
        ("alter table items alter column title type varchar(9) using 'cast'", ["cast"]),
        ("alter table items alter column title type text using 'made'", ["made"]),
        ("alter table items rename column body to other", ["old"]),
        ("alter table items drop column body", ["old"]),
        ("alter table items drop column body, add column body text default 'b'", ["old"]),
        ("alter table items alter column body set not null", ["old"]),
        ("alter table items drop constraint items_pkey, add primary key (id, title)", ["old"]),
        ("truncate items", []),
        ("alter publication headrace_shapes drop table items", ["old"]),
        ("alter publication headrace_shapes set (publish = 'insert')", ["old"]),
        ("alter publication headrace_shapes set (publish_via_partition_root = true)", ["old"]),
        ("alter publication headrace_shapes set table items where (id > 7)", ["old"]),
        ("alter publication headrace_shapes rename to headrace_shapes_{schema}", ["old"]),
        ("alter table items replica identity default", ["old"]),
        ('alter table items alter column title type text collate "C"', ["old"]),
    ],
)
def test_a_table_that_becomes_another_ends_its_shapes(
    follow: Follow, db: psycopg.Connection, schema: str, statement: str, expected: list[str]
) -> None:
    """Without a change of a row that would say so."""
    db.execute("insert into items (title, body) values ('old', 'b')")
    follower = follow()
    assert titles(follower) == ["old"]
    handle = follower.handle
    db.execute(statement.replace("{items}", ITEMS).replace("{schema}", schema).encode())
    until_refetched(follower)
    assert titles(follower) == expected
    assert follower.handle != handle
    db.execute("update items set done = true")
    db.execute("delete from items")
    if expected:
        operations = [m["headers"]["operation"] for m in follower.live()]
        while operations[-1] != "delete":
            operations += [m["headers"]["operation"] for m in follower.live()]
        assert operations == ["update", "delete"]


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("alter type colour rename value 'red' to 'rot'", ("rot", "{rot}", "(1,rot)", "{rot}")),
        ("alter type size rename attribute colour to hue", ("red", "{red}", "(1,red)", "{red}")),
        (
            "alter type size add attribute depth int",
            ("red", "{red}", "(1,red,)", "{red}"),
        ),
    ],
)
def test_a_type_that_becomes_another_ends_the_shapes_of_its_columns(
    follow: Follow, db: psycopg.Connection, statement: str, expected: tuple[str, ...]
) -> None:
    """It changes what the rows read as, and writes none of them."""
    db.execute("create type colour as enum ('red', 'blue')")
    db.execute("create type size as (width int, colour colour)")
    db.execute("create domain colours as colour[]")
    for name, kind in (("a", "colour"), ("b", "colour[]"), ("c", "size"), ("d", "colours")):
        db.execute(f"alter table items add column {name} {kind}".encode())
    db.execute(
        "insert into items (title, a, b, c, d) values ('t', 'red', '{red}', '(1,red)', '{red}')"
    )
    follower = follow()
    assert titles(follower) == ["t"]
    db.execute(statement.encode())
    until_refetched(follower)
    (found,) = follower.catch_up()
    assert tuple(found["value"][name] for name in "abcd") == expected


@pytest.mark.parametrize(
    "statement",
    [
        "drop table items",
        "alter table items rename to was",
        "alter schema {schema} rename to {schema}_was",
    ],
)
def test_a_table_that_is_gone_ends_its_shapes_and_is_refused(
    follow: Follow, db: psycopg.Connection, schema: str, statement: str
) -> None:
    follower = follow()
    follower.catch_up()
    db.execute(statement.replace("{schema}", schema).encode())
    until_refetched(follower)
    answer = follower.ask()
    assert answer.status_code == 400, answer.text
    assert "does not exist" in answer.text


def test_a_change_whose_old_row_is_not_known_is_never_told_as_an_insert(
    follow: Follow, db: psycopg.Connection
) -> None:
    db.execute("insert into items (title) values ('old')")
    follower = follow()
    follower.catch_up()
    with db.transaction():
        db.execute("alter table items replica identity default")
        db.execute("update items set title = 'new'")
        db.execute("alter table items replica identity full")
    until_refetched(follower)
    assert [m["headers"]["operation"] for m in follower.messages] == ["insert"]
    assert titles(follower) == ["new"]


def test_rows_written_while_a_table_had_another_name_are_not_lost(
    follow: Follow, db: psycopg.Connection
) -> None:
    follower = follow()
    follower.catch_up()
    with db.transaction():
        db.execute("alter table items rename to other")
        db.execute("insert into other (title) values ('a')")
        db.execute("alter table other rename to items")
    until_refetched(follower)
    assert titles(follower) == ["a"]


def test_a_table_dropped_while_its_shape_is_made_is_refused(
    follow: Follow, db: psycopg.Connection
) -> None:
    follower = follow()
    answers: list[httpx.Response] = []
    (oid,) = db.execute("select 'items'::regclass::oid").fetchone() or (0,)
    asking = threading.Thread(target=lambda: answers.append(follower.ask()))
    with db.transaction():
        db.execute("drop table items")
        asking.start()
        waits = "select from pg_locks where relation = %s and not granted"
        eventually(lambda: db.execute(waits, (oid,)).rowcount == 1, "it waits for the table")
    asking.join()
    assert answers[0].status_code == 400, answers[0].text
    assert "does not exist" in answers[0].text


def test_an_unlogged_table_is_refused(follow: Follow, db: psycopg.Connection) -> None:
    db.execute("alter table items set unlogged")
    answer = follow().ask()
    assert answer.status_code == 400
    assert "unlogged" in answer.text


def test_what_became_another_while_the_shapes_were_stopped_ends_them(
    server: ServerProcess, database: str, tmp_path: Path
) -> None:
    process = ShapesProcess(database, server.url, tmp_path / "shapes.log")
    with psycopg.connect(database, autocommit=True) as db, Follower(process.url, "items") as reader:
        db.execute(ITEMS.encode())
        db.execute("insert into items (title) values ('old')")
        process.start()
        assert titles(reader) == ["old"]
        process.stop()
        db.execute("drop table items")
        db.execute(ITEMS.encode())
        db.execute("insert into items (title) values ('new')")
        process.start()
        until_refetched(reader)
        assert titles(reader) == ["new"]
        process.stop()
