"""Webhook subscriptions against a running server and a real receiver."""

from __future__ import annotations

import json
import threading
import time
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from headrace.testing.ports import free_port
from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import DEADLINE_SECS, eventually
from tests.conftest import Serve
from tests.subscriptions.api import ROOT, ZERO, Api, acks, code, fresh, names
from tests.subscriptions.receiver import (
    ACCEPTED,
    BROKEN,
    DONE,
    Receiver,
    Reply,
    Webhook,
    verify_signature,
)
from tests.subscriptions.test_delivery import certificate, tls_server

TO_LOOPBACK = {"DS_WEBHOOKS__ALLOW_LOOPBACK": "true"}


def test_a_webhook_can_be_verified_and_names_the_wake(api: Api, server: ServerProcess) -> None:
    folder = fresh("events")
    with Receiver() as receiver:
        id = api.webhook(receiver.url, pattern=f"{folder}/*")
        tail = api.create(f"{folder}/a", {"n": 1})
        webhook = receiver.next()
    signing = api.get(id)["webhook"]["signing"]
    assert signing["jwks_url"] == f"{server.url}{ROOT}/__ds/jwks.json"
    jwks = httpx.get(signing["jwks_url"]).json()
    signed_at = verify_signature(webhook.raw, webhook.headers["webhook-signature"], jwks)
    assert abs(signed_at - time.time()) < DEADLINE_SECS
    assert f"kid={signing['kid']}," in webhook.headers["webhook-signature"]
    body = webhook.body
    assert body.pop("callback_token")
    assert body.pop("wake_id").startswith("w_")
    assert body == {
        "subscription_id": id,
        "generation": 1,
        "streams": [
            {
                "path": f"{folder}/a",
                "link_type": "glob",
                "acked_offset": "-1",
                "tail_offset": tail,
                "has_pending": True,
            }
        ],
        "callback_url": f"{server.url}{ROOT}/__ds/subscriptions/{id}/callback",
    }


def test_streams_that_existed_are_not_replayed(api: Api) -> None:
    folder = fresh("events")
    old = api.create(f"{folder}/old", {"n": 1})
    with Receiver() as receiver:
        id = api.webhook(receiver.url, pattern=f"{folder}/**")
        assert api.acked(id) == {f"{folder}/old": old}
        api.create(f"{folder}/empty")
        tail = api.append(f"{folder}/old", {"n": 2})
        (pending,) = [s for s in receiver.next().body["streams"] if s["has_pending"]]
    assert (pending["acked_offset"], pending["tail_offset"]) == (old, tail)
    assert api.acked(id) == {f"{folder}/old": old, f"{folder}/empty": "-1"}


def test_done_in_the_answer_acknowledges_what_was_sent(api: Api) -> None:
    name = fresh("stream")
    api.create(name)
    with Receiver(DONE) as receiver:
        id = api.webhook(receiver.url, streams=[name])
        tail = api.append(name, {"n": 1})
        api.await_acked(id, **{name: tail})
        assert receiver.next().body["generation"] == 1
        tail = api.append(name, {"n": 2})
        api.await_acked(id, **{name: tail})
        assert receiver.next().body["generation"] == 2
        assert receiver.count == 0


def test_what_arrives_after_the_webhook_was_sent_brings_another(api: Api) -> None:
    name = fresh("stream")
    api.create(name)
    meanwhile: list[str] = []

    def append_once(_: Webhook) -> Reply:
        if not meanwhile:
            meanwhile.append(api.append(name, {"n": 2}))
        return DONE

    with Receiver(append_once) as receiver:
        id = api.webhook(receiver.url, streams=[name])
        tail = api.append(name, {"n": 1})
        first, second = receiver.next().body, receiver.next().body
        tails = [tail, *meanwhile]
        assert [s["tail_offset"] for s in first["streams"]] == tails[:1]
        assert [s["tail_offset"] for s in second["streams"]] == tails[1:]
        assert [s["acked_offset"] for s in second["streams"]] == tails[:1]
        assert (first["generation"], second["generation"]) == (1, 2)
        assert first["wake_id"] != second["wake_id"]
        api.await_acked(id, **{name: tails[1]})


