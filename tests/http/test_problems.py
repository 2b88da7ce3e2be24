"""Every refusal a client can meet is a problem document; and what is refused did not happen."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import httpx
import pytest

from headrace.protocol.responses import PROBLEM_TYPE_PREFIX, PROBLEMS
from headrace.testing.raw_http import RawConnection, RawResponse, request_bytes
from headrace.testing.server_process import ServerProcess
from headrace.testing.server_queries import metric
from headrace.testing.waiting import DEADLINE_SECS
from tests.conftest import Serve, stop_cleanly

TEXT = "text/plain"
JSON = "application/json"
STREAM_BYTES = 1000
BODY_BYTES = 2000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with limits that a small request passes."""
    env = {
        "DS_LIMITS__MAX_STREAM_BYTES": str(STREAM_BYTES),
        "DS_LIMITS__MAX_BODY_BYTES": str(BODY_BYTES),
        "DS_LIMITS__MAX_PRODUCERS_PER_STREAM": "1",
        "DS_LIMITS__MAX_LIVE_READERS_PER_STREAM": "1",
    }
    process = ServerProcess(env, cwd=str(tmp_path_factory.mktemp("problems")))
    process.start()
    yield process
    stop_cleanly(process)


@pytest.fixture
def raw(server: ServerProcess) -> Iterator[RawConnection]:
    with RawConnection(server.port) as connection:
        yield connection


# -- one case for each problem -----------------------------------------------------------------


class Step(NamedTuple):
    """A request; `path` is below the test's own stream."""

    method: str
    path: str = ""
    body: bytes = b""
    headers: dict[str, str] = {}  # noqa: RUF012  # never changed


def step(method: str, path: str = "", body: bytes = b"", **headers: str) -> Step:
    return Step(method, path, body, headers)


def producer(id: str, epoch: int, seq: int) -> Step:
    fields = {"Producer_Id": id, "Producer_Epoch": str(epoch), "Producer_Seq": str(seq)}
    return step("POST", body=b"x", Content_Type=TEXT, **fields)


CREATE = step("PUT", Content_Type=TEXT)
APPEND = step("POST", body=b"x", Content_Type=TEXT)
FORK = step("PUT", "/fork", Stream_Forked_From="{stream}")
DELETED_WITH_FORK = (CREATE, FORK, step("DELETE"))

CASES: dict[str, tuple[Step, ...]] = {
    "invalid-request": (step("PUT", Stream_TTL="soon"),),
    "invalid-json": (step("PUT", Content_Type=JSON), step("POST", body=b"{", Content_Type=JSON)),
    "invalid-offset": (CREATE, step("GET", "?offset=7")),
    "invalid-name": (step("PUT", "/../x"),),
    "stream-not-found": (step("GET"),),
    "stream-deleted": (*DELETED_WITH_FORK, step("GET")),
    "name-taken": (*DELETED_WITH_FORK, CREATE),
    "source-deleted": (*DELETED_WITH_FORK, step("PUT", "/b", Stream_Forked_From="{stream}")),
    "stream-exists": (CREATE, step("PUT", Content_Type=JSON)),
    "stream-closed": (CREATE, step("POST", Stream_Closed="true"), APPEND),
    "content-type-mismatch": (CREATE, step("POST", body=b"1", Content_Type=JSON)),
    "sequence-regression": (
        CREATE,
        step("POST", body=b"x", Content_Type=TEXT, Stream_Seq="b"),
        step("POST", body=b"x", Content_Type=TEXT, Stream_Seq="a"),
    ),
    "producer-gap": (CREATE, producer("p", 0, 3)),
    "producer-fenced": (CREATE, producer("p", 2, 0), producer("p", 1, 0)),
    "too-many-producers": (CREATE, producer("p", 0, 0), producer("q", 0, 0)),
    "method-not-allowed": (CREATE, step("PATCH")),
    "stream-full": (CREATE, step("POST", body=b"x" * (STREAM_BYTES + 1), Content_Type=TEXT)),
    "body-too-large": (CREATE, step("POST", body=b"x" * (BODY_BYTES + 1), Content_Type=TEXT)),
    "url-too-long": (step("GET", "/" + "x" * 9000),),
    "headers-too-large": (step("GET", X="x" * 20_000),),
}
FACTS: dict[str, dict[str, Any]] = {
    "stream-not-found": {"stream": "{name}"},
    "stream-deleted": {"stream": "{name}"},
    "name-taken": {"stream": "{name}"},
    "source-deleted": {"stream": "{name}"},
    "stream-exists": {"stream": "{name}", "differs": "its content type is text/plain"},
    "stream-closed": {"stream": "{name}", "next_offset": "0000000000000000_0000000000000000"},
    "content-type-mismatch": {"expected": TEXT, "received": JSON},
    "sequence-regression": {"last_seq": "b", "received_seq": "a"},
    "producer-gap": {"expected_seq": 0, "received_seq": 3},
    "producer-fenced": {"current_epoch": 2, "received_epoch": 1},
    "too-many-producers": {"limit": 1},
    "method-not-allowed": {"allow": "GET, POST, PUT, DELETE, HEAD, OPTIONS"},
    "stream-full": {"stream": "{name}", "limit_bytes": STREAM_BYTES},
    "body-too-large": {"limit_bytes": BODY_BYTES},
    "url-too-long": {"limit_bytes": 8192},
}
# Tested below, in other files, or only by a defect of ours.
ELSEWHERE = {
    "not-found", "malformed-http", "request-timeout", "unsupported-transfer-coding", "overloaded",
    "rate-limited", "memory-full", "offset-trimmed", "draining", "internal-fault",
    "stored-bytes-damaged", "insufficient-storage", "directory-locked", "storage-read-only",
    "commit-delayed", "commit-failed", "directory-mismatch", "storage-failed",
    "stored-bytes-unreadable",
    "bucket-not-found", "bucket-exists", "bucket-not-empty",
    "offset-beyond-tail", "snapshot-not-found", "snapshot-in-use", "snapshot-mismatch",
    "snapshot-too-large", "misdirected-request", "cross-origin-request",
    "not-authenticated", "forbidden",
    "fork-too-deep", "stream-set-aside", "answer-timeout", "too-many-messages",
}  # fmt: skip
ROWS = {row.name: row for row in PROBLEMS.values()}


