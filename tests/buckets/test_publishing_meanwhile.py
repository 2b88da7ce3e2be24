"""Publishing a snapshot holds up no append: neither its upload nor the disk it is written to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from headrace.config import Config, Storage
from headrace.storage import blobs
from headrace.storage.disk import DiskFile, RealDisk, RealFile
from headrace.testing.in_process import InProcessServer
from headrace.testing.raw_http import RawConnection, request_bytes
from headrace.testing.waiting import DEADLINE_SECS, eventually
from tests.buckets.api import OCTETS
from tests.buckets.test_snapshots import filled, publish
from tests.durability.modes import DURABLE_MODES, SEGMENT_BYTES, SHARDS

BLOB = bytes(4_000_000)
MESSAGE = b"m" * 1000
APPENDS = 2 * SEGMENT_BYTES // len(MESSAGE)  # so many that the journal has to be carried over
UPLOAD_SECS_MAX = 600.0  # the slow upload lasts as long as all the rest
DOCUMENTS = 6  # more than there are workers that write snapshots


class StalledFile(RealFile):
    """A file on a disk that has stopped: whoever writes to it waits until it goes on."""

    __slots__ = ("_gate", "_wrapped")

    def __init__(self, wrapped: DiskFile, gate: Gate) -> None:
        self._wrapped = wrapped
        self._gate = gate

    def write(self, offset: int, *pieces: bytes) -> None:
        self._gate.pass_through()
        self._wrapped.write(offset, *pieces)

    def sync(self) -> None:
        self._gate.pass_through()
        self._wrapped.sync()

    def close(self) -> None:
        self._wrapped.close()


class Gate:
    """Stalls what is written to snapshot files while it is shut."""

    def __init__(self) -> None:
        self._is_open = threading.Event()
        self.waiting = 0

    def pass_through(self) -> None:
        self.waiting += 1
        assert self._is_open.wait(4 * DEADLINE_SECS), "the gate was never opened"
        self.waiting -= 1

    def open(self) -> None:
        self._is_open.set()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate()
    whole = RealDisk.open

    def open(disk: RealDisk, name: str, *, create: bool = False) -> RealFile:
        file = whole(disk, name, create=create)
        return StalledFile(file, gate) if name.startswith(blobs.DIRECTORY) and create else file

    monkeypatch.setattr(RealDisk, "open", open)
    yield gate
    gate.open()


@pytest.fixture(params=DURABLE_MODES)
def url(request: pytest.FixtureRequest, tmp_path: Path, gate: Gate) -> Iterator[str]:
    storage = Storage(
        mode=request.param,
        data_dir=tmp_path / "data",
        acid_shard_count=SHARDS,
        journal_segment_bytes=SEGMENT_BYTES,
    )
    config = replace(
        Config(),
        server=replace(Config().server, port=0),
        http=replace(Config().http, body_timeout_secs=UPLOAD_SECS_MAX),
        storage=storage,
    )
    with InProcessServer(config) as running:
        yield running.url
        gate.open()


def is_carried_over(data: Path) -> bool:
    """Whether appends have got from the journal into packs or the files of streams."""
    return any(data.glob("packs/*")) or any(data.glob("streams/*/*.data"))


def test_appends_go_on_while_snapshots_are_being_uploaded_and_stored(
    url: str, gate: Gate, tmp_path: Path
) -> None:
    paths = [f"/bucket/doc-{number}" for number in range(DOCUMENTS)]
    with httpx.Client(base_url=url, timeout=DEADLINE_SECS) as api, ThreadPoolExecutor() as pool:
        api.put("/bucket")
        offsets = [filled(api, path, MESSAGE)[1] for path in paths]
        with RawConnection(httpx.URL(url).port or 0) as slow:
            upload = request_bytes("PUT", f"{paths[0]}/snapshot/{offsets[0]}", BLOB, **OCTETS)
            slow.send(upload[: len(upload) // 2])
            stalled = [
                pool.submit(publish, api, path, offset, BLOB)
                for path, offset in zip(paths[1:], offsets[1:], strict=True)
            ]
            eventually(lambda: gate.waiting > 0, "snapshots wait for the disk")
            for number in range(APPENDS):
                answer = api.post(paths[number % DOCUMENTS], headers=OCTETS, content=MESSAGE)
                assert answer.status_code == 204
            if (tmp_path / "data" / "journal").exists():
                eventually(lambda: is_carried_over(tmp_path / "data"), "a checkpoint")
            assert gate.waiting > 0
            assert not any(publishing.done() for publishing in stalled)
            assert all("stream-snapshot-offset" not in api.head(path).headers for path in paths)
            gate.open()
            slow.send(upload[len(upload) // 2 :])
            assert slow.response().status == 204
        assert [publishing.result().status_code for publishing in stalled] == [204] * len(stalled)
        for path, offset in zip(paths, offsets, strict=True):
            assert api.head(path).headers["stream-snapshot-offset"] == offset
            rest = api.get(path, params={"offset": offset}).content
            assert rest == MESSAGE * (len(rest) // len(MESSAGE))
            assert len(rest) >= APPENDS // DOCUMENTS * len(MESSAGE)
