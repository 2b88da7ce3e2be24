"""The description at /openapi.json is that of this server: each path, method, status and body."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from textwrap import dedent
from typing import Any

import httpx
import pytest

from headrace.errors import Draining, InsufficientStorage
from headrace.http import routes
from headrace.http.exchange import Request
from headrace.http.handlers import buckets, stream_metadata, subscription_routes
from headrace.http.handlers.health import Health
from headrace.protocol import responses
from headrace.protocol.responses import Response
from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import DEADLINE_SECS
from tests.conftest import Serve, stop_cleanly
from tests.http.api_description import described, documented, fault_of, operations

JSON = {"Content-Type": "application/json"}
TEXT = {"Content-Type": "text/plain"}
CLOSE = {"Stream-Closed": "true"}
ZERO = "0000000000000000_0000000000000000"
ONE = "0000000000000001_0000000000000005"
FAR = "0000000000000009_0000000000000099"
LONG = "x" * 5000  # more than a name may have


class Caller:
    """Sends requests by the id of their operation, and compares each answer with its description.

    A GET that is described with a HEAD is sent as HEAD first.
    """

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        self.seen: set[tuple[str, int]] = set()

    def __call__(self, id: str, status: int, url: str, **more: Any) -> httpx.Response:
        head = f"head{id[0].upper()}{id[1:]}"
        if head in operations():
            self._send(head, status, url, more)
        return self._send(id, status, url, more)

    def _send(self, id: str, status: int, url: str, more: dict[str, Any]) -> httpx.Response:
        answer = self._http.request(operations()[id][1], url, **more)
        assert answer.status_code == status, f"{id} {url}: {answer.status_code} {answer.text}"
        assert fault_of(id, answer) is None, f"{id} {url}: {fault_of(id, answer)}"
        self.seen.add((id, status))
        return answer


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with small limits and short waits."""
    limits = {
        "DS_LIMITS__MAX_STREAM_BYTES": "100",
        "DS_LIMITS__MAX_SNAPSHOT_BYTES": "100",
        "DS_SERVER__LONG_POLL_TIMEOUT_SECS": "0.05",
        "DS_SERVER__SSE_RECONNECT_INTERVAL_SECS": "0.1",
        "DS_WEBHOOKS__MAX_SUBSCRIPTIONS": "2",
        "DS_WEBHOOKS__MAX_LINKS_PER_SUBSCRIPTION": "3",
        "DS_WEBHOOKS__ALLOW_LOOPBACK": "true",
    }
    process = ServerProcess(limits, cwd=str(tmp_path_factory.mktemp("server")))
    process.start()
    yield process
    stop_cleanly(process)


@pytest.fixture(scope="module")
def call(small: ServerProcess) -> Iterator[Caller]:
    with httpx.Client(base_url=small.url, timeout=DEADLINE_SECS) as http:
        yield Caller(http)


def use_streams(call: Caller, place: str, prefix: str) -> None:
    """Everything that can happen to one stream, at `place`, on either surface."""

    def on(what: str) -> str:
        return f"{what}{prefix}"

    url = f"{place}/a"
    call(on("create"), 201, url, headers=TEXT)
    call(on("create"), 200, url, headers=TEXT)
    call(on("create"), 409, url, headers=JSON)
    call(on("create"), 400, f"{place}/b", headers={"Stream-TTL": "x"})
    call(on("create"), 404, f"{place}/b", headers={"Stream-Forked-From": f"{place}/none"})
    call(on("create"), 413, f"{place}/b", headers=TEXT, content=b"x" * 101)
    producer = {"Producer-Id": "p", "Producer-Epoch": "1", "Producer-Seq": "0"}
    call(on("append"), 200, url, headers=TEXT | producer, content="hello")
    call(on("append"), 204, url, headers=TEXT | producer, content="hello")
    call(on("append"), 403, url, headers=TEXT | producer | {"Producer-Epoch": "0"}, content="x")
    call(on("append"), 400, url, headers=TEXT)
    call(on("append"), 404, f"{place}/none", headers=TEXT, content="x")
    call(on("append"), 409, url, headers=JSON, content="1")
    call(on("append"), 413, url, headers=TEXT, content=b"x" * 101)
    etag = call(on("read"), 200, url).headers["etag"]
    call(on("read"), 200, url, params={"offset": "-1", "format": "framed"})
    call(on("read"), 200, url, params={"offset": "-1", "live": "sse"})
    call(on("read"), 204, url, params={"offset": "now", "live": "long-poll"})
    call(on("read"), 304, url, headers={"If-None-Match": etag})
    call(on("read"), 400, url, params={"offset": "x"})
    call(on("read"), 404, f"{place}/none")
    call(on("head"), 200, url)
    call(on("head"), 400, f"{place}/{LONG}")
    call(on("head"), 404, f"{place}/none")
    # A deleted stream that a fork needs is gone, and its name is taken.
    call(on("create"), 201, f"{place}/fork", headers={"Stream-Forked-From": url})
    call(on("delete"), 204, url)
    call(on("append"), 410, url, headers=TEXT, content="x")
    call(on("read"), 410, url)
    call(on("head"), 410, url)
    call(on("delete"), 410, url)
    call(on("delete"), 404, f"{place}/none")
    call(on("delete"), 400, f"{place}/{LONG}")


