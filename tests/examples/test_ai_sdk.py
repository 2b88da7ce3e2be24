"""examples/ai-sdk-transport.mjs with the Vercel AI SDK itself, in Node and without a network."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.testing.server_process import ServerProcess

pytestmark = pytest.mark.slow


def test_a_chat_resumes_an_answer_in_another_page(
    server: ServerProcess, node: Callable[..., str]
) -> None:
    assert node("ai-sdk.mjs", server.url) == "resumed\n"