def test_a_callback_acknowledges_and_then_the_wake_is_over(api: Api) -> None:
    name = fresh("stream")
    api.create(name)
    with Receiver() as receiver:
        id = api.webhook(receiver.url, streams=[name])
        tail = api.append(name, {"n": 1})
        wake = receiver.next().body
        answered = api.callback(wake, acks=acks(wake), done=True)
        assert answered.json() == {"ok": True, "next_wake": False}
        assert api.acked(id) == {name: tail}
        assert code(api.callback(wake, acks=acks(wake), done=True)) == (409, "FENCED")


def test_done_without_acks_leaves_the_work_and_brings_it_again(api: Api) -> None:
    name = fresh("stream")
    api.create(name)
    with Receiver() as receiver:
        api.webhook(receiver.url, streams=[name])
        api.append(name, {"n": 1})
        wake = receiver.next().body
        assert api.callback(wake, done=True).json() == {"ok": True, "next_wake": True}
        assert receiver.next().body["generation"] == 2


def test_a_bad_ack_refuses_the_whole_callback(api: Api) -> None:
    one, two = fresh("stream"), fresh("stream")
    for name in (one, two):
        api.create(name)
    with Receiver() as receiver:
        id = api.webhook(receiver.url, streams=[one, two])
        api.append(one, {"n": 1})
        wake = receiver.next().body
        for bad in (
            {"stream": two, "offset": "9999999999999999_9999999999999999"},
            {"stream": two, "offset": "-1"},
            {"stream": one, "offset": "0000000000000000_0000000000000001"},
            {"stream": fresh("never"), "offset": ZERO},
        ):
            refused = api.callback(wake, acks=[*acks(wake), bad], done=True)
            assert code(refused) == (409, "INVALID_OFFSET"), bad
        assert api.acked(id) == {one: ZERO, two: ZERO}
        assert api.callback(wake, acks=acks(wake), done=True).status_code == 200


def test_a_callback_needs_its_own_token(api: Api) -> None:
    one, two = fresh("stream"), fresh("stream")
    with Receiver() as receiver:
        ids = [api.webhook(receiver.url, streams=[name]) for name in (one, two)]
        for name in (one, two):
            api.create(name, {"n": 1})
        wakes = {w["subscription_id"]: w for w in (receiver.next().body, receiver.next().body)}
        mine, other = (wakes[id] for id in ids)
        for token in (None, other["callback_token"], "nonsense"):
            refused = api.post(ids[0], "callback", token, **names(mine), done=True)
            assert code(refused) == (401, "TOKEN_INVALID")
            assert refused.headers["www-authenticate"] == "Bearer"
        assert api.callback(mine, done=True).status_code == 200


@pytest.mark.slow
def test_a_lease_that_runs_out_brings_a_new_generation_and_fences_the_old(api: Api) -> None:
    name = fresh("stream")
    api.create(name)
    with Receiver() as receiver:
        id = api.webhook(receiver.url, streams=[name], lease_ttl_ms=1000)
        api.append(name, {"n": 1})
        first, second = receiver.next().body, receiver.next().body
        assert (first["generation"], second["generation"]) == (1, 2)
        assert code(api.callback(first, acks=acks(first), done=True)) == (409, "FENCED")
        assert api.acked(id) == {name: ZERO}
        assert api.callback(second, acks=acks(second), done=True).status_code == 200
        assert api.get(id)["status"] == "active"


@pytest.mark.slow
def test_a_callback_that_is_not_done_extends_the_lease(api: Api) -> None:
    """Heartbeats for longer than the lease: it is still the first wake."""
    name = fresh("stream")
    api.create(name)
    with Receiver() as receiver:
        api.webhook(receiver.url, streams=[name], lease_ttl_ms=1000)
        api.append(name, {"n": 1})
        wake = receiver.next().body
        end = time.monotonic() + 1.5
        eventually(
            lambda: api.callback(wake).status_code != 200 or time.monotonic() > end, "1.5 s pass"
        )
        assert api.callback(wake, acks=acks(wake), done=True).status_code == 200
        assert receiver.count == 0


