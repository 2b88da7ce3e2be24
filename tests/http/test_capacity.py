"""Over a limit of the whole server the answer is prompt, and others are served on."""

from __future__ import annotations

from contextlib import ExitStack

import httpx
import pytest

from headrace.testing.raw import RawConnection, RawResponse, request_bytes
from headrace.testing.waiting import eventually
from tests.conftest import Serve
from tests.http.helpers import CLOSE, JSON, TEXT, client_of, problem_of

CONNECTIONS_MAX = 5


def test_one_connection_too_many_gets_503_at_once_and_the_others_work(serve: Serve) -> None:
    server = serve(DS_LIMITS__MAX_CONNECTIONS=str(CONNECTIONS_MAX))
    with ExitStack() as stack:
        held = [stack.enter_context(RawConnection(server.port)) for _ in range(CONNECTIONS_MAX)]
        assert [c.request("GET", "/healthz").status for c in held] == [200] * CONNECTIONS_MAX
        with RawConnection(server.port) as refused:
            answer = refused.response()  # without a request
            assert answer.status == 503
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.json()["limit"] == CONNECTIONS_MAX
            assert refused.is_at_end()
        assert [c.request("GET", "/healthz").status for c in held] == [200] * CONNECTIONS_MAX


def test_a_flood_of_connections_is_refused_whole_and_leaves_nothing_behind(serve: Serve) -> None:
    server = serve(DS_LIMITS__MAX_CONNECTIONS=str(CONNECTIONS_MAX))
    with ExitStack() as stack:
        held = [stack.enter_context(RawConnection(server.port)) for _ in range(CONNECTIONS_MAX)]
        assert [c.request("GET", "/healthz").status for c in held] == [200] * CONNECTIONS_MAX
        flood = [stack.enter_context(RawConnection(server.port)) for _ in range(300)]
        assert [connection.head().status for connection in flood] == [503] * 300
        assert held[0].request("GET", "/healthz").status == 200

    def is_served() -> bool:
        with RawConnection(server.port) as connection:
            connection.send(request_bytes("GET", "/healthz"))
            return connection.head().status == 200

    eventually(is_served, "room again, once everybody has left")


def test_the_rate_of_one_address_is_limited(serve: Serve) -> None:
    server = serve(DS_LIMITS__RATE_LIMIT_REQUESTS_PER_SEC="1", DS_LIMITS__RATE_LIMIT_BURST="3")
    with RawConnection(server.port) as connection:
        answers = [connection.request("GET", "/v1/stream/x") for _ in range(20)]
        assert [answer.status for answer in answers[:3]] == [404, 404, 404]
        refused = [answer for answer in answers if answer.status == 429]
        assert len(refused) >= 10
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
        assert refused[0].json()["type"] == "urn:headrace:problem:rate-limited"
        assert connection.request("GET", "/healthz").status == 200, "probes are not limited"
    with RawConnection(server.port, source="127.0.0.2") as other:
        assert other.request("GET", "/v1/stream/x").status == 404, "another address"


def by_subject(connection: RawConnection, subject: str, count: int) -> list[int]:
    return [
        connection.request("GET", "/v1/stream/x", X_JWT_Sub=subject).status for _ in range(count)
    ]


def test_behind_a_trusted_proxy_the_rate_is_each_subjects_own(serve: Serve) -> None:
    server = serve(
        DS_LIMITS__RATE_LIMIT_REQUESTS_PER_SEC="1",
        DS_LIMITS__RATE_LIMIT_BURST="2",
        DS_SERVER__TRUSTED_PROXIES="127.0.0.1",
    )
    with RawConnection(server.port) as proxy:
        assert 429 in by_subject(proxy, "alice", 10)
        assert by_subject(proxy, "bob", 2) == [404, 404]
    with RawConnection(server.port, source="127.0.0.9") as stranger:
        assert by_subject(stranger, "carol", 2) == [404, 404]
        claimed = [by_subject(stranger, f"s{number}", 1)[0] for number in range(10)]
        assert 429 in claimed, "a stranger's word is not taken for a subject"


def test_behind_a_trusted_proxy_the_last_forwarded_address_counts(serve: Serve) -> None:
    server = serve(
        DS_LIMITS__RATE_LIMIT_REQUESTS_PER_SEC="1",
        DS_LIMITS__RATE_LIMIT_BURST="2",
        DS_SERVER__TRUSTED_PROXIES="loopback",
    )

    def statuses(connection: RawConnection, forwarded: str, count: int) -> list[int]:
        return [
            connection.request("GET", "/v1/stream/x", X_Forwarded_For=forwarded).status
            for _ in range(count)
        ]

    with RawConnection(server.port) as proxy:
        assert 429 in statuses(proxy, "10.0.0.1", 10)
        assert statuses(proxy, "10.0.0.2", 2) == [404, 404]
        spoofed = [statuses(proxy, f"1.1.1.{n}, 10.0.0.3", 1)[0] for n in range(10)]
        assert 429 in spoofed, "what a client claims before the proxy does not count"