def use_buckets(call: Caller) -> None:
    created = call("createBucket", 201, "/agents")
    assert created.headers["location"].endswith("/agents")
    call("createBucket", 409, "/agents")
    call("createBucket", 400, "/a")
    call("describeBucket", 200, "/agents")
    call("describeBucket", 400, "/a")
    call("describeBucket", 404, "/none")
    call("listBucket", 200, "/agents/streams")
    feed = "/agents/streams?changes_from="
    call("listBucket", 204, f"{feed}now&live=long-poll")
    call("listBucket", 400, "/agents/streams?limit=0")
    call("listBucket", 404, "/none/streams")
    use_streams(call, "/agents", "BucketStream")
    call("listBucket", 200, "/agents/streams")
    call("listBucket", 200, f"{feed}-1")
    call("listBucket", 200, f"{feed}-1&live=sse")
    call("deleteBucket", 409, "/agents")
    call("deleteBucket", 404, "/none")
    call("deleteBucket", 400, "/a")
    call("createBucket", 201, "/empty")
    call("deleteBucket", 204, "/empty")


def use_snapshots(call: Caller) -> None:
    url, none, gone = "/agents/notes", "/agents/none", "/agents/a"
    call("createBucketStream", 201, url, headers=TEXT, content="hello")
    call("findSnapshot", 404, f"{url}/snapshot")
    call("findSnapshot", 400, f"/a/{LONG}/snapshot")
    call("publishSnapshot", 400, f"{url}/snapshot/x", content="s")
    call("publishSnapshot", 404, f"{none}/snapshot/{ONE}", content="s")
    call("publishSnapshot", 409, f"{url}/snapshot/{FAR}", content="s")
    call("publishSnapshot", 413, f"{url}/snapshot/{ONE}", content=b"s" * 101)
    call("publishSnapshot", 204, f"{url}/snapshot/{ONE}", content="s")
    call("publishSnapshot", 410, f"{url}/snapshot/{ZERO}", content="s")
    call("findSnapshot", 307, f"{url}/snapshot")
    call("readSnapshot", 200, f"{url}/snapshot/{ONE}")
    call("readSnapshot", 400, f"{url}/snapshot/x")
    call("readSnapshot", 404, f"{url}/snapshot/{ZERO}")
    call("deleteSnapshot", 400, f"{url}/snapshot/x")
    call("deleteSnapshot", 404, f"{url}/snapshot/{ZERO}")
    call("deleteSnapshot", 409, f"{url}/snapshot/{ONE}")
    call("bootstrap", 200, f"{url}/bootstrap")
    call("bootstrap", 400, f"{url}/bootstrap?live=sse")
    call("bootstrap", 404, f"{none}/bootstrap")
    call("findSnapshot", 410, f"{gone}/snapshot")
    call("readSnapshot", 410, f"{gone}/snapshot/{ONE}")
    call("deleteSnapshot", 410, f"{gone}/snapshot/{ONE}")
    call("bootstrap", 410, f"{gone}/bootstrap")


