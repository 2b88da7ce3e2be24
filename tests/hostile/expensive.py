"""Expensive operations of one client at their limits: what `test_loop_stalls` runs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from headrace.testing.raw_http import request_bytes
from headrace.testing.server_queries import catch_up, metric
from headrace.testing.waiting import eventually
from tests.hostile import attacks
from tests.hostile.attacks import JSON_TYPE, ROOT, TEXT_TYPE
from tests.hostile.crowded_server import BUCKETS, GONE, STREAMS
from tests.hostile.ground import OPERATION_SECS, REFUSALS, START, Ground

MIB = 1024 * 1024

# -- bodies ----------------------------------------------------------------------------------


def json_body(make: Callable[[], bytes], ground: Ground) -> None:
    name = f"json-{make.__name__}"
    ground.create(name, JSON_TYPE)
    with ground.connection() as connection:
        connection.send(attacks.append(name, make(), JSON_TYPE))
        assert connection.response().status in (204, *REFUSALS)


def read_of_small_messages(ground: Ground) -> None:
    """A chunk of half a million messages, at once and by the message."""
    ground.create("tiny", JSON_TYPE)
    for _ in range(3):
        ground.send(attacks.append("tiny", attacks.most_elements(), JSON_TYPE))
    path = f"{ROOT}/tiny"
    for query in ("offset=-1", "offset=-1&max_messages=200000", "offset=-1&live=sse"):
        with ground.connection() as connection:
            connection.send(request_bytes("GET", f"{path}?{query}"))
            assert connection.head().status in (200, *REFUSALS)


def octets(ground: Ground) -> None:
    ground.create("octets", "application/octet-stream")
    body = bytes(attacks.BODY_BYTES_MAX)
    with ground.connection() as connection:
        connection.send(attacks.append("octets", body, "application/octet-stream"))
        assert connection.response().status == 204


def chunks_of_a_byte(ground: Ground) -> None:
    """One large body of them, and then smaller ones from many clients at once."""
    ground.create("chunks")
    ground.send(attacks.chunked("chunks", b"x" * 600_000))
    ground.send_at_once([attacks.chunked("chunks", b"x" * 100_000)] * 40)
    expected = 600_000 + 40 * 100_000
    answers = catch_up(ground.client, f"{ROOT}/chunks")
    assert sum(len(answer.content) for answer in answers) == expected


# -- many requests ---------------------------------------------------------------------------


def pipelined_heads(target: str, size: int, ground: Ground) -> None:
    ground.send(*attacks.heads(target, size), may_refuse=True)


def heads_of_many_clients(ground: Ground) -> None:
    heads = attacks.heads(f"{ROOT}/probed", 500_000)
    ground.send_at_once([b"".join(heads)] * 40, answers_each=len(heads))


def metrics_of_many_clients(ground: Ground) -> None:
    """Less than a small read on each connection, and half a millisecond for each request in it."""
    request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    ground.send(*[request] * 800, connections=400)


def listings_of_many_clients(ground: Ground) -> None:
    ground.send(*[request_bytes("GET", "/crowd/streams?limit=1000")] * 400, connections=400)


def metrics(ground: Ground) -> None:
    assert ground.client.get("/metrics").status_code == 200


def listing(ground: Ground) -> None:
    for query in ("limit=1000", "limit=1000&prefix=4"):
        answer = ground.client.get(f"/crowd/streams?{query}")
        assert answer.status_code == 200, answer.text


def inspection(ground: Ground) -> None:
    names = "&".join(f"name=crowd/{STREAMS - 1 - number}" for number in range(200))
    assert ground.client.get(f"{ROOT}/__ds/streams?{names}").status_code == 200
    assert ground.client.get(f"{ROOT}/__ds/buckets").json()["bucket_count"] > BUCKETS


# -- subscriptions ---------------------------------------------------------------------------


def hostile_glob(ground: Ground) -> None:
    """Over names that are full of what it looks for; then one more such name."""
    ground.create("hostile-wakes")
    names = [attacks.long_name(number) for number in range(150)]
    ground.send(*map(attacks.create, names), connections=50)
    wake = {"type": "pull-wake", "wake_stream": "hostile-wakes"}
    for id, pattern in (("stars", attacks.many_stars()), ("run", attacks.long_run())):
        ground.send(attacks.subscription(id, pattern=pattern, **wake), may_refuse=True)
    ground.send(attacks.create(attacks.long_name(1000)))
    for id in ("stars", "run"):
        ground.client.delete(f"{ROOT}/__ds/subscriptions/{id}")


def glob_over_all(ground: Ground) -> None:
    """As many streams as there are: link them, wake for a thousand, describe, claim, unlink."""
    ground.create("all-wakes", JSON_TYPE)
    path = f"{ROOT}/__ds/subscriptions/all"
    wake = {"type": "pull-wake", "wake_stream": "all-wakes"}
    ground.send(attacks.subscription("all", pattern="crowd/**", **wake))
    names = [f"crowd/{STREAMS - 1 - number}" for number in range(1000)]
    ground.send(*(attacks.append(name, b"x") for name in names), connections=50)
    assert ground.client.get(path).status_code == 200
    assert ground.client.post(f"{path}/claim", json={"worker": "w"}).status_code == 200
    assert ground.client.delete(path).status_code == 204


def named_streams(ground: Ground) -> None:
    names = [f"crowd/{STREAMS - 1 - number}" for number in range(attacks.NAMES_MAX)]
    ground.create("named-wakes")
    wake = {"type": "pull-wake", "wake_stream": "named-wakes"}
    ground.send(attacks.subscription("named", streams=names, **wake))
    ground.client.delete(f"{ROOT}/__ds/subscriptions/named")


def tails(ground: Ground) -> None:
    """Polls over as many streams as one may name, and an append that ends them all."""
    names = [f"crowd/{GONE + number}" for number in range(attacks.NAMES_MAX)]
    request = attacks.tails_poll(dict.fromkeys(names, START))
    polls = [ground.connection() for _ in range(20)]
    try:
        for poll in polls:
            poll.send(request)
        ground.send(attacks.append(names[0], b"x"))
        for poll in polls:
            assert poll.response().status in (200, 503)
    finally:
        for poll in polls:
            poll.close()


# -- forks and the end of streams ------------------------------------------------------------


def forks(ground: Ground) -> None:
    """Thousands of one stream, which expire together."""
    ground.create("forked", body=b"x")
    before = metric(ground.client, "headrace_streams")
    expires = {"Stream_Expires_At": soon(4)}
    requests = [attacks.fork(f"forks/{number}", "forked", **expires) for number in range(3000)]
    ground.send(*requests, connections=100, may_refuse=True)
    assert ground.client.get(f"{ROOT}/__ds/streams/forked").status_code == 200
    await_streams(ground, before)


def fork_chain(ground: Ground) -> None:
    """As long as is allowed, up to a length; read at its end, and expiring together."""
    before = metric(ground.client, "headrace_streams")
    expires = {"Stream_Expires_At": soon(4)}
    ground.create("chain/0", body=b"x")
    with ground.connection() as connection:
        for number in range(1, 300):
            connection.send(attacks.fork(f"chain/{number}", f"chain/{number - 1}", **expires))
            if connection.response().status != 201:
                break
    assert ground.client.get(f"{ROOT}/chain/{number - 1}").text == "x"
    assert ground.client.delete(f"{ROOT}/chain/0").status_code == 204
    await_streams(ground, before)


def expiry(ground: Ground) -> None:
    """Ten thousand streams whose time is over in the same second."""
    at = soon(5)
    requests = [attacks.create(f"mayfly/{n}", Stream_Expires_At=at) for n in range(10_000)]
    ground.send(*requests, connections=200)
    full = metric(ground.client, "headrace_streams")
    # The others are no different, and go on expiring a thousand a second.
    await_streams(ground, full - 2500)


def soon(secs: int) -> str:
    return (datetime.now(UTC) + timedelta(seconds=secs)).strftime("%Y-%m-%dT%H:%M:%SZ")


def await_streams(ground: Ground, count: float) -> None:
    eventually(
        lambda: metric(ground.client, "headrace_streams") <= count,
        "what has expired is gone",
        secs=OPERATION_SECS,
        poll_secs=0.2,
    )


def expired_bucket(ground: Ground) -> None:
    """A bucket full of streams whose time is over is counted, listed and deleted."""
    ground.client.put("/brief")
    requests = [
        request_bytes("PUT", f"/brief/{n}", Content_Type=TEXT_TYPE, Stream_TTL="1")
        for n in range(3000)
    ]
    ground.send(*requests, connections=100)
    eventually(
        lambda: ground.client.delete("/brief").status_code == 204,
        "the bucket is deleted",
        secs=OPERATION_SECS,
    )


def registry_compaction(ground: Ground) -> None:
    """A few deletions more, and the registry says again all that is there."""

    def floor() -> str:
        answer = ground.client.get(f"{ROOT}/__ds/streams?name=__registry__")
        return str(answer.json()["streams"][0]["earliest_offset"])

    before = floor()
    requests = [
        request_bytes("DELETE", f"{ROOT}/crowd/{STREAMS - 20_000 - number}")
        for number in range(5000)
    ]
    ground.send(*requests, connections=100)
    eventually(lambda: floor() != before, "the registry was compacted")


# -- snapshots -------------------------------------------------------------------------------


def snapshot_and_bootstrap(ground: Ground) -> None:
    """The largest snapshot with as many messages after it as one append holds."""
    ground.client.put("/snap")
    path = "/snap/doc"
    ground.client.put(path, headers={"Content-Type": JSON_TYPE})
    answer = ground.client.post(path, headers={"Content-Type": JSON_TYPE}, content=b"[1]")
    offset = answer.headers["stream-next-offset"]
    blob = os.urandom(attacks.BODY_BYTES_MAX)
    assert ground.client.put(f"{path}/snapshot/{offset}", content=blob).status_code == 204
    for _ in range(3):
        ground.send(request_bytes("POST", path, attacks.most_elements(), Content_Type=JSON_TYPE))
    for target in ("bootstrap", f"snapshot/{offset}"):
        with ground.connection() as connection:
            connection.send(request_bytes("GET", f"{path}/{target}"))
            assert connection.response().status == 200


# -- disk ------------------------------------------------------------------------------------


def checkpoints(ground: Ground) -> None:
    """Segments fill up and are carried over, of a few large streams and many small ones."""
    ground.create("bulk", "application/octet-stream")
    body = bytes(512 * 1024)
    bulk = [attacks.append("bulk", body, "application/octet-stream")] * 48
    small = [attacks.append(f"crowd/{GONE + n}", bytes(2000)) for n in range(5000)]
    ground.send(*bulk[:24], connections=4)
    ground.send(*small, connections=50)
    ground.send(*bulk[24:], connections=4)


def cold_reads(ground: Ground) -> None:
    assert len(catch_up(ground.client, f"{ROOT}/bulk")) > 20
    document = {"streams": [{"stream": "bulk", "from": START, "max_bytes": 48 * MIB}]}
    body = json.dumps(document).encode()
    ground.send(request_bytes("POST", f"{ROOT}/__ds/tails", body, Content_Type=JSON_TYPE))