@pytest.mark.slow
def test_a_failed_webhook_is_sent_again_as_the_same_wake(api: Api) -> None:
    name = fresh("stream")
    api.create(name)
    arrivals: list[float] = []

    def fail_twice(_: Webhook) -> Reply:
        arrivals.append(time.monotonic())
        return BROKEN if len(arrivals) <= 2 else DONE

    with Receiver(fail_twice) as receiver:
        # The lease is shorter than the second wait: it must not cut the wait short.
        id = api.webhook(receiver.url, streams=[name], lease_ttl_ms=1000)
        tail = api.append(name, {"n": 1})
        wakes = [receiver.next().body]
        eventually(lambda: api.get(id)["status"] == "failed", "the failure shows")
        wakes += [receiver.next().body, receiver.next().body]
        api.await_acked(id, **{name: tail})
        assert api.get(id)["status"] == "active"
    assert len({(wake["wake_id"], wake["generation"]) for wake in wakes}) == 1
    waits = [later - earlier for earlier, later in pairwise(arrivals)]
    assert waits[0] >= 0.8
    assert waits[1] >= 1.6


@pytest.mark.slow
def test_a_receiver_that_is_down_is_found_once_it_is_up(api: Api) -> None:
    name = fresh("stream")
    api.create(name)
    port = free_port()
    id = api.webhook(f"http://127.0.0.1:{port}/", streams=[name])
    tail = api.append(name, {"n": 1})
    eventually(lambda: api.get(id)["status"] == "failed", "nobody listens")
    with Receiver(DONE, port=port):
        api.await_acked(id, **{name: tail})


@pytest.mark.slow
def test_a_deleted_subscription_is_silent_and_unknown(api: Api) -> None:
    name = fresh("stream")
    api.create(name)
    # The witness fails twice, so it is heard of after the deleted one's retry would have come.
    replies = iter([BROKEN, BROKEN, DONE])
    with Receiver(BROKEN) as receiver, Receiver(lambda _: next(replies)) as witness:
        id = api.webhook(receiver.url, streams=[name])
        api.append(name, {"n": 1})
        wake = receiver.next().body
        api.delete(id)
        api.delete(id)
        assert code(api.callback(wake, done=True)) == (404, "SUBSCRIPTION_NOT_FOUND")
        assert code(api.http.get(api.url(id))) == (404, "SUBSCRIPTION_NOT_FOUND")
        other = api.webhook(witness.url, streams=[name])
        api.await_acked(other, **{name: api.append(name, {"n": 2})})
        assert receiver.count == 0


def test_a_subscription_made_again_does_not_know_the_old_ones_wakes(api: Api) -> None:
    name = fresh("stream")
    api.create(name)
    with Receiver() as receiver:
        config = {"type": "webhook", "webhook": {"url": receiver.url}, "streams": [name]}
        id = fresh("sub")
        wakes = []
        for n in range(2):
            assert api.put(id, **config).status_code == 201
            api.append(name, {"n": n})
            wakes.append(receiver.next().body)
            if n == 0:
                api.delete(id)
        old, new = wakes
        assert old["generation"] == new["generation"] == 1
        assert code(api.callback(old, acks=acks(old), done=True)) == (409, "FENCED")
        assert api.callback(new, acks=acks(new), done=True).status_code == 200


def test_a_deleted_stream_loses_its_link_and_a_new_one_starts_over(api: Api) -> None:
    folder = fresh("events")
    name = f"{folder}/a"
    with Receiver(DONE) as receiver:
        id = api.webhook(receiver.url, pattern=f"{folder}/*")
        api.await_acked(id, **{name: api.create(name, {"n": 1})})
        receiver.next()
        assert api.http.delete(f"{ROOT}/{name}").status_code == 204
        assert api.acked(id) == {}
        tail = api.create(name, {"n": 2})
        (stream,) = receiver.next().body["streams"]
        assert (stream["acked_offset"], stream["tail_offset"]) == ("-1", tail)


def test_a_stream_may_be_named_before_it_exists(api: Api) -> None:
    name = fresh("later")
    with Receiver(DONE) as receiver:
        id = api.webhook(receiver.url, streams=[name])
        assert api.acked(id) == {name: ZERO}
        tail = api.create(name, {"n": 1})
        (stream,) = receiver.next().body["streams"]
        assert stream["link_type"] == "explicit"
        assert (stream["acked_offset"], stream["tail_offset"]) == (ZERO, tail)
        api.await_acked(id, **{name: tail})


