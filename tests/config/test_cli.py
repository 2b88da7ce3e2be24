"""The `headrace` command: what it prints, where, and with which exit code."""

from __future__ import annotations

import json
import logging
import os
import pty
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer

from headrace import __version__
from headrace.cli.config import json_report, text_report
from headrace.cli.serve import announcement, start, startup_block
from headrace.config import SETTINGS, Config, Limits, Server, Storage, load
from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import eventually
from tests.config.helpers import write


def environment(**extra: str) -> dict[str, str]:
    """Ours without settings, and with a module path that works in any directory."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("DS_", "RUST_LOG"))}
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path if entry)
    return inherited | {"PYTHONPATH": path} | extra


def headrace(
    cwd: Path, *arguments: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace.cli", *arguments]
    environ = environment(**(env or {}))
    return subprocess.run(
        command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=60, check=False
    )


def at_a_terminal(cwd: Path, *arguments: str, columns: int) -> str:
    """What the command prints when its output is a terminal."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "headrace.cli", *arguments]
    environ = environment(COLUMNS=str(columns), TERM="dumb")
    with subprocess.Popen(command, cwd=cwd, env=environ, stdout=slave) as process:
        os.close(slave)
        printed = b"".join(iter(lambda: _read(master), b""))
    os.close(master)
    assert process.returncode == 0
    return printed.decode()


def _read(master: int) -> bytes:
    try:
        return os.read(master, 65_536)
    except OSError:  # Linux says EIO, not end of file, once the other side is closed
        return b""


@pytest.fixture
def _restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


def test_version_prints_the_version(tmp_path: Path) -> None:
    assert headrace(tmp_path, "--version").stdout == f"headrace {__version__}\n"


def test_config_prints_one_aligned_line_per_setting_in_a_pipe(tmp_path: Path) -> None:
    result = headrace(tmp_path, "config", env={"DS_SERVER__PORT": "8080"})
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [setting.key for setting in SETTINGS]
    assert ["server.port", "8080", "DS_SERVER__PORT"] in [line.split() for line in lines]
    assert len({line.rindex("  ") for line in lines}) == 1
    assert (result.returncode, result.stderr) == (0, "")


def test_config_prints_exact_json(tmp_path: Path) -> None:
    write(tmp_path, "config/dev.toml", "[server]\ndrain_secs = 0.5\n")
    report = json.loads(headrace(tmp_path, "config", "--json", "--profile", "dev").stdout)
    assert report["server"]["drain_secs"] == {"value": 0.5, "source": "config/dev.toml"}
    assert report["server"]["public_url"] == {"value": None, "source": "default"}
    assert report["http"]["cors_origins"] == {"value": [], "source": "default"}
    assert report["log"]["access"] == {"value": False, "source": "default"}
    assert [f"{s}.{k}" for s, body in report.items() for k in body] == [s.key for s in SETTINGS]


def test_flags_win_and_are_named_as_the_source(tmp_path: Path) -> None:
    arguments = ("config", "--json", "--port", "1", "--host", "::1")
    report = json.loads(headrace(tmp_path, *arguments, env={"DS_SERVER__PORT": "2"}).stdout)
    assert report["server"]["port"] == {"value": 1, "source": "--port"}
    assert report["server"]["host"] == {"value": "::1", "source": "--host"}


def test_flags_choose_where_streams_are_stored(tmp_path: Path) -> None:
    arguments = ("config", "--json", "--mode", "acid", "--data-dir", "here")
    storage = json.loads(headrace(tmp_path, *arguments).stdout)["storage"]
    assert storage["mode"] == {"value": "acid", "source": "--mode"}
    assert storage["data_dir"] == {"value": "here", "source": "--data-dir"}


def test_a_data_directory_that_would_stay_empty_is_refused(tmp_path: Path) -> None:
    refused = headrace(tmp_path, "serve", "--data-dir", "here")
    assert refused.returncode == 2
    assert "--mode file-durable" in refused.stderr


def modules_after(program: str, directory: Path) -> list[str]:
    printed = subprocess.run(
        [sys.executable, "-c", f"import sys\n{program}\nprint(*sys.modules, file=sys.stderr)"],
        cwd=directory,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=True,
    )
    return printed.stderr.split()


def test_config_does_not_load_the_server(tmp_path: Path) -> None:
    program = "from headrace.cli import command; command()(['config'], standalone_mode=False)"
    loaded = modules_after(program, tmp_path)
    assert "headrace.cli.config" in loaded
    assert [m for m in loaded if m.startswith(("headrace.http", "uvloop"))] == []


def test_a_verb_does_not_wait_for_the_files_of_the_others(tmp_path: Path) -> None:
    program = (
        "sys.argv = ['headrace', 'serve', '--help']\n"
        "from headrace.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass"
    )
    loaded = modules_after(program, tmp_path)
    assert "headrace.cli.serve" in loaded
    assert "headrace.cli.tail" not in loaded


