"""The pure wheel holds all that the package needs; `make wheels` tries it and the compiled one."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from tests.tree.markdown import ROOT
from tools import build_wheels

RESOURCES = ("*.py", "*.js", "*.css", "*.html", "*.svg", "*.sql", "*.php", "py.typed")


@pytest.mark.slow
def test_the_wheel_holds_every_module_and_resource(tmp_path: Path) -> None:
    wheel = build_wheels.build(Path(sys.executable), tmp_path, compiled=False)
    assert wheel.name.endswith("-py3-none-any.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "src"
    needed = {
        path.relative_to(source).as_posix()
        for pattern in RESOURCES
        for path in source.rglob(pattern)
    }
    assert needed - held == set()


def test_a_version_that_is_not_here_is_not_found() -> None:
    assert build_wheels.interpreter("3.1") is None
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert here in build_wheels.classified_versions()
