"""The alert rules and dashboards of deploy/, read by Prometheus's own promtool.

promtool is the machine's own or Debian's, unpacked next to the tests; where neither can be had,
these tests are skipped and say so. That the names in them exist is checked without it
(`tests/tree/test_metric_names.py`).
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from headrace.stack.apt_fetch import unpacked

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
RULES = HERE.parents[1] / "deploy/prometheus"
DASHBOARDS = sorted((HERE.parents[1] / "deploy/grafana").glob("*.json"))
VARIABLES = {"$__rate_interval": "5m", "$instance": ".+", "$pipeline": ".+"}


@pytest.fixture(scope="module")
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        root = unpacked(["prometheus"], HERE / ".promtool")
        fetched = None if root is None else root / "usr/bin/promtool"
        found = str(fetched) if fetched is not None and fetched.exists() else None
    if found is None:
        pytest.skip("no promtool: none on the PATH, and none could be fetched with apt")
    return found


def check(promtool: str, *arguments: str) -> None:
    done = subprocess.run(
        [promtool, *arguments], cwd=RULES, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_accepts_the_rules(promtool: str) -> None:
    check(promtool, "check", "rules", "headrace.rules.yml")


def test_the_rules_alert_on_what_they_say_and_on_nothing_else(promtool: str) -> None:
    check(promtool, "test", "rules", "headrace.rules.test.yml")


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda path: path.name)
def test_prometheus_accepts_every_expression_of_a_dashboard(
    promtool: str, file: Path, tmp_path: Path
) -> None:
    panels = json.loads(file.read_text("utf-8"))["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(expressions) >= len(panels) > 10
    for name, value in VARIABLES.items():
        expressions = [text.replace(name, value) for text in expressions]
    rules = [{"record": f"panel:{n}", "expr": text} for n, text in enumerate(expressions)]
    made = tmp_path / "rules.json"  # JSON is YAML
    made.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    check(promtool, "check", "rules", str(made))
