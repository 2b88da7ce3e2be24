"""A read of the disk that fails for no reason anybody thought of is an answer like any other."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.testing.raw_http import RawConnection, request_bytes
from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import eventually
from tests.durability.modes import KEPT_MODES, settings
from tests.hostile.defective_reads import DefectiveReadsServer

pytestmark = pytest.mark.slow

TEXT = "text/plain"
STREAM = "/v1/stream/cold"
READS = (
    f"{STREAM}?offset=-1",
    f"{STREAM}?offset=-1&live=long-poll",
    f"{STREAM}?offset=-1&live=sse",
    f"{STREAM}?offset=-1&max_messages=1",
    f"{STREAM}?offset=-1&format=framed",
    "/bucket/doc?offset=-1",
    "/bucket/doc/bootstrap",
)


def await_line(server: ServerProcess, words: str) -> None:
    eventually(lambda: any(words in line for line in server.log), f"the log says {words}")


@pytest.mark.parametrize("mode", KEPT_MODES)
def test_a_cold_read_that_fails_unexpectedly_is_500_and_the_connection_goes_on(
    mode: str, tmp_path: Path
) -> None:
    env = settings(mode, tmp_path / "data")
    with ServerProcess(env, cwd=str(tmp_path)) as server, RawConnection(server.port) as client:
        assert client.request("PUT", STREAM, b"x" * 100, Content_Type=TEXT).status == 201
        assert client.request("PUT", "/bucket").status == 201
        assert client.request("PUT", "/bucket/doc", b"y" * 100, Content_Type=TEXT).status == 201
    server = DefectiveReadsServer(env, cwd=str(tmp_path))
    with server, RawConnection(server.port) as client:
        for target in READS:
            # The second is pipelined, and must not get the answer of the first.
            client.send(request_bytes("GET", target) + request_bytes("HEAD", STREAM))
            failed = client.response()
            assert failed.status == 500, target
            assert failed.json()["type"] == "urn:headrace:problem:internal-fault", target
            await_line(server, failed.json()["reference"])
            head = client.response(head_only=True)
            assert (head.status, head.headers["content-type"]) == (200, TEXT), target
        assert client.request("POST", STREAM, b"z", Content_Type=TEXT).status == 204
        tail = client.request("GET", f"{STREAM}?offset={1:016d}_{100:016d}")
        assert (tail.status, tail.body) == (200, b"z"), "what is in memory is read as ever"
        await_line(server, "a defect in a read of the disk")
