"""Rot is found or does no harm, wherever it strikes; see `rot.py`."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random

import pytest

from headrace.errors import Corrupt, StoredBytesDamaged, StoredBytesUnreadable
from headrace.storage.acid.rollback_guard import RollbackGuard
from headrace.storage.file import stream_files
from headrace.storage.verify import verify
from headrace.testing.simulated_disk import SimulatedDisk
from tests.durability import rot, rot_acid
from tests.durability.crash_machine import Violation, small_windows
from tests.durability.crash_model import Described

SWAPS = 2000
ACID_FLIPS = 300
ACID_CUTS = 12
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def windows() -> Iterator[None]:
    with small_windows():
        yield


@pytest.fixture(scope="module")
def sound() -> SimulatedDisk:
    return rot.small_directory()


@pytest.fixture(scope="module")
def expected(sound: SimulatedDisk) -> Described:
    found = rot.look(sound.copy())
    assert len(found.streams) == 4
    return found


def judge_all(
    sound: SimulatedDisk, expected: Described, damages: Iterable[rot.Damage]
) -> Counter[str]:
    verdicts: Counter[str] = Counter()
    for damage in damages:
        verdicts[rot.judge(sound, expected, damage)] += 1
    return verdicts


@pytest.mark.slow
def test_a_flipped_bit_in_any_byte_is_found_or_does_no_harm(
    sound: SimulatedDisk, expected: Described
) -> None:
    """One bit of every byte here; every bit in the long run."""
    damages = rot.flips(sound.files(), lambda at: range(at % 8, at % 8 + 1))
    verdicts = judge_all(sound, expected, damages)
    print(dict(verdicts))
    assert verdicts["detected"] > 1000


@pytest.mark.slow
def test_a_file_cut_at_any_byte_is_found_or_does_no_harm(
    sound: SimulatedDisk, expected: Described
) -> None:
    verdicts = judge_all(sound, expected, rot.cuts(sound.files()))
    print(dict(verdicts))
    assert verdicts["detected"] > 1000


@pytest.mark.slow
def test_swapped_blocks_are_found_or_do_no_harm(sound: SimulatedDisk, expected: Described) -> None:
    verdicts = judge_all(sound, expected, rot.swaps(sound.files(), Random(1), SWAPS))
    print(dict(verdicts))
    assert verdicts["detected"] > SWAPS // 4


def test_a_file_that_is_gone_is_missed(sound: SimulatedDisk, expected: Described) -> None:
    for name in sound.files():
        disk = sound.copy()
        disk.remove(name)
        disk.sync_everything()
        assert rot.is_missed(disk, expected), name


def test_a_storage_without_checksums_is_caught(
    sound: SimulatedDisk, expected: Described, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_files, "_block_crc", lambda data, lengths: 0)
    data = {n: c for n, c in sound.files().items() if n.endswith(".data")}
    with pytest.raises(Violation):
        judge_all(rot.small_directory(), expected, rot.flips(data, lambda at: range(1)))


# -- acid --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def acid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("rot") / "sound"
    expected = rot_acid.make(directory)
    assert len(expected.streams) == 4
    (directory.parent / "expected").write_bytes(pickle.dumps(expected))
    return directory


def judge_acid(sound: Path, lines: list[str]) -> Counter[str]:
    """What looks at damaged copies come to; `ended` where LMDB took the process with it."""
    verdicts: Counter[str] = Counter()
    command = [sys.executable, "-m", "tests.durability.rot_acid", str(sound), f"{sound}-damaged"]
    while lines:
        looked = subprocess.run(
            command, input="\n".join(lines), capture_output=True, text=True, cwd=REPOSITORY
        )
        found = looked.stdout.splitlines()
        verdicts.update(found)
        if len(found) == len(lines):
            break
        assert looked.returncode < 0, looked.stderr
        verdicts["ended"] += 1
        lines = lines[len(found) + 1 :]
    return verdicts


TXNID_AT = 144  # in each of the two pages that LMDB begins with
PAGE_BYTES = 4096


def take_the_older_root(directory: Path) -> None:
    """As a flipped bit in the newer root does: LMDB goes by the higher number, and so back."""
    path = directory / rot_acid.DATA
    content = bytearray(path.read_bytes())
    places = [TXNID_AT, PAGE_BYTES + TXNID_AT]
    newer = max(places, key=lambda at: struct.unpack_from("<Q", content, at))
    struct.pack_into("<Q", content, newer, 0)
    path.write_bytes(content)


def test_acid_notices_that_it_is_shown_an_older_state(
    acid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "data"
    shutil.copytree(acid, directory)
    now = rot_acid.look(directory)
    take_the_older_root(directory)
    shutil.copytree(directory, tmp_path / "opened")
    with pytest.raises(StoredBytesDamaged, match="it shows the state after commit"):
        rot_acid.look(tmp_path / "opened")
    report = verify(directory)
    assert report is not None
    assert any("it shows the state after commit" in finding for finding in report.findings)
    monkeypatch.setattr(RollbackGuard, "check", lambda *_: None)
    older = rot_acid.look(directory)
    assert older != now, "without the count nobody would be told"


@pytest.mark.parametrize("count", [None, b"", b"damaged"])
def test_acid_does_without_the_count_beside_it(
    acid: Path, count: bytes | None, tmp_path: Path
) -> None:
    """It is lost with no harm done: what it counts is in the environment."""
    directory = tmp_path / "data"
    shutil.copytree(acid, directory)
    now = rot_acid.look(directory)
    beside = next(directory.glob("acid/shard-*/commits"))
    beside.unlink() if count is None else beside.write_bytes(count)
    assert rot_acid.look(directory) == now
    assert len(beside.read_bytes()) == 12, "it counts from here on"


@pytest.mark.slow
def test_acid_takes_no_older_root_whichever_bit_of_a_transaction_number_flips(acid: Path) -> None:
    numbers = [TXNID_AT + page for page in (0, PAGE_BYTES)]
    lines = [
        f"bit {8 * (at + byte) + bit}" for at in numbers for byte in range(8) for bit in (0, 3, 6)
    ]
    verdicts = judge_acid(acid, lines)
    assert verdicts["detected"] > len(lines) // 4
    assert verdicts["detected"] + verdicts["harmless"] == len(lines), verdicts


@pytest.mark.slow
def test_acid_never_serves_other_bytes_than_were_stored(acid: Path) -> None:
    """LMDB's own pages carry no checksum: damage there may end the process."""
    size = (acid / rot_acid.DATA).stat().st_size
    random = Random(1)
    lines = [f"bit {random.randrange(8 * size)}" for _ in range(ACID_FLIPS)]
    lines += [f"cut {random.randrange(size)}" for _ in range(ACID_CUTS)]
    verdicts = judge_acid(acid, lines)
    print(dict(verdicts))
    assert verdicts.total() == len(lines)
    assert verdicts["wrong"] == 0
    assert verdicts["detected"] > 0