def use_inspection(call: Caller) -> None:
    added = "/v1/stream/__ds"
    names = {"streams": ["fork", {"stream": "none", "from": "-1"}]}
    call("readTails", 200, f"{added}/tails", json=names)
    call("readTails", 400, f"{added}/tails", content="x")
    call("trimStream", 200, f"{added}/trim", json={"stream": "fork", "keep_messages": 100})
    call("trimStream", 400, f"{added}/trim", json={"stream": "fork"})
    call("trimStream", 404, f"{added}/trim", json={"stream": "none", "before": "now"})
    call(
        "trimStream",
        409,
        f"{added}/trim",
        json={"stream": "fork", "before": "9" * 16 + "_" + "9" * 16},
    )
    call("trimStream", 410, f"{added}/trim", json={"stream": "a", "before": "now"})
    call("trimStream", 413, f"{added}/trim", content=b" " * 2**20)
    call("describeStreams", 200, f"{added}/streams?name=fork&name=none")
    call("describeStreams", 400, f"{added}/streams")
    call("listBuckets", 200, f"{added}/buckets")
    call("listSetAside", 200, f"{added}/set-aside")
    for id, place in (
        ("describeStream", f"{added}/streams"),
        ("describeBucketStream", f"{added}/buckets/agents"),
    ):
        call(id, 200, f"{place}/fork")
        call(id, 200, f"{place}/fork?writers_from={ZERO}&writers_until={ONE}")
        call(id, 400, f"{place}/fork?writers_from={ZERO}")
        call(id, 404, f"{place}/none")
        call(id, 410, f"{place}/a")


def use_subscriptions(call: Caller) -> None:
    place = "/v1/stream/__ds/subscriptions"
    pull = {"type": "pull-wake", "pattern": "jobs/*", "wake_stream": "wakes"}
    webhook = {"type": "webhook", "streams": ["fork"], "webhook": {"url": "http://127.0.0.1:1/"}}
    call("createStream", 201, "/v1/stream/wakes", headers=JSON)
    call("createSubscription", 201, f"{place}/s", json=pull)
    call("createSubscription", 200, f"{place}/s", json=pull)
    call("createSubscription", 409, f"{place}/s", json=pull | {"pattern": "other/*"})
    call("createSubscription", 400, f"{place}/t", json={"type": "none"})
    call("createSubscription", 413, f"{place}/t", content=b" " * 2**20 + b"{}")
    call("createSubscription", 201, f"{place}/hook", json=webhook)
    call("createSubscription", 503, f"{place}/t", json=pull)
    call("listSubscriptions", 200, place)
    call("listSubscriptions", 400, f"{place}?limit=0")
    call("describeSubscription", 200, f"{place}/s")
    call("describeSubscription", 400, f"{place}/a%2Fb")
    call("describeSubscription", 404, f"{place}/none")
    call("addStreams", 204, f"{place}/s/streams", json={"streams": ["more"]})
    call("addStreams", 400, f"{place}/s/streams", json={})
    call("addStreams", 404, f"{place}/none/streams", json={"streams": ["more"]})
    call("addStreams", 413, f"{place}/s/streams", content=b" " * 2**20 + b"{}")
    call("addStreams", 503, f"{place}/s/streams", json={"streams": [*"abcd"]})
    call("removeStream", 204, f"{place}/s/streams/more")
    call("removeStream", 400, f"{place}/s/streams/%00")
    call("removeStream", 404, f"{place}/none/streams/more")
    worker = {"worker": "w"}
    call("claimWork", 409, f"{place}/s/claim", json=worker)
    call("claimWork", 400, f"{place}/s/claim", json={})
    call("claimWork", 404, f"{place}/none/claim", json=worker)
    call("createStream", 201, "/v1/stream/jobs/1", headers=TEXT, content="hello")
    use_wakes(call, place, call("claimWork", 200, f"{place}/s/claim", json=worker).json())
    call("listKeys", 200, "/v1/stream/__ds/jwks.json")
    call("deleteSubscription", 204, f"{place}/hook")
    call("deleteSubscription", 400, f"{place}/a%2Fb")