def test_every_problem_has_a_case_or_is_met_elsewhere() -> None:
    stream_problems = {name for name in ROWS if not name.startswith("subscription")}
    assert set(CASES) | ELSEWHERE >= stream_problems
    assert not set(CASES) & ELSEWHERE


def run(raw: RawConnection, stream: str, steps: tuple[Step, ...]) -> RawResponse:
    *before, last = steps
    for taken in before:
        assert send(raw, stream, taken).status < 300
    return send(raw, stream, last)


def send(raw: RawConnection, stream: str, taken: Step) -> RawResponse:
    headers = {name: value.format(stream=stream) for name, value in taken.headers.items()}
    return raw.request(taken.method, stream + taken.path, taken.body, **headers)


def check_document(answer: RawResponse, name: str) -> dict[str, Any]:
    """The shape every problem has; its facts."""
    row = ROWS[name]
    document: dict[str, Any] = answer.json()
    assert answer.status == row.status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["cache-control"] == "no-store"
    assert document.pop("type") == PROBLEM_TYPE_PREFIX + name
    assert document.pop("title") == row.title
    assert document.pop("status") == row.status
    detail = document.pop("detail")
    assert re.fullmatch(r"[A-Z].*\.", detail), detail
    return document


@pytest.mark.parametrize("name", CASES)
def test_a_refusal_is_a_problem_document_with_its_facts(
    raw: RawConnection, stream: str, name: str
) -> None:
    facts = check_document(run(raw, stream, CASES[name]), name)
    own = stream.removeprefix("/v1/stream/")
    expected = {
        fact: value.format(name=own) if isinstance(value, str) else value
        for fact, value in FACTS.get(name, {}).items()
    }
    assert {fact: facts[fact] for fact in expected} == expected
    assert name == "headers-too-large" or facts == expected


@pytest.mark.parametrize(
    ("name", "header", "value"),
    [
        ("stream-closed", "stream-closed", "true"),
        ("stream-closed", "stream-next-offset", "0000000000000000_0000000000000000"),
        ("producer-gap", "producer-expected-seq", "0"),
        ("producer-gap", "producer-received-seq", "3"),
        ("producer-fenced", "producer-epoch", "2"),
        ("method-not-allowed", "allow", "GET, POST, PUT, DELETE, HEAD, OPTIONS"),
    ],
)
def test_what_the_protocol_wants_in_a_header_stands_there_too(
    raw: RawConnection, stream: str, name: str, header: str, value: str
) -> None:
    assert run(raw, stream, CASES[name]).headers[header] == value


@pytest.mark.parametrize("name", ["stream-not-found", "stream-deleted", "invalid-name"])
def test_the_refusal_of_a_head_request_has_no_body(
    raw: RawConnection, stream: str, name: str
) -> None:
    *before, last = CASES[name]
    for taken in before:
        send(raw, stream, taken)
    answer = send(raw, stream, last._replace(method="HEAD"))
    # The next request is answered properly, so nothing followed the head.
    assert answer.status in (400, 404, 410)
    assert raw.request("GET", "/healthz").body == b"ok"


def test_a_path_that_is_not_served_is_not_found(raw: RawConnection) -> None:
    assert check_document(raw.request("GET", "/v1/nothing"), "not-found") == {"path": "/v1/nothing"}


def test_bytes_that_are_no_request_are_malformed(raw: RawConnection) -> None:
    raw.send(b"\x16\x03\x01\x02\x00\r\n\r\n")
    assert check_document(raw.response(), "malformed-http") == {}


def test_an_unknown_transfer_coding_is_named(raw: RawConnection, stream: str) -> None:
    raw.send(request_bytes("GET", stream, Transfer_Encoding="gzip, chunked"))
    facts = check_document(raw.response(), "unsupported-transfer-coding")
    assert "gzip" in facts["coding"]


