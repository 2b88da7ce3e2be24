"""`make run` installs what serves and nothing more, in whichever order it and `make test` come."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.testing.waiting import DEADLINE_SECS, eventually
from tests.tree.markdown import ROOT

STAMPS = (".created", ".runnable", ".compiler", ".locked", ".installed")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """What make looks at in a working tree, without an environment."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("bin", "requirements"):
        shutil.copytree(ROOT / name, tmp_path / name)
    (tmp_path / "src/headrace").mkdir(parents=True)
    return tmp_path


def plan(tree: Path, target: str) -> str:
    """What make would do."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
    done = subprocess.run(
        ["make", "--dry-run", target],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE_SECS,
    )
    return done.stdout


def leave(tree: Path, *stamps: str) -> None:
    """The stamps of steps that are done, one after the other."""
    directory = tree / ".venv"
    directory.mkdir(exist_ok=True)
    latest = max(path.stat().st_mtime for path in tree.rglob("*") if path.is_file())
    for number, name in enumerate(stamps, 1):
        (directory / name).touch()
        os.utime(directory / name, (latest + number, latest + number))


def installs(tree: Path, target: str) -> list[str]:
    locks = ("run", "dev", "compile")
    text = plan(tree, target)
    return [name for name in locks if f"-r requirements/{name}.txt" in text]


def test_a_clean_tree_runs_with_the_runtime_lock_alone(tree: Path) -> None:
    assert installs(tree, "run") == ["run"]
    assert installs(tree, "setup") == ["dev"]


def test_setup_completes_the_environment_of_run(tree: Path) -> None:
    leave(tree, ".created", ".runnable")
    assert installs(tree, "run") == []
    assert installs(tree, "setup") == ["dev"]
    assert "-m venv" not in plan(tree, "setup")


def test_after_setup_run_installs_nothing(tree: Path) -> None:
    leave(tree, *STAMPS)
    assert installs(tree, "run") == []
    assert installs(tree, "compiled") == []
    assert installs(tree, "setup") == []


def test_a_new_lock_is_installed(tree: Path) -> None:
    leave(tree, *STAMPS)
    later = (tree / ".venv/.installed").stat().st_mtime + 1
    os.utime(tree / "requirements/run.txt", (later, later))
    assert installs(tree, "run") == ["run"]


def test_the_compiler_is_in_the_lock_of_the_tests_at_the_same_version() -> None:
    def pins(name: str) -> set[str]:
        lines = (ROOT / "requirements" / f"{name}.txt").read_text("utf-8").splitlines()
        return {line.split(" ")[0] for line in lines if "==" in line}

    assert pins("compile") <= pins("dev")
    assert pins("run") <= pins("dev")


def test_two_makes_take_turns(tmp_path: Path) -> None:
    lock, held = tmp_path / "sub" / ".lock", tmp_path / "held"
    with_lock = [str(ROOT / "bin" / "with-lock"), str(lock)]
    wait = f"touch {held}; read line; exit 3"
    first = subprocess.Popen([*with_lock, "sh", "-c", wait], stdin=subprocess.PIPE)
    eventually(held.exists, "the first has the lock")
    second = subprocess.Popen([*with_lock, "echo", "my turn"], stdout=subprocess.PIPE, text=True)
    shown: list[str] = []
    assert second.stdout is not None
    reader = threading.Thread(target=lambda out=second.stdout: shown.extend(out))
    reader.start()
    eventually(lambda: bool(shown), "the second says that it waits")
    assert shown == [f"Waiting for another make that holds {lock}.\n"]
    first.communicate(b"\n", timeout=DEADLINE_SECS)
    assert first.returncode == 3, "the exit code is that of the command"
    assert second.wait(DEADLINE_SECS) == 0
    reader.join(DEADLINE_SECS)
    second.stdout.close()
    assert shown[1:] == ["my turn\n"]


# In place of the environment's Python: serves until it is stopped, and compiles once `go` exists.
STUB = """#!/bin/sh
case "$*" in
*"-m headrace.cli"*) echo "serving ${PYTHONPATH:-from the sources}"; exec tail -f /dev/null ;;
*"pip wheel"*) touch ../../compiling
    while [ ! -e ../../go ]; do sleep 0.02; done
    mkdir -p ../wheel && touch ../wheel/headrace.whl ;;
*"pip install"*) mkdir -p build/next/compiled ;;
esac
"""


@pytest.fixture
def ready(tree: Path) -> Iterator[Path]:
    """A tree after `make setup`, without a compiled build."""
    for name in ("README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    (tree / "src/headrace/module.py").touch()
    stub = tree / ".venv/bin/python"
    stub.parent.mkdir(parents=True)
    stub.write_text(STUB)
    stub.chmod(0o755)
    stub.with_name("headrace").symlink_to("../../bin/headrace")
    leave(tree, *STAMPS)
    yield tree
    (tree / "build/go").touch()  # ends a compile that still waits


def hear_signals() -> None:
    """What runs in the background may ignore Ctrl-C, and under nohup a hangup; so would these."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@contextmanager
def make_run(tree: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """`make run` as a terminal starts it, in a process group of its own, and what it prints."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "PYTHON"))}
    output = tree / "output"
    with output.open("wb") as log:
        make = subprocess.Popen(
            ["make", "run", "WITH_COMPILED=compiled"],
            cwd=tree,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=hear_signals,
        )
    try:
        eventually(lambda: b"serving" in output.read_bytes(), "the server runs")
        yield make, output
    finally:
        if make.poll() is None:
            os.killpg(make.pid, signal.SIGKILL)
            make.wait(DEADLINE_SECS)


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGHUP], ids=["ctrl-c", "hangup"])
def test_a_compile_outlives_the_terminal_and_the_next_start_uses_it(
    ready: Path, end: signal.Signals
) -> None:
    built = ready / "build/compiled/.built"
    with make_run(ready) as (make, output):
        assert b"serving from the sources" in output.read_bytes()
        eventually((ready / "build/compiling").exists, "the compile has begun")
        os.killpg(make.pid, end)
        make.wait(DEADLINE_SECS)
    (ready / "build/go").touch()
    eventually(built.exists, "the compile ends")
    with make_run(ready) as (_, output):
        assert f"serving {ready}/build/compiled".encode() in output.read_bytes()
        assert b"compiles in the background" not in output.read_bytes()