def use_wakes(call: Caller, place: str, wake: dict[str, Any]) -> None:
    token = {"Authorization": f"Bearer {wake['token']}"}
    answer = {"wake_id": wake["wake_id"], "generation": wake["generation"]}
    old = answer | {"generation": 0}
    call("acknowledge", 200, f"{place}/s/ack", headers=token, json=answer)
    for id, at in (("acknowledge", "ack"), ("releaseWork", "release")):
        call(id, 400, f"{place}/s/{at}", headers=token, json={})
        call(id, 401, f"{place}/s/{at}", json=answer)
        call(id, 404, f"{place}/none/{at}", headers=token, json=answer)
        call(id, 409, f"{place}/s/{at}", headers=token, json=old)
    call("releaseWork", 204, f"{place}/s/release", headers=token, json=answer)


def use_callback(call: Caller, server: ServerProcess) -> None:
    """The token of a webhook's wake is in the webhook."""
    from tests.subscriptions.receiver import Receiver

    place = "/v1/stream/__ds/subscriptions"
    call("deleteSubscription", 204, f"{place}/s")
    with Receiver() as receiver:
        webhook = {"type": "webhook", "pattern": "jobs/*", "webhook": {"url": receiver.url}}
        call("createSubscription", 201, f"{place}/back", json=webhook)
        call("appendStream", 204, "/v1/stream/jobs/1", headers=TEXT, content="more")
        wake = receiver.next().body
        token = {"Authorization": f"Bearer {wake['callback_token']}"}
        answer = {"wake_id": wake["wake_id"], "generation": wake["generation"], "done": True}
        url = f"{place}/back/callback"
        call("callBack", 400, url, headers=token, json={})
        call("callBack", 401, url, json=answer)
        call("callBack", 404, f"{place}/none/callback", headers=token, json=answer)
        call("callBack", 409, url, headers=token, json=answer | {"generation": 0})
        call("callBack", 200, url, headers=token, json=answer)
        call("deleteSubscription", 204, f"{place}/back")


def use_server(call: Caller) -> None:
    call("isAlive", 200, "/healthz")
    call("isReady", 200, "/readyz")
    call("readMetrics", 200, "/metrics")
    etag = call("describeApi", 200, "/openapi.json").headers["etag"]
    call("describeApi", 304, "/openapi.json", headers={"If-None-Match": etag})
    call("leadToBrowser", 307, "/", headers={"Accept": "text/html"})
    call("leadToBrowser", 404, "/")
    call("findBrowser", 308, "/ui")
    etag = call("readBrowser", 200, "/ui/app.js").headers["etag"]
    call("readBrowser", 304, "/ui/app.js", headers={"If-None-Match": etag})


# Long waits, or a full disk: the suites of drain and durability provoke them.
ELSEWHERE = {
    *{(id, 503) for id in ("isReady", "headIsReady")},
    *{(id, 507) for id in ("isReady", "headIsReady")},
    # A feed keeps 100,000 lines before an old cursor gets 410.
    *{(id, 410) for id in ("listBucket", "headListBucket")},
}


def test_every_documented_status_can_occur_and_every_answer_is_as_described(
    call: Caller, small: ServerProcess
) -> None:
    use_streams(call, "/v1/stream", "Stream")
    use_buckets(call)
    use_snapshots(call)
    use_inspection(call)
    use_subscriptions(call)
    use_callback(call, small)
    use_server(call)
    assert documented() - call.seen - ELSEWHERE == set()
    assert call.seen & ELSEWHERE == set()


@pytest.mark.parametrize("refusal", [Draining(), InsufficientStorage(1, 2)], ids=["503", "507"])
def test_readiness_is_refused_as_described(refusal: Draining | InsufficientStorage) -> None:
    found: list[Response] = []

    class Recorder:
        respond = found.append

    request = Request.__new__(Request)
    Health(lambda: refusal).readyz(request, Recorder())  # type: ignore[arg-type]
    assert found[0].body == responses.problem(refusal).body
    answer = httpx.Response(
        found[0].status,
        headers={"Content-Type": "application/problem+json", "Retry-After": "1"},
        content=found[0].body,
    )
    assert fault_of("isReady", answer) is None


