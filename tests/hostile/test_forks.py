"""Forks in numbers: long chains of them, very many of one stream, and all of them at once."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import httpx
import pytest

from headrace.engine import reads, reclaim
from headrace.engine.engine import Engine
from headrace.engine.removal import FORKS_REMOVED_AT_ONCE_MAX
from headrace.errors import ForkTooDeep, StreamDeleted, StreamNotFound
from headrace.limits import Limits
from headrace.protocol.expiry import Lifetime
from headrace.protocol.offsets import Position
from headrace.protocol.requests import Create, ForkRequest
from headrace.protocol.snapshots import Publish
from headrace.storage.memory import MemoryLog
from headrace.testing.virtual_clock import VirtualClock
from headrace.testing.waiting import DEADLINE_SECS
from tests.buckets.api import JSON, TEXT, Mortal
from tests.conftest import Serve
from tests.durability.modes import open_storage
from tests.engine.helpers import content, delete, fork, is_created, new_engine, post, put

DEEP = 1100  # past the depth of Python's own stack
UNLIMITED = Limits(fork_depth_max=10 * DEEP)
BRIEF = Lifetime(ttl_secs=10)


def chain(engine: Engine, depth: int, lifetime: Lifetime | None = None) -> list[str]:
    """A stream, its fork, the fork of that ..., each with a byte of its own."""
    names = [f"chain/{number}" for number in range(depth + 1)]
    put(engine, names[0], Create(content_type="text/plain", lifetime=lifetime or Lifetime()))
    post(engine, names[0], b".")
    for source, name in itertools.pairwise(names):
        assert is_created(fork(engine, name, source))
        post(engine, name, b".")
    return names


# -- chains ------------------------------------------------------------------------------------


def test_a_fork_of_forks_is_refused_at_the_limit() -> None:
    engine = new_engine(limits=Limits(fork_depth_max=3))
    names = chain(engine, 3)
    refusal = fork(engine, "one-more", names[-1])
    assert isinstance(refusal, ForkTooDeep)
    assert refusal.facts() == {"stream": names[-1], "limit": 3}
    assert is_created(fork(engine, "beside", names[-2]))
    assert content(engine, names[-1]) == b"...."


def test_a_long_chain_in_memory_is_read_whole() -> None:
    engine = new_engine(limits=UNLIMITED)
    names = chain(engine, DEEP)
    assert content(engine, names[-1]) == b"." * (DEEP + 1)


def test_a_long_chain_expires_whole() -> None:
    clock = VirtualClock()
    engine = new_engine(clock, limits=UNLIMITED)
    chain(engine, DEEP, BRIEF)
    clock.advance(secs=60)
    while engine.housekeeping.run():
        pass
    assert len(engine.streams) == 1
    assert engine.stored.total == 0


def test_the_sources_of_a_long_chain_go_with_its_last_fork() -> None:
    engine = new_engine(limits=UNLIMITED)
    names = chain(engine, DEEP)
    for name in names[:-1]:
        delete(engine, name)
    assert content(engine, names[-1]) == b"." * (DEEP + 1)
    delete(engine, names[-1])
    assert len(engine.streams) == 1
    assert engine.stored.total == 0


def test_a_deleted_source_is_free_once_a_long_chain_of_forks_has_expired() -> None:
    clock = VirtualClock()
    engine = new_engine(clock, limits=UNLIMITED)
    put(engine, "root")
    source = "root"
    for number in range(FORKS_REMOVED_AT_ONCE_MAX):
        name = f"f{number}"
        put(engine, name, Create(fork=ForkRequest(source, None, 0), lifetime=BRIEF))
        source = name
    delete(engine, "root")
    with pytest.raises(StreamDeleted):
        engine.find("root")
    clock.advance(secs=60)
    with pytest.raises(StreamNotFound):
        engine.find("root")
    assert len(engine.streams) == 1


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["file-durable", "acid"])
def test_a_long_chain_under_a_snapshot_survives_restarts(mode: str, tmp_path: Path) -> None:
    """Made while the limit was higher: it is served, and no longer than it is."""
    levels = {"DS_LIMITS__MAX_FORK_DEPTH": str(2 * DEEP)}
    with Mortal(mode, tmp_path, **levels) as mortal:
        mortal.client.put("/bucket")
        mortal.client.put("/bucket/0", headers=TEXT, content=b".")
        for number in range(1, DEEP + 1):
            headers = {"Stream-Forked-From": f"/bucket/{number - 1}"}
            assert mortal.client.put(f"/bucket/{number}", headers=headers, content=b".").is_success
        tail = mortal.client.head("/bucket/0").headers["Stream-Next-Offset"]
        assert mortal.client.put(f"/bucket/0/snapshot/{tail}", content=b"snapshot").is_success
        mortal.restart(kill=True)
        assert mortal.client.get(f"/bucket/{DEEP}").content == b"." * (DEEP + 1)
        mortal.forget_settings()
        mortal.restart(kill=False)
        assert mortal.client.get(f"/bucket/{DEEP}").content == b"." * (DEEP + 1)
        headers = {"Stream-Forked-From": f"/bucket/{DEEP}"}
        refused = mortal.client.put("/bucket/more", headers=headers)
        assert (refused.status_code, refused.json()["limit"]) == (409, 64)
        assert mortal.client.delete(f"/bucket/{DEEP}").is_success


def test_the_depth_of_forks_is_limited_over_http(serve: Serve) -> None:
    server = serve(DS_LIMITS__MAX_FORK_DEPTH="2")
    with httpx.Client(base_url=f"{server.url}/v1/stream/", timeout=DEADLINE_SECS) as client:
        client.put("0", headers=TEXT, content=b"x")
        for number in (1, 2):
            headers = {"Stream-Forked-From": f"/v1/stream/{number - 1}"}
            assert client.put(str(number), headers=headers).status_code == 201
        refused = client.put("3", headers={"Stream-Forked-From": "/v1/stream/2"})
        assert refused.status_code == 409
        assert refused.json()["type"] == "urn:headrace:problem:fork-too-deep"
        assert "limits.max_fork_depth" in refused.json()["detail"]
        assert client.get("2").content == b"x"


# -- very many ---------------------------------------------------------------------------------


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often anybody asked what a stream or one of its forks needs."""
    count = [0]
    needed_from = reclaim.needed_from

    def counting(stream: object) -> Position:
        count[0] += 1
        return needed_from(stream)  # type: ignore[arg-type]

    monkeypatch.setattr(reclaim, "needed_from", counting)
    return count


