"""Too many connections and too many requests: a prompt refusal, and the others are served on."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from headrace.testing.raw_http import RawConnection, request_bytes
from headrace.testing.waiting import DEADLINE_SECS, eventually
from tests.conftest import Serve

CONNECTIONS_MAX = 5
MIB = 1024 * 1024


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


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["memory", "file-fast", "file-durable", "acid"])
def test_only_memory_mode_bounds_a_stream_by_itself(
    mode: str, serve: Serve, tmp_path: Path
) -> None:
    server = serve(DS_STORAGE__MODE=mode, DS_STORAGE__DATA_DIR=str(tmp_path / "data"))
    url = f"{server.url}/v1/stream/large"
    with httpx.Client(
        timeout=DEADLINE_SECS, headers={"Content-Type": "application/octet-stream"}
    ) as http:
        http.put(url)
        for _ in range(10):
            assert http.post(url, content=bytes(MIB)).is_success
        answer = http.post(url, content=bytes(MIB))
    if mode == "memory":
        assert answer.status_code == 413
        assert "limits.max_stream_bytes" in answer.json()["detail"]
    else:
        assert answer.is_success
