"""A defect in one stream sets that stream aside: the start goes on, and nothing of it is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import lmdb
import pytest

from headrace.engine.engine import Engine
from headrace.engine.reclaim import Reclaimer
from headrace.engine.stream_runtime import Stream
from headrace.errors import HeadraceError, StreamSetAside
from headrace.protocol.names import REGISTRY_NAME
from headrace.protocol.requests import Append, Create, ForkRequest
from headrace.protocol.snapshots import Publish
from headrace.storage.acid import lmdb_shard
from headrace.storage.file import checkpoint, file_storage, replay
from headrace.testing.server_process import ServerProcess
from headrace.testing.server_queries import metric
from headrace.testing.virtual_clock import VirtualClock
from headrace.testing.waiting import DEADLINE_SECS
from tests.durability.modes import KEPT_MODES, open_storage, settings

ROOT = "/v1/stream"
TEXT = {"Content-Type": "text/plain"}


# -- over HTTP, with a record that is damaged --------------------------------------------------


def flip_head(data: Path, name: bytes) -> None:
    """Change one bit of where a stream stands; done twice, it is as before."""
    for shard in sorted((data / "acid").glob("shard-*")):
        with lmdb.open(str(shard), max_dbs=16, map_size=1 << 30) as environment:
            streams, heads = environment.open_db(b"streams"), environment.open_db(b"heads")
            with environment.begin(write=True) as transaction:
                for key, value in list(transaction.cursor(streams)):
                    if name in value:
                        head = transaction.get(key, b"", db=heads)
                        transaction.put(key, head[:-1] + bytes([head[-1] ^ 1]), db=heads)


@contextmanager
def life(directory: Path) -> Iterator[tuple[ServerProcess, httpx.Client]]:
    with (
        ServerProcess(settings("acid", directory / "data"), cwd=str(directory)) as server,
        httpx.Client(base_url=server.url, timeout=DEADLINE_SECS) as client,
    ):
        yield server, client


def is_set_aside(answer: httpx.Response) -> bool:
    return (
        answer.status_code == 500
        and answer.json()["type"] == "urn:headrace:problem:stream-set-aside"
    )


def test_a_stream_whose_record_is_damaged_is_set_aside_and_the_rest_served(tmp_path: Path) -> None:
    with life(tmp_path) as (_, client):
        client.put(f"{ROOT}/faulty", headers=TEXT, content=b"kept")
        client.put(f"{ROOT}/fork", headers={"Stream-Forked-From": f"{ROOT}/faulty"}, content=b"+")
        client.put(f"{ROOT}/sound", headers=TEXT, content=b"sound")
    flip_head(tmp_path / "data", b"\xa6faulty\xaa")  # as msgpack has a name before a type
    with life(tmp_path) as (server, client):
        assert client.get(f"{ROOT}/sound").content == b"sound"
        for name in ("faulty", "fork"):
            assert is_set_aside(client.get(f"{ROOT}/{name}"))
            assert client.head(f"{ROOT}/{name}").status_code == 500
            assert is_set_aside(client.post(f"{ROOT}/{name}", headers=TEXT, content=b"x"))
            assert is_set_aside(client.put(f"{ROOT}/{name}", headers=TEXT))
            assert is_set_aside(client.delete(f"{ROOT}/{name}"))
            assert is_set_aside(client.get(f"{ROOT}/__ds/streams/{name}"))
        told = client.put(f"{ROOT}/new", headers={"Stream-Forked-From": f"{ROOT}/faulty"})
        assert is_set_aside(told)
        listed = client.get(f"{ROOT}/__ds/set-aside").json()
        assert {one["stream"] for one in listed["set_aside"]} == {"faulty", "fork"}
        assert listed["set_aside_count"] == 2
        ready = client.get("/readyz")
        assert (ready.status_code, ready.text) == (200, "ok, but for 2 streams that are set aside")
        assert metric(client, "headrace_streams_set_aside") == 2
        announced = client.get(f"{ROOT}/__registry__").json()
        assert [one for one in announced if one["headers"]["operation"] == "delete"] == []
    assert sum(" error " in line and "set aside" in line for line in server.log) == 2
    flip_head(tmp_path / "data", b"\xa6faulty\xaa")
    with life(tmp_path) as (_, client):
        assert client.get(f"{ROOT}/faulty").content == b"kept"
        assert client.get(f"{ROOT}/fork").content == b"kept+"
        assert client.get("/readyz").text == "ok"


# -- in every mode, with a defect of ours ------------------------------------------------------


class Defect(Exception):
    """What no release should have."""


class Life:
    """An engine over a data directory."""

    def __init__(self, mode: str, directory: Path, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.engine = Engine(open_storage(mode, directory, loop), VirtualClock())

    def ask(self, command: Callable[..., None], *args: object) -> Any:
        async def answer() -> object:
            future: asyncio.Future[object] = self._loop.create_future()
            command(*args, future.set_result)
            return await future

        outcome = self._loop.run_until_complete(answer())
        assert not isinstance(outcome, HeadraceError), outcome
        return outcome

    def content(self, name: str) -> bytes:
        stream = self.engine.find(name)
        chunk = self.ask(self.engine.read, stream, stream.visible_trim_offset)
        return bytes(chunk.data)

    def fork(self, name: str, source: str) -> None:
        self.ask(self.engine.create, name, Create(b"+", fork=ForkRequest(source, None, 0)))

    def make(self) -> None:
        """A stream, its forks and a snapshot; one of them is called `bad`."""
        engine = self.engine
        self.ask(engine.buckets.create, "bucket")
        self.ask(engine.create, "/bucket/root", Create(b"root", "text/plain"))
        self.fork("/bucket/bad", "/bucket/root")
        self.fork("/bucket/bad-fork", "/bucket/bad")
        self.fork("/bucket/good-fork", "/bucket/root")
        bad = engine.find("/bucket/bad")
        self.ask(engine.snapshots.publish, bad, Publish(bad.visible, b"snapshot"))
        self.ask(engine.append, bad, Append(b"more", "text/plain"))

    def check_whole(self) -> None:
        assert self.content("/bucket/bad") == b"more"
        assert self.content("/bucket/bad-fork") == b"root++"
        assert self.content("/bucket/good-fork") == b"root+"
        snapshot = self.engine.find("/bucket/bad").visible_snapshot
        assert snapshot is not None
        assert self.ask(self.engine.snapshots.read, snapshot, 0, 100) == b"snapshot"


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def failing_restore(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """Storage cannot restore the stream that is called `bad`."""
    module, name = (lmdb_shard, "decode_state") if mode == "acid" else (file_storage, "state_of")
    restore = getattr(module, name)

    def failing(*args: Any) -> Any:
        state = restore(*args)
        if state.name == "/bucket/bad":
            raise Defect
        return state

    monkeypatch.setattr(module, name, failing)


def failing_take_in(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """The engine cannot take it in."""
    take_in = Engine._take_in

    def failing(engine: Engine, found: Any, by_id: Any) -> None:
        if found.state.name == "/bucket/bad":
            raise Defect
        take_in(engine, found, by_id)

    monkeypatch.setattr(Engine, "_take_in", failing)


def failing_reclaimer(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """The engine has it, and one of its later steps fails."""
    recover = Reclaimer._recover

    def failing(reclaimer: Reclaimer, stream: Stream) -> None:
        if stream.state.name == "/bucket/bad":
            raise Defect
        recover(reclaimer, stream)

    monkeypatch.setattr(Reclaimer, "_recover", failing)


@pytest.mark.parametrize("defect", [failing_restore, failing_take_in, failing_reclaimer])
@pytest.mark.parametrize("mode", KEPT_MODES)
def test_a_defect_sets_a_stream_aside_with_its_forks_and_loses_nothing(
    mode: str,
    defect: Callable[[pytest.MonkeyPatch, str], None],
    tmp_path: Path,
    loop: asyncio.AbstractEventLoop,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = Life(mode, tmp_path, loop)
    first.make()
    first.engine.close()
    with pytest.MonkeyPatch.context() as monkeypatch, caplog.at_level(logging.ERROR):
        defect(monkeypatch, mode)
        second = Life(mode, tmp_path, loop)
        for name in ("/bucket/bad", "/bucket/bad-fork"):
            with pytest.raises(StreamSetAside):
                second.engine.find(name)
        assert len(second.engine.aside) == 2
        assert second.content("/bucket/good-fork") == b"root+"
        # What those that are set aside need is kept, whoever is deleted.
        second.ask(second.engine.delete, "/bucket/good-fork")
        second.ask(second.engine.delete, "/bucket/root")
        assert "/bucket/root" in second.engine.streams
        outcomes: list[object] = []
        second.engine.buckets.delete("bucket", outcomes.append)
        assert [type(one).__name__ for one in outcomes] == ["BucketNotEmpty"]
        second.engine.close()
    assert "set aside" in caplog.text
    third = Life(mode, tmp_path, loop)
    assert len(third.engine.aside) == 0
    assert third.content("/bucket/bad") == b"more"
    assert third.content("/bucket/bad-fork") == b"root++"
    third.engine.close()


@pytest.mark.parametrize("mode", KEPT_MODES)
def test_a_bucket_that_is_set_aside_takes_its_streams_with_it(
    mode: str, tmp_path: Path, loop: asyncio.AbstractEventLoop
) -> None:
    first = Life(mode, tmp_path, loop)
    first.make()
    first.ask(first.engine.create, "base", Create(b"base", "text/plain"))
    first.engine.close()
    take_in = Engine._take_in

    def failing(engine: Engine, found: Any, by_id: Any) -> None:
        if found.state.name == "/bucket":
            raise Defect
        take_in(engine, found, by_id)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(Engine, "_take_in", failing)
        second = Life(mode, tmp_path, loop)
        assert set(second.engine.streams) == {REGISTRY_NAME, "base"}
        with pytest.raises(StreamSetAside):
            second.engine.buckets.find("bucket")
        with pytest.raises(StreamSetAside):
            second.engine.buckets.create("bucket", print)
        second.engine.close()
    third = Life(mode, tmp_path, loop)
    third.check_whole()
    third.engine.close()


@pytest.mark.parametrize("mode", ["file-durable", "file-fast"])
@pytest.mark.parametrize("is_applied", [True, False])
def test_a_change_that_cannot_be_replayed_sets_its_stream_aside_and_is_kept(
    mode: str,
    is_applied: bool,
    tmp_path: Path,
    loop: asyncio.AbstractEventLoop,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`is_applied`: whether the checkpoint makes more sense of it than the replay."""
    first = Life(mode, tmp_path / "a", loop)
    first.make()
    bad_id = first.engine.find("/bucket/bad").state.id
    # As after a kill: everything is in the journal, nothing in files.
    copied = tmp_path / "b"
    copy_directory(tmp_path / "a", copied)
    first.engine.close()
    change = checkpoint.Checkpointer._change

    def failing(state: Any, *args: Any) -> Any:
        if state.name == "/bucket/bad":
            raise Defect
        return replay.apply(state, *args)

    def failing_change(self: Any, stream_id: int, *args: Any) -> Any:
        if stream_id == bad_id and not is_applied:
            raise Defect
        return change(self, stream_id, *args)

    with monkeypatch.context() as patched:
        patched.setattr(file_storage, "apply", failing)
        patched.setattr(checkpoint.Checkpointer, "_change", failing_change)
        second = Life(mode, copied, loop)
        with pytest.raises(StreamSetAside):
            second.engine.find("/bucket/bad-fork")
        assert second.content("/bucket/good-fork") == b"root+"
        second.engine.close()
    if is_applied:
        third = Life(mode, copied, loop)
        third.check_whole()
        third.engine.close()
    else:
        (kept,) = (copied / checkpoint.SET_ASIDE).iterdir()
        assert b"more" in kept.read_bytes()