def looks_to_expire(count: int, looks: list[int]) -> int:
    clock = VirtualClock()
    engine = new_engine(clock)
    put(engine, "root")
    post(engine, "root", b"x")
    for number in range(count):
        put(engine, f"f{number}", Create(fork=ForkRequest("root", None, 0), lifetime=BRIEF))
    clock.advance(secs=60)
    before = looks[0]
    while engine.housekeeping.run():
        pass
    assert set(engine.streams) == {"root", "__registry__"}
    return looks[0] - before


def test_the_expiry_of_twice_as_many_forks_takes_twice_as_much(looks: list[int]) -> None:
    few, many = looks_to_expire(200, looks), looks_to_expire(400, looks)
    assert few > 0
    assert many <= 2 * few + 10


def looks_to_start(count: int, directory: Path, looks: list[int]) -> int:
    """With so many forks of a stream that has a snapshot."""
    loop = asyncio.new_event_loop()
    try:
        engine = Engine(open_storage("file-fast", directory, loop), VirtualClock())
        loop.run_until_complete(_snapshotted(engine, count))
        engine.close()
        before = looks[0]
        engine = Engine(open_storage("file-fast", directory, loop), VirtualClock())
        assert engine.streams["/bucket/root"].fork_count == count
        engine.close()
        return looks[0] - before
    finally:
        loop.close()


