"""The workflows in .github call what exists, for the versions that the project names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.tree.markdown import ROOT
from tools.build_wheels import classified_versions

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def steps(path: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(path.read_text("utf-8"))["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_says_that_it_has_not_run(path: Path) -> None:
    assert "This workflow has not run yet" in path.read_text("utf-8")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_calls_targets_and_locks_that_exist(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    text = path.read_text("utf-8")
    assert set(re.findall(r"make ([a-z-]+)$", text, re.MULTILINE)) <= targets
    assert all((ROOT / name).is_file() for name in re.findall(r"requirements/\w+\.txt", text))
    assert all("uses" in step or "run" in step for step in steps(path))


def test_tests_and_wheels_are_for_the_versions_that_the_project_names() -> None:
    versions = classified_versions()
    assert len(versions) >= 3
    tests = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text("utf-8"))
    assert tests["jobs"]["check"]["strategy"]["matrix"]["python"] == versions
    release = (ROOT / ".github/workflows/release.yml").read_text("utf-8")
    built = re.findall(r"cp(3)(\d+)-\*", release)
    assert [f"{major}.{minor}" for major, minor in built] == versions


def test_images_are_built_from_targets_that_exist() -> None:
    release = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text("utf-8"))
    targets = re.findall(r"^FROM .* AS (\w+)$", (ROOT / "Dockerfile").read_text("utf-8"), re.M)
    assert set(release["jobs"]["image"]["strategy"]["matrix"]["target"]) <= set(targets)
