"""Forks, beyond the official suite: seams, chains, memory, and how a source may be named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise

import httpx
import pytest

from headrace.testing.server_process import ServerProcess
from headrace.testing.server_queries import catch_up, metric
from headrace.testing.sse_reader import open_events
from tests.conftest import stop_cleanly

CHUNK_BYTES = 10
BYTES = {"Content-Type": "application/octet-stream"}
TEXT = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose answers are small, so that reads end at every kind of seam."""
    env = {"DS_LIMITS__READ_CHUNK_BYTES": str(CHUNK_BYTES)}
    process = ServerProcess(env, cwd=str(tmp_path_factory.mktemp("forks")))
    process.start()
    yield process
    stop_cleanly(process)


def fork(http: httpx.Client, path: str, source: str, **headers: str) -> httpx.Response:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return http.put(path, headers={"Stream-Forked-From": source} | fields)


def append(http: httpx.Client, path: str, *messages: bytes, headers: dict[str, str]) -> list[str]:
    offsets = []
    for message in messages:
        answer = http.post(path, content=message, headers=headers)
        assert answer.status_code == 204, answer.text
        offsets.append(answer.headers["Stream-Next-Offset"])
    return offsets


def content(http: httpx.Client, path: str, offset: str = "-1") -> bytes:
    return b"".join(answer.content for answer in catch_up(http, path, offset))


# -- seams -------------------------------------------------------------------------------------


def test_a_fork_of_a_fork_leaves_only_at_offsets_of_its_source(
    http: httpx.Client, stream: str
) -> None:
    http.put(stream, headers=BYTES)
    first, second = append(http, stream, b"aa", b"bb", headers=BYTES)
    assert fork(http, f"{stream}-fork", stream).status_code == 201
    append(http, f"{stream}-fork", b"cc", headers=BYTES)
    made_up = f"{second.partition('_')[0]}_{first.partition('_')[2]}"
    for source in (stream, f"{stream}-fork"):
        refused = fork(http, f"{stream}-never", source, Stream_Fork_Offset=made_up)
        assert (refused.status_code, made_up in refused.text) == (400, True)
        assert http.head(f"{stream}-never").status_code == 404


@pytest.mark.parametrize("sizes", [[3] * 8, [10] * 4, [25, 1, 25], [9, 2, 9, 2], [1] * 30])
def test_a_chain_of_forks_reads_without_a_seam(
    http: httpx.Client, stream: str, sizes: list[int]
) -> None:
    http.put(stream, headers=BYTES)
    expected, path = b"", stream
    for generation in range(4):
        for number, size in enumerate(sizes):
            piece = bytes([generation * 50 + number]) * size
            append(http, path, piece, headers=BYTES)
            expected += piece
        assert content(http, path) == expected
        child = f"{stream}/fork-{generation}"
        assert fork(http, child, path).status_code == 201
        path = child
    assert content(http, path) == expected


@pytest.mark.parametrize("cut", range(1, 13))
def test_a_fork_inside_a_message_reads_the_same_from_everywhere(
    http: httpx.Client, stream: str, cut: int
) -> None:
    http.put(stream, headers=BYTES)
    first, _ = append(http, stream, b"abcde", b"0123456789XY", headers=BYTES)
    child = f"{stream}/fork"
    created = fork(http, child, stream, Stream_Fork_Offset=first, Stream_Fork_Sub_Offset=str(cut))
    assert created.status_code == 201
    append(http, child, b"tail", headers=BYTES)
    inherited = b"0123456789XY"[:cut]
    assert content(http, child) == b"abcde" + inherited + b"tail"
    assert content(http, child, first) == inherited + b"tail"
    assert content(http, child, created.headers["Stream-Next-Offset"]) == b"tail"


@pytest.mark.parametrize("count", range(5))
def test_a_json_fork_inherits_whole_messages(http: httpx.Client, stream: str, count: int) -> None:
    start = http.put(stream, headers=JSON).headers["Stream-Next-Offset"]
    append(http, stream, b"[1,2,3,4]", headers=JSON)
    child = f"{stream}/fork"
    fork(http, child, stream, Stream_Fork_Offset=start, Stream_Fork_Sub_Offset=str(count))
    append(http, child, b'"own"', headers=JSON)
    read = [message for answer in catch_up(http, child) for message in answer.json()]
    assert read == [*range(1, count + 1), "own"]


def test_writes_to_source_and_fork_do_not_meet(http: httpx.Client, stream: str) -> None:
    http.put(stream, content=b"shared.", headers=TEXT)
    child = f"{stream}/fork"
    fork(http, child, stream)
    append(http, stream, b"source", headers=TEXT)
    append(http, child, b"fork", headers=TEXT)
    assert content(http, stream) == b"shared.source"
    assert content(http, child) == b"shared.fork"