async def _snapshotted(engine: Engine, count: int) -> None:
    loop = asyncio.get_running_loop()

    async def done(ask: object, *args: object) -> object:
        future = loop.create_future()
        ask(*args, future.set_result)  # type: ignore[operator]
        return await future

    await done(engine.buckets.create, "bucket")
    await done(engine.create, "/bucket/root", Create(b"x", "text/plain"))
    root = engine.find("/bucket/root")
    assert await done(engine.snapshots.publish, root, Publish(root.visible, b"snapshot"))
    for number in range(count):
        request = ForkRequest("/bucket/root", None, 0)
        await done(engine.create, f"/bucket/{number}", Create(fork=request))


def test_a_start_with_twice_as_many_forks_takes_twice_as_much(
    tmp_path: Path, looks: list[int]
) -> None:
    few = looks_to_start(100, tmp_path / "few", looks)
    many = looks_to_start(200, tmp_path / "many", looks)
    assert few > 0
    assert many <= 2 * few + 10


def test_a_request_to_a_deleted_source_does_not_pay_for_all_its_expired_forks() -> None:
    clock = VirtualClock()
    engine = new_engine(clock)
    put(engine, "root")
    for number in range(FORKS_REMOVED_AT_ONCE_MAX + 1):
        put(engine, f"f{number}", Create(fork=ForkRequest("root", None, 0), lifetime=BRIEF))
    delete(engine, "root")
    clock.advance(secs=60)
    with pytest.raises(StreamDeleted):
        engine.find("root")
    assert len(engine.streams) == FORKS_REMOVED_AT_ONCE_MAX + 3, "it has taken nothing away"
    engine.housekeeping.run(1)
    with pytest.raises(StreamNotFound):
        engine.find("root")


# -- what a fork inherits ----------------------------------------------------------------------


def test_a_sub_offset_over_many_reads_is_counted_without_recursion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reads, "SEEK_WINDOW_BYTES", 1)
    monkeypatch.setattr(MemoryLog, "seek", lambda *_: None)
    engine = new_engine()
    put(engine, "source", Create(content_type="application/json"))
    body = b"[" + b",".join([b"1"] * 5000) + b"]"
    post(engine, "source", body, content_type="application/json")
    request = ForkRequest("source", Position(0, 0), 4999)
    assert is_created(put(engine, "fork", Create(fork=request)))
    assert engine.find("fork").state.tail == Position(4999, 2 * 4999)


def test_a_sub_offset_over_what_is_in_memory_reads_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = new_engine()
    put(engine, "source", Create(content_type="application/json"))
    post(engine, "source", b"[1,2,3]", content_type="application/json")
    put(engine, "middle", Create(fork=ForkRequest("source", Position(2, 4), 0)))
    post(engine, "middle", b"[4,5,6]", content_type="application/json")
    monkeypatch.setattr(reads.Reads, "part", None)
    for count, end in ((1, 2), (2, 4), (3, 6), (5, 10)):
        request = ForkRequest("middle", Position(0, 0), count)
        assert is_created(put(engine, f"fork-{count}", Create(fork=request)))
        assert engine.find(f"fork-{count}").state.tail == Position(count, end)


def test_a_json_fork_at_a_sub_offset_across_forks_over_http(
    http: httpx.Client, stream: str
) -> None:
    http.put(stream, headers=JSON, content=b"[1,2,3]")
    http.put(f"{stream}-a", headers={"Stream-Forked-From": stream}, content=b"[4,5]")
    headers = {
        "Stream-Forked-From": f"{stream}-a",
        "Stream-Fork-Offset": "0000000000000000_0000000000000000",
        "Stream-Fork-Sub-Offset": "4",
    }
    assert http.put(f"{stream}-b", headers=headers).status_code == 201
    assert http.get(f"{stream}-b").json() == [1, 2, 3, 4]
