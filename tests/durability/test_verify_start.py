"""`headrace verify` finds what a start would refuse, and says so of files that cannot be read."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.engine.engine import Engine
from headrace.http.start_check import start_findings
from headrace.protocol.offsets import START, Position
from headrace.protocol.requests import Create, ForkRequest
from headrace.protocol.stream import Appended, ForkOrigin, StreamConfig, StreamState, apply_append
from headrace.storage.base import Created, ignore
from headrace.storage.file.verify_files import verify_files
from headrace.storage.verify import verify
from headrace.testing.simulated_disk import Fault
from headrace.testing.virtual_clock import VirtualClock
from tests.durability import rot
from tests.durability.crash_machine import small_windows
from tests.durability.modes import DURABLE_MODES, open_storage
from tests.engine.helpers import TEXT

NOTHING = Appended(START, START, b"", (), False, None, None)


@pytest.fixture(params=DURABLE_MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def make(mode: str, directory: Path, spoil: Callable[[Engine], object]) -> None:
    """A directory with a stream, and something that no server leaves behind."""

    async def play() -> None:
        loop = asyncio.get_running_loop()
        engine = Engine(open_storage(mode, directory, loop), VirtualClock())
        engine.create("a", Create(b"x" * 100, TEXT), ignore)
        await settled(engine)
        spoil(engine)
        await settled(engine)
        engine.storage.close()

    asyncio.run(play())


async def settled(engine: Engine) -> None:
    done = asyncio.Event()
    engine.when_durable("a", done.set)
    await asyncio.wait_for(done.wait(), 30)
    done.clear()
    engine.when_documents_durable(done.set)
    await asyncio.wait_for(done.wait(), 30)


def commit_created(engine: Engine, id: int, name: str, fork: ForkOrigin | None = None) -> None:
    state = StreamState(id, name, StreamConfig(TEXT, fork=fork), 0)
    change = NOTHING
    if fork is not None:
        state.tail = fork.point
        change = Appended(fork.point, fork.point, b"", (), False, None, None)
    source = engine.streams["a"].log if fork is not None else None
    log = engine.storage.new_log(state, source)
    apply_append(state, change, 0, engine.limits)
    engine.storage.commit(log, Created(state, change), None)


def fork_without_source(engine: Engine) -> None:
    point = Position(0, 0)
    commit_created(
        engine, engine.new_id(), "fork", ForkOrigin(ForkRequest("gone", None, 0), 77, point)
    )


def stream_without_bucket(engine: Engine) -> None:
    commit_created(engine, engine.new_id(), "/none/a")


def broken_subscription(engine: Engine) -> None:
    engine.keep({"subscriptions/s": b"\xc1"})


def broken_window(engine: Engine) -> None:
    engine.create("sliding", Create(b"", TEXT), ignore)
    engine.keep({"windows/ran": b"\xa1x"})


@pytest.mark.parametrize(
    "spoil", [fork_without_source, stream_without_bucket, broken_subscription, broken_window]
)
def test_what_a_start_would_refuse_is_found(
    mode: str, tmp_path: Path, spoil: Callable[[Engine], object]
) -> None:
    directory = tmp_path / "data"
    make(mode, directory, spoil)
    assert asyncio.run(start_findings(directory))


def starts(directory: Path, mode: str) -> bool:
    """In a process of its own: one that fails half way keeps the directory locked."""
    child = os.fork()
    if not child:
        try:
            make(mode, directory, lambda engine: engine.create("b", Create(b"", TEXT), ignore))
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def test_a_directory_in_place_of_a_file_is_found_where_a_start_is_refused(
    mode: str, tmp_path: Path
) -> None:
    sound, directory = tmp_path / "sound", tmp_path / "data"
    make(mode, sound, lambda engine: None)
    refused = []
    for file in sorted(path.relative_to(sound) for path in sound.rglob("*") if path.is_file()):
        shutil.copytree(sound, directory)
        (directory / file).unlink()
        (directory / file).mkdir()
        if not starts(directory, mode):
            refused.append(file)
            report = verify(directory)
            if report is None or not report.findings:
                assert run_verify(directory).returncode == 1, file
        shutil.rmtree(directory)
    assert refused


def same_id(engine: Engine) -> None:
    commit_created(engine, engine.streams["a"].state.id, "b")
    # Killed, so to speak: a checkpoint at the end would meet it.
    engine.storage._checkpoints._is_sound = False  # type: ignore[attr-defined]


def test_an_id_that_two_streams_have_is_found_by_the_command(tmp_path: Path) -> None:
    """In acid the second would take the place of the first, in one record."""
    directory = tmp_path / "data"
    make("file-durable", directory, same_id)
    found = run_verify(directory)
    assert found.returncode == 1, found.stdout
    assert "Traceback" not in found.stdout + found.stderr
    assert "is created twice" in found.stdout
    assert found.stdout.splitlines()[-1].endswith(" 1 damaged")


def test_looking_changes_nothing(mode: str, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    make(mode, directory, lambda engine: engine.create("b", Create(b"y", TEXT), ignore))

    def content() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}

    before = content()
    report = verify(directory)
    assert report is not None
    assert report.findings == []
    assert asyncio.run(start_findings(directory)) == []
    assert content() == before


def run_verify(directory: Path, unreadable: Path | None = None) -> subprocess.CompletedProcess[str]:
    """`headrace verify`, for which one file may be unreadable."""
    command = [sys.executable, "-m", "headrace.cli", "verify", str(directory)]
    env = dict(os.environ)
    if unreadable is not None:
        env["HEADRACE_UNREADABLE"] = str(unreadable.stat().st_ino)
        paths = (str(UNREADABLE), env.get("PYTHONPATH", ""))
        env["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return subprocess.run(command, capture_output=True, text=True, env=env)


# -- files that cannot be read -------------------------------------------------------------------


def test_whichever_call_fails_with_eio_is_a_finding() -> None:
    with small_windows():
        disk = rot.small_directory()
        before = disk.call_count
        assert verify_files(disk).findings == []
        for number in range(before + 1, disk.call_count + 1):
            failing = disk.copy()
            failing.faults = {failing.call_count + number - before: Fault.EIO}
            assert verify_files(failing).findings, f"call {number - before}"


UNREADABLE = Path(__file__).parent / "unreadable"
# What a check reads, in each mode. Locks, reserved room and the mark that all shards were made hold
# nothing that could be lost.
READ = {
    "file-durable": {"journal", "catalog", "packs"},
    "acid": {"manifest.json", "shard-000", "shard-001", "shard-002", "shard-003"},
}
NOT_READ = {"lock", "lock.mdb", "ready", "ballast"}


@pytest.mark.slow
def test_a_data_file_that_cannot_be_read_is_a_finding(mode: str, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    make(mode, directory, lambda engine: None)
    found_in = set()
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        done = run_verify(directory, unreadable=path)
        assert "Traceback" not in done.stdout + done.stderr, path
        if path.stat().st_size and path.name not in NOT_READ:
            assert done.returncode == 1, f"{path} is not read: {done.stdout}"
            assert "Input/output error" in done.stdout
            assert path.name in done.stdout
            found_in |= {path.name, path.parent.name}
    assert found_in >= READ[mode]