# -- nothing is left out ---------------------------------------------------------------------------


def example(path: str) -> str:
    """A URL for a templated path."""
    values = {
        "name": "any",
        "bucket": "agents",
        "stream": "any",
        "snapshot": ZERO,
        "subscription": "any",
        "file": "app.js",
    }
    for name, value in values.items():
        path = path.replace(f"{{{name}}}", value)
    return path


@pytest.mark.parametrize("path", list(described()["paths"]))
def test_every_method_that_a_path_takes_is_described(path: str, server: ServerProcess) -> None:
    for bucket in ("/agents", "/agents/any"):
        httpx.put(server.url + bucket)
    refused = httpx.patch(server.url + example(path))
    assert refused.status_code == 405, refused.text
    allowed = {method.strip().lower() for method in refused.headers["allow"].split(",")}
    assert allowed - {"options"} == set(described()["paths"][path])


def words_of(method: Callable[..., Any]) -> set[str]:
    """The constant segments in the `case` patterns of a method that dispatches by path."""
    tree = ast.parse(dedent(inspect.getsource(method)))
    values = [
        node.value.value
        for case in ast.walk(tree)
        if isinstance(case, ast.match_case)
        for node in ast.walk(case.pattern)
        if isinstance(node, ast.MatchValue) and isinstance(node.value, ast.Constant)
    ]
    return {value.decode() if isinstance(value, bytes) else str(value) for value in values}


DISPATCHERS: list[Callable[..., Any]] = [
    buckets.BucketRoutes._dispatch,
    buckets.BucketRoutes._below_stream,
    stream_metadata.StreamMetadata.handle,
    subscription_routes.SubscriptionRoutes._dispatch,
]


def test_every_route_in_the_code_is_described() -> None:
    segments = {segment for path in described()["paths"] for segment in path.split("/")}
    words = {word for method in DISPATCHERS for word in words_of(method)}
    assert {"snapshot", "bootstrap", "set-aside", "jwks.json", "subscriptions"} <= words
    assert words - segments == set()


def keys_of(method: Callable[..., Any]) -> set[str]:
    """The constant keys, of bytes, of the tables that a method writes down."""
    tree = ast.parse(dedent(inspect.getsource(method)))
    return {
        key.value.decode()
        for node in ast.walk(tree)
        if isinstance(node, ast.Dict)
        for key in node.keys
        if isinstance(key, ast.Constant) and isinstance(key.value, bytes)
    }


def test_every_fixed_path_and_action_in_the_code_is_described() -> None:
    fixed = keys_of(routes.Application.__init__)
    assert fixed >= {"/healthz", "/readyz", "/metrics"}
    assert fixed - set(described()["paths"]) == set()
    keys = keys_of(subscription_routes.SubscriptionRoutes.__init__)
    actions = {key for key in keys if not key.isupper()}  # the others are methods
    assert {"streams", "callback", "claim", "ack", "release"} <= actions
    for action in actions:
        assert f"/v1/stream/__ds/subscriptions/{{subscription}}/{action}" in described()["paths"]


# -- how it is served ------------------------------------------------------------------------------


def test_the_description_names_the_mount_points_of_this_server(serve: Serve) -> None:
    server = serve(
        DS_SERVER__STREAM_ROOT="/api/streams", DS_SERVER__BUCKET_ROOT="/b", DS_SERVER__UI="false"
    )
    paths = httpx.get(f"{server.url}/openapi.json").json()["paths"]
    assert "/api/streams/{name}" in paths
    assert "/b/{bucket}/{stream}" in paths
    assert [path for path in paths if path.startswith(("/v1", "/ui"))] == []


def test_the_description_follows_the_rules_for_hosts_and_pages(server: ServerProcess) -> None:
    url = f"{server.url}/openapi.json"
    assert httpx.get(url, headers={"Host": "elsewhere.example"}).status_code == 421
    page = httpx.get(url, headers={"Origin": "https://elsewhere.example"})
    assert "access-control-allow-origin" not in page.headers
