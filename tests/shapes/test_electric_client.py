"""Electric's own client, from npm, follows shapes of ours over long-poll and SSE."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.testing.waiting import eventually
from tests.shapes.helpers import ShapesProcess

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent


class ElectricClient:
    """follow.mjs: what the client printed, line by line."""

    def __init__(self, url: str, *, sse: bool, counted: bool = False, **params: str) -> None:
        node = shutil.which("node")
        assert node is not None, "Node runs Electric's client"
        asked = json.dumps({"url": url, "params": params, "sse": sse, "counted": counted})
        self._process = subprocess.Popen(
            [node, "follow.mjs", asked],
            cwd=HERE,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.lines: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None, "it is a pipe"
        for line in self._process.stdout:
            self.lines.append(json.loads(line))

    @property
    def rows(self) -> list[dict[str, Any]] | None:
        """The shape as the client has it now."""
        return next((line["rows"] for line in reversed(self.lines) if "rows" in line), None)

    @property
    def count(self) -> int | None:
        """Of rows, by a client that is `counted` and prints no more than that."""
        return next((line["count"] for line in reversed(self.lines) if "count" in line), None)

    @property
    def operations(self) -> list[str]:
        messages = [line["message"]["headers"] for line in self.lines if "message" in line]
        return [headers["operation"] for headers in messages if "operation" in headers]

    @property
    def errors(self) -> list[str]:
        return [line["error"] for line in self.lines if "error" in line]

    def request(self, **subset: Any) -> None:
        """Ask for a subset."""
        assert self._process.stdin is not None, "it is a pipe"
        self._process.stdin.write(json.dumps(subset) + "\n")
        self._process.stdin.flush()

    def close(self) -> None:
        assert self._process.stdin is not None, "it is a pipe"
        self._process.stdin.close()
        self._process.wait(30)
        self._reader.join(30)
        assert self._process.stdout is not None, "it is a pipe"
        self._process.stdout.close()


Connect = Callable[..., ElectricClient]


@pytest.fixture
def connect(shapes: ShapesProcess, db: psycopg.Connection, schema: str) -> Iterator[Connect]:
    if not (HERE / "node_modules" / "@electric-sql" / "client").is_dir():
        pytest.fail("Electric's client is not installed: run `make test`, which does it")
    made: list[ElectricClient] = []

    def start(*, sse: bool, counted: bool = False, **params: str) -> ElectricClient:
        table = f"{schema}.items"
        made.append(ElectricClient(shapes.url, sse=sse, counted=counted, table=table, **params))
        return made[-1]

    yield start
    for client in made:
        client.close()


@pytest.mark.parametrize("sse", [False, True], ids=["long-poll", "sse"])
def test_the_client_follows_inserts_updates_deletes_and_a_truncate(
    connect: Connect, db: psycopg.Connection, sse: bool
) -> None:
    db.execute("insert into items (title, done, tags) values ('first', true, '{a,b}')")
    client = connect(sse=sse)

    def titles() -> list[str] | None:
        return None if client.rows is None else sorted(row["title"] for row in client.rows)

    eventually(lambda: titles() == ["first"], "the snapshot")
    assert client.rows is not None
    assert client.rows[0]["done"] is True
    assert client.rows[0]["tags"] == ["a", "b"]
    db.execute("insert into items (title) values ('second')")
    eventually(lambda: titles() == ["first", "second"], "an insert")
    db.execute("update items set title = 'changed' where title = 'first'")
    eventually(lambda: titles() == ["changed", "second"], "an update")
    assert client.rows is not None
    changed = next(row for row in client.rows if row["title"] == "changed")
    assert changed["done"] is True, "what an update does not name stays"
    db.execute("delete from items where title = 'second'")
    eventually(lambda: titles() == ["changed"], "a delete")
    assert client.operations == ["insert", "insert", "update", "delete"], "each once"
    db.execute("truncate items")
    eventually(lambda: titles() == [], "a truncate")
    db.execute("insert into items (title) values ('anew')")
    eventually(lambda: titles() == ["anew"], "and what comes after it")
    assert client.errors == []


@pytest.mark.parametrize("sse", [False, True], ids=["long-poll", "sse"])
def test_the_client_sees_only_what_it_asked_for(
    connect: Connect, db: psycopg.Connection, sse: bool
) -> None:
    client = connect(sse=sse, where="title like 'in%'", columns="id,title")
    eventually(lambda: client.rows == [], "the empty snapshot")
    db.execute("insert into items (title, body) values ('in', 'b'), ('out', 'b')")
    eventually(lambda: client.rows == [{"id": 1, "title": "in"}], "the row that belongs")
    db.execute("update items set title = 'out' where id = 1")
    eventually(lambda: client.rows == [], "it left")
    assert client.errors == []


@pytest.mark.parametrize("sse", [False, True], ids=["long-poll", "sse"])
def test_the_client_reads_a_large_table_and_a_large_transaction_to_the_end(
    connect: Connect, db: psycopg.Connection, sse: bool
) -> None:
    rows = (
        "insert into items (title, body)"
        " select n, repeat('x', 1000) from generate_series(%s::int, %s::int) n"
    )
    db.execute(rows, (1, 3_000))
    client = connect(sse=sse, counted=True)
    eventually(lambda: client.count == 3_000, "the table")
    db.execute(rows, (3_001, 8_000))
    eventually(lambda: client.count == 8_000, "the transaction")
    db.execute("delete from items where id > 1")
    eventually(lambda: client.count == 1, "and what comes after it")
    assert client.errors == []


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_the_client_takes_subsets_between_changes(
    connect: Connect, db: psycopg.Connection, method: str
) -> None:
    db.execute("insert into items (title) select n from generate_series(1, 9) n")
    client = connect(sse=False, log="changes_only", offset="now")
    client.request(where="id > $1", params={"1": "3"}, orderBy="id", limit=2, method=method)

    def messages() -> list[tuple[str, str]]:
        found = [line["message"] for line in client.lines if "message" in line]
        return [
            (m["headers"]["operation"], m["value"].get("title"))
            for m in found
            if "operation" in m["headers"]
        ]

    eventually(lambda: messages() == [("insert", "4"), ("insert", "5")], "the subset")
    db.execute("update items set title = 'changed' where id = 5")
    eventually(lambda: messages()[2:] == [("update", "changed")], "a change")
    assert client.errors == []
