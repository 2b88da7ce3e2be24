"""examples/collaborative-document.mjs: clients of one Yjs document agree."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from headrace.testing.server_process import ServerProcess

pytestmark = pytest.mark.slow


def test_clients_agree_after_concurrent_edits_an_absence_and_a_snapshot(
    server: ServerProcess, http: httpx.Client, node: Callable[..., str]
) -> None:
    http.put("/documents")
    http.put("/documents/notes", headers={"Content-Type": "application/json"})
    printed = node("collaborative-document.mjs", f"{server.url}/documents/notes")
    assert printed == "agreed\n"