def copy_directory(source: Path, target: Path) -> None:
    for path in source.rglob("*"):
        if path.is_file() and path.name != "lock":
            place = target / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(path.read_bytes())


# -- what is only noise ------------------------------------------------------------------------


@pytest.mark.parametrize("mode", KEPT_MODES)
def test_a_stray_file_among_snapshots_and_segments_stops_no_start(
    mode: str, tmp_path: Path, loop: asyncio.AbstractEventLoop
) -> None:
    first = Life(mode, tmp_path, loop)
    first.make()
    first.engine.close()
    folder = next(path for path in (tmp_path / "snapshots").iterdir() if path.is_dir())
    strays = [folder / ".nfs0001", folder / "notes.txt", folder / "12"]
    strays += [tmp_path / "snapshots" / "README", tmp_path / "snapshots" / "fff"]
    for directory in ("journal", "packs"):
        if (tmp_path / directory).exists():
            strays += [tmp_path / directory / "segment-7", tmp_path / directory / "7"]
    for stray in strays:
        stray.write_text("stray")
    leftover = folder / f"{int(folder.name, 16) + 256:016x}"
    leftover.write_text("of a crash")
    second = Life(mode, tmp_path, loop)
    second.check_whole()
    second.ask(second.engine.append, second.engine.find("/bucket/bad"), Append(b"!", "text/plain"))
    second.engine.close()
    assert not leftover.exists()
    assert all(stray.exists() for stray in strays), "what is not ours is left alone"


