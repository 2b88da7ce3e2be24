"""The command line: exact in a pipe, with exit codes and sentences a person can act on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from headrace.cli import command
from headrace.cli.client_config import configured
from headrace.client import Client
from headrace.testing.certificates import write_self_signed
from headrace.testing.ports import free_port
from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import DEADLINE_SECS, eventually
from tests.client.scripted import Reply, ScriptedServer
from tests.conftest import Serve

_numbers = count()


@pytest.fixture
def name() -> str:
    return f"cli/{next(_numbers)}"


@pytest.fixture
def run(server: ServerProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Run a command line against the shared server; a failure shows what it printed."""
    monkeypatch.setenv("HEADRACE_URL", server.url)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("HEADRACE_TOKEN", raising=False)

    def run(*args: str, stdin: bytes = b"", code: int = 0) -> Result:
        result = CliRunner().invoke(command(), list(args), input=stdin)
        assert result.exit_code == code, (result.output, result.exception)
        return result

    return run


def test_bytes_go_through_unchanged(run: Any, name: str) -> None:
    data = bytes(range(256)) * 3 + b"\r\n\n\x00no newline at the end"
    run("create", name, "-t", "application/octet-stream")
    run("append", name, "--whole", stdin=data)
    assert run("read", name).stdout_bytes == data


def test_text_keeps_its_line_ends(run: Any, name: str) -> None:
    data = b"one\r\ntwo\n\nfour"
    run("create", name, "-t", "text/plain")
    told = json.loads(run("append", name, "--json", stdin=data).stdout)
    assert told["messages"] == 4
    assert run("read", name).stdout_bytes == data


def test_json_is_one_message_per_line_as_it_was_sent(run: Any, name: str) -> None:
    run("create", name)
    run("append", name, stdin=b'{"a": 1.50}\n\n[1,2]\n"x\\n"\n')
    assert run("read", name).stdout == '{"a": 1.50}\n[1,2]\n"x\\n"\n'


def answered_appends(server: ServerProcess) -> dict[str, float]:
    """Appends of the server so far, by status."""
    counted = httpx.get(f"{server.url}/metrics").text
    pattern = r'headrace_requests_total{operation="append",status="([0-9]+)"} (.+)'
    return {status: float(count) for status, count in re.findall(pattern, counted)}


@pytest.mark.parametrize("content_type", ["text/plain", "application/json"])
def test_many_lines_go_out_in_few_requests_and_in_order(
    content_type: str, run: Any, name: str, server: ServerProcess
) -> None:
    data = b"".join(b"%d\n" % number for number in range(20_000))
    run("create", name, "-t", content_type)
    before = answered_appends(server)
    told = json.loads(run("append", name, "--json", stdin=data).stdout)
    after = answered_appends(server)
    assert told["messages"] == 20_000
    assert run("read", name).stdout_bytes == data
    assert sum(after.values()) - sum(before.values()) < 40


def test_bytes_are_never_cut_at_line_ends_unless_asked(run: Any, name: str) -> None:
    data = b"\x00one\ntwo\r\n\nfour"
    run("create", name, "-t", "application/octet-stream")
    told = json.loads(run("append", name, "--json", stdin=data).stdout)
    assert told["bytes"] == len(data)
    events = [json.loads(line) for line in run("read", name, "--json").stdout.splitlines()]
    assert [event["value"].encode() for event in events] == [data]
    told = json.loads(run("append", name, "--lines", "--json", stdin=data).stdout)
    assert told["messages"] == 4
    events = [json.loads(line) for line in run("read", name, "--json").stdout.splitlines()]
    assert [event["value"] for event in events[1:]] == ["\x00one\n", "two\r\n", "\n", "four"]
    assert "--lines" in run("append", name, "--lines", "--whole", code=2).stderr


def test_messages_may_be_arguments(run: Any, name: str) -> None:
    run("create", name)
    run("append", name, "1", '{"b":2}')
    events = [json.loads(line) for line in run("read", name, "--json").stdout.splitlines()]
    assert [event["value"] for event in events] == [1, {"b": 2}]
    rest = run("read", name, "--offset", events[-1]["next_offset"]).stdout
    assert rest == ""


def test_a_producer_of_an_old_epoch_is_refused(run: Any, name: str) -> None:
    run("create", name, "-t", "text/plain")
    run("append", name, "new", "--producer-id", "p", "--epoch", "5")
    refused = run("append", name, "old", "--producer-id", "p", "--epoch", "4", code=2)
    assert "Producer-Epoch 4 is stale" in refused.stderr
    assert run("read", name).stdout == "new"


