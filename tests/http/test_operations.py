"""What operators rely on: health, metrics, logs, HEAD and 405 everywhere."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import httpx
import pytest

from headrace import __version__
from headrace.http.host_metrics import HOST_METRICS
from headrace.http.metrics import METRICS
from headrace.testing.raw_http import RawConnection, RawResponse, request_bytes
from headrace.testing.server_process import ServerProcess
from headrace.testing.server_queries import metric
from headrace.testing.waiting import eventually
from tests.conftest import Serve
from tests.http.helpers import JSON, client_of

TEXT = {"Content-Type": "text/plain"}
STREAM_METHODS = {"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS"}
READ_METHODS = {"GET", "HEAD", "OPTIONS"}
FIXED = ("/healthz", "/readyz", "/metrics")
SUBSCRIPTION = "/v1/stream/__ds/subscriptions/none"


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_a_healthy_server_says_ok_and_not_from_a_cache(http: httpx.Client, path: str) -> None:
    answer = http.get(path)
    assert (answer.status_code, answer.text) == (200, "ok")
    assert answer.headers["cache-control"] == "no-store"


# -- HEAD and 405 ----------------------------------------------------------------------------


@pytest.mark.parametrize("path", [*FIXED, "/v1/stream/__ds/jwks.json"])
def test_head_is_get_without_the_body(server: ServerProcess, path: str) -> None:
    with RawConnection(server.port) as connection:
        got = connection.request("GET", path)
        head = connection.request("HEAD", path)
        assert connection.request("GET", "/healthz").body == b"ok", "no body was sent"
    assert head.status == got.status
    assert head.headers["content-type"] == got.headers["content-type"]


@pytest.mark.parametrize(
    "path", ["/nowhere", "/v1/stream/none", "/v1/stream/a//b", SUBSCRIPTION, "/v1/stream/__ds/x"]
)
def test_head_of_what_is_refused_has_the_status_and_no_body(
    server: ServerProcess, path: str
) -> None:
    with RawConnection(server.port) as connection:
        got = connection.request("GET", path)
        assert connection.request("HEAD", path).status == got.status >= 400
        assert connection.request("GET", "/healthz").body == b"ok", "no body was sent"


@pytest.mark.parametrize("query", ["", "?offset=-1", "?offset=now", "?offset=-1&live=sse"])
def test_head_of_a_stream_does_not_contradict_get(
    server: ServerProcess, stream: str, query: str
) -> None:
    """RFC 9110 8.6: a Content-Length in the answer to HEAD is that of the answer to GET."""
    with RawConnection(server.port) as connection:
        connection.request("PUT", stream, b"hello", Content_Type="text/plain")
        head = connection.request("HEAD", f"{stream}{query}")
        assert connection.request("GET", "/healthz").body == b"ok", "no body was sent"
        connection.send(request_bytes("GET", f"{stream}{query}"))
        got: RawResponse = connection.head()
    assert head.status == 200
    length = head.headers.get("content-length")
    assert length in (None, got.headers.get("content-length"))


@pytest.mark.parametrize(
    ("path", "method", "allowed"),
    [
        *((path, method, READ_METHODS) for path in FIXED for method in ("POST", "PUT", "DELETE")),
        ("/v1/stream/any", "PATCH", STREAM_METHODS),
        ("/v1/stream/any", "TRACE", STREAM_METHODS),
        ("/v1/stream/any", "PROPFIND", STREAM_METHODS),
        ("/v1/stream/__ds/jwks.json", "POST", READ_METHODS),
        (SUBSCRIPTION, "PATCH", {"GET", "HEAD", "PUT", "DELETE", "OPTIONS"}),
        (f"{SUBSCRIPTION}/ack", "GET", {"POST", "OPTIONS"}),
    ],
)
def test_another_method_is_405_and_says_which_are_allowed(
    server: ServerProcess, path: str, method: str, allowed: set[str]
) -> None:
    with RawConnection(server.port) as connection:
        answer = connection.request(method, path)
        assert connection.request("GET", "/healthz").body == b"ok", "the connection stays"
    assert answer.status == 405
    assert set(answer.headers["allow"].split(", ")) == allowed
    assert answer.headers["content-type"] == "application/problem+json"


def test_every_allowed_method_is_not_405(server: ServerProcess, stream: str) -> None:
    with RawConnection(server.port) as connection:
        for method in sorted(STREAM_METHODS):
            assert connection.request(method, stream).status != 405


# -- metrics ---------------------------------------------------------------------------------


def requests(client: httpx.Client, operation: str, status: int) -> float:
    sample = f'headrace_requests_total{{operation="{operation}",status="{status}"}}'
    try:
        return metric(client, sample)
    except AssertionError:
        return 0.0


def test_requests_are_counted_by_operation_and_status(serve: Serve) -> None:
    with client_of(serve()) as client:
        path = "/v1/stream/counted"
        client.put(path, headers=TEXT)
        for _ in range(3):
            client.post(path, content=b"12345", headers=TEXT)
        client.get(path)
        client.head(path)
        client.get("/v1/stream/none")
        client.delete(path)
        counted = {
            ("create", 201): 1,
            ("append", 204): 3,
            ("read", 200): 1,
            ("head", 200): 1,
            ("read", 404): 1,
            ("delete", 204): 1,
        }
        assert {key: requests(client, *key) for key in counted} == counted
        seconds = metric(client, 'headrace_request_seconds_count{operation="append"}')
        assert seconds == 3


def test_bytes_and_streams_are_counted(serve: Serve) -> None:
    with client_of(serve()) as client:
        client.put("/v1/stream/counted", headers=TEXT)
        streams = metric(client, "headrace_streams")
        client.post("/v1/stream/counted", content=b"x" * 1000, headers=TEXT)
        client.put("/v1/stream/counted-too", headers=TEXT)
        assert metric(client, "headrace_streams") == streams + 1
        assert metric(client, "headrace_received_bytes_total") == 1000
        assert metric(client, "headrace_stored_bytes") >= 1000
        assert metric(client, "headrace_connections") == 1


@pytest.mark.parametrize("path", ["/v1/stream/large", "/v1/stream/__ds/tails"])
def test_a_body_that_is_worked_through_in_slices_is_counted_too(serve: Serve, path: str) -> None:
    server = serve(DS_STORAGE__MODE="file-durable")
    with client_of(server) as client:
        client.put("/v1/stream/large", headers=JSON)
        names = b",".join(b'"%d"' % number for number in range(9_000))
        body = (
            b'{"streams":[%b]}' % names
            if path.endswith("tails")
            else b"[%b]" % b",".join([names] * 20)
        )
        assert client.post(path, headers=JSON, content=body).is_success
        assert metric(client, "headrace_received_bytes_total") == len(body)


def test_sent_bytes_are_the_bytes_sent(serve: Serve) -> None:
    """An answer to HEAD has no body, so it adds nothing."""
    with client_of(serve()) as client:
        sent = len(client.get("/metrics").content) + len(client.get("/metrics").content)
        for _ in range(10):
            client.head("/v1/stream/none")
        assert metric(client, "headrace_sent_bytes_total") == sent


@pytest.mark.parametrize(
    ("status", "sent"),
    [
        (400, b"GET / HTTP/1.1\r\n\r\n"),
        (413, request_bytes("POST", "/v1/stream/x", Content_Length="99999999")),
        (414, request_bytes("GET", "/" + "x" * 10_000)),
    ],
    ids=["400", "413", "414"],
)
def test_a_request_refused_before_it_was_complete_is_counted_and_logged(
    serve: Serve, status: int, sent: bytes
) -> None:
    server = serve(DS_LOG__ACCESS="true")
    with RawConnection(server.port) as connection:
        connection.send(sent)
        assert connection.response().status == status
    with client_of(server) as client:
        text = client.get("/metrics").text
    assert re.search(rf'headrace_requests_total\{{.*status="{status}"\}} 1\.0', text)
    eventually(
        lambda: any("headrace.access" in line and str(status) in line for line in server.log),
        "it is in the access log",
    )


def test_metrics_are_what_prometheus_reads(http: httpx.Client) -> None:
    answer = http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    sample = re.compile(r'[a-z_]+(\{([a-z_]+="[^"]*",?)+\})? [0-9.e+-]+|[a-z_]+(\{.*\})? \+Inf')
    for line in answer.text.splitlines():
        assert line.startswith(("# HELP ", "# TYPE ")) or sample.fullmatch(line), line


def exposed_types(http: httpx.Client) -> dict[str, str]:
    lines = http.get("/metrics").text.splitlines()
    found = (line.split() for line in lines if line.startswith("# TYPE "))
    return {name: kind for _, _, name, kind in found}


def test_every_metric_that_is_described_is_exposed_and_no_other(
    serve: Serve, tmp_path: Path
) -> None:
    durable = serve(DS_STORAGE__MODE="file-durable", DS_STORAGE__DATA_DIR=str(tmp_path / "data"))
    with client_of(durable) as client:
        types = exposed_types(client)
    assert types.keys() == METRICS.keys() | HOST_METRICS.keys()
    counters = {name for name, kind in types.items() if kind == "counter"}
    assert counters == {name for name in types if name.endswith("_total")}


def test_commits_are_counted_under_their_old_names_too(serve: Serve, tmp_path: Path) -> None:
    durable = serve(DS_STORAGE__MODE="file-durable", DS_STORAGE__DATA_DIR=str(tmp_path / "data"))
    with client_of(durable) as client:
        client.put("/v1/stream/counted", headers=TEXT)
        client.post("/v1/stream/counted", content=b"x", headers=TEXT)
        for what in ("batches", "changes", "seconds"):
            name = f"headrace_commit_{what}"
            assert metric(client, name) == metric(client, f"{name}_total") > 0
        described = client.get("/metrics").text
    assert (
        "# HELP headrace_commit_seconds Deprecated: use headrace_commit_seconds_total." in described
    )


def test_the_process_its_build_and_its_disk_are_measured(serve: Serve, tmp_path: Path) -> None:
    before = time.time()
    durable = serve(DS_STORAGE__MODE="file-fast", DS_STORAGE__DATA_DIR=str(tmp_path / "data"))
    with client_of(durable) as client:
        assert metric(client, "process_resident_memory_bytes") > 1_000_000
        assert metric(client, "process_open_fds") > 3
        assert metric(client, "process_start_time_seconds") > before - 60
        size, free, used = (
            metric(client, f"headrace_disk_{what}_bytes") for what in ("size", "free", "used")
        )
        text = client.get("/metrics").text
    assert 0 < free + used <= size  # the rest is kept for root
    assert re.search(rf'headrace_build_info\{{.*version="{re.escape(__version__)}"\}} 1\.0', text)


def test_a_server_in_memory_has_no_disk_to_measure(http: httpx.Client) -> None:
    assert "headrace_disk" not in http.get("/metrics").text


# -- logs ------------------------------------------------------------------------------------


def access_lines(server: ServerProcess, count: int) -> list[str]:
    def lines() -> list[str]:
        return [line for line in server.log if "headrace.access" in line]

    eventually(lambda: len(lines()) >= count, f"{count} access lines")
    return lines()


def test_no_request_is_logged_unless_asked_for(serve: Serve) -> None:
    server = serve()
    with client_of(server) as client:
        client.get("/healthz")
    server.stop()
    assert not [line for line in server.log if "/healthz" in line]


def test_an_access_line_says_who_asked_what_and_how_it_went(serve: Serve) -> None:
    server = serve(DS_LOG__ACCESS="true")
    with client_of(server) as client:
        client.put("/v1/stream/logged", content=b"12345", headers=TEXT)
        client.get("/v1/stream/none?offset=-1")
    created, missing = access_lines(server, 2)
    assert "PUT /v1/stream/logged 201" in created
    assert "received_bytes=5" in created
    assert "peer=127.0.0.1" in created
    assert "GET /v1/stream/none?offset=-1 404" in missing
    assert re.search(r"elapsed_ms=[0-9.]+", missing)


def test_json_logs_are_one_object_a_line_from_the_first(serve: Serve) -> None:
    server = serve(DS_LOG__FORMAT="json", DS_LOG__ACCESS="true")
    with client_of(server) as client:
        client.put("/v1/stream/logged", headers=TEXT)
    access_lines(server, 1)
    server.stop()
    records = [json.loads(line) for line in server.log]
    assert all({"ts", "level", "logger", "message"} <= set(record) for record in records)
    assert records[0]["url"] == server.url
    [access] = [record for record in records if record["logger"] == "headrace.access"]
    assert (access["operation"], access["status"], access["peer"]) == ("create", 201, "127.0.0.1")


def test_a_client_cannot_forge_a_line_of_the_log(serve: Serve) -> None:
    server = serve(DS_LOG__ACCESS="true")
    with client_of(server) as client:
        client.get("/v1/stream/a%0A2026-01-01T00:00:00Z%20info%20forged")
    access_lines(server, 1)
    server.stop()
    assert not [line for line in server.log if line.startswith("2026-01-01")]


def test_a_live_read_is_logged_when_it_begins(serve: Serve, stream: str) -> None:
    server = serve(DS_LOG__ACCESS="true")
    with RawConnection(server.port) as connection:
        connection.request("PUT", stream, Content_Type="text/plain")
        connection.send(request_bytes("GET", f"{stream}?offset=-1&live=sse"))
        assert connection.head().status == 200
        assert "operation=sse" in access_lines(server, 2)[1]
