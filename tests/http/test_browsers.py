"""What browsers are told: CORS for no, any and listed origins, preflight, security headers.

Which pages may write is in tests/hostile/test_strangers.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.testing.raw_http import RawConnection, RawResponse, request_bytes
from headrace.testing.server_process import ServerProcess
from tests.conftest import stop_cleanly

TEXT = "text/plain"
LISTED = ("https://app.example", "http://localhost:3000")
OTHER = "https://evil.example"
# Everything the protocol says in response headers that a browser does not expose by itself.
EXPOSED = {
    "stream-next-offset",
    "stream-cursor",
    "stream-up-to-date",
    "stream-closed",
    "stream-ttl",
    "stream-expires-at",
    "stream-sse-data-encoding",
    "producer-epoch",
    "producer-seq",
    "producer-expected-seq",
    "producer-received-seq",
    "etag",
    "location",
    "retry-after",
}
SENT_BY_CLIENTS = {
    "content-type",
    "authorization",
    "if-none-match",
    "stream-seq",
    "stream-ttl",
    "stream-expires-at",
    "stream-closed",
    "stream-forked-from",
    "stream-fork-offset",
    "stream-fork-sub-offset",
    "producer-id",
    "producer-epoch",
    "producer-seq",
}


@pytest.fixture(scope="module")
def choosy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that lists the origins it answers."""
    env = {"DS_HTTP__CORS_ORIGINS": ",".join(LISTED), "DS_LIMITS__MAX_BODY_BYTES": "10000"}
    process = ServerProcess(env, cwd=str(tmp_path_factory.mktemp("choosy")))
    process.start()
    yield process
    stop_cleanly(process)


