"""kill -9 while snapshots are being published, and the space that publishing gives back."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import httpx
import lmdb
import pytest

from headrace.storage.verify import verify
from headrace.testing.waiting import eventually
from tests.buckets import multipart
from tests.buckets.api import OCTETS, Mortal
from tests.buckets.test_snapshots import filled, publish
from tests.durability.modes import SHARDS

pytestmark = pytest.mark.slow
MESSAGE_BYTES = 1000


class Publisher(threading.Thread):
    """Appends and publishes until the server is gone; knows what was acknowledged."""

    def __init__(self, url: str, path: str, first: int) -> None:
        super().__init__()
        self._url = url
        self._path = path
        self.acked_message = first
        self.acked_snapshot = 0
        self.published = 0

    def run(self) -> None:
        try:
            with httpx.Client(base_url=self._url, timeout=10) as client:
                while True:
                    self._step(client)
        except httpx.TransportError:
            return

    def _step(self, client: httpx.Client) -> None:
        number = self.acked_message + 1
        body = b"%012d" % number + b"x" * MESSAGE_BYTES
        answer = client.post(self._path, headers=OCTETS, content=body)
        if answer.status_code != 204:
            return
        self.acked_message = number
        blob = b"%012d" % number + bytes(200_000 if number % 7 == 0 else 10)
        if (
            publish(client, self._path, answer.headers["stream-next-offset"], blob).status_code
            == 204
        ):
            self.acked_snapshot = number
            self.published += 1


def test_a_kill_leaves_the_old_snapshot_or_the_new_one(mortal: Mortal) -> None:
    """Never a trim offset without its snapshot, half a snapshot, or a lost acknowledged one."""
    mortal.client.put("/bucket")
    mortal.client.put("/bucket/doc", headers=OCTETS)
    last = 0
    published = 0
    for _ in range(4):
        publisher = Publisher(mortal.server.url, "/bucket/doc", last)
        publisher.start()
        goal = random.randint(2, 12)
        eventually(lambda: publisher.published >= goal, "some snapshots")  # noqa: B023
        mortal.server.kill()
        publisher.join()
        published += publisher.published
        mortal.restart(kill=True)
        found = multipart.read(mortal.client.get("/bucket/doc/bootstrap"))
        snapshot = int(found.snapshot.body[:12])
        numbers = [int(message[:12]) for message in found.messages]
        assert snapshot >= publisher.acked_snapshot
        assert numbers == list(range(snapshot + 1, snapshot + 1 + len(numbers)))
        assert snapshot + len(numbers) >= publisher.acked_message
        assert mortal.client.get("/bucket/doc").status_code == 410
        last = snapshot + len(numbers)
        blobs = [file for file in mortal.data.glob("snapshots/*/*") if file.is_file()]
        assert len(blobs) == 1, "what nobody names is gone"
    assert published > 8


# -- space -------------------------------------------------------------------------------------


def chunk_count(data: Path) -> int:
    count = 0
    for shard in range(SHARDS):
        path = str(data / "acid" / f"shard-{shard:03d}")
        with (
            lmdb.open(path, readonly=True, lock=False, max_dbs=8) as environment,
            environment.begin() as transaction,
        ):
            database = environment.open_db(b"data", transaction, create=False)
            count += sum(
                value[-MESSAGE_BYTES:] == b"x" * MESSAGE_BYTES
                for _, value in transaction.cursor(database)
            )
    return count


def allocated_bytes(data: Path) -> int:
    """What the largest stream's data file takes on disk."""
    files = list(data.glob("streams/*/*.data"))
    return max(file.stat().st_blocks * 512 for file in files)


def test_space_before_the_trim_offset_is_reclaimed(mortal: Mortal) -> None:
    mortal.client.put("/bucket")
    body = b"x" * 20_000
    offsets = filled(mortal.client, "/bucket/doc", *[body] * 60)
    mortal.restart(kill=False)  # everything is in stream files now
    if (mortal.data / "acid").exists():
        assert chunk_count(mortal.data) > 10
    else:
        eventually(lambda: allocated_bytes(mortal.data) > 1_000_000, "a checkpoint")
    publish(mortal.client, "/bucket/doc", offsets[58], b"folded")
    for _ in range(8):
        mortal.client.post("/bucket/doc", headers=OCTETS, content=b"y" * 20_000)
    mortal.restart(kill=False)
    if (mortal.data / "acid").exists():
        assert chunk_count(mortal.data) <= 3
    else:
        eventually(lambda: allocated_bytes(mortal.data) < 500_000, "holes")
    rest = mortal.client.get("/bucket/doc", params={"offset": offsets[58]})
    assert rest.content == body * 2 + b"y" * 160_000


def test_a_fork_keeps_what_it_needs_until_it_goes(mortal: Mortal) -> None:
    mortal.client.put("/bucket")
    body = b"x" * 20_000
    offsets = filled(mortal.client, "/bucket/doc", *[body] * 40)
    mortal.client.put("/bucket/fork", headers={"Stream-Forked-From": "/bucket/doc"})
    publish(mortal.client, "/bucket/doc", offsets[40], b"folded")
    mortal.restart(kill=True)
    assert mortal.client.get("/bucket/doc").status_code == 410
    assert mortal.client.get("/bucket/fork").content == body * 40
    mortal.client.delete("/bucket/fork")
    for _ in range(8):
        mortal.client.post("/bucket/doc", headers=OCTETS, content=b"y" * 20_000)
    mortal.restart(kill=False)
    if (mortal.data / "acid").exists():
        assert chunk_count(mortal.data) <= 3
    else:
        eventually(lambda: allocated_bytes(mortal.data) < 500_000, "holes")


def test_verify_knows_snapshots(mortal: Mortal) -> None:
    mortal.client.put("/bucket")
    offsets = filled(mortal.client, "/bucket/doc", *[b"x" * 20_000] * 20)
    publish(mortal.client, "/bucket/doc", offsets[10], b"old")
    publish(mortal.client, "/bucket/doc", offsets[15], b"z" * 100_000)
    mortal.server.stop()
    report = verify(mortal.data)
    assert report is not None
    assert report.findings == []
    (blob,) = [file for file in mortal.data.glob("snapshots/*/*") if file.is_file()]
    damaged = bytearray(blob.read_bytes())
    damaged[70_000] ^= 1
    blob.write_bytes(bytes(damaged))
    report = verify(mortal.data)
    assert report is not None
    assert [blob.name in finding for finding in report.findings] == [True]
    blob.unlink()
    report = verify(mortal.data)
    assert report is not None
    assert len(report.findings) == 1
    blob.mkdir()  # what no read gets anything from
    report = verify(mortal.data)
    assert report is not None
    assert [blob.name in finding for finding in report.findings] == [True]
    blob.rmdir()
    mortal.restart(kill=True)
    lost = mortal.client.get("/bucket/doc/snapshot", follow_redirects=True)
    assert lost.status_code == 500, "damage is reported, never served"
