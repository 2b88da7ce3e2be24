"""Tables, transactions and rows beyond what one answer or one stream of the server holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest

from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import eventually
from tests.conftest import Serve
from tests.shapes.conftest import Follow
from tests.shapes.helpers import ITEMS, Follower, ShapesProcess

pytestmark = pytest.mark.slow
MIB = 1 << 20


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that holds more than fits into the memory it may have."""
    folder = str(tmp_path_factory.mktemp("files"))
    with ServerProcess({"DS_STORAGE__MODE": "file-fast"}, cwd=folder) as process:
        yield process


@pytest.fixture
def own(files: ServerProcess, database: str, tmp_path: Path) -> Iterator[ShapesProcess]:
    """Shapes of a database of their own."""
    process = ShapesProcess(database, files.url, tmp_path / "shapes.log")
    process.start()
    yield process
    process.stop()


def peak_rss_bytes(process: ShapesProcess) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return next(
        1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")
    )


def fill(db: psycopg.Connection, rows: int, row_bytes: int) -> None:
    """One transaction of so many rows."""
    db.execute(
        "insert into items (title, body) select n, repeat('x', %s) from generate_series(1, %s) n",
        (row_bytes, rows),
    )


def until_up_to_date(follower: Follower) -> list[str]:
    """The titles that come until the follower is told that it has everything."""
    found = follower.live()
    while not follower.is_up_to_date:
        found += follower.live()
    return [message["value"]["title"] for message in found]


def numbers(count: int) -> list[str]:
    return [str(number) for number in range(1, count + 1)]


@pytest.mark.parametrize(("rows", "row_bytes"), [(1_500, 1_000), (11_000, 1_000), (3, 8 * MIB)])
def test_a_table_is_read_to_its_end_whatever_its_size(
    follow: Follow, db: psycopg.Connection, rows: int, row_bytes: int
) -> None:
    fill(db, rows, row_bytes)
    follower = follow()
    found = follower.catch_up()
    assert [message["value"]["title"] for message in found] == numbers(rows)
    assert {len(message["value"]["body"]) for message in found} == {row_bytes}
    # Again from each place that a reader may have stopped at.
    follower.offset = "0_0"
    assert len(follower.catch_up()) == rows - 1


@pytest.mark.parametrize(("rows", "row_bytes"), [(20_000, 50), (2, 8 * MIB)])
def test_a_transaction_comes_whole_before_its_reader_is_up_to_date(
    follow: Follow, db: psycopg.Connection, rows: int, row_bytes: int
) -> None:
    follower = follow()
    follower.catch_up()
    fill(db, rows, row_bytes)
    assert until_up_to_date(follower) == numbers(rows)


def test_a_transaction_of_a_hundred_thousand_rows_comes_in_bounded_memory(
    own: ShapesProcess, database: str
) -> None:
    with psycopg.connect(database, autocommit=True) as db:
        db.execute(ITEMS.encode())
        follower = Follower(own.url, "items")
        follower.catch_up()
        before = peak_rss_bytes(own)
        fill(db, 100_000, 50)
    assert until_up_to_date(follower) == numbers(100_000)
    follower.close()
    assert peak_rss_bytes(own) - before < 60 * MIB


def test_a_table_of_100_mib_is_read_in_bounded_memory(own: ShapesProcess, database: str) -> None:
    with psycopg.connect(database, autocommit=True) as db:
        db.execute(ITEMS.encode())
        fill(db, 100, 10)
        follower = Follower(own.url, "items", where="id > 0")
        follower.catch_up()
        follower.close()
        before = peak_rss_bytes(own)
        fill(db, 13_000, 8_000)
    count = 0
    with Follower(own.url, "items") as follower:
        follower.step()
        while not follower.is_up_to_date:
            count += len(follower.messages)
            follower.messages.clear()
            follower.step()
    assert count + len(follower.messages) == 13_100
    assert peak_rss_bytes(own) - before < 60 * MIB


def test_a_transaction_that_a_kill_cuts_short_comes_whole_and_once(
    own: ShapesProcess, database: str, files: ServerProcess
) -> None:
    with psycopg.connect(database, autocommit=True) as db:
        db.execute(ITEMS.encode())
        follower = Follower(own.url, "items")
        follower.catch_up()
        log = f"{files.url}/v1/stream/{own.prefix}/{follower.handle}"
        empty = httpx.head(log).headers["stream-next-offset"]
        fill(db, 30_000, 100)
        eventually(
            lambda: httpx.head(log).headers["stream-next-offset"] != empty, "the log to grow"
        )
        own.kill()
        own.start()
        db.execute("insert into items (title) values ('behind')")
    found = until_up_to_date(follower)
    if found[-1] != "behind":
        found += until_up_to_date(follower)
    assert found == [*numbers(30_000), "behind"]
    assert follower.refetched == 0
    follower.close()


def test_a_log_goes_on_in_further_streams_through_a_kill(
    serve: Serve, database: str, tmp_path: Path
) -> None:
    server = serve(DS_LIMITS__MAX_STREAM_BYTES="600000", DS_LIMITS__READ_CHUNK_BYTES="50000")
    own = ShapesProcess(database, server.url, tmp_path / "shapes.log")
    with psycopg.connect(database, autocommit=True) as db:
        db.execute(ITEMS.encode())
        fill(db, 2_000, 1_000)
        own.start()
        follower = Follower(own.url, "items")
        found = [message["value"]["title"] for message in follower.catch_up()]
        assert found == numbers(2_000)
        own.kill()
        own.start()
        fill(db, 2_000, 1_000)
        assert until_up_to_date(follower) == numbers(2_000)
        assert follower.refetched == 0
        streams = [f"{own.prefix}/{follower.handle}", f"{own.prefix}/{follower.handle}.2"]
        urls = [f"{server.url}/v1/stream/{name}" for name in streams]
        assert [httpx.head(url).status_code for url in urls] == [200, 200]
        db.execute("truncate items")
        while not follower.refetched:
            follower.live()
        eventually(lambda: [httpx.head(url).status_code for url in urls] == [404, 404], "deletion")
    follower.close()
    own.stop()