def answer_to(serve: Serve, sent: bytes, **env: str) -> RawResponse:
    with RawConnection(serve(**env).port) as connection:
        connection.send(sent)
        return connection.response()


@pytest.mark.parametrize(
    ("env", "sent", "status"),
    [
        ("DS_LIMITS__MAX_URL_BYTES", request_bytes("GET", "/healthz?" + "x" * 100), 414),
        ("DS_LIMITS__MAX_HEADER_COUNT", b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
         + b"".join(b"X-%d: y\r\n" % n for n in range(100)) + b"\r\n", 431),
        ("DS_LIMITS__MAX_HEADER_BYTES", request_bytes("GET", "/healthz", X_A="a" * 100), 431),
    ],
)  # fmt: skip
def test_the_limits_of_a_head_are_settings(
    serve: Serve, env: str, sent: bytes, status: int
) -> None:
    assert answer_to(serve, sent, **{env: "99"}).status == status


def test_a_head_within_its_limits_is_taken(serve: Serve) -> None:
    sent = request_bytes("GET", "/healthz?" + "x" * 80, X_A="a" * 60)
    settings = ("MAX_URL_BYTES", "MAX_HEADER_BYTES")
    answer = answer_to(serve, sent, **{f"DS_LIMITS__{name}": "99" for name in settings})
    assert answer.status == 200


def test_a_full_stream_and_full_memory_are_413_and_deletes_help(serve: Serve) -> None:
    server = serve(DS_LIMITS__MAX_STREAM_BYTES="1000", DS_LIMITS__MAX_MEMORY_BYTES="4000")
    with client_of(server) as client:
        client.put("/v1/stream/a", content=b"x" * 1000, headers=TEXT)
        refusal = client.post("/v1/stream/a", content=b"x", headers=TEXT)
        assert (refusal.status_code, problem_of(refusal)) == (413, "stream-full")
        assert refusal.json()["limit_bytes"] == 1000
        for name in "bc":
            assert client.put(f"/v1/stream/{name}", content=b"x" * 1000).status_code == 201
        refusal = client.put("/v1/stream/d", content=b"x" * 1000)
        assert (refusal.status_code, problem_of(refusal)) == (413, "memory-full")
        assert client.get("/v1/stream/d").status_code == 404
        assert client.delete("/v1/stream/a").status_code == 204
        assert client.put("/v1/stream/d", content=b"x" * 500).status_code == 201


def test_a_close_needs_no_room(serve: Serve) -> None:
    with client_of(serve(DS_LIMITS__MAX_STREAM_BYTES="10")) as client:
        client.put("/v1/stream/a", content=b"x" * 10, headers=TEXT)
        assert client.post("/v1/stream/a", headers=CLOSE).status_code == 204


def test_one_stream_too_many_is_503(serve: Serve) -> None:
    with client_of(serve(DS_LIMITS__MAX_STREAMS="1")) as client:
        assert client.put("/v1/stream/a").status_code == 201
        refusal = client.put("/v1/stream/b")
        assert (refusal.status_code, problem_of(refusal)) == (503, "overloaded")
        assert refusal.headers["retry-after"]
        assert client.put("/v1/stream/a").status_code == 200


def test_a_json_body_has_a_limit_of_its_own(serve: Serve) -> None:
    with client_of(serve(DS_LIMITS__MAX_JSON_BODY_BYTES="10")) as client:
        client.put("/v1/stream/a", headers=JSON)
        assert client.post("/v1/stream/a", content=b'"12345678"', headers=JSON).status_code == 204
        refusal = client.post("/v1/stream/a", content=b'"123456789"', headers=JSON)
        assert (refusal.status_code, problem_of(refusal)) == (413, "body-too-large")


def test_one_producer_too_many_is_409(serve: Serve) -> None:
    def append(client: httpx.Client, producer: str) -> httpx.Response:
        claim = {"Producer-Id": producer, "Producer-Epoch": "0", "Producer-Seq": "0"}
        return client.post("/v1/stream/a", content=b"x", headers=TEXT | claim)

    with client_of(serve(DS_LIMITS__MAX_PRODUCERS_PER_STREAM="1")) as client:
        client.put("/v1/stream/a", headers=TEXT)
        assert append(client, "one").status_code == 200
        assert problem_of(append(client, "two")) == "too-many-producers"
