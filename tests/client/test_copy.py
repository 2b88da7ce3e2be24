"""`headrace copy`: from the Node reference server, and from a Headrace server."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner, Result

from headrace.cli import command
from headrace.client import Client, Stream
from headrace.testing.server_process import ServerProcess
from tests.client.scripted import Reply, ScriptedServer
from tests.conftest import Serve

HERE = Path(__file__).parent
_numbers = count()


def copied(*args: str, code: int = 0) -> Result:
    result = CliRunner().invoke(command(), ["copy", *args])
    assert result.exit_code == code, (result.output, result.exception)
    return result


@pytest.fixture
def name() -> str:
    return f"copy/{next(_numbers)}"


@pytest.fixture
def target(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Client]:
    """The server that the command copies to."""
    monkeypatch.setenv("HEADRACE_URL", server.url)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with Client(server.url) as client:
        yield client


@pytest.fixture(scope="module")
def reference() -> Iterator[str]:
    """The URL of the Node reference server."""
    node = shutil.which("node")
    assert node, "the reference server needs Node"
    with subprocess.Popen(
        [node, "reference.mjs"], cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None, "it is a pipe"
        assert process.stdin is not None, "it is a pipe"
        url = process.stdout.readline().strip()
        assert url, "make test installs the packages of examples/"
        yield url
        process.stdin.close()
        process.wait()


JSON_MESSAGES = [b'{"a": 1.50}', b"[1,2]", b'"x\\n"', b'{ "b":"\xc3\xbc" }', b"[]", b"1e2"]


def sent_as(stream: Stream) -> list[bytes]:
    return [event.value for event in stream.read().events(raw=True)]


@pytest.mark.slow
def test_streams_of_the_node_reference_server_arrive_exactly(
    reference: str, target: Client, tmp_path: Path
) -> None:
    data = bytes(range(256)) * 5
    with Client(reference) as source:
        source.stream("node/json").create("application/json; charset=utf-8")
        source.stream("node/json").append(b"[" + b",".join(JSON_MESSAGES) + b"]")
        source.stream("node/json").append(b'{"last":true}', close=True)
        messages = sent_as(source.stream("node/json"))
        assert messages[1:3] == [b"[1,2]", b'"x\\n"'], "it writes JSON its own way"
        source.stream("node/bytes").create("image/x-own", ttl_secs=3600)
        source.stream("node/bytes").append(data)
        source.stream("node/empty").create("text/plain", closed=True)
    listed = tmp_path / "names"
    listed.write_text("node/json\nnode/bytes\nnode/empty\n")
    assert "name them with --names" in copied("--all", reference, code=2).stderr
    rows = copied(reference, "--names", str(listed), "--json").stdout.splitlines()
    assert [json.loads(row)["stream"] for row in rows] == ["node/json", "node/bytes", "node/empty"]
    json_copy = target.stream("node/json")
    assert sent_as(json_copy) == messages
    head = json_copy.head()
    assert (head.content_type, head.closed) == ("application/json; charset=utf-8", True)
    head = target.stream("node/bytes").head()
    assert (head.content_type, head.closed, head.ttl_secs) == ("image/x-own", False, 3600)
    assert target.stream("node/bytes").read_bytes() == data
    assert target.stream("node/empty").head().closed


def test_all_streams_of_a_server_are_copied_by_name(target: Client, serve: Serve) -> None:
    with Client(serve().url) as source:
        for stream in ("all/a", "all/b", "other"):
            source.stream(stream).create()
            source.stream(stream).append_json(stream)
        rows = copied(source.settings.url, "--all", "--prefix", "all/").stdout.splitlines()
    assert [row.split("\t")[0] for row in rows] == ["all/a", "all/b"]
    assert target.stream("all/b").read_json() == ["all/b"]
    assert [found.name for found in target.streams("other")] == []


@pytest.mark.parametrize("content_type", ["application/json", "text/plain"])
def test_a_second_run_appends_only_what_is_new_and_closes(
    target: Client, name: str, content_type: str
) -> None:
    source, copy = target.stream(name), f"{name}-copy"
    source.create(content_type)
    for text in ("1", "22", "333"):
        source.append(text)
    copied(name, copy)
    assert json.loads(copied(name, copy, "--json").stdout)["appended_bytes"] == 0
    source.append("4444", close=True)
    row = json.loads(copied(name, copy, "--json").stdout)
    assert (row["appended_bytes"], row["closed"]) == (4, True)
    assert sent_as(target.stream(copy)) == [b"1", b"22", b"333", b"4444"]
    assert json.loads(copied(name, copy, "--json").stdout)["appended_bytes"] == 0


def test_an_interrupted_copy_continues_inside_a_message(target: Client, name: str) -> None:
    source, copy = target.stream(name), target.stream(f"{name}-copy")
    source.create("text/plain")
    source.append("hello ")
    source.append("world")
    copy.create("text/plain")
    copy.append("hello w")
    copied(name, f"{name}-copy")
    assert copy.read_bytes() == b"hello world"


@pytest.mark.parametrize(
    ("content_type", "held"),
    [("application/json", "3"), ("text/plain", "9"), ("text/plain", "12345")],
    ids=["another message", "other bytes", "more than the source"],
)
def test_a_target_that_is_not_a_beginning_of_the_source_is_left_alone(
    target: Client, name: str, content_type: str, held: str
) -> None:
    source, copy = target.stream(name), target.stream(f"{name}-copy")
    source.create(content_type)
    source.append("12")
    copy.create(content_type)
    copy.append(held)
    assert "is not a copy" in copied(name, f"{name}-copy", code=2).stderr
    assert copy.read_bytes() in (held.encode(), f"[{held}]".encode())


def test_the_token_of_the_target_is_not_sent_to_the_source(target: Client, name: str) -> None:
    with ScriptedServer(Reply(404)) as source:
        copied(f"{source.url}/v1/stream/x", name, "--token", "secret", code=2)
        copied(f"{source.url}/v1/stream/x", name, "--source-token", "other", code=2)
    tokens = [asked.headers.get("authorization") for asked in source.asked]
    assert tokens == [None, "Bearer other"]


def test_what_makes_no_sense_is_refused(target: Client, name: str) -> None:
    for arguments in ([name], ["http://localhost:1", name, "--all"]):
        assert "give TARGET, --all or --names" in copied(*arguments, code=2).stderr
    assert "URL of a server" in copied(name, "--all", code=2).stderr
    assert httpx.head(f"{target.settings.url}/v1/stream/{name}").status_code == 404
