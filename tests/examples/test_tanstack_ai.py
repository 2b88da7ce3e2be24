"""examples/tanstack-ai.mjs with TanStack's own chat client and upstream's transport, in Node."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.testing.server_process import ServerProcess

pytestmark = pytest.mark.slow


def test_a_chat_goes_on_in_other_pages(server: ServerProcess, node: Callable[..., str]) -> None:
    assert node("tanstack-ai.mjs", server.url) == "resumed\n"