def test_a_failed_append_says_how_much_of_it_is_there(run: Any, name: str) -> None:
    run("create", name, "-t", "text/plain")
    too_long = b"x" * (17 * 1024 * 1024)
    refused = run("append", name, stdin=b"short\n" + too_long + b"\nlast\n", code=2)
    assert refused.stderr.splitlines()[0] == "headrace: 1 message was appended before a failure:"
    assert "exceeds" in refused.stderr
    assert run("read", name).stdout == "short\n"


@pytest.mark.parametrize("args", [["--epoch", "-1"], ["--epoch", "9" * 20], ["--producer-id", ""]])
def test_producer_options_that_cannot_be_are_refused(args: list[str], run: Any, name: str) -> None:
    run("create", name)
    assert "Traceback" not in run("append", name, "1", *args, code=2).stderr
    assert run("read", name).stdout == ""


def test_a_line_that_is_no_json_value_is_named_and_nothing_behind_it_is_sent(
    run: Any, name: str
) -> None:
    run("create", name)
    refused = run("append", name, stdin=b"1\n\n2\n3,4\n5\n", code=2)
    assert "headrace: 2 messages were appended before a failure:" in refused.stderr
    assert "Line 4 is not one JSON value" in refused.stderr
    assert run("read", name).stdout == "1\n2\n"
    refused = run("append", name, "not json", code=2)
    assert "Message 1 is not" in refused.stderr
    assert "--content-type text/plain" in refused.stderr
    assert "before a failure" not in run("append", name, "not json", code=2).stderr
    whole = run("append", name, "--whole", "--close", stdin=b"1\n2\n", code=2)
    assert "Standard input is not one JSON value" in whole.stderr
    assert run("read", name).stdout == "1\n2\n"
    run("append", name, "--whole", stdin=b'{\n "a": 1\n}\n')


def test_what_is_empty_is_not_counted_as_appended(run: Any, name: str) -> None:
    run("create", name, "-t", "text/plain")
    assert "empty message" in run("append", name, "", code=2).stderr
    assert json.loads(run("append", name, "--whole", "--json").stdout)["messages"] == 0
    assert "--producer-id" in run("append", name, "x", "--epoch", "1", code=2).stderr
    assert run("read", name).stdout == ""


def test_a_refusal_says_what_to_type_next(run: Any, name: str) -> None:
    run("create", name)
    assert "headrace bucket create nothing" in run("ls", "nothing", code=2).stderr
    for verb in (["snapshot", "get"], ["bootstrap"]):
        assert f"/bucket/{name}" in run(*verb, name, code=2).stderr
    assert "uses itself" in run("bucket", "create", "metrics", code=2).stderr
    assert "http://localhost:4437" in run("head", name, "--url", "localhost:4437", code=2).stderr


