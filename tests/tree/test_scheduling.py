"""Tests that share something that takes long to start run in one process."""

from __future__ import annotations

from pathlib import Path

from tests.scheduling import CAMPAIGNS, FILES, TOGETHER, group_of

TESTS = Path(__file__).parents[1]


def test_a_folder_that_shares_something_is_one_group() -> None:
    assert group_of("tests/spark/test_a.py::test_b[x-y]") == "spark"
    assert group_of("tests/ui/deeper/test_a.py::test_b") == "ui"


def test_a_campaign_is_one_group_for_each_mode() -> None:
    kill = "tests/durability/test_kill.py::test_{}"
    assert group_of(kill.format("a[file-fast-/v1/stream/fire/0]")) == group_of(
        kill.format("b[file-fast]")
    )
    assert group_of(kill.format("b[acid]")) != group_of(kill.format("b[file-fast]"))
    assert group_of(kill.format("b[file-fast]")) != group_of(kill.format("b[file-durable]"))


def test_a_file_that_shares_a_server_is_one_group() -> None:
    for name in FILES:
        assert group_of(f"tests/{name}::test_a[x]") == group_of(f"tests/{name}::test_a[y]") == name


def test_another_test_is_a_group_of_its_own() -> None:
    for nodeid in ("tests/http/test_a.py::test_b[1]", "tests/test_a.py::test_b"):
        assert group_of(nodeid) == nodeid


def test_what_is_named_exists() -> None:
    assert all((TESTS / name).exists() for name in (*TOGETHER, *CAMPAIGNS, *FILES))
