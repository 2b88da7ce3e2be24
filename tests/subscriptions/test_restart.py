"""Subscriptions in the durable modes outlive the process, however it ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace.storage.verify import verify
from headrace.testing.ports import free_port
from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import DEADLINE_SECS, eventually
from tests.durability.modes import settings
from tests.subscriptions.api import ROOT, ZERO, Api, acks, code, names
from tests.subscriptions.receiver import (
    ACCEPTED,
    BROKEN,
    DONE,
    Receiver,
    verify_signature,
)

pytestmark = pytest.mark.slow
MODES = ["file-fast", "file-durable", "acid"]
TO_LOOPBACK = {"DS_WEBHOOKS__ALLOW_LOOPBACK": "true"}
LONG_MS = 600_000  # a lease that outlives any test


class Lives:
    """One data directory, served again and again; every life but the last ends by kill -9."""

    def __init__(self, mode: str, directory: Path) -> None:
        self.data = directory / "data"
        self._env = settings(mode, self.data) | {"DS_LOG__FORMAT": "json"} | TO_LOOPBACK
        self._directory = directory

    @contextmanager
    def life(self, *, gently: bool = False) -> Iterator[Api]:
        server = ServerProcess(self._env, cwd=str(self._directory))
        server.start()
        try:
            with httpx.Client(base_url=server.url, timeout=DEADLINE_SECS) as client:
                yield Api(client)
        finally:
            if gently:
                assert server.stop() == 0, "".join(server.log)
            else:
                server.kill()


@pytest.fixture(params=MODES)
def lives(request: pytest.FixtureRequest, tmp_path: Path) -> Lives:
    return Lives(request.param, tmp_path)


def jwks(api: Api) -> Any:
    return api.http.get(f"{ROOT}/__ds/jwks.json").json()


def described(api: Api, id: str) -> Any:
    """A description without the address of the server, which is another in each life."""
    found = api.get(id)
    if found["webhook"] is not None:
        del found["webhook"]["signing"]["jwks_url"]
    return found


@pytest.mark.parametrize("gently", [True, False])
def test_a_subscription_is_what_it_was(lives: Lives, gently: bool) -> None:
    with lives.life(gently=gently) as api:
        api.create("wake")
        api.create("a/old", {"n": 1})
        hook = api.webhook("http://127.0.0.1:9/x", pattern="a/*", streams=["b", "missing"])
        pull = api.pull_wake("wake", streams=["b"], lease_ttl_ms=4321, description="über")
        before = [described(api, hook), described(api, pull)]
        keys = jwks(api)
    with lives.life(gently=gently) as api:
        assert [described(api, hook), described(api, pull)] == before
        assert jwks(api) == keys
        other = api.put(pull, type="pull-wake", wake_stream="wake", streams=["c"])
        assert code(other) == (409, "SUBSCRIPTION_ALREADY_EXISTS")
        api.delete(hook)
    with lives.life(gently=gently) as api:
        assert api.http.get(api.url(hook)).status_code == 404
        assert described(api, pull) == before[1]
    report = verify(lives.data)
    assert report is not None
    assert report.findings == []


def test_a_held_lease_fences_after_a_restart(lives: Lives) -> None:
    with lives.life() as api:
        api.create("wake")
        api.create("a")
        id = api.pull_wake("wake", streams=["a"], lease_ttl_ms=LONG_MS)
        tail = api.append("a", {"n": 1})
        claimed = api.claim(id, "first")
    with lives.life() as api:
        refused = api.post(id, "claim", worker="second")
        assert code(refused) == (409, "ALREADY_CLAIMED")
        assert refused.json()["error"]["current_holder"] == "first"
        assert refused.json()["error"]["generation"] == claimed["generation"]
        stale = claimed | {"generation": claimed["generation"] - 1}
        assert code(api.ack(id, stale, done=True)) == (409, "FENCED")
        assert api.ack(id, claimed, acks=acks(claimed), done=True).status_code == 200
    with lives.life() as api:
        assert api.acked(id) == {"a": tail}
        assert code(api.ack(id, claimed, done=True)) == (409, "FENCED")
        assert code(api.post(id, "claim", worker="second")) == (409, "NO_PENDING_WORK")
        api.append("a", {"n": 2})
        assert api.claim(id, "second")["generation"] == claimed["generation"] + 1


def test_a_lease_runs_out_while_nobody_serves(lives: Lives) -> None:
    with lives.life() as api:
        api.create("wake")
        api.create("a")
        id = api.pull_wake("wake", streams=["a"], lease_ttl_ms=1000)
        api.append("a", {"n": 1})
        claimed = api.claim(id, "first")
    with lives.life() as api:
        eventually(
            lambda: api.post(id, "claim", worker="second").status_code == 200,
            "the lease is over and the work can be claimed",
        )
        assert code(api.ack(id, claimed, done=True)) == (409, "FENCED")


def test_work_that_nobody_claimed_is_announced_again(lives: Lives) -> None:
    with lives.life() as api:
        api.create("wake")
        api.create("a")
        id = api.pull_wake("wake", streams=["a"])
        api.append("a", {"n": 1})
        eventually(lambda: len(api.read("wake")) == 1, "the wake event")
    with lives.life() as api:
        eventually(lambda: len(api.read("wake")) == 2, "the wake event, once more")
        first, again = api.read("wake")
        assert first["generation"] == again["generation"]
        claimed = api.claim(id)
        assert claimed["generation"] == first["generation"]
        assert api.ack(id, claimed, acks=acks(claimed), done=True).status_code == 200
    with lives.life() as api:
        assert code(api.post(id, "claim", worker="w")) == (409, "NO_PENDING_WORK")
        assert len(api.read("wake")) == 2


def test_a_webhook_goes_on_where_it_was_acknowledged(lives: Lives) -> None:
    with Receiver(DONE) as receiver:
        with lives.life() as api:
            api.create("a")
            id = api.webhook(receiver.url, streams=["a"])
            first = api.append("a", {"n": 1})
            receiver.next()
            api.await_acked(id, a=first)
            keys = jwks(api)
        with lives.life() as api:
            assert api.acked(id) == {"a": first}
            tail = api.append("a", {"n": 2})
            webhook = receiver.next()
            (stream,) = webhook.body["streams"]
            assert (stream["acked_offset"], stream["tail_offset"]) == (first, tail)
            assert webhook.body["generation"] == 2
            verify_signature(webhook.raw, webhook.headers["webhook-signature"], keys)
            api.await_acked(id, a=tail)
        assert receiver.count == 0


def test_a_webhook_that_did_not_arrive_is_sent_after_the_restart(lives: Lives) -> None:
    port = free_port()
    with lives.life() as api:
        api.create("a")
        id = api.webhook(f"http://127.0.0.1:{port}/hook", streams=["a"])
        tail = api.append("a", {"n": 1})
        eventually(lambda: api.get(id)["status"] == "failed", "the first attempt fails")
    with Receiver(DONE, port=port) as receiver, lives.life() as api:
        assert receiver.next().body["generation"] == 1
        api.await_acked(id, a=tail)


def test_a_webhook_whose_answer_nobody_heard_is_sent_again(lives: Lives) -> None:
    """The same wake, so that the receiver can tell; and what it says meanwhile counts."""
    with Receiver(BROKEN) as receiver:
        with lives.life() as api:
            api.create("a")
            id = api.webhook(receiver.url, streams=["a"], lease_ttl_ms=LONG_MS)
            tail = api.append("a", {"n": 1})
            wake = receiver.next().body
        receiver.reply = ACCEPTED
        with lives.life() as api:
            again = receiver.next().body
            assert names(again) == names(wake)
            assert api.callback(wake, acks=acks(wake), done=True).status_code == 200
        with lives.life() as api:
            assert api.acked(id) == {"a": tail}


def test_streams_that_came_and_went_while_a_glob_followed(lives: Lives) -> None:
    with lives.life() as api:
        api.create("wake")
        api.create("g/gone")
        id = api.pull_wake("wake", pattern="g/*", streams=["later"], lease_ttl_ms=LONG_MS)
        api.http.delete(f"{ROOT}/g/gone")
        api.create("g/new", {"n": 1})
        api.create("later")
    with lives.life() as api:
        assert api.acked(id) == {"g/new": "-1", "later": ZERO}
        claimed = api.claim(id)
        assert api.ack(id, claimed, acks=acks(claimed)[:1]).status_code == 200
        api.create("g/gone", {"n": 1})
    with lives.life() as api:
        assert api.acked(id)["g/gone"] == "-1"
        assert api.http.delete(api.url(id, "streams", "later")).status_code == 204
    with lives.life() as api:
        assert "later" not in api.acked(id)


def test_streams_in_buckets_are_not_followed_after_a_restart_either(lives: Lives) -> None:
    with lives.life() as api:
        id = api.webhook("http://127.0.0.1:9/x", pattern="**")
        assert api.http.put("/bucket").status_code == 201
        assert api.http.put("/bucket/inside").status_code == 201
        before = api.acked(id)
    with lives.life() as api:
        assert api.acked(id) == before


def test_what_is_kept_survives_checkpoints(lives: Lives) -> None:
    """Many acknowledgements, more than a journal segment of them."""
    with lives.life() as api:
        api.create("wake")
        api.create("a")
        id = api.pull_wake("wake", streams=["a"], lease_ttl_ms=LONG_MS)
        for number in range(200):
            tail = api.append("a", {"n": number, "filler": "x" * 400})
            claimed = api.claim(id)
            assert api.ack(id, claimed, acks=acks(claimed), done=True).status_code == 200
    with lives.life() as api:
        assert api.acked(id) == {"a": tail}
        api.append("a", {"n": 0})
        assert api.claim(id)["generation"] == claimed["generation"] + 1
