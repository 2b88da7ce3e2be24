"""Each sentence of docs/operating.md about full and read-only disks has a test, named here."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
ROWS = (
    "the disk is nearly full",
    "another process fills the disk",
    "a server starts on a full disk",
    "the directory is read-only",
)
NEARLY = "durability/test_disk_full.py::test_writes_are_refused_reads_and_deletes_go_on_and_room"
LAST_BYTE = "hostile/test_clocks_and_disks.py::test_a_disk_without_a_byte_left_refuses_writes"
NO_DELETES = (
    "hostile/test_clocks_and_disks.py::test_where_every_byte_that_is_given_back_is_taken_deletes"
)
DELAYED = "hostile/test_disks_while_running.py::test_an_accepted_append_that_finds_no_room"
FULL_START = "hostile/test_clocks_and_disks.py::test_a_start_on_a_full_disk_serves_reads"
READ_ONLY = "hostile/test_disks_while_running.py::test_a_disk_that_turns_read_only_under_a_server"
READ_ONLY_START = "hostile/test_clocks_and_disks.py::test_a_start_on_a_read_only_disk_serves_reads"

# By how a sentence begins.
SHOWN_BY = {
    "the disk is nearly full": "storage/test_room.py::test_an_eighth_of_a_disk_is_reserved",
    "Writes get 507; reads and deletes continue": NEARLY,
    "A quota counts as a full disk": "storage/test_room.py::test_a_quota_counts_as_a_full_disk",
    "The log says when writes are refused": DELAYED,
    "On a disk below 2 GiB journal segments": "storage/test_room.py::test_a_segment_is_at_most",
    "another process fills the disk": LAST_BYTE,
    "The same": LAST_BYTE,
    "A checkpoint that finds no room is retried": "durability/full_disk.py::FullDisk",
    "To record deletes the server releases": LAST_BYTE,
    "If that room is taken too, deletes get 507": NO_DELETES,
    "The process does not exit": "durability/full_disk.py::FullDisk",
    "a server starts on a full disk": FULL_START,
    "It serves reads, answers writes with 507": FULL_START,
    "A new directory on a full disk": "hostile/test_clocks_and_disks.py::test_a_new_directory_on",
    "the directory is read-only": READ_ONLY,
    "Writes and deletes get 503": READ_ONLY,
    "An append accepted just before may get 500": READ_ONLY,
    "Only if the disk turns read-only in the middle": "durability/test_failed_sync.py::test_",
    "A server started on a read-only disk": READ_ONLY_START,
}


def sentences() -> list[str]:
    text = (TESTS.parent / "docs" / "operating.md").read_text("utf-8")
    rows = [line for line in text.splitlines() if line.startswith(tuple(f"| {r}" for r in ROWS))]
    assert len(rows) == len(ROWS)
    cells = [cell.strip() for row in rows for cell in row.strip("|").split(" | ")]
    return [one for cell in cells for one in re.split(r"(?<=[\w`)])\. (?=[A-Z])", cell)]


def test_each_sentence_about_full_and_read_only_disks_has_its_test() -> None:
    found = sentences()
    for sentence in found:
        assert any(map(sentence.startswith, SHOWN_BY)), f"no test is named for: {sentence}"
    for begin, test in SHOWN_BY.items():
        assert any(sentence.startswith(begin) for sentence in found), f"not in the docs: {begin}"
        path, _, name = test.partition("::")
        assert re.search(rf"^(def|class) {name}", (TESTS / path).read_text("utf-8"), re.MULTILINE)
