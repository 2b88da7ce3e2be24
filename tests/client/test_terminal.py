"""The command line at a real terminal: tables, questions, bars, and what Ctrl-C does."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import IO, Any

import pytest

from headrace.client import Client
from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import DEADLINE_SECS, eventually

ROWS, COLUMNS = 24, 60
MISLEADING = ("NO_COLOR", "COLUMNS", "LINES")  # of the terminal that the tests run in
STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

_numbers = count()


def hear_ctrl_c() -> None:
    """A run in the background ignores Ctrl-C, and what it starts would, too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Terminal:
    """Runs one command with a terminal of its own."""

    def __init__(self, server: ServerProcess, home: Path) -> None:
        self._env = {
            **{name: value for name, value in os.environ.items() if name not in MISLEADING},
            "HEADRACE_URL": server.url,
            "XDG_CONFIG_HOME": str(home),
            "HOME": str(home),
            "TERM": "xterm",
        }
        self._env.pop("HEADRACE_TOKEN", None)
        self.shown = ""

    def start(
        self, *args: str, stdin: int | None = None, stdout: IO[bytes] | None = None
    ) -> subprocess.Popen[bytes]:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        try:
            return subprocess.Popen(
                [sys.executable, "-m", "headrace.cli", *args],
                stdin=theirs if stdin is None else stdin,
                stdout=theirs if stdout is None else stdout,
                stderr=theirs,
                env=self._env,
                start_new_session=True,
                preexec_fn=hear_ctrl_c,
            )
        finally:
            os.close(theirs)

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def read(self) -> bool:
        """Take what is shown next; False when the command has left the terminal."""
        waiting, _, _ = select.select([self._ours], [], [], DEADLINE_SECS)
        assert waiting, f"nothing more is shown after {self.shown!r}"
        try:
            part = os.read(self._ours, 65536)
        except OSError:  # Linux says so when the other side is closed
            return False
        self.shown += part.decode()
        return bool(part)

    def until(self, text: str) -> None:
        while text not in self.shown:
            assert self.read(), self.shown

    def end(self, process: subprocess.Popen[bytes]) -> int:
        while self.read():
            pass
        os.close(self._ours)
        return process.wait(DEADLINE_SECS)

    def run(self, *args: str, **options: Any) -> str:
        assert self.end(self.start(*args, **options)) == 0, self.shown
        return self.shown

    @property
    def plain(self) -> str:
        return STYLE.sub("", self.shown)


@pytest.fixture
def terminal(server: ServerProcess, tmp_path: Path) -> Terminal:
    return Terminal(server, tmp_path)


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


@pytest.fixture
def bucket(client: Client) -> str:
    name = f"terminal-{next(_numbers)}"
    client.bucket(name).create()
    return name


def test_a_listing_is_a_table_that_cuts_no_name(
    terminal: Terminal, client: Client, bucket: str
) -> None:
    client.stream(f"/{bucket}/[bold]日本").create("text/plain")
    long = "long-" * 15
    client.stream(f"/{bucket}/{long}").create("text/plain")
    shown = terminal.run("ls", bucket)
    assert "\x1b[1m" in shown, "the head is bold"
    lines = terminal.plain.splitlines()
    assert max(map(len, lines)) <= COLUMNS
    assert "─" * 20 in terminal.plain
    assert "[bold]日本" in terminal.plain.replace("\r\n", "\n"), "and a name is no markup"
    first_column = "".join(line[:20].strip() for line in lines)
    assert "…" not in terminal.plain
    assert long.replace("-", "") in first_column.replace("-", "")


def test_facts_have_dim_names_at_a_terminal_only(
    terminal: Terminal, client: Client, bucket: str, tmp_path: Path
) -> None:
    client.stream(f"/{bucket}/s").create("text/plain")
    assert "\x1b[2mstream" in terminal.run("head", f"/{bucket}/s")
    with (tmp_path / "piped").open("wb") as piped:
        terminal.run("head", f"/{bucket}/s", stdout=piped)
    assert b"\x1b" not in (tmp_path / "piped").read_bytes()


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 1)])
def test_delete_asks(
    answer: str, code: int, terminal: Terminal, client: Client, bucket: str
) -> None:
    client.stream(f"/{bucket}/s").create("text/plain")
    process = terminal.start("delete", f"/{bucket}/s")
    terminal.until("[y/N]")
    terminal.type(f"{answer}\n")
    assert terminal.end(process) == code
    left = [entry.stream_id for entry in client.bucket(bucket).streams()]
    assert left == ([] if answer == "y" else ["s"])


def test_a_long_read_into_a_file_shows_how_far_it_is(
    terminal: Terminal, client: Client, bucket: str, tmp_path: Path
) -> None:
    data = bytes(9 * 1024 * 1024)
    client.stream(f"/{bucket}/s").create("application/octet-stream", data=data)
    with (tmp_path / "data").open("wb") as file:
        terminal.run("read", f"/{bucket}/s", stdout=file)
    assert "9.4 MB" in terminal.plain
    assert (tmp_path / "data").read_bytes() == data


def test_a_long_append_shows_how_much_has_arrived(
    terminal: Terminal, client: Client, bucket: str
) -> None:
    client.stream(f"/{bucket}/s").create("text/plain")
    process = terminal.start("append", f"/{bucket}/s", stdin=subprocess.PIPE)
    assert process.stdin is not None
    written = threading.Event()
    typist = threading.Thread(target=_type_until, args=(process.stdin, written))
    typist.start()
    terminal.until("appending")
    written.set()
    typist.join(DEADLINE_SECS)
    assert terminal.end(process) == 0, terminal.shown
    assert "messages" in terminal.plain


def _type_until(stdin: IO[bytes], written: threading.Event) -> None:
    while not written.wait(0.05):
        stdin.write(b"line\n")
        stdin.flush()
    stdin.close()


@pytest.mark.parametrize("live", ["auto", "sse", "long-poll"])
def test_ctrl_c_ends_a_tail_with_130_and_no_complaint(
    live: str, terminal: Terminal, client: Client, bucket: str
) -> None:
    client.stream(f"/{bucket}/s").create("text/plain", data="here\n")
    process = terminal.start("tail", f"/{bucket}/s", "-o", "-1", "--live", live)
    terminal.until("here")
    process.send_signal(signal.SIGINT)
    assert terminal.end(process) == 130
    assert terminal.plain.split() == ["here"]


def test_tail_says_that_the_stream_is_closed(
    terminal: Terminal, client: Client, bucket: str
) -> None:
    client.stream(f"/{bucket}/s").create("text/plain", data="here\n", closed=True)
    assert terminal.run("tail", f"/{bucket}/s", "-o", "-1").startswith("here")
    assert f"/{bucket}/s is closed" in terminal.plain


@pytest.mark.parametrize("live", ["auto", "sse", "long-poll"])
def test_tail_into_a_reader_that_leaves_ends_well(
    live: str, server: ServerProcess, client: Client, bucket: str
) -> None:
    stream = client.stream(f"/{bucket}/s")
    stream.create("text/plain", data="here\n")
    command = [sys.executable, "-m", "headrace.cli", "tail", f"/{bucket}/s", "-o", "-1"]
    with subprocess.Popen(
        [*command, "--live", live, "--url", server.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as tail:
        assert tail.stdout is not None
        assert tail.stderr is not None
        assert tail.stdout.readline() == b"here\n"
        tail.stdout.close()
        stream.append("more\n")
        eventually(lambda: tail.poll() is not None, "it notices with the next line")
        assert (tail.returncode, tail.stderr.read()) == (0, b"")
