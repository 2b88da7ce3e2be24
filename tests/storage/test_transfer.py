"""Export and import: a server on the imported directory answers as the one it came from."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace.engine.engine import Engine
from headrace.engine.reads import Chunk
from headrace.protocol.offsets import Position
from headrace.protocol.requests import Create
from headrace.storage.base import ignore
from headrace.storage.export_file import Summary
from headrace.storage.transfer import export_directory, import_directory
from headrace.storage.verify import verify
from headrace.testing.server_process import ServerProcess
from headrace.testing.server_queries import catch_up
from headrace.testing.virtual_clock import VirtualClock
from headrace.testing.waiting import DEADLINE_SECS, eventually
from tests.durability.modes import SEGMENT_BYTES, SHARDS, open_storage, settings
from tests.subscriptions.api import ROOT, Api, acks

pytestmark = pytest.mark.slow
TEXT = {"content-type": "text/plain"}
JSON = {"content-type": "application/json"}
BIG_MESSAGES = 40
BIG_BYTES = SEGMENT_BYTES // 8


@contextmanager
def serving(mode: str, data: Path) -> Iterator[httpx.Client]:
    with (
        ServerProcess(settings(mode, data), cwd=str(data.parent)) as server,
        httpx.Client(base_url=server.url, timeout=DEADLINE_SECS) as client,
    ):
        yield client


def headrace(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def accepted(answer: httpx.Response) -> httpx.Response:
    assert answer.is_success, (answer.status_code, answer.text)
    return answer


def produced(client: httpx.Client, seq: int) -> httpx.Response:
    headers = {"producer-id": "p", "producer-epoch": "3", "producer-seq": str(seq)}
    return client.post(f"{ROOT}/produced", content=f"{seq}\n", headers=TEXT | headers)


def fill(client: httpx.Client) -> None:
    """A stream of every kind, and a subscription of each."""
    api = Api(client)
    accepted(client.put(f"{ROOT}/json", content='[{"n": 1},{"n":2}]', headers=JSON))
    accepted(client.post(f"{ROOT}/json", content='[ 3 ,"x"]', headers=JSON | {"stream-seq": "b"}))
    accepted(client.put(f"{ROOT}/produced", headers=TEXT))
    for seq in range(5):
        accepted(produced(client, seq))
    accepted(client.put(f"{ROOT}/closed", content="all", headers=TEXT | {"stream-closed": "true"}))
    accepted(
        client.put(f"{ROOT}/empty", headers=TEXT | {"stream-expires-at": "2099-01-01T00:00:00Z"})
    )
    accepted(client.put(f"{ROOT}/sliding", content="s", headers=TEXT | {"stream-ttl": "86400"}))
    accepted(client.put(f"{ROOT}/source", content="source", headers=TEXT))
    forked = {"stream-forked-from": f"{ROOT}/source", "stream-fork-sub-offset": "3"}
    zero = {"stream-fork-offset": "0000000000000000_0000000000000000"}
    accepted(client.put(f"{ROOT}/fork", headers=TEXT | forked | zero))
    accepted(client.post(f"{ROOT}/fork", content="-fork", headers=TEXT))
    accepted(client.delete(f"{ROOT}/source"))
    accepted(client.put(f"{ROOT}/big", headers=TEXT))
    for number in range(BIG_MESSAGES):
        accepted(client.post(f"{ROOT}/big", content=bytes([65 + number]) * BIG_BYTES, headers=TEXT))
    accepted(client.put("/bucket"))
    accepted(client.put("/bucket/inside", content="in a bucket", headers=TEXT))
    api.create("wake")
    assert api.put("pull", type="pull-wake", wake_stream="wake", pattern="json").status_code == 201
    assert api.put(
        "hook", type="webhook", webhook={"url": "https://w.example/"}, streams=["later"]
    ).is_success
    accepted(client.post(f"{ROOT}/json", content="4", headers=JSON))
    claimed = api.claim("pull", "worker")
    accepted(api.ack("pull", claimed, acks=acks(claimed)))


STREAMS = ["json", "produced", "closed", "empty", "sliding", "source", "fork", "big", "wake"]
IGNORED = {"date", "location", "content-length"}


def seen(client: httpx.Client) -> dict[str, Any]:
    """Everything that a client can tell of what `fill` made, but for what changes by itself."""
    api = Api(client)
    found: dict[str, Any] = {}
    for path in [*(f"{ROOT}/{name}" for name in STREAMS), "/bucket/inside"]:
        head = client.head(path)
        found[path] = head.status_code, {k: v for k, v in head.headers.items() if k not in IGNORED}
        if head.is_success:
            answers = list(catch_up(client, path))
            found[f"{path} read"] = b"".join(answer.content for answer in answers)
            found[f"{path} tag"] = answers[-1].headers["etag"]
    found["repeat"] = {k: v for k, v in produced(client, 3).headers.items() if k not in IGNORED}
    found["gap"] = produced(client, 9).status_code
    found["late"] = client.post(
        f"{ROOT}/json", content="0", headers=JSON | {"stream-seq": "a"}
    ).status_code
    found["registry"] = client.get(f"{ROOT}/__registry__").content
    found["bucket"] = client.get("/bucket").json()
    found["listing"] = client.get("/bucket/streams").json()
    found["pull"] = api.get("pull")
    found["hook"] = api.get("hook")["streams"]
    found["held"] = api.post("pull", "claim", worker="other").json()["error"]["current_holder"]
    found["jwks"] = client.get(f"{ROOT}/__ds/jwks.json").json()
    return found


@pytest.mark.parametrize(
    ("mode", "other"),
    [("file-durable", "acid"), ("acid", "file-durable"), ("file-fast", "file-fast")],
)
def test_everything_arrives(mode: str, other: str, tmp_path: Path) -> None:
    source, target, file = tmp_path / "source", tmp_path / "target", tmp_path / "export"
    with serving(mode, source) as client:
        fill(client)
        eventually(
            lambda: mode == "acid" or bool(list(source.glob("streams/*/*.data"))),
            "some of it is in stream files",
        )
        before = seen(client)
    exported = headrace("export", source, file)
    assert exported.returncode == 0, exported.stderr
    assert exported.stderr == ""
    assert file.stat().st_mode & 0o077 == 0
    imported = headrace("import", file, target, "--mode", other, "--shards", SHARDS)
    assert imported.returncode == 0, imported.stderr
    assert imported.stdout == exported.stdout
    report = verify(target)
    assert report is not None
    assert report.findings == []
    for _ in range(2):
        with serving(other, target) as client:
            assert seen(client) == before


@pytest.fixture
def export(tmp_path: Path) -> Path:
    with serving("file-durable", tmp_path / "source") as client:
        client.put(f"{ROOT}/a", content="x" * 10_000, headers=TEXT)
    assert headrace("export", tmp_path / "source", tmp_path / "export").returncode == 0
    return tmp_path / "export"


def refused(tmp_path: Path, file: Path) -> str:
    """What an import says that fails, and leaves nothing behind."""
    found = headrace("import", file, tmp_path / "target")
    assert found.returncode == 1
    assert found.stderr.count("\n") == 1, found.stderr
    assert not list(tmp_path.glob("target*"))
    return found.stderr


def test_a_file_that_was_cut_off_is_refused(tmp_path: Path, export: Path) -> None:
    whole = export.read_bytes()
    for size in (len(whole) - 1, len(whole) - 48, len(whole) // 2, 20, 9):
        export.write_bytes(whole[:size])
        assert f"is truncated at byte {size}" in refused(tmp_path, export)


def test_a_file_with_a_flipped_bit_is_refused(tmp_path: Path, export: Path) -> None:
    whole = export.read_bytes()
    for place in (18, 40, len(whole) // 2, len(whole) - 20):
        export.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert "is damaged" in refused(tmp_path, export)


def test_what_is_no_export_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"something else")
    assert "it is not an export" in refused(tmp_path, tmp_path / "other")


def test_nothing_is_written_over(tmp_path: Path, export: Path) -> None:
    again = headrace("export", tmp_path / "source", export)
    assert again.returncode == 2
    assert "exists already" in again.stderr
    into = headrace("import", export, tmp_path / "source")
    assert into.returncode == 2
    assert "is not empty" in into.stderr
    assert headrace("export", tmp_path / "none", tmp_path / "x").returncode == 2
    assert headrace("import", tmp_path / "none", tmp_path / "x").returncode == 2


def test_a_directory_that_is_being_served_is_not_exported(tmp_path: Path) -> None:
    with serving("file-durable", tmp_path / "source"):
        found = headrace("export", tmp_path / "source", tmp_path / "export")
    assert found.returncode == 1
    assert "in use by a running server" in found.stderr
    assert not list(tmp_path.glob("export*"))


def test_a_url_is_refused_with_what_to_do_instead(tmp_path: Path) -> None:
    for url in ("http://127.0.0.1:4437", "https://streams.example/v1/stream"):
        found = headrace("export", url, tmp_path / "export")
        assert found.returncode == 2
        assert "Stop it and export its data directory" in " ".join(found.stderr.split())
    assert not list(tmp_path.glob("export*"))


def test_a_directory_as_it_was_in_one_moment_is_exported(tmp_path: Path) -> None:
    """As a snapshot of the file system leaves it: the server that writes to it goes on."""
    with serving("file-durable", tmp_path / "source") as client:
        client.put(f"{ROOT}/a", content=b"acknowledged", headers=TEXT)
        shutil.copytree(tmp_path / "source", tmp_path / "moment")
        found = headrace("export", tmp_path / "moment", tmp_path / "export")
    assert found.returncode == 0
    assert headrace("import", tmp_path / "export", tmp_path / "target").returncode == 0
    with serving("file-durable", tmp_path / "target") as client:
        assert client.get(f"{ROOT}/a").content == b"acknowledged"


def test_a_damaged_directory_is_not_exported(tmp_path: Path) -> None:
    mark = b"a mark that stands nowhere else"
    with serving("file-durable", tmp_path / "source") as client:
        client.put(f"{ROOT}/a", content=mark, headers=TEXT)
    files = (tmp_path / "source" / "packs").iterdir()
    (holder,) = [path for path in files if mark in path.read_bytes()]
    holder.write_bytes(mark[::-1])
    found = headrace("export", tmp_path / "source", tmp_path / "export")
    assert found.returncode == 1
    assert "fails its checksum" in found.stderr
    assert not list(tmp_path.glob("export*"))


@pytest.mark.parametrize("other", ["file-durable", "acid"])
def test_a_stream_whose_beginning_was_given_up_keeps_its_place(other: str, tmp_path: Path) -> None:
    """The registry drops its history; what is left stays at the same offsets."""

    async def registry(mode: str, data: Path, names: range) -> tuple[Position, bytes]:
        loop = asyncio.get_running_loop()
        engine = Engine(open_storage(mode, data, loop), VirtualClock())
        for number in names:
            engine.create(f"s{number}", Create(), ignore)
            engine.delete(f"s{number}", ignore)
        settled = loop.create_future()
        engine.when_durable("__registry__", lambda: settled.set_result(None))
        await settled
        stream = engine.find("__registry__")
        content, position = b"", stream.state.trim_offset
        while position != stream.visible:
            read = loop.create_future()
            engine.read(stream, position, read.set_result)
            chunk = await read
            assert isinstance(chunk, Chunk), chunk
            content, position = content + chunk.data, chunk.end
        engine.close()
        return stream.state.trim_offset, content

    before = asyncio.run(registry("file-durable", tmp_path / "source", range(700)))
    assert before[0].messages > 0
    exported = asyncio.run(export_directory(tmp_path / "source", tmp_path / "file", ignored))
    shards = SHARDS if other == "acid" else None
    target = tmp_path / "target"
    imported = asyncio.run(import_directory(tmp_path / "file", target, shards, ignored))
    assert imported == exported
    for _ in range(2):
        assert asyncio.run(registry(other, target, range(0))) == before
    report = verify(target)
    assert report is not None
    assert report.findings == []


def ignored(_: Summary, __: int) -> None:
    """Nobody looks."""