def test_acid_refuses_a_truncated_file_before_it_is_mapped(acid: Path) -> None:
    """A page behind the end of the file would end the process with SIGBUS."""
    size = (acid / rot_acid.DATA).stat().st_size
    lines = [f"cut {size * eighth // 8}" for eighth in range(1, 8)] + [f"cut {size - 1}"]
    verdicts = judge_acid(acid, lines)
    assert verdicts["detected"] >= 7, verdicts
    assert verdicts["detected"] + verdicts["harmless"] == len(lines), verdicts


def test_a_truncated_acid_file_is_named(acid: Path, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    shutil.copytree(acid, directory)
    path = directory / rot_acid.DATA
    os.truncate(path, path.stat().st_size // 2)
    report = verify(directory)
    with pytest.raises(StoredBytesUnreadable, match=rf"{rot_acid.DATA}: the file ends at byte"):
        rot_acid.look(directory)
    assert report is not None
    assert [rot_acid.DATA in finding for finding in report.findings] == [True]


@pytest.mark.parametrize("shard", ["acid/shard-000", "acid/shard-001"])
def test_verify_outlives_a_page_that_ends_the_process(tmp_path: Path, shard: str) -> None:
    """It names the file, and reads the other shard all the same."""
    directory = tmp_path / "data"
    made = rot_acid.make(directory, shard_count=2)
    sound = verify(directory)
    assert sound is not None
    path = directory / shard / "data.mdb"
    for damaged in rot_acid.misplaced_nodes(path.read_bytes(), made.streams):
        path.write_bytes(damaged)
        report = verify(directory)
        assert report is not None
        if any("LMDB ended the process" in finding for finding in report.findings):
            (finding,) = report.findings
            assert re.match(f"{shard}/data.mdb cannot be read: .* SIG(BUS|SEGV)", finding)
            assert 0 < report.streams < sound.streams
            return
    pytest.fail("no damaged page ended the process")


@pytest.mark.parametrize("lost", ["acid/manifest.json", rot_acid.DATA])
def test_acid_misses_a_file_that_is_gone(acid: Path, lost: str, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    shutil.copytree(acid, directory)
    (directory / lost).unlink()
    with pytest.raises(Corrupt, match=lost):
        rot_acid.look(directory)


def test_acid_refuses_an_empty_file_that_lmdb_would_fill_anew(acid: Path, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    shutil.copytree(acid, directory)
    os.truncate(directory / rot_acid.DATA, 0)
    next(directory.glob("acid/shard-*/commits")).unlink()
    with pytest.raises(StoredBytesUnreadable, match=f"{rot_acid.DATA}: the file is empty"):
        rot_acid.look(directory)


def test_acid_refuses_a_manifest_that_is_none(acid: Path, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    shutil.copytree(acid, directory)
    (directory / "acid/manifest.json").write_text('{"format":1,"shar')
    with pytest.raises(StoredBytesDamaged):
        rot_acid.look(directory)
