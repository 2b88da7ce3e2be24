"""The examples run as their first lines say, against real servers, a real browser and Node."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from headrace.testing.waiting import DEADLINE_SECS
from tests.tree.markdown import ROOT
from tests.ui.conftest import browser

__all__ = ["browser"]

EXAMPLES = ROOT / "examples"


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def pages() -> Iterator[str]:
    """The URL under which a plain file server offers examples/."""
    handler = partial(_Quiet, directory=str(EXAMPLES))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture
def node() -> Callable[..., str]:
    """Run a program of tests/examples with Node; what it prints."""
    program = shutil.which("node")
    assert program, "the examples in JavaScript need Node"
    assert (EXAMPLES / "node_modules/yjs").is_dir(), "make test installs the packages of examples/"

    def run(name: str, *arguments: str) -> str:
        finished = subprocess.run(
            [program, name, *arguments],
            cwd=ROOT / "tests/examples",
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECS,
            check=False,
        )
        assert finished.returncode == 0, finished.stdout + finished.stderr
        return finished.stdout

    return run
