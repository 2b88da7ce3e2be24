"""One Shape API for all tests but those that break it; a table of its own, `items`, for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import psycopg
import pytest

from headrace.postgres.server import PostgresServer
from headrace.testing.server_process import ServerProcess
from tests.shapes.helpers import ITEMS, Follower, ShapesProcess

Follow = Callable[..., Follower]
_numbers = count()


@pytest.fixture(scope="session")
def shapes_database(postgres: PostgresServer) -> Iterator[str]:
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        admin.execute("create database shapes_tests")
        yield postgres.url_of("shapes_tests")


@pytest.fixture(scope="session")
def shapes(
    shapes_database: str, server: ServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ShapesProcess]:
    log = tmp_path_factory.mktemp("shapes") / "shapes.log"
    process = ShapesProcess(shapes_database, server.url, log, "--allow-shape-deletion")
    process.start()
    yield process
    process.stop()
    assert "Traceback" not in process.log, process.log


@pytest.fixture
def schema() -> str:
    return f"test_{next(_numbers)}"


@pytest.fixture
def db(shapes_database: str, schema: str) -> Iterator[psycopg.Connection]:
    options = f"-c search_path={schema}"
    with psycopg.connect(shapes_database, autocommit=True, options=options) as connection:
        connection.execute(f"create schema {schema}".encode())
        connection.execute(ITEMS.encode())
        yield connection


@pytest.fixture
def follow(shapes: ShapesProcess, db: psycopg.Connection, schema: str) -> Iterator[Follow]:
    """Followers of this test's `items`: `follow(where="id > 3")`."""
    made: list[Follower] = []

    def make(**params: str) -> Follower:
        made.append(Follower(shapes.url, **{"table": f"{schema}.items", **params}))
        return made[-1]

    yield make
    for follower in made:
        follower.close()
