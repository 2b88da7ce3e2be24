"""Documents: values kept by name beside the streams, all of a change or none of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace.errors import CommitFailed
from headrace.storage.acid.transaction_writer import TransactionWriter
from headrace.storage.base import Documents, Storage, ignore
from headrace.storage.disk import RealDisk
from headrace.storage.file.catalog import Catalog
from headrace.storage.file.journal import Journal
from headrace.storage.verify import verify
from tests.durability.modes import DURABLE_MODES, SEGMENT_BYTES, open_storage


@pytest.fixture(params=DURABLE_MODES)
def mode(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def kept(mode: str, directory: Path, *changes: Documents) -> dict[str, bytes]:
    """What a storage has of documents when it opens; then `changes` are made to them."""

    async def life() -> dict[str, bytes]:
        storage = open_storage(mode, directory, asyncio.get_running_loop())
        storage.start(lambda _: None, lambda _: None)
        assert list(storage.recover()) == []
        found = storage.take_documents()
        for change in changes:
            storage.put_documents(change)
            await settled(storage)
        storage.close()
        return found

    return asyncio.run(life())


async def settled(storage: Storage) -> None:
    done = asyncio.Event()
    storage.when_documents_durable(done.set, ignore)
    await asyncio.wait_for(done.wait(), 30)


def test_a_document_is_there_after_a_restart(mode: str, tmp_path: Path) -> None:
    assert kept(mode, tmp_path, {"a": b"1", "b": b""}) == {}
    assert kept(mode, tmp_path) == {"a": b"1", "b": b""}


def test_the_last_value_counts_and_none_takes_it_away(mode: str, tmp_path: Path) -> None:
    kept(mode, tmp_path, {"a": b"1", "b": b"1"}, {"a": b"2", "b": None, "c": None})
    assert kept(mode, tmp_path, {"a": None}) == {"a": b"2"}
    assert kept(mode, tmp_path) == {}


def test_whoever_waits_for_a_document_hears_that_it_failed(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those who wait for the commit that fails, and those who come after it."""

    async def life() -> list[object]:
        storage = open_storage(mode, tmp_path, asyncio.get_running_loop())
        storage.start(lambda _: None, lambda _: None)
        assert list(storage.recover()) == []
        monkeypatch.setattr(Journal, "write", fail_to_write)
        monkeypatch.setattr(TransactionWriter, "write", fail_to_write)
        answers: list[object] = []
        for value in (b"1", b"2"):
            storage.put_documents({"a": value})
            storage.when_documents_durable(lambda: answers.append("durable"), answers.append)
        with pytest.raises(OSError, match="no more"):
            await asyncio.wait_for(storage.failed(), 60)
        storage.when_documents_durable(lambda: answers.append("durable"), answers.append)
        storage.close()
        return answers

    answers = asyncio.run(life())
    assert [type(answer) for answer in answers] == [CommitFailed] * 3


def fail_to_write(*_: object) -> None:
    raise OSError("no more")


def test_an_orderly_stop_leaves_nothing_to_replay(tmp_path: Path) -> None:
    kept("file-durable", tmp_path, {"a": b"1"})
    kept("file-durable", tmp_path, {"b": b"2"})
    assert list((tmp_path / "journal").glob("segment-*")) == []
    journal = Journal(RealDisk(tmp_path))
    assert list(journal.recover(Catalog(RealDisk(tmp_path)).current.applied_lsn)) == []
    assert kept("file-durable", tmp_path) == {"a": b"1", "b": b"2"}


def test_names_may_be_long_and_of_any_script(mode: str, tmp_path: Path) -> None:
    documents = {"n" * 5000: b"long", "straße/流": b"\x00\xff"}
    kept(mode, tmp_path, documents)
    assert kept(mode, tmp_path) == documents


def test_documents_outlive_the_journal_segment_they_were_written_to(tmp_path: Path) -> None:
    """Checkpoints carry them over into the catalog, and compactions keep them there."""

    async def life() -> None:
        storage = open_storage("file-durable", tmp_path, asyncio.get_running_loop())
        storage.start(lambda _: None, lambda _: None)
        list(storage.recover())
        storage.put_documents({"once": b"1", "gone": b"1"})
        storage.put_documents({"gone": None})
        async with asyncio.timeout(30):
            while not (tmp_path / "catalog" / "log-0000000000000002").exists():
                storage.put_documents({"often": bytes(SEGMENT_BYTES // 2)})
                await settled(storage)
                storage.tick()
        storage.close()

    asyncio.run(life())
    assert kept("file-durable", tmp_path) == {"once": b"1", "often": bytes(SEGMENT_BYTES // 2)}


def test_verify_finds_a_damaged_document(mode: str, tmp_path: Path) -> None:
    mark = b"a value that stands nowhere else"
    kept(mode, tmp_path, {"a": mark}, {"b": b"and one more batch"})
    sound = verify(tmp_path)
    assert sound is not None
    assert sound.findings == []
    (holder,) = [
        path
        for path in tmp_path.rglob("*")
        if path.is_file() and path.parent.name != "journal" and mark in path.read_bytes()
    ]
    # All of them: LMDB leaves copies behind on pages that no longer count.
    holder.write_bytes(holder.read_bytes().replace(mark, mark[::-1]))
    report = verify(tmp_path)
    assert report is not None
    assert report.findings != [], holder


def test_nobody_else_may_read_what_is_stored(mode: str, tmp_path: Path) -> None:
    """Signing keys are among the documents."""
    kept(mode, tmp_path / "data", {"a": b"1"})
    for path in [tmp_path / "data", *(tmp_path / "data").rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path
