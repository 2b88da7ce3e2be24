"""The client needs few packages: what only the server needs is not imported with it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from headrace.testing.server_process import ServerProcess
from tests.shapes.test_extra import REFUSE
from tests.tree.markdown import ROOT

NEEDED = {"httpx", "httpcore", "msgspec", "orjson"}
MODULES = {"google-crc32c": "google_crc32c", "prometheus-client": "prometheus_client"}
# A whole session, sync and async, that uses the producer and a live read.
SESSION = """
import asyncio, sys
from headrace.client import AsyncClient, Client

with Client(sys.argv[1]) as client:
    stream = client.stream("with-few-packages")
    stream.create()
    with stream.producer("p") as producer:
        producer.append_json({"n": 1})
    stream.close()
    assert stream.read_json() == [{"n": 1}]


async def again():
    async with AsyncClient(sys.argv[1]) as client:
        live = client.stream("with-few-packages").read(live="auto")
        assert [value async for value in live.json()] == [{"n": 1}]


asyncio.run(again())
"""


def dependencies() -> set[str]:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return {re.split(r"[\[<>=]", line)[0] for line in declared["dependencies"]}


def test_the_client_works_without_the_packages_of_the_server(
    server: ServerProcess, tmp_path: Path
) -> None:
    others = {MODULES.get(name, name) for name in dependencies() - NEEDED}
    assert {"cryptography", "lmdb", "uvloop", "typer"} <= others
    (tmp_path / "sitecustomize.py").write_text(REFUSE.format(names=others))
    finished = subprocess.run(
        [sys.executable, "-c", SESSION, server.url],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr


def test_what_the_client_imports_is_documented() -> None:
    page = (ROOT / "docs/decisions/0005-dependencies.md").read_text("utf-8")
    assert [name for name in dependencies() if f"| {name} |" not in page] == []
    assert "`headrace.client` imports httpx (with httpcore), msgspec and orjson" in page
