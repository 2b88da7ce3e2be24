"""The sync half of the client is what its async half makes of it."""

from __future__ import annotations

import pytest

from tools import generate_sync_client


def test_the_sync_client_is_what_the_generator_writes() -> None:
    outdated = generate_sync_client.outdated()
    assert not outdated, f"{outdated}: run python -m tools.generate_sync_client"


@pytest.mark.parametrize("name", generate_sync_client.MODULES)
def test_nothing_async_is_left_in_a_sync_module(name: str) -> None:
    text = (generate_sync_client.CLIENT / f"sync_{name}.py").read_text("utf-8")
    code = text.replace(f"`client.async_{name}`", "")
    for word in ("async", "await", "Async", "aclose", "__aenter__", "any task"):
        assert word not in code, word
