"""The command of a working tree runs the compiled build only while it is that of the sources."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.tree.markdown import ROOT

SOURCE, BUILT = "src/headrace/engine.py", "build/compiled/.built"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A working tree whose Python says what it was started with."""
    root = tmp_path / "a tree"
    python = root / ".venv/bin/python"
    for path in (root / "bin/headrace", root / SOURCE, root / BUILT, python):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    shutil.copy(ROOT / "bin" / "headrace", root / "bin" / "headrace")
    python.write_text('#!/bin/sh\necho "$PYTHONPATH|$*"\n')
    python.chmod(0o755)
    (root / ".venv/bin/headrace").symlink_to("../../bin/headrace")
    set_ages(root, source=1, built=2)
    return root


def set_ages(root: Path, *, source: int, built: int) -> None:
    os.utime(root / SOURCE, (source, source))
    os.utime(root / BUILT, (built, built))


def said(root: Path, **variables: str) -> str:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "HEADRACE_PURE")}
    command = [str(root / ".venv/bin/headrace"), "serve", "--port", "1"]
    done = subprocess.run(
        command, env=environment | variables, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_a_build_that_is_newer_than_every_source_is_run(tree: Path) -> None:
    assert said(tree) == f"{tree}/build/compiled|-m headrace.cli serve --port 1"


def test_a_path_that_was_set_is_kept_behind_it(tree: Path) -> None:
    assert said(tree, PYTHONPATH="/own").startswith(f"{tree}/build/compiled:/own|")


def test_after_an_edit_the_sources_are_run(tree: Path) -> None:
    set_ages(tree, source=3, built=2)
    assert said(tree) == "|-m headrace.cli serve --port 1"


def test_without_a_build_the_sources_are_run(tree: Path) -> None:
    (tree / BUILT).unlink()
    assert said(tree).startswith("|")


def test_the_sources_can_be_asked_for(tree: Path) -> None:
    assert said(tree, HEADRACE_PURE="1").startswith("|")
