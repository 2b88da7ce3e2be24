"""Bounded and framed reads: a client says where an answer ends, and learns every offset in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from headrace.protocol import framed
from headrace.testing.server_process import ServerProcess
from tests.conftest import stop_cleanly
from tests.http.helpers import JSON, client_of, problem_of

BYTES = "application/octet-stream"
TEXT = "text/plain"
APPLICATION_JSON = "application/json"
MESSAGES: dict[str, list[bytes]] = {
    BYTES: [bytes((n + i) % 256 for i in range(n % 9 + 1)) for n in range(40)],
    TEXT: ["né€😀\r\n"[: n % 6 + 1].encode() for n in range(40)],
    APPLICATION_JSON: [b'{"n": %d,"x":[1,  2]}' % n for n in range(40)],
}
MODES = ["memory", "file-durable", "acid"]


@pytest.fixture(scope="module", params=MODES)
def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    """A server of each storage design, whose answers are small."""
    home = tmp_path_factory.mktemp("bounded")
    env = {
        "DS_LIMITS__READ_CHUNK_BYTES": "300",
        "DS_STORAGE__MODE": request.param,
        "DS_STORAGE__DATA_DIR": str(home / "data"),
    }
    process = ServerProcess(env, cwd=str(home))
    process.start()
    with client_of(process) as client:
        yield client
    stop_cleanly(process)


def fill(client: httpx.Client, path: str, content_type: str) -> list[str]:
    """The stream's messages, each appended by itself; every offset, the first one too."""
    headers = {"Content-Type": content_type}
    offsets = [client.put(path, headers=headers).headers["Stream-Next-Offset"]]
    for message in MESSAGES[content_type]:
        offsets.append(
            client.post(path, content=message, headers=headers).headers["Stream-Next-Offset"]
        )
    return offsets


def body_of(content_type: str, messages: list[bytes]) -> bytes:
    return (
        b"[" + b",".join(messages) + b"]"
        if content_type == APPLICATION_JSON
        else b"".join(messages)
    )


