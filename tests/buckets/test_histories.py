"""Random histories: at every moment, bootstrap and the tail behind it tell the whole stream.

A history is appends, snapshots, closes, forks and restarts. The model is a list of messages; the
snapshot of a prefix is the prefix itself, so that what a client rebuilds can be compared exactly.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field

import httpx
import pytest

from tests.buckets import multipart
from tests.buckets.api import CLOSE, Mortal

KINDS = ["application/octet-stream", "text/plain", "application/json"]
STEPS = 40


@dataclass
class History:
    """What a stream has been told, and where each message ended."""

    path: str
    kind: str
    messages: list[bytes] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    trim_offset: int = 0
    closed: bool = False

    def rebuild(self, client: httpx.Client) -> list[bytes]:
        """What a new client knows after bootstrap; it checks that the tail adds nothing."""
        found = multipart.read(client.get(f"{self.path}/bootstrap"))
        assert found.closed == self.closed
        known = unfold(found.snapshot.body) + found.messages
        tail = client.get(self.path, params={"offset": found.next_offset})
        assert tail.content == (b"[]" if self.kind == KINDS[2] else b"")
        return known

    def follow(self, client: httpx.Client, known: list[bytes], offset: str) -> None:
        """A client that knew everything up to `offset` reads on from there."""
        answer = client.get(self.path, params={"offset": offset})
        if len(known) < self.trim_offset:
            assert answer.status_code == 410
            assert answer.headers["stream-next-offset"] == self.ends[self.trim_offset]
            return
        rest = self.messages[len(known) :]
        if self.kind == KINDS[2]:
            assert answer.json() == [json.loads(message) for message in rest]
        else:
            assert answer.content == b"".join(rest)


def fold(messages: list[bytes]) -> bytes:
    return json.dumps([message.hex() for message in messages]).encode()


def unfold(blob: bytes) -> list[bytes]:
    return [bytes.fromhex(message) for message in json.loads(blob)] if blob else []


def new_message(chance: random.Random, kind: str, number: int) -> bytes:
    size = chance.choice((1, 10, 300, 20_000))
    if kind == KINDS[2]:
        return json.dumps({"n": number, "pad": "y" * size}).encode()
    return b"%d:" % number + bytes(chance.choices(b"ab\r\n-\n", k=size))


def play(chance: random.Random, history: History, client: httpx.Client) -> None:
    """One step of the history, told to the server and to the model."""
    headers = {"Content-Type": history.kind}
    step = chance.random()
    if step < 0.65 and not history.closed:
        message = new_message(chance, history.kind, len(history.messages))
        answer = client.post(history.path, headers=headers, content=message)
        assert answer.status_code == 204
        history.messages.append(message)
        history.ends.append(answer.headers["stream-next-offset"])
    elif step < 0.97:
        at = chance.randint(history.trim_offset, len(history.messages))
        blob = fold(history.messages[:at])
        target = f"{history.path}/snapshot/{history.ends[at]}"
        assert client.put(target, content=blob).status_code == 204
        history.trim_offset = at
    else:
        assert client.post(history.path, headers=CLOSE).status_code == 204
        history.closed = True


def begin(client: httpx.Client, path: str, kind: str) -> History:
    created = client.put(path, headers={"Content-Type": kind})
    return History(path, kind, ends=[created.headers["stream-next-offset"]])


def check(chance: random.Random, history: History, client: httpx.Client) -> None:
    assert history.rebuild(client) == history.messages
    seen = chance.randint(0, len(history.messages))
    history.follow(client, history.messages[:seen], history.ends[seen])


@pytest.mark.parametrize("kind", KINDS)
def test_bootstrap_and_tail_equal_a_full_replay(api: httpx.Client, bucket: str, kind: str) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    history = begin(api, f"{bucket}/doc", kind)
    for step in range(STEPS):
        play(chance, history, api)
        check(chance, history, api)
        assert history.rebuild(api) == history.messages, f"seed {seed}, step {step}"


@pytest.mark.slow
def test_the_same_through_restarts_and_kills(mortal: Mortal) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    mortal.client.put("/bucket")
    histories = [begin(mortal.client, f"/bucket/{n}", kind) for n, kind in enumerate(KINDS)]
    for round_ in range(4):
        for _ in range(STEPS):
            history = chance.choice(histories)
            play(chance, history, mortal.client)
            check(chance, history, mortal.client)
        mortal.restart(kill=round_ % 2 == 0)
        for history in histories:
            assert history.rebuild(mortal.client) == history.messages, f"seed {seed}"
            check(chance, history, mortal.client)
