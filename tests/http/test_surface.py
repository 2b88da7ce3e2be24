"""What stands around the streams: where they are mounted, and what is counted of them."""

from __future__ import annotations

import httpx

from headrace.http.host_metrics import HOST_METRICS
from headrace.http.metrics import METRICS
from headrace.testing.server_queries import metric
from headrace.testing.sse_reader import open_events
from headrace.testing.waiting import eventually
from tests.conftest import Serve
from tests.http.helpers import TEXT, client_of


def test_every_documented_metric_is_there_and_no_other(http: httpx.Client) -> None:
    lines = http.get("/metrics").text.splitlines()
    of_disks = {name for name in HOST_METRICS if name.startswith("headrace_disk_")}
    exposed = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    assert exposed == METRICS.keys() | HOST_METRICS.keys() - of_disks, "in memory mode"


def test_live_readers_and_connections_go_down_when_clients_leave(serve: Serve) -> None:
    server = serve()
    with client_of(server) as client:
        client.put("/v1/stream/a", headers=TEXT)
        for _ in range(3):
            with open_events(server.port, "/v1/stream/a?offset=now&live=sse") as events:
                events.batch()
                assert metric(client, 'headrace_live_readers{mode="sse"}') == 1
                assert metric(client, "headrace_connections") == 2
            eventually(
                lambda: metric(client, 'headrace_live_readers{mode="sse"}') == 0, "no readers"
            )
            eventually(lambda: metric(client, "headrace_connections") == 1, "one connection")


def test_the_mount_point_is_a_setting(serve: Serve) -> None:
    with client_of(serve(DS_SERVER__STREAM_ROOT="/logs")) as client:
        created = client.put("/logs/a")
        assert created.headers["location"].endswith("/logs/a")
        fork = client.put("/logs/b", headers={"Stream-Forked-From": "/logs/a"})
        assert fork.status_code == 201
        assert client.get("/logs/__registry__").status_code == 200
        assert client.put("/v1/stream/a").status_code == 400, "v1 is too short for a bucket"