def unframe(answer: httpx.Response) -> tuple[list[bytes], list[str]]:
    """The messages of a framed answer, and the offset after each: by the layout in the docs."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"] == "application/vnd.headrace.messages"
    frame = framed.decode(answer.content)
    messages, offsets = [], []
    position, (count_before, bytes_before) = 0, frame.start
    for stride in frame.strides.cast("I"):
        messages.append(bytes(frame.data[position : position + stride - frame.separator_bytes]))
        position += stride
        offsets.append(f"{count_before + len(messages):016d}_{bytes_before + position:016d}")
    assert position == len(frame.data)
    return messages, offsets


@pytest.mark.parametrize("content_type", MESSAGES)
def test_until_ends_a_read_exactly_there(
    client: httpx.Client, stream: str, content_type: str
) -> None:
    offsets = fill(client, stream, content_type)
    messages = MESSAGES[content_type]
    for start, end in [(0, 1), (3, 3), (5, 9), (38, 40), (40, 40)]:
        answer = client.get(stream, params={"offset": offsets[start], "until": offsets[end]})
        assert answer.content == body_of(content_type, messages[start:end])
        assert answer.headers["Stream-Next-Offset"] == offsets[end]
        assert ("Stream-Up-To-Date" in answer.headers) == (end == 40)


@pytest.mark.parametrize("content_type", MESSAGES)
def test_a_range_longer_than_a_chunk_is_read_in_steps_that_end_at_until(
    client: httpx.Client, stream: str, content_type: str
) -> None:
    offsets = fill(client, stream, content_type)
    found: list[bytes] = []
    offset, until = "-1", offsets[35]
    while offset != until:
        answer = client.get(
            stream, params={"offset": offset, "until": until, "format": "framed", "max_bytes": "90"}
        )
        found += unframe(answer)[0]
        offset = answer.headers["Stream-Next-Offset"]
    assert found == MESSAGES[content_type][:35]


@pytest.mark.parametrize("content_type", MESSAGES)
def test_a_framed_answer_gives_each_message_and_its_offset(
    client: httpx.Client, stream: str, content_type: str
) -> None:
    offsets = fill(client, stream, content_type)
    params = {"offset": offsets[2], "format": "framed", "max_messages": "7"}
    answer = client.get(stream, params=params)
    assert unframe(answer) == (MESSAGES[content_type][2:9], offsets[3:10])
    assert answer.headers["Stream-Content-Type"] == content_type
    assert answer.headers["Stream-Next-Offset"] == offsets[9]


@pytest.mark.parametrize("count", [1, 3, 39, 40, 41])
def test_a_bound_by_messages_is_exact(client: httpx.Client, stream: str, count: int) -> None:
    offsets = fill(client, stream, BYTES)
    answer = client.get(stream, params={"offset": "-1", "max_messages": str(count)})
    assert answer.headers["Stream-Next-Offset"] == offsets[min(count, 40)]
    assert answer.content == b"".join(MESSAGES[BYTES][:count])


def test_a_bound_by_bytes_keeps_messages_whole_and_gives_at_least_one(
    client: httpx.Client, stream: str
) -> None:
    offsets = fill(client, stream, BYTES)
    sizes = [len(message) for message in MESSAGES[BYTES]]
    for bytes_max in (1, sum(sizes[:4]), sum(sizes[:4]) - 1):
        answer = client.get(stream, params={"max_bytes": str(bytes_max)})
        count = offsets.index(answer.headers["Stream-Next-Offset"])
        assert count == max(1, sum(sum(sizes[: n + 1]) <= bytes_max for n in range(40)))


def test_an_empty_range_is_an_empty_frame(client: httpx.Client, stream: str) -> None:
    client.put(stream, headers=JSON)
    assert unframe(client.get(stream, params={"format": "framed"})) == ([], [])
    assert unframe(client.get(stream, params={"offset": "now", "format": "framed"})) == ([], [])


def test_a_bounded_read_does_not_see_what_is_appended_later(
    client: httpx.Client, stream: str
) -> None:
    offsets = fill(client, stream, TEXT)
    client.post(stream, content=b"later", headers={"Content-Type": TEXT})
    answer = client.get(stream, params={"offset": offsets[39], "until": offsets[40]})
    assert answer.content == MESSAGES[TEXT][39]
    assert "Stream-Up-To-Date" not in answer.headers
    assert "max-age" in answer.headers["Cache-Control"]


@pytest.mark.parametrize(
    "params",
    [
        {"until": "x"},
        {"until": "-1"},
        {"until": "now"},
        {"until": ""},
        {"until": "9999999999999999_9999999999999999"},
        {"max_messages": "0"},
        {"max_messages": "-1"},
        {"max_messages": "1.5"},
        {"max_messages": "٣"},
        {"max_bytes": "99999999999999999999"},
        {"max_bytes": ""},
        {"format": "json"},
        {"format": ""},
        {"until": ["0000000000000000_0000000000000000"] * 2},
        {"live": "sse", "max_messages": "1"},
        {"live": "long-poll", "format": "framed"},
    ],
)
def test_a_bound_that_is_none_is_refused_with_a_sentence(
    client: httpx.Client, stream: str, params: dict[str, str]
) -> None:
    client.put(stream)
    answer = client.get(stream, params={"offset": "-1", **params})
    assert answer.status_code == 400
    assert problem_of(answer) in ("invalid-request", "invalid-offset")
    assert answer.json()["detail"].endswith(".")


def test_until_must_be_an_offset_of_the_stream_at_or_after_the_start(
    client: httpx.Client, stream: str
) -> None:
    offsets = fill(client, stream, BYTES)
    inside = "0000000000000005_" + offsets[5][17:-1] + str((int(offsets[5][-1]) + 1) % 10)
    fewer = "0000000000000004_" + offsets[5][17:]
    for until in (offsets[2], inside, fewer):
        answer = client.get(stream, params={"offset": offsets[3], "until": until})
        assert (answer.status_code, problem_of(answer)) == (400, "invalid-offset")


def test_a_fork_is_read_across_its_branch_within_bounds(client: httpx.Client, stream: str) -> None:
    offsets = fill(client, stream, BYTES)
    fork = f"{stream}-fork"
    client.put(
        fork,
        headers={
            "Stream-Forked-From": stream,
            "Stream-Fork-Offset": offsets[8],
            "Stream-Fork-Sub-Offset": "3",
        },
    )
    tail = client.post(fork, content=b"own", headers={"Content-Type": BYTES})
    last = tail.headers["Stream-Next-Offset"]
    params = {"offset": offsets[6], "until": last, "format": "framed"}
    messages, found = unframe(client.get(fork, params=params))
    assert messages == [*MESSAGES[BYTES][6:8], MESSAGES[BYTES][8][:3], b"own"]
    assert found[-1] == last


def test_json_keeps_the_text_it_was_sent_with(client: httpx.Client, stream: str) -> None:
    texts = [b'{"a" :  1e2}', b"[ ]", b'"\\u00e9"', b"null", b'{"b":","}']
    client.put(stream, headers=JSON)
    client.post(stream, content=b"[" + b" , ".join(texts) + b"]", headers=JSON)
    assert unframe(client.get(stream, params={"format": "framed"}))[0] == texts
    assert json.loads(texts[0]) == {"a": 100}


def test_a_framed_answer_can_be_confirmed_by_its_etag(client: httpx.Client, stream: str) -> None:
    offsets = fill(client, stream, BYTES)
    params = {"offset": "-1", "until": offsets[3], "format": "framed"}
    first = client.get(stream, params=params)
    again = client.get(stream, params=params, headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_cold_history_is_framed_like_hot(tmp_path: Path, stream: str) -> None:
    env = {"DS_STORAGE__MODE": "file-durable", "DS_STORAGE__DATA_DIR": str(tmp_path)}
    with ServerProcess(env) as server, client_of(server) as client:
        offsets = fill(client, stream, TEXT)
        server.stop()
        server.url = ""
        server.start()
        with client_of(server) as again:
            params = {"offset": offsets[1], "until": offsets[33], "format": "framed"}
            expected = (MESSAGES[TEXT][1:33], offsets[2:34])
            assert unframe(again.get(stream, params=params)) == expected