@pytest.fixture(scope="module")
def generous(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that answers every origin."""
    env = {"DS_HTTP__CORS_ORIGINS": "*"}
    process = ServerProcess(env, cwd=str(tmp_path_factory.mktemp("generous")))
    process.start()
    yield process
    stop_cleanly(process)


def tokens(response: RawResponse, name: str) -> set[str]:
    return {token.strip().lower() for token in response.headers[name].split(",")}


def every_kind_of_answer(server: ServerProcess, path: str, origin: str) -> list[RawResponse]:
    """Created, appended, read, not modified, missing, refused, not allowed, live."""
    with RawConnection(server.port) as connection:
        answers = [
            connection.request("PUT", path, Content_Type=TEXT, Origin=origin),
            connection.request("POST", path, b"a", Content_Type=TEXT, Origin=origin),
            connection.request("GET", path, Origin=origin),
            connection.request("HEAD", path, Origin=origin),
            connection.request("GET", f"{path}-missing", Origin=origin),
            connection.request("GET", f"{path}?offset=bad", Origin=origin),
            connection.request("PATCH", path, Origin=origin),
            connection.request("GET", "/healthz", Origin=origin),
        ]
        etag = answers[2].headers["etag"]
        answers.append(connection.request("GET", path, If_None_Match=etag, Origin=origin))
        connection.send(request_bytes("GET", f"{path}?offset=-1&live=sse", Origin=origin))
        answers.append(connection.head())
    statuses = [answer.status for answer in answers]
    assert statuses == [201, 204, 200, 200, 404, 400, 405, 200, 304, 200]
    return answers


def every_kind_of_read(server: ServerProcess, path: str, origin: str) -> list[RawResponse]:
    with RawConnection(server.port) as connection:
        connection.request("PUT", path, b"a", Content_Type=TEXT)
        return [
            connection.request("GET", path, Origin=origin),
            connection.request("HEAD", path, Origin=origin),
            connection.request("GET", f"{path}-missing", Origin=origin),
            connection.request("GET", f"{path}?offset=bad", Origin=origin),
            connection.request("GET", "/healthz", Origin=origin),
            connection.request("PUT", path, Origin=origin),
        ]


def test_any_origin_may_read_every_answer_where_all_may(
    generous: ServerProcess, stream: str
) -> None:
    for answer in every_kind_of_answer(generous, stream, OTHER):
        assert answer.headers["access-control-allow-origin"] == "*"
        assert tokens(answer, "access-control-expose-headers") >= EXPOSED


@pytest.mark.parametrize("origin", LISTED)
def test_a_listed_origin_may_read_every_answer(
    choosy: ServerProcess, stream: str, origin: str
) -> None:
    for answer in every_kind_of_answer(choosy, f"{stream}-{LISTED.index(origin)}", origin):
        assert answer.headers["access-control-allow-origin"] == origin
        assert tokens(answer, "access-control-expose-headers") >= EXPOSED
        assert "origin" in tokens(answer, "vary")


@pytest.mark.parametrize(
    "origin", [OTHER, "null", "https://app.example.evil.example", "http://app.example", "*"]
)
def test_another_origin_may_not(choosy: ServerProcess, stream: str, origin: str) -> None:
    path = f"{stream}-{abs(hash(origin))}"
    for answer in every_kind_of_read(choosy, path, origin):
        assert "access-control-allow-origin" not in answer.headers
        assert "origin" in tokens(answer, "vary"), "or a cache would give it to a listed one"


def test_no_other_origin_may_unless_told(server: ServerProcess, stream: str) -> None:
    for answer in every_kind_of_read(server, stream, OTHER):
        assert "access-control-allow-origin" not in answer.headers
        assert "access-control-expose-headers" not in answer.headers
        assert "origin" not in answer.headers.get("vary", "").lower(), "all get the same"


REFUSED = {
    "413": request_bytes("POST", "/v1/stream/x", b"x" * 10_001, Origin=LISTED[0]),
    "414": request_bytes("GET", f"/{'x' * 10_000}", Origin=LISTED[0]),
    "431": request_bytes("GET", "/healthz", Origin=LISTED[0], X="x" * 20_000),
    "501": request_bytes("GET", "/healthz", Origin=LISTED[0], Transfer_Encoding="gzip"),
}


@pytest.mark.parametrize("status", ["413", "501"])
def test_a_listed_origin_may_read_why_its_request_was_refused(
    choosy: ServerProcess, status: str
) -> None:
    """Without the header a browser tells its page of a network error, and no more."""
    with RawConnection(choosy.port) as connection:
        connection.send(REFUSED[status])
        answer = connection.response()
    assert answer.status == int(status)
    assert answer.headers["access-control-allow-origin"] == LISTED[0]


@pytest.mark.parametrize("status", REFUSED)
def test_any_origin_may_read_why_its_request_was_refused(
    generous: ServerProcess, status: str
) -> None:
    sent = REFUSED[status].replace(b"Content-Length: 10001", b"Content-Length: 99999999")
    with RawConnection(generous.port) as connection:
        connection.send(sent)
        answer = connection.response()
    assert answer.status == int(status)
    assert answer.headers["access-control-allow-origin"] == "*"


@pytest.mark.parametrize("method", ["GET", "PUT", "POST", "DELETE", "HEAD"])
def test_a_preflight_allows_every_method_and_header_of_the_protocol(
    generous: ServerProcess, stream: str, method: str
) -> None:
    with RawConnection(generous.port) as connection:
        answer = connection.request(
            "OPTIONS",
            stream,
            Origin=OTHER,
            Access_Control_Request_Method=method,
            Access_Control_Request_Headers=", ".join(sorted(SENT_BY_CLIENTS)),
        )
    assert answer.status == 204
    assert answer.headers["access-control-allow-origin"] == "*"
    assert method.lower() in tokens(answer, "access-control-allow-methods")
    assert tokens(answer, "access-control-allow-headers") >= SENT_BY_CLIENTS
    assert int(answer.headers["access-control-max-age"]) > 0


@pytest.mark.parametrize(("origin", "allowed"), [(LISTED[0], LISTED[0]), (OTHER, None)])
def test_a_preflight_follows_the_list(
    choosy: ServerProcess, stream: str, origin: str, allowed: str | None
) -> None:
    with RawConnection(choosy.port) as connection:
        answer = connection.request(
            "OPTIONS", stream, Origin=origin, Access_Control_Request_Method="POST"
        )
    assert answer.status == 204
    assert answer.headers.get("access-control-allow-origin") == allowed
    assert "origin" in tokens(answer, "vary")


def test_no_answer_is_sniffed_and_pages_embed_what_they_may_read(
    server: ServerProcess, choosy: ServerProcess, generous: ServerProcess, stream: str
) -> None:
    for asked, origin, policy in (
        (generous, OTHER, "cross-origin"),
        (choosy, LISTED[0], "same-origin"),
        (server, "http://localhost", "same-origin"),
    ):
        for answer in every_kind_of_answer(asked, f"{stream}-embedded", origin):
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cross-origin-resource-policy"] == policy


def test_no_answer_lets_a_browser_send_credentials(choosy: ServerProcess, stream: str) -> None:
    for answer in every_kind_of_answer(choosy, f"{stream}-credentials", LISTED[0]):
        assert "access-control-allow-credentials" not in answer.headers


def test_a_stream_that_is_opened_as_a_page_is_in_a_sandbox(
    server: ServerProcess, stream: str
) -> None:
    with RawConnection(server.port) as client:
        client.request("PUT", stream, b"<script>run()</script>", **{"Content-Type": "text/html"})
        for query in ("", "?offset=-1&live=long-poll", "?format=framed"):
            policy = client.request("GET", stream + query).headers["content-security-policy"]
            assert policy == "sandbox; default-src 'none'"