def test_a_verb_for_streams_loads_neither_the_other_verbs_nor_settings(tmp_path: Path) -> None:
    program = (
        "sys.argv = ['headrace', '--url', 'http://localhost:1', 'head', '--help']\n"
        "from headrace.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass"
    )
    loaded = modules_after(program, tmp_path)
    assert "headrace.cli.head" in loaded
    assert "headrace.cli.tail" not in loaded
    assert "headrace.config" not in loaded


def test_the_server_starts_without_its_http_client(tmp_path: Path) -> None:
    loaded = modules_after("import headrace.http.server", tmp_path)
    assert "headrace.subscriptions.manager" in loaded
    assert "httpx" not in loaded


def test_config_prints_a_table_at_a_terminal(tmp_path: Path) -> None:
    printed = at_a_terminal(tmp_path, "config", "--host", "::1", columns=120)
    lines = [line.split() for line in printed.splitlines()]
    assert ["setting", "value", "source"] in lines
    assert ["server.host", "::1", "--host"] in lines


@pytest.mark.parametrize("verb", ["config", "serve"])
@pytest.mark.parametrize(
    ("arguments", "env", "named"),
    [
        (["--port", "http"], {}, "--port"),
        ([], {"DS_SERVER__PROT": "1"}, "DS_SERVER__PORT"),
        (["--config", "none.toml"], {}, "none.toml"),
        (["--profile", "none"], {}, "config/none.toml"),
    ],
)
def test_a_bad_configuration_is_one_sentence_and_exit_code_2(
    tmp_path: Path, verb: str, arguments: list[str], env: dict[str, str], named: str
) -> None:
    result = headrace(tmp_path, verb, *arguments, env=env)
    assert (result.returncode, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1
    assert named in result.stderr


def test_serve_refuses_a_data_directory_it_was_not_made_for(tmp_path: Path) -> None:
    (tmp_path / "data" / "acid").mkdir(parents=True)
    (tmp_path / "data" / "acid" / "manifest.json").write_text('{"format":2,"shards":4}')
    result = headrace(
        tmp_path, "serve", env={"DS_STORAGE__MODE": "redb", "DS_STORAGE__DATA_DIR": "data"}
    )
    assert result.returncode == 1
    assert result.stderr == (
        "headrace: The data directory data was created as {'format': 2, 'shards': 4}, but the "
        "configuration says {'format': 2, 'shards': 16}. Restore the setting, or use another "
        "directory.\n"
    )


@pytest.mark.parametrize(
    ("made_by", "asked"), [("journal", "acid"), ("acid", "file-durable"), ("acid", "file-fast")]
)
def test_serve_refuses_the_directory_of_another_mode(
    tmp_path: Path, made_by: str, asked: str
) -> None:
    (tmp_path / "data" / made_by).mkdir(parents=True)
    (tmp_path / "data" / made_by / "something").touch()
    env = {"DS_STORAGE__MODE": asked, "DS_STORAGE__DATA_DIR": "data"}
    result = headrace(tmp_path, "serve", env=env)
    assert result.returncode == 1
    assert result.stderr.startswith("headrace: The data directory data was created as ")
    assert result.stderr.count("\n") == 1


def test_serve_names_the_data_directory_it_cannot_use(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    env = {"DS_STORAGE__MODE": "file-durable", "DS_STORAGE__DATA_DIR": "data"}
    result = headrace(tmp_path, "serve", env=env)
    assert result.returncode == 1
    assert result.stderr == "headrace: The data directory data cannot be used: File exists.\n"


def listen(config: Config, *, on_ready: Callable[[str], None]) -> int:
    """A server that listens, says so, and is stopped at once."""
    with socket.create_server((config.server.host, config.server.port)) as listener:
        on_ready(f"http://127.0.0.1:{listener.getsockname()[1]}")
    return 0


@pytest.mark.usefixtures("_restored_logging")
def test_a_started_server_is_announced_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = load(flags={"server.port": 0}, environ={}, cwd=tmp_path)
    assert start(loaded, listen) == 0
    captured = capsys.readouterr()
    assert "listening  http://127.0.0.1:" in captured.err
    assert captured.out == ""


@pytest.mark.usefixtures("_restored_logging")
def test_a_port_in_use_is_one_sentence_and_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        loaded = load(flags={"server.port": port}, environ={}, cwd=tmp_path)
        with pytest.raises(typer.Exit) as caught:
            start(loaded, listen)
    assert caught.value.exit_code == 1
    assert capsys.readouterr().err == (
        f"headrace: Port {port} of 127.0.0.1 is in use by another process: stop that, or choose "
        "another with --port (0 takes any free one).\n"
    )


@pytest.mark.usefixtures("_restored_logging")
def test_an_address_of_another_machine_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = load(flags={"server.host": "192.0.2.1"}, environ={}, cwd=tmp_path)
    with pytest.raises(typer.Exit):
        start(loaded, listen)
    assert capsys.readouterr().err == (
        "headrace: The server cannot listen on port 4437 of 192.0.2.1: "
        "Cannot assign requested address.\n"
    )


@pytest.mark.usefixtures("_restored_logging")
def test_a_certificate_that_is_none_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(config: Config, *, on_ready: Callable[[str], None]) -> int:
        cert, key = config.tls.cert_path, config.tls.key_path
        assert cert is not None
        ssl.create_default_context().load_cert_chain(cert, key)
        return 0

    pem = tmp_path / "x.pem"
    write(tmp_path, "x.pem", "not a certificate")
    environ = {"DS_TLS__CERT_PATH": str(pem), "DS_TLS__KEY_PATH": str(pem)}
    with pytest.raises(typer.Exit) as caught:
        start(load(environ=environ, cwd=tmp_path), run)
    assert caught.value.exit_code == 1
    sentence = capsys.readouterr().err
    assert sentence.startswith(f"headrace: The TLS certificate {pem} and key {pem} cannot be used:")
    assert len(sentence.splitlines()) == 1


@pytest.mark.usefixtures("_restored_logging")
def test_an_os_error_after_the_start_keeps_its_traceback(tmp_path: Path) -> None:
    def fail_later(config: Config, *, on_ready: Callable[[str], None]) -> int:
        on_ready("http://127.0.0.1:1")
        raise OSError("disk on fire")

    with pytest.raises(OSError, match="disk on fire"):
        start(load(environ={}, cwd=tmp_path), fail_later)


def test_the_block_at_start_says_where_what_and_what_is_lost() -> None:
    assert startup_block(Config(), "http://127.0.0.1:4437", ("config/dev.toml", "--port")) == (
        f"headrace {__version__}\n"
        "  listening  http://127.0.0.1:4437\n"
        "  api        http://127.0.0.1:4437/v1/stream\n"
        "  browser    http://127.0.0.1:4437/ui\n"
        "  storage    memory: everything is lost when the process stops\n"
        "  to keep    headrace serve --mode file-durable --data-dir data\n"
        "  limits     100 MiB in memory, 10 MiB per stream, 16 MiB per body\n"
        "  config     built-in defaults, config/dev.toml, --port\n"
        "  try        curl -X PUT -H 'Content-Type: text/plain' -d 'hello, world' "
        "http://127.0.0.1:4437/v1/stream/hello && curl http://127.0.0.1:4437/v1/stream/hello"
    )


def test_the_command_to_try_works_as_printed_and_again() -> None:
    with ServerProcess() as server:
        eventually(lambda: server.log[-1].startswith("  try "), "the announcement is complete")
        line = server.log[-1]
        for _ in range(2):
            done = subprocess.run(
                line.removeprefix("  try "), shell=True, capture_output=True, timeout=60, check=True
            )
            assert done.stdout == b"hello, world"


def test_the_block_warns_of_an_address_that_others_can_reach() -> None:
    block = startup_block(Config(server=Server(host="0.0.0.0")), "http://0.0.0.0:4437")
    assert "no authentication" in block


def test_the_block_names_the_directory_of_a_mode_that_has_one() -> None:
    config = Config(storage=Storage(mode="file-fast", data_dir=Path("/srv/s")))
    assert "file-fast in /srv/s: a power cut" in startup_block(config, "http://x")


@pytest.mark.parametrize("mode", ["file-fast", "file-durable", "acid"])
def test_a_stream_on_disk_is_bounded_by_the_disk(mode: str) -> None:
    config = Config(storage=Storage(mode=mode))
    assert config.max_stream_bytes == 0
    assert "streams may fill the disk, 16 MiB per body" in startup_block(config, "http://x")
    limited = Config(storage=Storage(mode=mode), limits=Limits(max_stream_bytes=2**30))
    assert "1 GiB per stream, 16 MiB per body" in startup_block(limited, "http://x")


def test_the_report_shows_what_a_limit_comes_to_in_the_storage_mode(tmp_path: Path) -> None:
    key = "limits.max_stream_bytes"
    for mode, value in (("memory", 10_485_760), ("file-durable", 0)):
        loaded = load(environ={"DS_STORAGE__MODE": mode}, cwd=tmp_path)
        found = json.loads(json_report(loaded))["limits"]["max_stream_bytes"]
        assert found == {"value": value, "source": f"default (auto, {mode})"}
        assert f"{value}" in next(x for x in text_report(loaded).splitlines() if x.startswith(key))
    loaded = load(environ={"DS_LIMITS__MAX_STREAM_BYTES": "5"}, cwd=tmp_path)
    found = json.loads(json_report(loaded))["limits"]["max_stream_bytes"]
    assert found == {"value": 5, "source": "DS_LIMITS__MAX_STREAM_BYTES"}


def test_a_limit_that_is_no_whole_unit_is_shown_in_bytes() -> None:
    config = Config(limits=Limits(max_stream_bytes=1025))
    assert "1025 bytes per stream" in startup_block(config, "http://x")


def test_among_json_logs_the_announcement_is_one_json_line(tmp_path: Path) -> None:
    loaded = load(environ={"DS_LOG__FORMAT": "json"}, cwd=tmp_path)
    line = json.loads(announcement(loaded, "http://127.0.0.1:4437"))
    assert (line["level"], line["message"]) == ("info", "listening")
    assert line["url"] == "http://127.0.0.1:4437"
    assert line["storage_loses"] == "everything is lost when the process stops"
    assert line["config"] == ["DS_LOG__FORMAT"]