def test_a_fork_brings_all_it_inherits(api: Api) -> None:
    folder = fresh("forks")
    source = fresh("source")
    tail = api.create(source, {"n": 1})
    with Receiver(DONE) as receiver:
        api.webhook(receiver.url, pattern=f"{folder}/*")
        headers = {"Stream-Forked-From": f"{ROOT}/{source}"}
        assert api.http.put(f"{ROOT}/{folder}/a", headers=headers).status_code == 201
        (stream,) = receiver.next().body["streams"]
        assert (stream["acked_offset"], stream["tail_offset"]) == ("-1", tail)


def test_removing_an_explicit_link_leaves_the_glob(api: Api) -> None:
    folder, other = fresh("events"), fresh("other")
    name = f"{folder}/a b"
    api.create(name.replace(" ", "%20"))
    with Receiver() as receiver:
        id = api.webhook(receiver.url, pattern=f"{folder}/*")

        def types() -> dict[str, str]:
            return {s["path"]: s["link_type"] for s in api.get(id)["streams"]}

        assert types() == {name: "glob"}
        assert api.post(id, "streams", streams=[name, f"/{other}"]).status_code == 204
        assert types() == {name: "explicit", other: "explicit"}
        for path in (f"{folder}%2Fa%20b", other, other):
            assert api.http.delete(api.url(id, "streams", path)).status_code == 204
        assert types() == {name: "glob"}


@pytest.mark.slow
def test_a_subscription_to_many_streams_is_served_in_bounded_wakes(api: Api) -> None:
    folder, count = fresh("many"), 1200
    released = threading.Event()

    def wait_then_finish(_: Webhook) -> Reply:
        assert released.wait(DEADLINE_SECS)
        return DONE

    with Receiver(wait_then_finish) as receiver:
        id = api.webhook(receiver.url, pattern=f"{folder}/*")
        tails = {f"{folder}/{n}": api.create(f"{folder}/{n}", {"n": n}) for n in range(count)}
        released.set()
        eventually(lambda: api.acked(id) == tails, "everything is acknowledged")
        assert api.get(id)["stream_count"] == count
        assert max(len(receiver.next().body["streams"]) for _ in range(receiver.count)) == 1000


def test_appends_of_other_streams_wake_nobody(api: Api) -> None:
    name, other = fresh("stream"), fresh("stream")
    for each in (name, other):
        api.create(each)
    with Receiver(DONE) as receiver:
        id = api.webhook(receiver.url, streams=[name])
        api.append(other, {"n": 1})
        api.await_acked(id, **{name: api.append(name, {"n": 1})})
        assert receiver.next().body["generation"] == 1
        assert receiver.count == 0


def test_creating_a_stream_announces_it_to_a_subscriber_of_the_registry(api: Api) -> None:
    with Receiver() as receiver:
        id = api.webhook(receiver.url, streams=["__registry__"])
        api.create(fresh("announced"))
        (stream,) = receiver.next().body["streams"]
        assert stream["path"] == "__registry__"
        api.delete(id)


@pytest.mark.slow
def test_a_receiver_that_outlasts_its_lease_is_tried_again(api: Api) -> None:
    """The lease bounds the request, too: 10 s would have been its own bound."""
    name = fresh("stream")
    release = threading.Event()

    def hang(_: Webhook) -> Reply:
        release.wait(DEADLINE_SECS)
        return DONE

    with Receiver(hang) as receiver:
        id = api.webhook(receiver.url, streams=[name], lease_ttl_ms=1000)
        api.create(name, {"n": 1})
        first = receiver.next().body
        eventually(lambda: api.get(id)["status"] == "failed", "the lease runs out")
        assert receiver.next(secs=8).body["wake_id"] == first["wake_id"]
        release.set()
        eventually(lambda: api.get(id)["status"] == "active", "the second is answered")


# -- servers of their own --------------------------------------------------------------------------


