"""Where-clauses: which SQL a client may have evaluated, and how parameters get into it.

A clause is evaluated by Postgres itself, so its meaning is exact. What it may be made of is listed
here, word by word: columns of the table, literals, parameters, operators, a few functions and
types. No query, no statement and no function that reads anything but its arguments can be spelled
with these words.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from psycopg import sql

from headrace.shapes.definition import BadRequest, unquoted

_KEYWORDS = """
and or not in is null true false like ilike between any all array similar to distinct from
unknown escape
"""
_FUNCTIONS = "lower upper length abs coalesce nullif trim array_length cardinality"
_TYPES = """
int int2 int4 int8 smallint integer bigint numeric decimal real float float4 float8 double precision
text varchar char bpchar uuid bool boolean date time timetz timestamp timestamptz interval json
jsonb
"""
WORDS = frozenset(f"{_KEYWORDS} {_FUNCTIONS} {_TYPES}".split())
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<string>'(?:[^']|'')*')
    | (?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)
    | (?P<param>\$\d+)
    | (?P<quoted>"(?:[^"]|"")+")
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<operator>::|->>|->|<=|>=|<>|!=|\|\||@>|<@|&&|!~~\*|!~~|~~\*|~~|[-+*/%<>=.,\[\]])
    | (?P<open>\()
    | (?P<close>\))
    )""",
    re.VERBOSE,
)


def compile_where(where: str, columns: Collection[str], params: Mapping[int, str]) -> sql.Composed:
    """The clause as SQL, to be put in parentheses; BadRequest names what is not allowed."""
    pieces: list[sql.Composable] = []
    depth, at = 0, 0
    text = where.rstrip()
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise BadRequest(where=f"At location {at}: {text[at : at + 20]!r} is not allowed")
        kind, word = str(token.lastgroup), token[str(token.lastgroup)]
        # Adjacent operators could form a comment.
        if text.startswith(("--", "/*"), token.start(kind)):
            raise BadRequest(where=f"At location {at}: comments are not allowed")
        depth += {"open": 1, "close": -1}.get(kind, 0)
        if depth < 0:
            raise BadRequest(where=f"At location {at}: a bracket closes that was not opened")
        pieces.append(_piece(kind, word, columns, params))
        at = token.end()
    if depth:
        raise BadRequest(where="a bracket is not closed")
    if not pieces:
        raise BadRequest(where="can't be blank")
    return sql.SQL(" ").join(pieces)


def _piece(
    kind: str, word: str, columns: Collection[str], params: Mapping[int, str]
) -> sql.Composable:
    if kind == "string":
        return sql.Literal(word[1:-1].replace("''", "'"))
    if kind == "param":
        number = int(word[1:])
        if number not in params:
            raise BadRequest(params=f"value {word} is used in where but not given")
        return sql.Literal(params[number])
    if kind == "quoted" or (kind == "word" and word.lower() in columns):
        name = unquoted(word)
        if name not in columns:
            raise BadRequest(where=f"unknown reference {name}")
        return sql.Identifier(name)
    if kind == "word" and word.lower() not in WORDS:
        raise BadRequest(where=f"unknown reference {word}")
    return sql.SQL(word)  # one word of the lists above