def test_a_live_reader_crosses_the_seam(
    server: ServerProcess, http: httpx.Client, stream: str
) -> None:
    http.put(stream, headers=JSON)
    append(http, stream, b"[1,2,3,4,5,6,7,8]", headers=JSON)
    child = f"{stream}/fork"
    fork(http, child, stream)
    append(http, child, b"[9,10]", headers=JSON)
    http.post(child, headers={"Stream-Closed": "true"})
    with open_events(server.port, f"{child}?offset=-1&live=sse") as events:
        batches = events.rest()
    assert len(batches) > 2
    messages = [message for batch in batches for message in json.loads(batch.data or "[]")]
    assert messages == list(range(1, 11))


def test_an_offset_of_the_source_past_the_fork_is_none_of_the_fork(
    http: httpx.Client, stream: str
) -> None:
    http.put(stream, headers=BYTES)
    first, second = append(http, stream, b"one", b"two", headers=BYTES)
    child = f"{stream}/fork"
    fork(http, child, stream, Stream_Fork_Offset=first)
    append(http, child, b"other", headers=BYTES)
    assert http.get(child, params={"offset": second}).status_code == 400
    assert http.get(child, params={"offset": first}).content == b"other"


def test_a_fork_has_etags_of_its_own(http: httpx.Client, stream: str) -> None:
    http.put(stream, content=b"same", headers=BYTES)
    fork(http, f"{stream}/fork", stream)
    assert http.get(stream).headers["ETag"] != http.get(f"{stream}/fork").headers["ETag"]


def test_a_fork_knows_no_producer_of_its_source(http: httpx.Client, stream: str) -> None:
    producer = {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0"}
    http.put(stream, headers=TEXT)
    http.post(stream, content=b"a", headers=TEXT | producer)
    child = f"{stream}/fork"
    fork(http, child, stream)
    assert http.post(child, content=b"b", headers=TEXT | producer).status_code == 200
    assert content(http, child) == b"ab"


# -- naming the source -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "written", ["{path}", "http://elsewhere:1{path}", "https://x{path}?offset=-1", "{encoded}"]
)
def test_a_source_may_be_named_by_path_or_url(
    http: httpx.Client, stream: str, written: str
) -> None:
    http.put(stream, content=b"x", headers=BYTES)
    encoded = "/v1/stream/" + stream.removeprefix("/v1/stream/").replace("/", "%2F")
    source = written.format(path=stream, encoded=encoded)
    assert fork(http, f"{stream}/fork", source).status_code == 201
    assert content(http, f"{stream}/fork") == b"x"


@pytest.mark.parametrize(
    "source",
    [
        "",
        "name",
        "/other/elsewhere/x",
        "/v1/stream/",
        "/v1/stream/a/../b",
        "http://x/",
        "/v1/streamx",
    ],
)
def test_a_source_that_is_no_path_of_a_stream_is_400(
    http: httpx.Client, stream: str, source: str
) -> None:
    assert fork(http, stream, source).status_code == 400


@pytest.mark.parametrize("name", ["Stream-Fork-Offset", "Stream-Fork-Sub-Offset"])
def test_a_fork_point_without_a_source_is_400(http: httpx.Client, stream: str, name: str) -> None:
    assert http.put(stream, headers={name: "0"}).status_code == 400


def test_forking_again_without_an_offset_confirms_the_fork(http: httpx.Client, stream: str) -> None:
    http.put(stream, content=b"x", headers=BYTES)
    child = f"{stream}/fork"
    assert fork(http, child, stream).status_code == 201
    append(http, stream, b"more", headers=BYTES)
    assert fork(http, child, stream).status_code == 200
    assert content(http, child) == b"x"


# -- endings and memory ------------------------------------------------------------------------


def stored_by(http: httpx.Client) -> float:
    """Payload bytes held."""
    return metric(http, "headrace_stored_bytes")


@pytest.mark.parametrize(
    "order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
)
def test_a_family_gives_back_its_memory_in_whatever_order_it_is_deleted(
    http: httpx.Client, stream: str, order: tuple[int, ...]
) -> None:
    before = stored_by(http)
    family = [stream, f"{stream}/child", f"{stream}/grandchild"]
    http.put(family[0], content=b"a" * 100, headers=BYTES)
    for parent, child in pairwise(family):
        fork(http, child, parent)
        append(http, child, b"b" * 100, headers=BYTES)
    assert stored_by(http) == before + 300
    for member in order:
        assert http.delete(family[member]).status_code == 204
    assert stored_by(http) == before
    assert [http.get(path).status_code for path in family] == [404] * 3


def test_a_deleted_source_is_gone_but_its_forks_read_on(http: httpx.Client, stream: str) -> None:
    http.put(stream, content=b"inherited", headers=BYTES)
    child = f"{stream}/fork"
    fork(http, child, stream)
    http.delete(stream)
    assert http.get(stream).status_code == 410
    assert http.put(stream).status_code == 409
    assert fork(http, f"{stream}/late", stream).status_code == 409
    assert content(http, child) == b"inherited"
    http.delete(child)
    assert http.put(stream, headers=BYTES).status_code == 201
    assert content(http, stream) == b""
