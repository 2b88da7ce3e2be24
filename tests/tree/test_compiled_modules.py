"""What is compiled says what the compiler heeds: mypyc ignores the keywords of a class."""

from __future__ import annotations

import ast
import tomllib

import pytest

from tests.tree.markdown import ROOT

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
MODULES = SETTINGS["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["mypyc"]["include"]
# What only guards and saves: without them a class behaves the same.
HARMLESS = {"frozen", "gc"}


@pytest.mark.parametrize("module", MODULES)
def test_no_compiled_class_depends_on_a_keyword(module: str) -> None:
    tree = ast.parse((ROOT / module).read_text("utf-8"))
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    heeded = {keyword.arg for found in classes for keyword in found.keywords}
    assert heeded <= HARMLESS, f"{module}: {heeded - HARMLESS} would be lost in the compiled build"
