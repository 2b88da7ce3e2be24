"""Reads at an offset plus one byte, as y-durable-streams sends them, where that is allowed."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from headrace.testing.server_process import ServerProcess
from tests.http.helpers import TEXT, client_of, problem_of

STREAM = "/v1/stream/plus-one"
TWO, END = "0000000000000002_0000000000000004", "0000000000000003_0000000000000005"


def plus(offset: str, count: int) -> str:
    messages, _, size = offset.partition("_")
    return f"{messages}_{int(size) + count:016d}"


@pytest.fixture(scope="module", params=["memory", "file-durable"])
def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    settings = {
        "DS_STORAGE__MODE": request.param,
        "DS_STORAGE__DATA_DIR": str(tmp_path_factory.mktemp("data") / "streams"),
        "DS_STREAMS__ACCEPT_OFFSET_PLUS_ONE": "true",
    }
    with ServerProcess(settings) as server, client_of(server) as client:
        client.put(STREAM, headers=TEXT)
        for text in (b"ab", b"cd", b"e"):
            assert client.post(STREAM, headers=TEXT, content=text).status_code == 204
        yield client


def test_it_starts_at_the_offset_itself(client: httpx.Client) -> None:
    answer = client.get(STREAM, params={"offset": plus(TWO, 1)})
    assert (answer.content, answer.headers["stream-next-offset"]) == (b"e", END)


def test_at_the_tail_there_is_nothing_yet(client: httpx.Client) -> None:
    answer = client.get(STREAM, params={"offset": plus(END, 1)})
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["stream-next-offset"] == END


@pytest.mark.parametrize("live", ["long-poll", "sse"])
def test_live_reads_start_there_as_well(client: httpx.Client, live: str) -> None:
    with client.stream("GET", STREAM, params={"offset": plus(TWO, 1), "live": live}) as answer:
        assert answer.status_code == 200
        assert b"e" in next(answer.iter_bytes())


@pytest.mark.parametrize(("offset", "count"), [(TWO, 2), (END, 2), (TWO, -1)])
def test_every_other_offset_in_between_is_refused(
    client: httpx.Client, offset: str, count: int
) -> None:
    answer = client.get(STREAM, params={"offset": plus(offset, count)})
    assert problem_of(answer) == "invalid-offset"
