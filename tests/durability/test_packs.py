"""Small streams share packs, leave them when they grow, and packs that nobody needs go."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace.engine.reads import Chunk
from headrace.errors import (
    HeadraceError,
    InsufficientStorage,
    StoredBytesDamaged,
    StoredBytesUnreadable,
)
from headrace.protocol.requests import Append, Create
from headrace.storage.file import (
    catalog,
    checkpoint_scheduler,
    file_log,
    file_storage,
    pack_allocator,
    pack_format,
    stream_files,
)
from headrace.storage.file.catalog import Catalog
from headrace.storage.file.file_log import FileLog
from headrace.storage.file.verify_files import verify_files
from headrace.testing.simulated_disk import SimulatedDisk
from tests.durability.crash_machine import Machine

SEGMENT_BYTES = 2000
MESSAGE = b"m" * 40
OTHERS = [f"other-{number}" for number in range(5)]


@pytest.fixture(autouse=True)
def sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_log, "HOT_BYTES_MAX", 0)
    monkeypatch.setattr(pack_allocator, "OWN_FILES_BYTES_MIN", 1000)
    monkeypatch.setattr(pack_allocator, "PARTS_MAX", 4)
    monkeypatch.setattr(pack_allocator, "STABLE_AFTER_PACKS", 0)


@pytest.fixture
def machine() -> Iterator[Machine]:
    machine = Machine(1, streams_only=True)
    machine.segment_bytes = SEGMENT_BYTES
    machine.start()
    for name in ("a", *OTHERS):
        machine.create(name, Create(b"", "text/plain"))
    machine.loop.run()
    checkpoint(machine)  # what the registry has of them is not in the packs that follow
    yield machine
    machine.finish()


def carry_over(machine: Machine, name: str = "a", message: bytes = MESSAGE) -> None:
    """Append to a stream, and let a checkpoint take that."""
    machine.append(name, Append(message))
    machine.loop.run()
    checkpoint(machine)


def checkpoint(machine: Machine) -> None:
    machine.storage._committer.run(machine.storage._journal.rotate)
    machine.loop.run()
    machine.engine.housekeeping.run()
    machine.loop.run()


def log_of(machine: Machine, name: str = "a") -> FileLog:
    log = machine.engine.streams[name].log
    assert isinstance(log, FileLog)
    return log


def packs_on(disk: SimulatedDisk) -> list[str]:
    return disk.list(pack_format.DIRECTORY)


def has_files(machine: Machine, name: str = "a") -> bool:
    return stream_files.path(log_of(machine, name).state.id, "data") in machine.disk.files()


def answer_of(machine: Machine, name: str) -> Any:
    machine.read(name)
    machine.loop.run()
    return machine.answers[-1][1]


def restart(machine: Machine) -> None:
    """What is found then is compared with what was answered."""
    machine.disk.kill()
    machine.start()


def test_small_streams_share_a_file(machine: Machine) -> None:
    for name in OTHERS:
        machine.append(name, Append(MESSAGE))
    carry_over(machine)
    assert not any(has_files(machine, name) for name in ("a", *OTHERS))
    assert len({part.pack for name in OTHERS for part in parts_of(machine, name)}) == 1
    restart(machine)
    assert verify_files(machine.disk).findings == []


def parts_of(machine: Machine, name: str = "a") -> list[pack_format.PackPart]:
    return pack_format.decode_parts(log_of(machine, name).sizes.packed)


def test_a_stream_that_grows_gets_files_and_keeps_its_bytes(machine: Machine) -> None:
    for number in range(40):
        carry_over(machine, message=b"%02d" % number * 20)
    assert has_files(machine)
    answer = answer_of(machine, "a")
    assert isinstance(answer, Chunk)
    assert bytes(answer.data) == b"00" * 20
    restart(machine)
    assert verify_files(machine.disk).findings == []


def test_many_parts_are_written_again_as_one(machine: Machine) -> None:
    most = 0
    for _ in range(20):
        carry_over(machine)
        most = max(most, len(parts_of(machine)))
    assert 1 < most <= pack_allocator.PARTS_MAX
    assert len(parts_of(machine)) < 20
    restart(machine)


def test_where_the_disk_has_no_room_for_them_twice_parts_stay(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is accepted is carried over all the same."""

    def refusal(disk: SimulatedDisk, needed_bytes: int = 0) -> HeadraceError | None:
        short = needed_bytes >= pack_allocator.REWRITTEN_BYTES_MAX
        return InsufficientStorage(0, needed_bytes) if short else None

    monkeypatch.setattr(SimulatedDisk, "refusal", refusal)
    for _ in range(30):
        carry_over(machine)
    assert len(parts_of(machine)) == 30
    assert not has_files(machine)
    monkeypatch.undo()
    restart(machine)


