"""examples/streams.ipynb runs from the first cell to the last."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest

from headrace.client import Client
from headrace.testing.server_process import ServerProcess
from tests.examples.conftest import EXAMPLES

pytestmark = pytest.mark.slow


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Run a cell as a notebook does; the value of its last line, if that is an expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    if not isinstance(last, ast.Expr):
        return None
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names)


def test_the_notebook_goes_from_an_empty_stream_to_a_chart(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    monkeypatch.setenv("HEADRACE_URL", server.url)
    notebook = json.loads((EXAMPLES / "streams.ipynb").read_text("utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"] == [
        [] for cell in notebook["cells"] if cell["cell_type"] == "code"
    ], "outputs of one run are not committed"
    names: dict[str, Any] = {}
    shown = {
        cell["id"]: run_cell("".join(cell["source"]), names)
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    }
    assert shown["more"] == "120 new rows, 360 in all"
    assert dict(shown["read"]["count"]) == {"north": 120, "south": 120}
    drawn = names["axes"].get_lines()
    assert [len(line.get_xdata()) for line in drawn] == [180, 180]
    assert len(shown["follow"]) == 5
    names["plt"].close("all")
    with Client(server.url) as client:
        assert "measurements" not in [found.name for found in client.streams()]
