"""The example of 410, bootstrap and tail works as its text says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from examples.bootstrap import Votes
from headrace.testing.server_process import ServerProcess
from tests.buckets.api import CLOSE, JSON

EXAMPLE = Path(__file__).parents[2] / "examples" / "bootstrap.py"


def test_a_client_that_was_away_begins_again(api: httpx.Client, bucket: str) -> None:
    url = str(api.base_url.join(f"{bucket}/votes"))
    api.put(url, headers=JSON)
    away, writer = Votes(api, url), Votes(api, url)
    api.post(url, headers=JSON, json={"name": "yes", "add": 1})
    away.bootstrap()
    assert away.state == {"yes": 1}
    api.post(url, headers=JSON, json=[{"name": "yes", "add": 2}, {"name": "no", "add": 5}])
    writer.bootstrap()
    writer.publish()
    api.post(url, headers=JSON, json={"name": "no", "add": -1})
    assert away.follow(), "told 410, and began again"
    assert (away.bootstraps, away.state) == (2, {"yes": 3, "no": 4})
    api.post(url, headers=JSON, json={"name": "yes", "add": 1})
    assert away.follow()
    assert (away.bootstraps, away.state) == (2, {"yes": 4, "no": 4})
    api.post(url, headers=CLOSE)
    assert not away.follow()
    writer.bootstrap()
    assert writer.state == away.state


@pytest.mark.slow
def test_the_example_runs_as_a_program(server: ServerProcess, http: httpx.Client) -> None:
    http.put("/counters")
    http.put("/counters/votes", headers=JSON | CLOSE, content=b'[{"name": "yes", "add": 2}]')
    url = f"{server.url}/counters/votes"
    finished = subprocess.run(
        [sys.executable, str(EXAMPLE), url], capture_output=True, text=True, timeout=60, check=True
    )
    assert finished.stdout.endswith("{'yes': 2}\n")
