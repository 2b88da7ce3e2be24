"""A metric that a page, a rule or a dashboard names is one that something exposes.

What is exposed is compared with these descriptions by the tests of each part: a scrape of a server
(`tests/http/test_operations.py`) and of a pipeline (`tests/spark/test_pipeline_metrics.py`).
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from headrace.http.host_metrics import HOST_METRICS
from headrace.http.metrics import METRICS
from headrace.spark.pipelines.pipeline_metrics import METRICS as PIPELINE_METRICS
from headrace.spark.sources.registry import SOURCES
from headrace.stack.monitor import METRICS as MONITOR_METRICS
from tests.tree import markdown
from tests.tree.markdown import ROOT

RULES = ROOT / "deploy/prometheus/headrace.rules.yml"
DASHBOARDS = sorted((ROOT / "deploy/grafana").glob("*.json"))
_OF_PROCESS = "cpu|max|open|resident|start|virtual"
NAME = re.compile(rf"\b(?:headrace_[a-z0-9_]+|process_(?:{_OF_PROCESS})_[a-z_]+)\b")
HISTOGRAMS = (
    "headrace_request_seconds",
    "headrace_event_loop_stall_seconds",
    "headrace_event_loop_stall_cpu_seconds",
    "headrace_event_loop_stall_held_seconds",
)
FIXTURES = {"headrace_client", "headrace_in_process", "headrace_server"}
EXPOSED = {
    *METRICS, *HOST_METRICS, *PIPELINE_METRICS, *MONITOR_METRICS,
    *(f"{name}_{part}" for name in HISTOGRAMS for part in ("bucket", "sum", "count")),
}  # fmt: skip


def named_in(text: str) -> set[str]:
    """Names of metrics: slots are named in examples as `headrace_2`, others are known."""
    others = {source.name() for source in SOURCES} | FIXTURES
    return {name for name in NAME.findall(text) if name not in others and not name[-1].isdigit()}


@pytest.mark.parametrize("page", markdown.pages(), ids=markdown.name)
def test_a_page_names_only_metrics_that_exist(page: Path) -> None:
    assert named_in(page.read_text("utf-8")) - EXPOSED == set()


@pytest.mark.parametrize("page", ["docs/operating.md", "docs/pipelines.md", "docs/stack.md"])
def test_the_pages_of_operators_are_looked_at(page: str) -> None:
    """Else a pattern that finds nothing would pass."""
    assert named_in((ROOT / page).read_text("utf-8"))


@pytest.mark.parametrize("file", [RULES, *DASHBOARDS], ids=lambda path: path.name)
def test_a_rule_or_dashboard_uses_only_metrics_that_exist(file: Path) -> None:
    names = named_in(file.read_text("utf-8"))
    assert len(names) > 5
    assert names - EXPOSED == set()


def test_the_browser_charts_only_metrics_that_exist() -> None:
    names = named_in((ROOT / "src/headrace/ui/overview.js").read_text("utf-8"))
    assert len(names) > 5
    assert names - EXPOSED == set()


def test_nothing_uses_a_metric_that_is_deprecated() -> None:
    old = {name for name, text in METRICS.items() if text.startswith("Deprecated")}
    users = [RULES, *DASHBOARDS, ROOT / "src/headrace/ui/overview.js"]
    assert old
    assert [path.name for path in users if named_in(path.read_text("utf-8")) & old] == []


@pytest.mark.parametrize("name", sorted(HOST_METRICS | PIPELINE_METRICS | MONITOR_METRICS))
def test_every_metric_of_host_pipelines_and_monitor_is_documented(name: str) -> None:
    pages = [(ROOT / "docs" / f"{page}.md").read_text("utf-8") for page in
             ("operating", "pipelines", "stack")]  # fmt: skip
    assert any(f"`{name}`" in page for page in pages)


def test_dashboards_have_an_identity_and_panels_that_do_not_overlap() -> None:
    boards = [json.loads(path.read_text("utf-8")) for path in DASHBOARDS]
    assert len({board["uid"] for board in boards}) == len(boards) == 2
    for board in boards:
        places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]}
        assert len(places) == len(board["panels"])
        assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