def test_a_damaged_registry_is_begun_anew(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    first = Life("acid", tmp_path, loop)
    for number in range(3):
        first.ask(first.engine.create, f"s{number}", Create(b"x", "text/plain"))
    registry = first.engine.find(REGISTRY_NAME).state
    first.engine.close()
    for shard in sorted((tmp_path / "acid").glob("shard-*")):
        with lmdb.open(str(shard), max_dbs=16, map_size=1 << 30) as environment:
            data = environment.open_db(b"data")
            with environment.begin(write=True, db=data) as transaction:
                for key, value in list(transaction.cursor()):
                    if int.from_bytes(key[:8], "big") == registry.id:
                        transaction.put(key, value[:-1] + bytes([value[-1] ^ 1]))
    second = Life("acid", tmp_path, loop)
    stream = second.engine.find(REGISTRY_NAME)
    second.ask(_settled(second.engine))
    chunk = second.ask(second.engine.read, stream, stream.visible_trim_offset)
    for number in range(3):
        assert b'"s%d"' % number in chunk.data
    second.engine.close()


def _settled(engine: Engine) -> Callable[[Callable[[object], None]], None]:
    log = engine.find(REGISTRY_NAME).log
    return lambda reply: engine.storage.when_durable(log, lambda: reply(None))
