"""What a where-clause may be made of."""

from __future__ import annotations

import pytest

from headrace.shapes.definition import BadRequest
from headrace.shapes.where import compile_where

COLUMNS = ("id", "title", "Mixed", "tags")


@pytest.mark.parametrize(
    ("where", "compiled"),
    [
        ("id = 1", '"id" = 1'),
        ("ID = 1 AND title ILIKE 'a%'", '"id" = 1 AND "title" ILIKE \'a%\''),
        ('"Mixed" is not null', '"Mixed" is not null'),
        ("title = 'it''s'", "\"title\" = 'it''s'"),
        ("id::text in ('1', '2')", "\"id\" :: text in ( '1' , '2' )"),
        ("title = $1 or id = $2", "\"title\" = 'x' or \"id\" = '2'"),
        ("'a' = any(tags)", "'a' = any ( \"tags\" )"),
        ("lower(title) = 'a'", "lower ( \"title\" ) = 'a'"),
    ],
)
def test_what_is_allowed(where: str, compiled: str) -> None:
    assert compile_where(where, COLUMNS, {1: "x", 2: "2"}).as_string(None) == compiled


@pytest.mark.parametrize(
    "where",
    [
        "id = (select 1)",
        "pg_sleep(10) is null",
        "pg_read_file('/etc/passwd') = ''",
        "1 = 1; drop table items",
        "id = 1) or (true",
        "(id = 1",
        "id = 1 -- and more",
        "id = 1 /* and more */",
        "title = $tag$x$tag$",
        "current_user = 'postgres'",
        "items.id = 1",
        "exists(table items)",
        "title = 'open",
        "   ",
        "\x00",
    ],
)
def test_what_is_not(where: str) -> None:
    with pytest.raises(BadRequest):
        compile_where(where, COLUMNS, {})


def test_a_parameter_is_a_value_whatever_it_holds() -> None:
    compiled = compile_where("title = $1", COLUMNS, {1: "'; drop table items; --"})
    assert compiled.as_string(None) == "\"title\" = '''; drop table items; --'"
