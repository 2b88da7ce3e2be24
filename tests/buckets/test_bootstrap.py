"""Bootstrap: the latest snapshot and every message after it, one per part, as of one moment."""

from __future__ import annotations

import threading

import httpx
import pytest

from tests.buckets import multipart
from tests.buckets.api import CLOSE, JSON, OCTETS, TEXT
from tests.buckets.test_snapshots import filled, publish
from tests.http.helpers import problem_of


def test_a_stream_without_a_snapshot(api: httpx.Client, bucket: str) -> None:
    path = f"{bucket}/doc"
    offsets = filled(api, path, b"one", b"two")
    found = multipart.read(api.get(f"{path}/bootstrap"))
    assert found.snapshot_offset == "-1"
    assert found.snapshot == multipart.Part("application/octet-stream", b"")
    assert found.messages == [b"one", b"two"]
    assert found.next_offset == offsets[2]
    assert not found.closed
    api.put(f"{bucket}/empty", headers=TEXT)
    empty = multipart.read(api.get(f"{bucket}/empty/bootstrap"))
    assert (empty.snapshot.body, empty.messages) == (b"", [])


def test_a_snapshot_and_what_follows_it(api: httpx.Client, bucket: str) -> None:
    path = f"{bucket}/doc"
    offsets = filled(api, path, b"one", b"two", b"three")
    publish(api, path, offsets[1], b"folded", Content_Type="text/x-state")
    answer = api.get(f"{path}/bootstrap")
    parts = multipart.parse(answer.headers["content-type"], answer.content)
    assert parts == [
        ("text/x-state", b"folded"),
        ("application/octet-stream", b"two"),
        ("application/octet-stream", b"three"),
    ]
    found = multipart.read(answer)
    assert (found.snapshot_offset, found.next_offset) == (offsets[1], offsets[3])
    api.post(path, headers=CLOSE)
    assert multipart.read(api.get(f"{path}/bootstrap")).closed
    assert api.head(f"{path}/bootstrap").headers["stream-snapshot-offset"] == offsets[1]


def test_json_messages_keep_their_text(api: httpx.Client, bucket: str) -> None:
    path = f"{bucket}/doc"
    api.put(path, headers=JSON)
    api.post(path, headers=JSON, content=b'[{"a" : 1}, [2,3], "x,y"]')
    api.post(path, headers=JSON, content=b" 1.50 ")
    answer = api.get(f"{path}/bootstrap")
    _, *updates = multipart.parse(answer.headers["content-type"], answer.content)
    assert updates == [
        ("application/json", b'{"a" : 1}'),
        ("application/json", b"[2,3]"),
        ("application/json", b'"x,y"'),
        ("application/json", b"1.50"),
    ]


def test_the_content_type_of_a_part_is_the_streams_own(api: httpx.Client, bucket: str) -> None:
    kind = 'text/plain; charset=utf-8; note="a"'
    api.put(f"{bucket}/doc", headers={"Content-Type": kind}, content=b"x")
    answer = api.get(f"{bucket}/doc/bootstrap")
    assert multipart.parse(answer.headers["content-type"], answer.content)[1] == (kind, b"x")


def test_payloads_that_look_like_multipart(api: httpx.Client, bucket: str) -> None:
    path = f"{bucket}/doc"
    payloads = [
        b"\r\n",
        b"--",
        b"\r\n--\r\n",
        b"--headrace-",
        b"\r\n\r\n--x--\r\n",
        b"a\r\n",
        b"\n",
    ]
    offsets = filled(api, path, *payloads)
    seen = set()
    for _ in range(3):
        answer = api.get(f"{path}/bootstrap")
        boundary = answer.headers["content-type"].partition("boundary=")[2].encode()
        seen.add(boundary)
        assert multipart.read(answer).messages == payloads
        for trick in (boundary, b"\r\n--" + boundary + b"\r\n", b"\r\n--" + boundary + b"--\r\n"):
            payloads.append(trick)
            tail = api.post(path, headers=OCTETS, content=trick)
            offsets.append(tail.headers["stream-next-offset"])
    assert len(seen) == 3, "a boundary is not used twice"
    blob = b"".join(payloads)
    publish(api, path, offsets[4], blob)
    found = multipart.read(api.get(f"{path}/bootstrap"))
    assert (found.snapshot.body, found.messages) == (blob, payloads[4:])


@pytest.mark.parametrize("query", ["live=sse", "live=long-poll", "live=", "offset=-1&live=sse"])
def test_bootstrap_is_never_live(api: httpx.Client, bucket: str, query: str) -> None:
    filled(api, f"{bucket}/doc", b"one")
    refused = api.get(f"{bucket}/doc/bootstrap?{query}")
    assert (refused.status_code, problem_of(refused)) == (400, "invalid-request")


def test_a_long_history_comes_whole(api: httpx.Client, bucket: str) -> None:
    """Past one piece, past one segment, past the part of a stream that is in memory."""
    path = f"{bucket}/doc"
    api.put(path, headers=JSON)
    sent = [f'{{"n":{n},"pad":"{"x" * (n % 300)}"}}'.encode() for n in range(6_000)]
    offsets = []
    for at in range(0, len(sent), 100):
        answer = api.post(path, headers=JSON, content=b"[" + b",".join(sent[at : at + 100]) + b"]")
        offsets.append(answer.headers["stream-next-offset"])
    assert multipart.read(api.get(f"{path}/bootstrap")).messages == sent
    publish(api, path, offsets[4], b"y" * 700_000)
    found = multipart.read(api.get(f"{path}/bootstrap"))
    assert found.snapshot.body == b"y" * 700_000
    assert found.messages == sent[500:]
    tail = api.get(path, params={"offset": found.next_offset})
    assert tail.json() == []


def test_one_message_larger_than_a_piece(api: httpx.Client, bucket: str) -> None:
    path = f"{bucket}/doc"
    big = b"z" * 1_500_000
    filled(api, path, b"one", big, b"two")
    assert multipart.read(api.get(f"{path}/bootstrap")).messages == [b"one", big, b"two"]


def test_a_view_is_of_one_moment(api: httpx.Client, bucket: str) -> None:
    """While others append and publish, each answer ends exactly where it says it does."""
    path = f"{bucket}/doc"
    filled(api, path, *[b"%d" % n for n in range(50)])
    done = threading.Event()

    def write() -> None:
        with httpx.Client(base_url=api.base_url, timeout=30) as writer:
            number = 50
            while not done.is_set() and number < 2_000:
                answer = writer.post(path, headers=OCTETS, content=b"%d" % number)
                number += 1
                if number % 10 == 0:
                    offset = answer.headers["stream-next-offset"]
                    assert publish(writer, path, offset, b"%d" % number).status_code == 204

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(20):
            found = multipart.read(api.get(f"{path}/bootstrap"))
            first = int(found.snapshot.body or b"0")
            numbers = [int(message) for message in found.messages]
            assert numbers == list(range(first, first + len(numbers)))
            assert int(found.next_offset[:16]) == first + len(numbers)
    finally:
        done.set()
        thread.join()