def test_loopback_can_be_allowed_wherever_the_server_listens(serve: Serve) -> None:
    server = serve(DS_SERVER__HOST="0.0.0.0", **TO_LOOPBACK)
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}") as http, Receiver() as receiver:
        Api(http).webhook(receiver.url, pattern="*")
        Api(http).create("a", {"n": 1})
        receiver.next()


def test_urls_follow_the_public_url(serve: Serve) -> None:
    server = serve(DS_SERVER__PUBLIC_URL="https://streams.example", **TO_LOOPBACK)
    with httpx.Client(base_url=server.url) as http, Receiver() as receiver:
        api = Api(http)
        id = api.webhook(receiver.url, pattern="*")
        jwks_url = api.get(id)["webhook"]["signing"]["jwks_url"]
        assert jwks_url == f"https://streams.example{ROOT}/__ds/jwks.json"
        api.create("a", {"n": 1})
        callback_url = receiver.next().body["callback_url"]
        assert callback_url == f"https://streams.example{ROOT}/__ds/subscriptions/{id}/callback"


@pytest.mark.slow
def test_a_slow_receiver_is_given_up_and_tried_again(serve: Serve) -> None:
    release = threading.Event()

    def hang(_: Webhook) -> Reply:
        release.wait(DEADLINE_SECS)
        return ACCEPTED

    server = serve(DS_WEBHOOKS__TIMEOUT_SECS="0.2", **TO_LOOPBACK)
    with httpx.Client(base_url=server.url) as http, Receiver(hang) as receiver:
        api = Api(http)
        id = api.webhook(receiver.url, pattern="*")
        api.create("a", {"n": 1})
        first = receiver.next().body
        eventually(lambda: api.get(id)["status"] == "failed", "the attempt is given up")
        assert receiver.next().body["wake_id"] == first["wake_id"]
        release.set()


@pytest.mark.slow
def test_deliveries_are_counted(serve: Serve) -> None:
    server = serve(**TO_LOOPBACK)
    replies = iter([BROKEN, DONE])
    with httpx.Client(base_url=server.url) as http, Receiver(lambda _: next(replies)) as receiver:
        api = Api(http)
        id = api.webhook(receiver.url, pattern="*")
        api.await_acked(id, a=api.create("a", {"n": 1}))
        metrics = http.get("/metrics").text
        assert 'headrace_webhook_deliveries_total{result="failed"} 1.0' in metrics
        assert 'headrace_webhook_deliveries_total{result="delivered"} 1.0' in metrics
        assert "headrace_subscriptions 1.0" in metrics


def test_a_webhook_over_tls_reaches_a_receiver_that_the_machine_trusts(
    serve: Serve, tmp_path: Path
) -> None:
    path = certificate(tmp_path, "localhost")
    asked: list[str | None] = []
    server = serve(SSL_CERT_FILE=str(path), **TO_LOOPBACK)
    with (
        httpx.Client(base_url=server.url) as http,
        Receiver(DONE, tls=tls_server(path, asked)) as receiver,
    ):
        api = Api(http)
        id = api.webhook(f"https://localhost:{receiver.port}/", pattern="*")
        api.await_acked(id, a=api.create("a", {"n": 1}))
    assert "localhost" in asked


def test_a_server_stops_in_time_while_it_waits_for_a_receiver(serve: Serve) -> None:
    release = threading.Event()

    def hang(_: Webhook) -> Reply:
        release.wait(DEADLINE_SECS)
        return ACCEPTED

    server = serve(**TO_LOOPBACK)
    with httpx.Client(base_url=server.url) as http, Receiver(hang) as receiver:
        Api(http).webhook(receiver.url, pattern="*", lease_ttl_ms=600_000)
        Api(http).create("a", {"n": 1})
        receiver.next()
        http.close()
        started = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - started < 9, "the request would have lasted 10 s"
        release.set()


@pytest.mark.parametrize("body", [b'{"done": tru', b"\xff", b"[]"])
def test_whatever_a_receiver_answers_the_server_lives(api: Api, body: bytes) -> None:
    name = fresh("stream")
    with Receiver(Reply(200, body)) as receiver:
        api.webhook(receiver.url, streams=[name])
        api.create(name, {"n": 1})
        wake = json.loads(receiver.next().raw)
        assert api.callback(wake, acks=acks(wake), done=True).status_code == 200