def test_a_request_that_does_not_come_is_timed_out(serve: Serve) -> None:
    server = serve(DS_HTTP__HEADER_TIMEOUT_SECS="0.2")
    with RawConnection(server.port) as raw:
        raw.send(b"GET /")
        assert check_document(raw.response(), "request-timeout") == {"waited_secs": 0.2}


def test_one_live_reader_too_many_is_an_overload(
    server: ServerProcess, raw: RawConnection, http: httpx.Client, stream: str
) -> None:
    http.put(stream)
    with RawConnection(server.port) as reader:
        reader.send(request_bytes("GET", f"{stream}?offset=-1&live=sse"))
        reader.head()
        for mode in ("sse", "long-poll"):
            answer = raw.request("GET", f"{stream}?offset=-1&live={mode}")
            facts = check_document(answer, "overloaded")
            assert (facts["limit"], facts["retry_after_secs"]) == (1, 1)
            assert answer.headers["retry-after"] == "1"


def test_one_request_too_many_is_rate_limited(serve: Serve, stream: str) -> None:
    server = serve(DS_LIMITS__RATE_LIMIT_REQUESTS_PER_SEC="1", DS_LIMITS__RATE_LIMIT_BURST="3")
    with RawConnection(server.port) as raw:
        raw.send(request_bytes("GET", stream) * 10)
        answers = [raw.response() for _ in range(10)]
    assert answers[0].status == 404
    refused = next(answer for answer in answers if answer.status == 429)
    assert check_document(refused, "rate-limited") == {"retry_after_secs": 1}
    assert refused.headers["retry-after"] == "1"


# -- limits: what is refused changes nothing ---------------------------------------------------


def snapshot(http: httpx.Client, path: str) -> tuple[int, str, bytes, float]:
    read = http.get(path)
    offset = read.headers.get("Stream-Next-Offset", "")
    return read.status_code, offset, read.content, metric(http, "headrace_stored_bytes")


def test_an_append_past_the_stream_limit_changes_nothing(http: httpx.Client, stream: str) -> None:
    text = {"Content-Type": TEXT}
    once = {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0", "Stream-Seq": "a"}
    http.put(stream, content=b"x" * 600, headers=text)
    before = snapshot(http, stream)
    refused = http.post(stream, content=b"y" * 401, headers=text | once | {"Stream-Closed": "true"})
    assert refused.status_code == 413
    assert snapshot(http, stream) == before
    # Neither its producer sequence nor its Stream-Seq was used up, and the stream is open.
    assert http.post(stream, content=b"y" * 400, headers=text | once).status_code == 200


def test_a_create_past_the_stream_limit_leaves_no_stream(http: httpx.Client, stream: str) -> None:
    refused = http.put(stream, content=b"x" * 1001, headers={"Content-Type": TEXT})
    assert refused.status_code == 413
    assert http.get(stream).status_code == 404


def test_a_json_batch_past_the_stream_limit_is_refused_whole(
    http: httpx.Client, stream: str
) -> None:
    http.put(stream, headers={"Content-Type": JSON})
    assert http.post(stream, json=["x" * 100] * 11).status_code == 413
    assert http.get(stream).json() == []


def test_a_fork_counts_what_it_inherits(http: httpx.Client, stream: str) -> None:
    http.put(stream, content=b"x" * 600, headers={"Content-Type": TEXT})
    fork = f"{stream}/fork"
    http.put(fork, headers={"Stream-Forked-From": stream})
    refused = http.post(fork, content=b"y" * 401, headers={"Content-Type": TEXT})
    assert refused.status_code == 413


MEMORY_BYTES = 1_000_000


@pytest.fixture(scope="module")
def small_memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a server that holds a megabyte."""
    env = {"DS_LIMITS__MAX_MEMORY_BYTES": str(MEMORY_BYTES)}
    process = ServerProcess(env, cwd=str(tmp_path_factory.mktemp("memory")))
    process.start()
    with httpx.Client(base_url=process.url, timeout=DEADLINE_SECS) as client:
        yield client
    stop_cleanly(process)


@pytest.mark.parametrize("kind", ["append", "create"])
def test_a_full_memory_refuses_and_changes_nothing_until_a_delete_makes_room(
    small_memory: httpx.Client, stream: str, kind: str
) -> None:
    http, headers = small_memory, {"Content-Type": TEXT}
    large, small, victim = b"x" * 900_000, f"{stream}/small", f"{stream}/victim"
    assert http.put(victim, content=large, headers=headers).status_code == 201
    http.put(small, content=b"small", headers=headers)
    write: Callable[[], httpx.Response] = {
        "append": lambda: http.post(small, content=large, headers=headers),
        "create": lambda: http.put(f"{stream}/new", content=large, headers=headers),
    }[kind]
    before = snapshot(http, small)
    refused = write()
    answer = RawResponse(refused.status_code, dict(refused.headers), refused.content)
    assert check_document(answer, "memory-full") == {"limit_bytes": MEMORY_BYTES}
    assert snapshot(http, small) == before
    assert http.get(f"{stream}/new").status_code == 404
    assert http.get(victim).content == large
    http.delete(victim)
    assert write().is_success
    for path in (small, f"{stream}/new"):
        http.delete(path)