def test_no_connection_says_why_that_may_be(
    run: Any, name: str, server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.cli.remote.RETRIES_MAX", 0)
    nobody = f"http://127.0.0.1:{free_port()}"
    for verb in ("head", "tail", "read"):
        assert "`headrace serve`" in run(verb, name, "--url", nobody, code=1).stderr
    speaks_no_tls = server.url.replace("http:", "https:")
    assert "begins with http://" in run("head", name, "--url", speaks_no_tls, code=1).stderr
    monkeypatch.setenv("http_proxy", nobody)
    monkeypatch.setenv("no_proxy", "")
    assert f"proxy {nobody}" in run("head", name, code=1).stderr
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert "no stream" in run("head", name, code=2).stderr


def test_a_certificate_of_ones_own_is_trusted_by_the_file_that_holds_it(
    run: Any, name: str, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.cli.remote.RETRIES_MAX", 0)
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    write_self_signed(cert, key)
    server = serve(DS_TLS__CERT_PATH=str(cert), DS_TLS__KEY_PATH=str(key))
    url = server.url.replace("127.0.0.1", "localhost")
    assert "SSL_CERT_FILE" in run("create", name, "--url", url, code=1).stderr
    done = subprocess.run(
        [sys.executable, "-m", "headrace.cli", "create", name, "--url", url, "--json"],
        env={**os.environ, "SSL_CERT_FILE": str(cert)},
        capture_output=True,
        timeout=2 * DEADLINE_SECS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["created"]


def test_stream_seq_goes_with_one_message(run: Any, name: str) -> None:
    run("create", name, "-t", "text/plain")
    run("append", name, "a", "--seq", "2")
    assert "not greater" in run("append", name, "b", "--seq", "1", code=2).stderr
    assert "exactly one" in run("append", name, "b", "c", "--seq", "3", code=2).stderr


def test_close_head_and_delete(run: Any, name: str) -> None:
    run("create", name, "-t", "text/plain", "--ttl", "60")
    run("close", name, "--data", "the end")
    told = json.loads(run("head", name, "--json").stdout)
    assert (told["closed"], told["ttl_secs"]) == (True, 60)
    assert "closed" in run("append", name, "more", code=2).stderr
    assert run("head", name).stdout.splitlines()[0].split() == ["stream", name]
    run("delete", name, "--yes")
    missing = run("head", name, code=2)
    assert f"headrace create {name}" in missing.stderr
    assert missing.stdout == ""


def test_reading_the_first_messages(run: Any, name: str) -> None:
    run("create", name)
    run("append", name, "1", '{"a": 2}', "3")
    assert run("read", name, "-n", "2").stdout == '1\n{"a": 2}\n'
    assert len(run("read", name, "-n", "2", "--json").stdout.splitlines()) == 2
    assert run("read", name, "-n", "9").stdout.count("\n") == 3
    run("create", f"{name}-t", "-t", "text/plain")
    run("append", f"{name}-t", "a\n", "b\n")
    assert run("read", f"{name}-t", "-n", "1").stdout == "a\n"


def test_url_and_token_may_stand_before_the_verb(
    run: Any, name: str, server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_URL", "http://elsewhere")
    run("--url", server.url, "--token", "t", "create", name)
    refused = run("--url", "http://elsewhere", "head", name, "--url", server.url)
    assert name in refused.stdout, "the option of the verb has precedence"


def test_help_has_a_short_option(run: Any) -> None:
    assert "Usage" in run("-h").output
    assert "Usage" in run("bucket", "create", "-h").output


@pytest.mark.parametrize(("theirs", "ours"), [("pub", "append"), ("consume", "tail")])
def test_a_verb_of_another_system_is_answered_with_ours(theirs: str, ours: str, run: Any) -> None:
    assert f"It is: headrace {ours}" in run(theirs, "orders", code=2).stderr


OFFSET = "0000000000000000_0000000000000000"


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("delete", "none"), "stream 'none'"),
        (("delete", "/none/s"), "bucket 'none'"),
        (("bucket", "delete", "none"), "bucket 'none'"),
        (("snapshot", "delete", "/none/s", OFFSET), "bucket 'none'"),
        (("snapshot", "delete", "/there/s", OFFSET), "stream '/there/s'"),
    ],
)
def test_a_command_that_deletes_does_not_advise_to_create(
    run: Any, server: ServerProcess, arguments: tuple[str, ...], what: str
) -> None:
    httpx.put(f"{server.url}/there")
    refused = run(*arguments, code=2).stderr
    assert f"There is no {what}: nothing was deleted." in refused
    assert "create" not in refused


def test_export_prints_a_url_as_it_was_given(run: Any, tmp_path: Path) -> None:
    refused = run("export", "http://localhost:4437", str(tmp_path / "x"), code=2).stderr
    assert "http://localhost:4437 is a running server" in refused


def test_logs_without_a_stack_say_so(run: Any, tmp_path: Path) -> None:
    assert "no stack has run here" in run("stack", "logs", "--state", str(tmp_path), code=3).stderr


def test_status_of_pipelines_names_the_directory_of_the_stack(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "--state" not in run("pipeline", "status", code=1).stderr
    (tmp_path / ".headrace/pipelines").mkdir(parents=True)
    assert "--state .headrace/pipelines" in run("pipeline", "status", code=1).stderr


def test_append_can_close(run: Any, name: str) -> None:
    run("create", name, "-t", "text/plain")
    run("append", name, "last", "--close")
    assert json.loads(run("head", name, "--json").stdout)["closed"]


def test_fork(run: Any, name: str) -> None:
    run("create", name)
    run("append", name, "1", "2")
    told = json.loads(run("fork", name, f"{name}-fork", "--json").stdout)
    assert told["created"]
    assert run("read", f"{name}-fork").stdout == "1\n2\n"


def test_ls_shows_what_is_outside_of_buckets(run: Any, name: str) -> None:
    run("create", name)
    lines = run("ls", "--prefix", name).stdout.splitlines()
    assert lines == [f"{name}\tapplication/json"]
    assert json.loads(run("ls", "--prefix", name, "--json").stdout)["stream"] == name


def test_a_bucket_is_listed_by_its_path_too(run: Any) -> None:
    bucket = f"cli-bucket-{next(_numbers)}"
    run("bucket", "create", bucket)
    run("create", f"/{bucket}/s")
    assert run("ls", f"/{bucket}/").stdout == run("ls", bucket).stdout != ""


@pytest.mark.parametrize("given", ["or", "or*", "orders"])
def test_ls_of_no_bucket_names_the_option_for_a_prefix(given: str, run: Any) -> None:
    assert f"headrace ls --prefix {given.rstrip('*')}" in run("ls", given, code=2).stderr


@pytest.mark.parametrize(("given", "secs"), [("90", 90), ("90s", 90), ("2h", 7200), ("7d", 604800)])
def test_a_ttl_may_have_a_unit(given: str, secs: int, run: Any, name: str) -> None:
    run("create", name, "--ttl", given)
    with Client(os.environ["HEADRACE_URL"]) as client:
        assert client.stream(name).head().ttl_secs == secs


def test_a_ttl_that_is_no_time_is_refused_with_examples(run: Any, name: str) -> None:
    assert "24h" in run("create", name, "--ttl", "1 day", code=2).stderr


def test_a_refused_token_names_the_option_for_it(monkeypatch: Any, run: Any) -> None:
    with ScriptedServer(Reply(401, body=b"no token")) as server:
        assert "--token or HEADRACE_TOKEN" in run("--url", server.url, "ls", code=2).stderr


@pytest.mark.parametrize("verb", [(), ("append",), ("bucket", "ls"), ("stack",)])
def test_help_shows_no_value_for_flags(verb: tuple[str, ...], run: Any) -> None:
    shown = run(*verb, "-h").output
    assert "--help" in shown
    assert "bool" not in shown


def test_help_breaks_lines_only_at_its_own_width(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert "to continue after an interruption" in run("copy", "-h").output


def test_buckets(run: Any) -> None:
    bucket = f"cli-bucket-{next(_numbers)}"
    run("bucket", "create", bucket)
    assert "exists" in run("bucket", "create", bucket, code=2).stderr
    for number in range(3):
        run("create", f"/{bucket}/s{number}", "-t", "text/plain")
    run("append", f"/{bucket}/s1", "hello", "--close")
    assert json.loads(run("bucket", "show", bucket, "--json").stdout)["streams"] == 3
    rows = [line.split("\t") for line in run("ls", bucket).stdout.splitlines()]
    assert [row[:3] for row in rows] == [
        ["s0", "text/plain", "no"],
        ["s1", "text/plain", "yes"],
        ["s2", "text/plain", "no"],
    ]
    assert "streams" in run("bucket", "delete", bucket, code=2).stderr
    for number in range(3):
        run("delete", f"/{bucket}/s{number}")
    run("bucket", "delete", bucket)
    assert "bucket" in run("ls", bucket, code=2).stderr


def test_snapshots_and_what_a_reader_starts_with(run: Any) -> None:
    bucket = f"cli-bucket-{next(_numbers)}"
    run("bucket", "create", bucket)
    name = f"/{bucket}/notes"
    run("create", name)
    run("append", name, "1", "2")
    run("snapshot", "put", name, "tail", "-t", "application/json", stdin=b'{"sum": 3}')
    run("append", name, "4")
    assert run("snapshot", "get", name).stdout_bytes == b'{"sum": 3}'
    start = [json.loads(line) for line in run("bootstrap", name).stdout.splitlines()]
    assert start[0]["snapshot"] == {"sum": 3}
    assert start[1] == {"value": 4}
    assert start[2]["next_offset"] == json.loads(run("head", name, "--json").stdout)["next_offset"]
    assert "trimmed" in run("read", name, code=2).stderr
    assert run("read", name, "--offset", start[0]["offset"]).stdout == "4\n"


def test_subscriptions(run: Any, name: str) -> None:
    wakes, id = f"{name}-wakes", name.replace("/", "-")
    run("create", wakes)
    run("create", name)
    run("subscribe", "create", id, "--stream", name, "--wake-stream", wakes)
    run("append", name, "1")
    with_news = run("subscribe", "claim", id, "--done", "--json").stdout
    assert json.loads(with_news)["stream"] == name
    shown = json.loads(run("subscribe", "show", id).stdout)
    tail = json.loads(run("head", name, "--json").stdout)["next_offset"]
    assert shown["streams"][0]["acked_offset"] == tail
    assert "--webhook" in run("subscribe", "create", id, "--pattern", "*", code=2).stderr
    run("subscribe", "delete", id)
    run("subscribe", "show", id, code=2)


def test_a_later_command_acknowledges_with_the_lease_of_a_claim(
    run: Any, name: str, tmp_path: Path
) -> None:
    wakes, id, lease = f"{name}-wakes", name.replace("/", "-"), str(tmp_path / "lease.json")
    run("create", wakes)
    run("create", name)
    run("subscribe", "create", id, "--stream", name, "--wake-stream", wakes)
    first = json.loads(run("append", name, "1", "--json").stdout)["next_offset"]
    tail = json.loads(run("append", name, "2", "--json").stdout)["next_offset"]
    run("subscribe", "claim", id, "--lease", lease)
    assert Path(lease).stat().st_mode & 0o77 == 0, "it holds a token"
    acked = run("subscribe", "ack", id, "--lease", lease, "--offset", f"{name}={first}")
    assert acked.stdout.split() == [name, first]
    assert run("subscribe", "lag", id).stdout.split()[1] == first
    assert run("subscribe", "ack", id, "--lease", lease, "--done").stdout.split() == [name, tail]
    assert run("subscribe", "lag", id).stdout.split()[1] == tail
    refused = run("subscribe", "ack", id, "--lease", lease, code=2)
    assert refused.stderr != "", "the lease was released"
    Path(lease).write_text("[]")
    assert "claim --lease" in run("subscribe", "ack", id, "--lease", lease, code=2).stderr
    missing = run("subscribe", "ack", id, "--lease", f"{lease}.none", code=2)
    assert "No such file" in missing.stderr


def test_tail_follows_until_the_stream_is_closed(run: Any, name: str, server: Any) -> None:
    run("create", name)
    run("append", name, "1")
    with Client(server.url) as client:
        stream = client.stream(name)
        writer = threading.Timer(0.2, lambda: stream.close("2"))
        writer.start()
        assert run("tail", name, "--offset", "-1").stdout == "1\n2\n"
        writer.join()
    assert "auto, sse or long-poll" in run("tail", name, "--live", "smoke", code=2).stderr


def test_tail_starts_with_the_last_messages(run: Any, name: str) -> None:
    run("create", name)
    run("append", name, "1", "2", "3", "--close")
    assert run("tail", name, "-n", "2").stdout == "2\n3\n"
    assert run("tail", name, "-n", "0").stdout == ""
    assert run("tail", name, "-n", "9").stdout == "1\n2\n3\n"
    assert "--offset or --count" in run("tail", name, "-n", "1", "-o", "-1", code=2).stderr


def test_the_last_messages_of_a_trimmed_stream_in_a_bucket(run: Any) -> None:
    bucket = f"cli-bucket-{next(_numbers)}"
    name = f"/{bucket}/ü b"
    run("bucket", "create", bucket)
    run("create", name, "-t", "text/plain")
    run("append", name, "a\n", "b\n")
    run("snapshot", "put", name, "tail", stdin=b"ab")
    run("append", name, "c\n", "d\n", "--close")
    assert run("tail", name, "-n", "1").stdout == "d\n"
    assert run("tail", name, "-n", "9").stdout == "c\nd\n"
    row = json.loads(run("ls", bucket, "--long", "--json").stdout)
    assert row.pop("created_at_ms") > 0
    assert row == {
        "stream": "ü b",
        "content_type": "text/plain",
        "closed": True,
        "messages": 2,
        "bytes": 4,
    }


def test_ls_shows_sizes_and_age(run: Any, name: str) -> None:
    run("create", name)
    run("append", name, "1", "22")
    row = run("ls", "-l", "--prefix", name).stdout.rstrip("\n").split("\t")
    assert row[:5] == [name, "application/json", "no", "2", "5"]
    assert re.fullmatch(r"\d+[smh]", row[5])
    assert run("ls", "-l", "--prefix", "no-such-stream").stdout == ""


def test_buckets_are_listed(run: Any) -> None:
    bucket = f"cli-bucket-{next(_numbers)}"
    run("bucket", "create", bucket)
    run("create", f"/{bucket}/s")
    assert f"{bucket}\t1" in run("bucket", "ls").stdout.splitlines()
    rows = [json.loads(line) for line in run("bucket", "ls", "--json").stdout.splitlines()]
    assert {"bucket": bucket, "streams": 1} in rows


def test_subscriptions_are_listed(run: Any, name: str) -> None:
    wakes, id = f"{name}-wakes", f"listed-{next(_numbers)}"
    run("create", wakes)
    run("subscribe", "create", id, "--pattern", f"{name}/*", "--wake-stream", wakes)
    assert run("subscribe", "ls", "--prefix", id).stdout.split() == [
        *(id, "pull-wake", "active", f"{name}/*", "0", "0")
    ]
    run("create", f"{name}/a")
    run("append", f"{name}/a", "1")
    row = json.loads(run("subscribe", "ls", "--prefix", id, "--json").stdout)
    assert (row["streams"], row["generation"]) == (1, 1)
    run("subscribe", "delete", id)
    assert run("subscribe", "ls", "--prefix", id).stdout == ""


@pytest.mark.parametrize(
    ("verb", "what"),
    [(("bucket", "ls"), "bucket ls"), (("subscribe", "ls"), "subscribe ls")],
)
def test_a_server_without_a_listing_is_named_as_the_reason(
    verb: tuple[str, ...], what: str, run: Any
) -> None:
    with ScriptedServer(Reply(404)) as server:
        refused = run(*verb, "--url", server.url, code=2).stderr
    assert f"{what} needs a Headrace server" in refused


def test_tail_of_the_last_messages_needs_a_server_that_counts_them(run: Any) -> None:
    known = Reply(200, {"Content-Type": "text/plain", "Stream-Next-Offset": "7"})
    with ScriptedServer(known, Reply(404)) as server:
        refused = run("tail", "s", "-n", "1", "--url", server.url, code=2).stderr
    assert "tail --count needs a Headrace server" in refused


def test_the_lag_of_a_subscription_is_what_is_not_acknowledged(run: Any, name: str) -> None:
    wakes, id = f"{name}-wakes", f"lag-{next(_numbers)}"
    for stream in (wakes, f"{name}/a", f"{name}/b"):
        run("create", stream)
    run("append", f"{name}/a", "1", "22")
    run("subscribe", "create", id, "--pattern", f"{name}/*", "--wake-stream", wakes)
    run("append", f"{name}/a", "333")
    run("append", f"{name}/b", "4")
    rows = [json.loads(line) for line in run("subscribe", "lag", id, "--json").stdout.splitlines()]
    behind = {row["stream"].removeprefix(f"{name}/"): row["messages"] for row in rows}
    assert behind["b"] == 1
    assert behind["a"] == 1, "what was there when the subscription began is not pending"
    run("subscribe", "claim", id, "--done")
    rows = [json.loads(line) for line in run("subscribe", "lag", id, "--json").stdout.splitlines()]
    assert len(rows) == 2
    for row in rows:
        assert (row["messages"], row["bytes"]) == (0, 0), row
        assert row["acked_offset"] == row["tail_offset"]


def test_bench_measures_and_leaves_nothing_behind(run: Any) -> None:
    before = run("ls").stdout
    args = ("--connections", "4", "--streams", "2", "--seconds", "0.3", "--json")
    told = json.loads(run("bench", *args).stdout)
    assert told["appends"] > 0
    assert told["p99_ms"] >= told["p50_ms"] > 0
    assert told["refused"] == told["broken_connections"] == 0
    assert run("ls").stdout == before


def test_bench_read_reads_every_stream_to_its_end_and_begins_again(run: Any) -> None:
    before = run("ls").stdout
    args = ("--connections", "3", "--streams", "2", "--stream-mib", "2", "--seconds", "0.5")
    told = json.loads(run("bench", "read", *args, "--json").stdout)
    assert told["reads"] > 6
    assert told["mib_per_sec"] > 0
    assert told["refused"] == told["broken_connections"] == 0
    assert run("ls").stdout == before


@pytest.mark.parametrize("options", [(), ("-n", "3"), ("--json",), ("-f", "%s\\n")])
def test_json_keeps_its_spelling_however_it_is_printed(
    options: tuple[str, ...], run: Any, name: str
) -> None:
    messages = ['{"a": 1.50, "a": 2}', "[1, 2]", "1e5"]
    run("create", name)
    run("append", name, *messages)
    printed = run("read", name, *options).stdout.splitlines()
    assert len(printed) == 3
    assert all(message in line for message, line in zip(messages, printed, strict=True))


def test_a_template_prints_each_message(run: Any, name: str) -> None:
    run("create", name, "-t", "text/plain")
    run("append", name, "one", "two%\n")
    offsets = ["0" * 16 + "_" + "0" * 16, f"{1:016}_{3:016}", f"{2:016}_{8:016}"]
    printed = run("read", name, "--format", r"%t %i %o %n %S %% %s\n\t\\").stdout
    assert printed == (
        f"{name} 0 {offsets[0]} {offsets[1]} 3 % one\n\t\\"
        f"{name} 0 {offsets[1]} {offsets[2]} 5 % two%\n\n\t\\"
    )
    assert run("read", name, "-f", "%s,", "-n", "1").stdout == "one,"


@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_a_template_prints_live_messages(live: str, run: Any, name: str) -> None:
    run("create", name)
    run("append", name, "1.0", "[2]", "--close")
    printed = run("tail", name, "--offset", "-1", "--live", live, "-f", "<%s>").stdout
    assert printed == "<1.0><[2]>"


@pytest.mark.parametrize(
    ("template", "reason"), [("%q", "%q"), ("50%", "%"), ("\\x", "\\x"), ("\\", "\\")]
)
def test_an_unknown_field_or_escape_is_named(template: str, reason: str, run: Any) -> None:
    refused = run("read", "any", "--format", template, code=2).stderr
    assert f"{reason} is not a" in refused
    assert "give either" in run("read", "any", "--json", "--format", "%s", code=2).stderr


def test_a_profile_is_a_server_with_its_token(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADRACE_URL")
    run("profile", "add", "prod", "--url", "https://streams.example", "--token", 'a"\\\u20ac\n')
    run("profile", "add", "dev", "--url", "http://localhost:1")
    assert configured(None, None) == ("https://streams.example", 'a"\\\u20ac\n')
    assert (tmp_path / "headrace/profiles/prod.toml").stat().st_mode & 0o77 == 0
    listed = run("profile", "ls").stdout
    assert listed == "dev\thttp://localhost:1\tno\tno\nprod\thttps://streams.example\tyes\tyes\n"
    run("profile", "use", "dev")
    assert configured(None, None) == ("http://localhost:1", None)
    monkeypatch.setenv("HEADRACE_PROFILE", "prod")
    assert configured(None, None)[0] == "https://streams.example"
    monkeypatch.delenv("HEADRACE_PROFILE")
    run("profile", "delete", "dev")
    assert configured(None, None) == ("http://localhost:4437", None)


def test_a_profile_before_the_verb_overrides_the_environment(
    run: Any, server: ServerProcess, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("profile", "add", "here", "--url", server.url)
    monkeypatch.setenv("HEADRACE_URL", "http://127.0.0.1:9")
    run("--profile", "here", "create", name)
    assert "profiles: here" in run("--profile", "there", "head", name, code=2).stderr
    assert "not a name of a profile" in run("--profile", "../x", "head", name, code=2).stderr


@pytest.mark.parametrize(
    ("line", "code"), [("--url http://a:1 profile ls", 0), ("--profile ../x ls", 2)]
)
def test_options_before_the_verb_end_with_the_command(
    line: str, code: int, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(*line.split(), code=code)
    monkeypatch.setenv("HEADRACE_URL", "http://b:1")
    assert configured(None, None) == ("http://b:1", None)


@pytest.mark.parametrize("kept_in", ["profile", "file"])
def test_a_stored_token_goes_to_its_own_server_only(
    kept_in: str, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADRACE_URL")
    if kept_in == "profile":
        run("profile", "add", "prod", "--url", "https://streams.example", "--token", "secret")
    else:
        (tmp_path / "headrace").mkdir()
        stored = 'url = "https://streams.example"\ntoken = "secret"\n'
        (tmp_path / "headrace" / "client.toml").write_text(stored)
    assert configured("https://Streams.example/below", None)[1] == "secret"
    for elsewhere in ("http://streams.example", "https://streams.example.evil", "https://a:1"):
        assert configured(elsewhere, None) == (elsewhere, None)
    assert configured("https://a:1", "given") == ("https://a:1", "given")


def test_no_server_is_a_failure_that_names_it(
    run: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.cli import remote

    monkeypatch.setattr(remote, "RETRIES_MAX", 0)
    failed = run("head", name, "--url", "http://127.0.0.1:9", code=1)
    assert "No connection to http://127.0.0.1:9" in failed.stderr


def test_url_and_token_come_from_flag_environment_or_file(
    run: Any, server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "headrace" / "client.toml"
    file.parent.mkdir()
    file.write_text('url = "http://file"\ntoken = "from-file"\n')
    monkeypatch.delenv("HEADRACE_URL")
    assert configured(None, None) == ("http://file", "from-file")
    monkeypatch.setenv("HEADRACE_URL", "http://env")
    monkeypatch.setenv("HEADRACE_TOKEN", "from-env")
    assert configured(None, None) == ("http://env", "from-env")
    assert configured("http://flag", "f") == ("http://flag", "f")
    file.write_text("urll = 1")
    assert "urll" in run("head", "x", code=2).stderr
    file.write_text("not toml")
    assert "client.toml" in run("head", "x", code=2).stderr


def test_a_name_that_cannot_be_is_refused_before_anything_is_sent(run: Any) -> None:
    assert "segments" in run("head", "a//b", code=2).stderr


def test_every_verb_for_streams_takes_json(run: Any) -> None:
    bucket = f"cli-bucket-{next(_numbers)}"
    name, id = f"/{bucket}/s", f"sub-{bucket}"

    def told(*args: str, stdin: bytes = b"") -> Any:
        *_, last = run(*args, "--json", stdin=stdin).stdout.splitlines()
        return json.loads(last)

    assert told("bucket", "create", bucket) == {"bucket": bucket, "created": True}
    first = told("create", name)["next_offset"]
    told("snapshot", "put", name, first, "-t", "application/json", stdin=b"[]")
    tail = told("append", name, "1")["next_offset"]
    put = told("snapshot", "put", name, "tail", "-t", "application/json", stdin=b'{"n":1}')
    assert put == {"stream": name, "offset": tail, "bytes": 7}
    got = told("snapshot", "get", name)
    assert got == {"offset": tail, "content_type": "application/json", "value": {"n": 1}}
    assert told("bootstrap", name)["next_offset"] == tail
    told("create", f"wakes-{bucket}")
    created = told(
        "subscribe", "create", id, "--pattern", "none/*", "--wake-stream", f"wakes-{bucket}"
    )
    assert created["type"] == told("subscribe", "show", id)["type"] == "pull-wake"
    assert told("subscribe", "delete", id) == {"subscription": id, "deleted": True}
    assert told("close", name)["closed"]
    assert told("delete", name) == {"stream": name, "deleted": True}
    assert told("bucket", "delete", bucket) == {"bucket": bucket, "deleted": True}


def test_events_in_json_carry_their_own_offsets(run: Any, name: str) -> None:
    run("create", name, "-t", "text/plain")
    run("append", name, "--lines", stdin="ü\nzwei\n".encode())
    first, second = map(json.loads, run("read", name, "--json").stdout.splitlines())
    assert [first["value"], second["value"]] == ["ü\n", "zwei\n"]
    assert first["next_offset"] == second["offset"]
    assert run("read", name, "--offset", first["next_offset"]).stdout == "zwei\n"


def test_a_hint_can_be_pasted(run: Any) -> None:
    assert "headrace create 'a b$c'" in run("head", "a b$c", code=2).stderr


def test_a_token_that_cannot_be_sent_is_not_repeated(run: Any, name: str) -> None:
    refused = run("head", name, "--token", "sécret", code=2)
    assert "Authorization" in refused.stderr
    assert "cret" not in refused.stderr


def test_the_shell_completes_verbs_and_options() -> None:
    def completed(words: str) -> list[str]:
        asked = {
            "_HEADRACE_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - 1),
        }
        program = "from headrace.cli import main; main()"
        answer = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, **asked},
            capture_output=True,
            text=True,
            check=True,
            timeout=DEADLINE_SECS,
        )
        return answer.stdout.split()

    assert completed("headrace sna") == ["snapshot"]
    assert completed("headrace snapshot p") == ["put"]
    assert "--offset" in completed("headrace tail --o")


def test_help_names_the_variables_of_the_environment(run: Any) -> None:
    shown = run("head", "--help").output
    assert "HEADRACE_URL" in shown
    assert "HEADRACE_TOKEN" in shown


def test_an_interrupted_append_says_how_far_it_came(run: Any, name: str, client: Client) -> None:
    run("create", name)
    command = [sys.executable, "-m", "headrace.cli", "append", name]
    append = subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    assert append.stdin is not None
    append.stdin.write(b"1\n2\n")
    append.stdin.flush()
    eventually(lambda: len(client.stream(name).read_json()) == 2, "both lines are stored")
    append.send_signal(signal.SIGINT)
    _, said = append.communicate(timeout=DEADLINE_SECS)
    assert b"2 messages were appended before the interruption." in said
    assert append.returncode == 130


@pytest.mark.slow
def test_lines_arrive_once_and_in_order_though_the_server_is_killed(tmp_path: Path) -> None:
    env = {"DS_STORAGE__MODE": "file-durable", "DS_STORAGE__DATA_DIR": str(tmp_path / "data")}
    lines = [b"%d\n" % number for number in range(60_000)]
    with ServerProcess(env) as first:
        port, url = first.port, first.url
        with Client(url) as client:
            client.stream("s").create("text/plain")
        command = [sys.executable, "-m", "headrace.cli", "append", "s", "--close", "--url", url]
        append = subprocess.Popen(command, stdin=subprocess.PIPE)
        assert append.stdin is not None
        append.stdin.write(b"".join(lines[:20_000]))
        append.stdin.flush()
        with Client(url) as client:
            eventually(lambda: bool(client.stream("s").read_bytes()), "some of it is there")
        append.stdin.write(b"".join(lines[20_000:40_000]))
        append.stdin.flush()
        first.kill()
    with ServerProcess(env, ["--port", str(port)]):
        append.stdin.write(b"".join(lines[40_000:]))
        append.stdin.close()
        assert append.wait(60) == 0
        with Client(url) as client:
            assert client.stream("s").read_bytes() == b"".join(lines)


@pytest.mark.slow
def test_tail_in_a_pipe_survives_a_restart(tmp_path: Path) -> None:
    env = {"DS_STORAGE__MODE": "file-durable", "DS_STORAGE__DATA_DIR": str(tmp_path / "data")}
    with ServerProcess(env) as first:
        port, url = first.port, first.url
        with Client(url) as client:
            client.stream("s").create("application/json")
        received: list[bytes] = []
        command = [sys.executable, "-m", "headrace.cli", "tail", "s", "-o", "-1", "--url", url]
        tail = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert tail.stdout is not None
        lines = tail.stdout
        follower = threading.Thread(target=lambda: received.extend(lines), daemon=True)
        follower.start()
        with Client(url) as client:
            client.stream("s").append_json(1)
        eventually(lambda: received == [b"1\n"], "the first line arrives at once")
        first.kill()
    with ServerProcess(env, ["--port", str(port)]):
        with Client(url) as client:
            client.stream("s").append_json(2, close=True)
        assert tail.wait(60) == 0
        follower.join(30)
        lines.close()
    assert received == [b"1\n", b"2\n"]