def test_a_pack_goes_when_the_last_part_of_it_does(machine: Machine) -> None:
    machine.append(OTHERS[0], Append(MESSAGE))
    carry_over(machine)
    (part,) = parts_of(machine)
    assert parts_of(machine, OTHERS[0])[0].pack == part.pack
    for name in ("a", OTHERS[0]):
        assert pack_format.path(part.pack) in machine.disk.files()
        machine.delete(name)
        machine.loop.run()
    for _ in range(2):  # one to find that nobody needs it, one to be past its readers
        carry_over(machine, OTHERS[1])
    assert pack_format.path(part.pack) not in machine.disk.files()
    restart(machine)


@pytest.mark.parametrize("is_full", [False, True])
def test_a_pack_of_which_little_counts_is_written_again(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    """On a full disk at once: that is how deletes give space back."""
    for name in OTHERS:
        machine.append(name, Append(MESSAGE))
    carry_over(machine)
    first = parts_of(machine)[0].pack
    if is_full:
        monkeypatch.setattr(pack_allocator, "STABLE_AFTER_PACKS", 1000)
        full = InsufficientStorage(1_000_000, 2_000_000)
        monkeypatch.setattr(SimulatedDisk, "refusal", lambda disk, needed=0: full)
    for name in OTHERS:
        machine.delete(name)
    for _ in range(3):
        machine.loop.run()
        checkpoint(machine)
        machine.keep({"note": b"something for the next one"})
    assert parts_of(machine)[0].pack > first
    assert pack_format.path(first) not in machine.disk.files()
    restart(machine)


def test_where_streams_are_very_many_segments_are_carried_over_together(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_scheduler, "SPARSE_STREAMS", 2)
    for name in OTHERS:  # so that a segment has something for more than two
        machine.append(name, Append(MESSAGE))
    carry_over(machine)
    assert machine.storage.unflushed_bytes > 0
    carry_over(machine)
    assert machine.storage.unflushed_bytes > 0
    carry_over(machine)
    assert machine.storage.unflushed_bytes == 0
    carry_over(machine)
    assert machine.storage.unflushed_bytes > 0
    monkeypatch.setattr(
        checkpoint_scheduler, "PINNED_BYTES_MAX", 2 * len(MESSAGE)
    )  # no room to wait
    machine.engine.housekeeping.run()
    machine.loop.run()
    assert machine.storage.unflushed_bytes == 0
    restart(machine)


def test_a_damaged_part_harms_its_own_stream_only(machine: Machine) -> None:
    machine.append("other-0", Append(MESSAGE))
    carry_over(machine, message=b"rotten" * 5)
    (part,) = parts_of(machine)
    content = machine.disk.files()[pack_format.path(part.pack)]
    content[content.index(b"rotten")] ^= 1
    for _ in range(2 * pack_allocator.PARTS_MAX):
        carry_over(machine)
        carry_over(machine, "other-0")
    assert isinstance(answer_of(machine, "a"), StoredBytesDamaged)
    assert isinstance(answer_of(machine, "other-0"), Chunk)
    (finding,) = verify_files(machine.disk).findings
    assert pack_format.path(part.pack) in finding
    content[content.index(b"sotten")] ^= 1  # as a disk that comes round
    assert isinstance(answer_of(machine, "a"), Chunk)


def test_a_pack_that_is_lost_harms_its_own_streams_only(machine: Machine) -> None:
    carry_over(machine)
    (part,) = parts_of(machine)
    carry_over(machine, "other-0")
    machine.disk.kill()
    name = pack_format.path(part.pack)
    lost = bytes(machine.disk.files()[name])
    machine.disk.remove(name)
    machine.start_unwitnessed()
    storage = machine.engine.storage
    assert isinstance(storage, file_storage.FileStorage)
    machine.storage = storage  # type: ignore[assignment]
    for _ in range(3):
        carry_over(machine, "other-0")
    assert isinstance(answer_of(machine, "a"), StoredBytesUnreadable)
    assert isinstance(answer_of(machine, "other-0"), Chunk)
    assert any(name in finding for finding in verify_files(machine.disk).findings)
    machine.disk.open(name, create=True).write(0, lost)


def test_a_read_that_began_before_its_bytes_moved_finds_them(machine: Machine) -> None:
    carry_over(machine)
    (part,) = parts_of(machine)
    log = log_of(machine)
    read = log.cold_read(log.base, log.state.tail, 1000)
    for _ in range(3 * pack_allocator.PARTS_MAX):
        carry_over(machine)
    assert pack_format.path(part.pack) not in machine.disk.files()
    found = read()
    assert found is not None
    assert found.data == MESSAGE


def test_a_directory_from_before_there_were_packs_is_taken_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(pack_allocator, "OWN_FILES_BYTES_MIN", 0)
        earlier.setattr(catalog, "FORMAT", 2)
        machine = Machine(1, streams_only=True)
        machine.segment_bytes = SEGMENT_BYTES
        machine.start()
        machine.create("a", Create(b"", "text/plain"))
        carry_over(machine)
        assert packs_on(machine.disk) == []
        assert Catalog(machine.disk).current.format == 2
    restart(machine)
    carry_over(machine)
    assert len(parts_of(machine)) == 1
    answer = answer_of(machine, "a")
    assert isinstance(answer, Chunk)
    assert bytes(answer.data) == MESSAGE
    assert Catalog(machine.disk).current.format == 3
