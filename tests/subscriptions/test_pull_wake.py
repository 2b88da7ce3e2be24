"""Pull-wake subscriptions against a running server: wake events, claims, leases."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest

from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import eventually
from tests.subscriptions.api import ROOT, Api, acks, code, fresh, names


@pytest.fixture
def wake_stream(api: Api) -> str:
    name = fresh("wake")
    api.create(name)
    return name


def await_events(api: Api, wake_stream: str, count: int) -> list[Any]:
    eventually(lambda: len(api.read(wake_stream)) == count, f"{count} wake events")
    events: list[Any] = api.read(wake_stream)
    return events


def test_a_wake_event_says_who_was_woken_and_why(api: Api, wake_stream: str) -> None:
    folder = fresh("events")
    id = api.pull_wake(wake_stream, pattern=f"{folder}/*")
    api.create(f"{folder}/a", {"n": 1})
    (event,) = await_events(api, wake_stream, 1)
    assert isinstance(event.pop("ts"), int)
    assert event == {
        "type": "wake",
        "subscription_id": id,
        "stream": f"{folder}/a",
        "generation": 1,
    }


def test_claim_ack_and_the_next_wake(api: Api, wake_stream: str) -> None:
    name = fresh("stream")
    api.create(name)
    id = api.pull_wake(wake_stream, streams=[name], lease_ttl_ms=5000)
    tail = api.append(name, {"n": 1})
    claimed = api.claim(id)
    assert claimed["lease_ttl_ms"] == 5000
    (stream,) = claimed["streams"]
    assert (stream["path"], stream["tail_offset"], stream["has_pending"]) == (name, tail, True)
    later = api.append(name, {"n": 2})
    beat = api.ack(id, claimed, acks=acks(claimed))
    assert beat.json() == {"ok": True, "next_wake": False}
    done = api.ack(id, claimed, done=True)
    assert done.json() == {"ok": True, "next_wake": True}
    assert api.acked(id) == {name: tail}
    again = api.claim(id, "worker-2")
    assert again["generation"] == claimed["generation"] + 1
    finished = api.ack(id, again, acks=[{"path": name, "offset": later}], done=True)
    assert finished.json() == {"ok": True, "next_wake": False}
    assert code(api.post(id, "claim", worker="worker-1")) == (409, "NO_PENDING_WORK")


def test_of_many_workers_one_gets_the_work(api: Api, wake_stream: str) -> None:
    name = fresh("stream")
    api.create(name)
    id = api.pull_wake(wake_stream, streams=[name])
    api.append(name, {"n": 1})
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda n: api.post(id, "claim", worker=f"worker-{n}"), range(64)))
    (winner,) = [n for n, answer in enumerate(answers) if answer.status_code == 200]
    for answer in answers:
        if answer.status_code != 200:
            assert code(answer) == (409, "ALREADY_CLAIMED")
            assert answer.json()["error"]["current_holder"] == f"worker-{winner}"
            assert answer.json()["error"]["generation"] == 1
    assert len(api.read(wake_stream)) <= 1


def test_a_release_brings_another_wake_event(api: Api, wake_stream: str) -> None:
    name = fresh("stream")
    api.create(name)
    id = api.pull_wake(wake_stream, streams=[name])
    api.append(name, {"n": 1})
    await_events(api, wake_stream, 1)
    claimed = api.claim(id)
    assert api.post(id, "release", claimed["token"], **names(claimed)).status_code == 204
    events = await_events(api, wake_stream, 2)
    assert [event["generation"] for event in events] == [1, 2]
    for action in ("release", "ack"):
        refused = api.post(id, action, claimed["token"], **names(claimed))
        assert code(refused) == (409, "FENCED")


@pytest.mark.slow
def test_a_lease_that_runs_out_brings_another_wake_event(api: Api, wake_stream: str) -> None:
    name = fresh("stream")
    api.create(name)
    id = api.pull_wake(wake_stream, streams=[name], lease_ttl_ms=1000)
    api.append(name, {"n": 1})
    await_events(api, wake_stream, 1)
    claimed = api.claim(id)
    await_events(api, wake_stream, 2)
    assert code(api.ack(id, claimed, acks=acks(claimed), done=True)) == (409, "FENCED")
    assert api.claim(id, "worker-2")["generation"] == 2


def test_a_wake_stream_of_text_gets_one_line_per_event(api: Api) -> None:
    wake_stream, name = fresh("wake"), fresh("stream")
    api.create(wake_stream, content_type="text/plain")
    api.create(name)
    id = api.pull_wake(wake_stream, streams=[name])
    api.append(name, {"n": 1})

    def text() -> str:
        return api.http.get(f"{ROOT}/{wake_stream}").text

    eventually(lambda: text().endswith("}\n"), "the event is written")
    claimed = api.claim(id)
    api.post(id, "release", claimed["token"], **names(claimed))
    eventually(lambda: len(text().splitlines()) == 2, "and the next on its own line")


def test_a_wake_stream_must_exist_when_the_subscription_is_created(api: Api) -> None:
    id, wake_stream = fresh("pull"), fresh("missing")
    config = {"type": "pull-wake", "wake_stream": wake_stream, "streams": [fresh("stream")]}
    refused = api.put(id, **config)
    assert code(refused) == (400, "INVALID_REQUEST")
    assert f'wake_stream "{wake_stream}"' in refused.json()["detail"]
    api.create(wake_stream)
    assert api.put(id, **config).status_code == 201
    assert api.http.delete(f"{ROOT}/{wake_stream}").status_code == 204
    assert api.put(id, **config).status_code == 200, "it is there, whatever became of the stream"


def test_a_closed_stream_is_refused_as_a_wake_stream(api: Api) -> None:
    wake_stream = fresh("closed")
    api.create(wake_stream)
    closed = api.http.post(f"{ROOT}/{wake_stream}", headers={"Stream-Closed": "true"})
    assert closed.status_code == 204
    refused = api.put(fresh("pull"), type="pull-wake", wake_stream=wake_stream, pattern="a/*")
    assert code(refused) == (400, "INVALID_REQUEST")
    assert "closed" in refused.json()["detail"]


def without_its_wake_stream(api: Api) -> tuple[str, str, str]:
    """A subscription to a stream whose wake stream is gone, and both of them."""
    wake_stream, name = fresh("gone"), fresh("stream")
    api.create(wake_stream)
    api.create(name)
    id = api.pull_wake(wake_stream, streams=[name])
    assert api.http.delete(f"{ROOT}/{wake_stream}").status_code == 204
    return id, wake_stream, name


def test_without_its_wake_stream_the_work_can_be_claimed(api: Api, server: ServerProcess) -> None:
    id, _, name = without_its_wake_stream(api)
    api.append(name, {"n": 1})
    eventually(
        lambda: any("wake event was not written" in line and id in line for line in server.log),
        "the log says that the wake was not announced",
    )
    assert api.claim(id)["generation"] == 1


def test_a_wake_stream_that_is_created_again_gets_the_event_that_waits(api: Api) -> None:
    id, wake_stream, name = without_its_wake_stream(api)
    api.append(name, {"n": 1})
    api.create(wake_stream)
    (event,) = await_events(api, wake_stream, 1)
    assert (event["subscription_id"], event["generation"]) == (id, 1)


def test_an_unclaimed_wake_does_not_hide_work_that_comes_after_its_stream_is_gone(
    api: Api, wake_stream: str
) -> None:
    folder = fresh("events")
    api.pull_wake(wake_stream, pattern=f"{folder}/*")
    api.create(f"{folder}/a", {"n": 1})
    await_events(api, wake_stream, 1)
    assert api.http.delete(f"{ROOT}/{folder}/a").status_code == 204
    api.create(f"{folder}/b", {"n": 1})
    events = await_events(api, wake_stream, 2)
    assert [event["stream"] for event in events] == [f"{folder}/a", f"{folder}/b"]


@pytest.mark.slow
def test_wake_streams_that_wake_others_do_not_pile_up(api: Api) -> None:
    """A long chain: each subscription follows the wake stream of the one before."""
    chain = [fresh("chain") for _ in range(400)]
    for name in chain:
        api.create(name)
    for name, wake_stream in pairwise(chain):
        api.pull_wake(wake_stream, streams=[name])
    api.append(chain[0], {"n": 1})
    await_events(api, chain[-1], 1)


def test_two_subscriptions_that_wake_each_other_come_to_rest(api: Api) -> None:
    one, two = fresh("ring"), fresh("ring")
    for name in (one, two):
        api.create(name)
    ids = [api.pull_wake(two, streams=[one]), api.pull_wake(one, streams=[two])]
    api.append(one, {"n": 1})
    await_events(api, two, 1)
    assert len(await_events(api, one, 2)) == 2
    for id in ids:
        api.delete(id)


def test_the_interfaces_of_the_two_types_are_apart(api: Api, wake_stream: str) -> None:
    name = fresh("stream")
    pull = api.pull_wake(wake_stream, streams=[name])
    hook = api.webhook("https://worker.example/", streams=[name])
    answer = {"wake_id": "w", "generation": 1}
    assert code(api.post(pull, "callback", "token", **answer)) == (400, "INVALID_REQUEST")
    assert code(api.post(hook, "ack", "token", **answer)) == (400, "INVALID_REQUEST")
    assert code(api.post(hook, "release", "token", **answer)) == (400, "INVALID_REQUEST")
    assert code(api.post(hook, "claim", worker="worker-1")) == (400, "INVALID_REQUEST")


def test_a_subscription_cannot_be_made_to_follow_its_own_wake_stream(
    api: Api, wake_stream: str
) -> None:
    id = api.pull_wake(wake_stream, streams=[fresh("stream")])
    refused = api.post(id, "streams", streams=[wake_stream])
    assert code(refused) == (400, "INVALID_REQUEST")
    config = {"type": "pull-wake", "wake_stream": wake_stream, "pattern": "**"}
    assert code(api.put(fresh("pull"), **config)) == (400, "INVALID_REQUEST")
