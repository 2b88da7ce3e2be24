"""What a restart keeps, and what a data directory refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import lmdb
import pytest

from headrace.testing.server_process import ServerProcess
from headrace.testing.server_queries import catch_up
from tests.durability.campaign import registered
from tests.durability.modes import DURABLE_MODES, SHARDS, settings

pytestmark = pytest.mark.slow

ROOT = "/v1/stream"
S = f"{ROOT}/kept"
TEXT = {"content-type": "text/plain"}
DEADLINE_SECS = 30.0


class Lives:
    """One data directory, served again and again."""

    def __init__(self, mode: str, directory: Path) -> None:
        self.mode = mode
        self.data = directory / "data"
        self._directory = directory

    @contextmanager
    def life(self, **env: str) -> Iterator[httpx.Client]:
        env = settings(self.mode, self.data) | env
        with (
            ServerProcess(env, cwd=str(self._directory)) as server,
            httpx.Client(base_url=server.url, timeout=DEADLINE_SECS) as client,
        ):
            yield client


@pytest.fixture(params=DURABLE_MODES)
def lives(request: pytest.FixtureRequest, tmp_path: Path) -> Lives:
    return Lives(request.param, tmp_path)


def content(client: httpx.Client, path: str) -> bytes:
    return b"".join(answer.content for answer in catch_up(client, path))


def accepted(answer: httpx.Response) -> httpx.Response:
    assert answer.status_code in (200, 201, 204), (answer.status_code, answer.text)
    return answer


def produce(client: httpx.Client, path: str, seq: int, epoch: int = 0) -> httpx.Response:
    headers = {"producer-id": "p", "producer-epoch": str(epoch), "producer-seq": str(seq)}
    return client.post(path, content=f"{epoch}.{seq}\n", headers=TEXT | headers)


# -- what is kept ----------------------------------------------------------------------------


def test_closure(lives: Lives) -> None:
    with lives.life() as client:
        accepted(client.put(S, headers=TEXT))
        accepted(client.post(S, content="last", headers=TEXT | {"stream-closed": "true"}))
    with lives.life() as client:
        assert client.head(S).headers["stream-closed"] == "true"
        assert client.post(S, content="more", headers=TEXT).status_code == 409
        assert content(client, S) == b"last"


@pytest.mark.parametrize(
    ("header", "value"), [("stream-ttl", "3600"), ("stream-expires-at", "2099-01-01T00:00:00Z")]
)
def test_when_a_stream_ends(lives: Lives, header: str, value: str) -> None:
    with lives.life() as client:
        accepted(client.put(S, headers=TEXT | {header: value}))
        before = client.head(S).headers[header]
    with lives.life() as client:
        assert client.head(S).headers[header] == before
        assert client.put(S, headers=TEXT | {header: value}).status_code == 200
        assert client.put(S, headers=TEXT).status_code == 409


@pytest.mark.parametrize("content_type", ["text/plain; charset=utf-8", "application/json", "a/b"])
def test_content_types(lives: Lives, content_type: str) -> None:
    body = b'{"a": 1}'
    with lives.life() as client:
        accepted(client.put(S, content=body, headers={"content-type": content_type}))
        before = client.get(S).content
    with lives.life() as client:
        answer = client.get(S)
        assert (answer.headers["content-type"], answer.content) == (content_type, before)


def test_stream_seq(lives: Lives) -> None:
    with lives.life() as client:
        accepted(client.put(S, headers=TEXT))
        accepted(client.post(S, content="x", headers=TEXT | {"stream-seq": "b"}))
    with lives.life() as client:
        refused = client.post(S, content="x", headers=TEXT | {"stream-seq": "a"})
        assert refused.status_code == 409
        accepted(client.post(S, content="x", headers=TEXT | {"stream-seq": "c"}))


def test_a_late_duplicate_is_answered_with_its_own_offset(lives: Lives) -> None:
    with lives.life() as client:
        accepted(client.put(S, headers=TEXT))
        offsets = [
            accepted(produce(client, S, seq)).headers["stream-next-offset"] for seq in range(10)
        ]
    with lives.life() as client:
        repeats = [produce(client, S, seq) for seq in range(10)]
        assert {answer.status_code for answer in repeats} == {204}
        assert [answer.headers["stream-next-offset"] for answer in repeats] == offsets
        assert len(content(client, S).splitlines()) == 10


@pytest.mark.parametrize("receipts", [3, 100])
def test_as_many_receipts_as_are_configured(lives: Lives, receipts: int) -> None:
    env = {"DS_LIMITS__PRODUCER_RECEIPTS": str(receipts)}
    seqs = range(receipts + 20)
    with lives.life(**env) as client:
        accepted(client.put(S, headers=TEXT))
        for seq in seqs:
            accepted(produce(client, S, seq))
        before = [produce(client, S, seq).headers.get("stream-next-offset") for seq in seqs]
    with lives.life(**env) as client:
        after = [produce(client, S, seq).headers.get("stream-next-offset") for seq in seqs]
    assert after == before


def test_fencing(lives: Lives) -> None:
    with lives.life() as client:
        accepted(client.put(S, headers=TEXT))
        accepted(produce(client, S, 0, epoch=0))
        accepted(produce(client, S, 0, epoch=1))
    with lives.life() as client:
        assert produce(client, S, 1, epoch=0).status_code == 403
        assert produce(client, S, 5, epoch=1).status_code == 409
        accepted(produce(client, S, 1, epoch=1))


def test_a_fork_with_what_it_inherited(lives: Lives) -> None:
    with lives.life() as client:
        accepted(client.put(S, content="inherited ", headers=TEXT))
        accepted(client.put(f"{S}/fork", headers=TEXT | {"stream-forked-from": S}))
        accepted(client.post(f"{S}/fork", content="own", headers=TEXT))
        accepted(client.post(S, content="not inherited", headers=TEXT))
    with lives.life() as client:
        assert content(client, f"{S}/fork") == b"inherited own"


def test_a_fork_that_cuts_a_message(lives: Lives) -> None:
    headers = {
        "stream-forked-from": S,
        "stream-fork-offset": "0000000000000000_0000000000000000",
        "stream-fork-sub-offset": "3",
    }
    with lives.life() as client:
        accepted(client.put(S, content="abcdef", headers=TEXT))
        accepted(client.put(f"{S}/fork", headers=TEXT | headers))
        accepted(client.post(f"{S}/fork", content="xyz", headers=TEXT))
        assert content(client, f"{S}/fork") == b"abcxyz"
    with lives.life() as client:
        assert client.get(f"{S}/fork", params={"offset": "-1"}).content == b"abcxyz"


def test_a_soft_deleted_source(lives: Lives) -> None:
    with lives.life() as client:
        accepted(client.put(S, content="inherited", headers=TEXT))
        accepted(client.put(f"{S}/fork", headers=TEXT | {"stream-forked-from": S}))
        accepted(client.delete(S))
    with lives.life() as client:
        assert client.get(S).status_code == 410
        assert client.put(S, headers=TEXT).status_code == 409
        assert content(client, f"{S}/fork") == b"inherited"
        accepted(client.delete(f"{S}/fork"))
    with lives.life() as client:
        assert client.get(S).status_code == 404
        assert client.put(S, headers=TEXT).status_code == 201


def test_the_registry_and_its_order(lives: Lives) -> None:
    names = [f"{ROOT}/n{number}" for number in (5, 3, 9, 1)]
    with lives.life() as client:
        for name in names:
            accepted(client.put(name, headers=TEXT))
        accepted(client.delete(names[2]))
        before = content(client, f"{ROOT}/__registry__")
    with lives.life() as client:
        assert content(client, f"{ROOT}/__registry__") == before
        assert registered(client) == {names[0], names[1], names[3]}


def test_a_recreated_stream_is_another_entity(lives: Lives) -> None:
    """Its ETag must differ, or a cache shows the bytes of the stream that was deleted."""
    with lives.life() as client:
        accepted(client.put(S, content="old", headers=TEXT))
        etag = client.get(S, params={"offset": "-1"}).headers["etag"]
        accepted(client.delete(S))
    with lives.life() as client:
        accepted(client.put(S, content="new", headers=TEXT))
        answer = client.get(S, params={"offset": "-1"}, headers={"if-none-match": etag})
        assert (answer.status_code, answer.content) == (200, b"new")


def test_every_offset_ever_returned_stays_valid(lives: Lives) -> None:
    appended = [b"%d " % number * 500 for number in range(60)]
    with lives.life() as client:
        accepted(client.put(S, headers=TEXT))
        offsets = [
            accepted(client.post(S, content=data, headers=TEXT)).headers["stream-next-offset"]
            for data in appended
        ]
    with lives.life() as client:
        for index, offset in enumerate(offsets):
            rest = b"".join(answer.content for answer in catch_up(client, S, offset))
            assert rest == b"".join(appended[index + 1 :])


# -- what is refused -------------------------------------------------------------------------


def refusal(lives: Lives, **env: str) -> tuple[int, list[str]]:
    """The exit code and the words of a server that should not start."""
    command = [sys.executable, "-m", "headrace.cli", "serve", "--port", "0"]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("DS_")}
    done = subprocess.run(
        command,
        env=inherited | settings(lives.mode, lives.data) | env,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECS,
    )
    return done.returncode, done.stderr.strip().splitlines()


def test_a_second_server_on_the_same_directory_is_refused_in_one_sentence(lives: Lives) -> None:
    with lives.life() as client:
        code, said = refusal(lives)
        assert code != 0
        assert len(said) == 1, said
        assert "in use by a running server" in said[0]
        accepted(client.put(S, headers=TEXT))


def test_another_number_of_shards_is_refused_in_one_sentence(tmp_path: Path) -> None:
    lives = Lives("acid", tmp_path)
    with lives.life() as client:
        accepted(client.put(S, headers=TEXT))
    code, said = refusal(lives, DS_STORAGE__ACID_SHARD_COUNT=str(SHARDS * 2))
    assert code != 0
    assert len(said) == 1, said
    assert str(lives.data) in said[0]
    with lives.life() as client:
        assert client.head(S).status_code == 200


# -- damage, in acid -------------------------------------------------------------------------


def flip(data: Path, database: bytes, chosen: Callable[[bytes], bool]) -> int:
    """Change one bit of every value that is `chosen`; how many those were."""
    flipped = 0
    for shard in sorted((data / "acid").glob("shard-*")):
        with lmdb.open(str(shard), max_dbs=16, map_size=1 << 30) as environment:
            values = environment.open_db(database)
            with environment.begin(write=True, db=values) as transaction:
                for key, value in list(transaction.cursor()):
                    if chosen(value):
                        transaction.put(key, value[:-1] + bytes([value[-1] ^ 1]))
                        flipped += 1
    return flipped


def test_a_damaged_value_is_reported_and_the_others_are_served(tmp_path: Path) -> None:
    lives = Lives("acid", tmp_path)
    with lives.life() as client:
        accepted(client.put(S, content="to be rotten", headers=TEXT))
        accepted(client.put(f"{S}/other", content="sound", headers=TEXT))
    assert flip(lives.data, b"data", lambda value: b"rotten" in value) == 1
    with lives.life() as client:
        answer = client.get(S, params={"offset": "-1"})
        assert answer.status_code == 500
        assert answer.json()["type"].endswith("stored-bytes-damaged")
        assert b"rotte" not in answer.content
        assert client.get(f"{S}/other", params={"offset": "-1"}).content == b"sound"


@pytest.mark.parametrize("live", ["long-poll", "sse"])
def test_a_live_read_of_a_damaged_value_is_answered(tmp_path: Path, live: str) -> None:
    lives = Lives("acid", tmp_path)
    with lives.life() as client:
        accepted(client.put(S, content="to be rotten", headers=TEXT))
    assert flip(lives.data, b"data", lambda value: b"rotten" in value) == 1
    with lives.life() as client:
        answer = client.get(S, params={"offset": "-1", "live": live})
        assert answer.status_code == 500


def test_a_damaged_catalog_is_refused_in_one_sentence(tmp_path: Path) -> None:
    """It has the names: no name of a stream that is there may seem free."""
    lives = Lives("acid", tmp_path)
    with lives.life() as client:
        accepted(client.put(S, content="x", headers=TEXT))
    assert flip(lives.data, b"streams", lambda value: True)
    code, said = refusal(lives)
    assert code != 0
    assert len(said) == 1, said
    assert "damaged" in said[0]
