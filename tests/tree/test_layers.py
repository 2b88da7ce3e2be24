"""The layers of docs/architecture.md hold: the import contracts in pyproject.toml are kept."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from tests.tree.markdown import ROOT

PACKAGE = ROOT / "src" / "headrace"


def contracts() -> list[dict[str, Any]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    found: list[dict[str, Any]] = settings["tool"]["importlinter"]["contracts"]
    return found


def test_every_import_contract_is_kept() -> None:
    lint_imports = Path(sys.executable).with_name("lint-imports")
    finished = subprocess.run(
        [lint_imports, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr


def test_every_package_and_module_has_its_place_in_the_layers() -> None:
    layers = next(contract["layers"] for contract in contracts() if contract["id"] == "layers")
    placed = {module for layer in layers for module in layer.replace(":", "|").split("|")}
    placed = {module.strip(" ()") for module in placed}
    present = {
        path.stem
        for path in PACKAGE.iterdir()
        if (path.suffix == ".py" and not path.stem.startswith("__"))
        or (path.is_dir() and any(path.rglob("*.py")))
    }
    assert present - placed == set(), "name these in the contract 'layers' of pyproject.toml"


def test_modules_say_what_they_own() -> None:
    silent = [
        path.relative_to(ROOT).as_posix()
        for path in PACKAGE.rglob("*.py")
        if path.read_text("utf-8").strip()
        and not path.read_text("utf-8").lstrip().startswith('"""')
    ]
    assert silent == [], "these modules have no opening docstring"
