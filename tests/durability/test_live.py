"""Live readers through kill -9: ordered, unique, gap-free, and nothing they saw is lost."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from headrace.testing.delivery_checker import DeliveryChecker
from headrace.testing.raw_http import EndOfConnection, RawConnection
from headrace.testing.server_process import ServerProcess
from headrace.testing.server_queries import catch_up
from headrace.testing.sse_reader import open_events
from headrace.testing.waiting import eventually
from headrace.testing.writers import Writer
from tests.durability.campaign import mutant
from tests.durability.modes import DURABLE_MODES, KEPT_MODES, settings

pytestmark = pytest.mark.slow

PATH = "/v1/stream/live"
TEXT = {"content-type": "text/plain"}
CYCLES = 8
MUTANT_CYCLES_MAX = 10
WRITERS = 4
FOLLOWERS = 2  # of each kind
DEADLINE_SECS = 30.0


class Follower(threading.Thread):
    """Follows the stream through one life of its server, from where the last one left it."""

    def __init__(self, port: int, past: Follower | None) -> None:
        super().__init__(daemon=True)
        self._port = port
        self.text: str = past.text if past else ""
        self.offset: str = past.offset if past else "-1"
        self.offsets: list[tuple[str, int]] = past.offsets if past else [("-1", 0)]
        self.fault: str | None = past.fault if past else None
        self.ended = False

    def run(self) -> None:
        try:
            self.follow()
        except (EndOfConnection, OSError):
            pass
        except AssertionError as fault:
            self.fault = str(fault)

    def follow(self) -> None:
        raise NotImplementedError

    def take(self, data: str, offset: str, *, closed: bool) -> None:
        self.text += data
        self.offset = offset
        self.offsets.append((offset, len(self.text)))
        self.ended = closed


class LongPoller(Follower):
    def follow(self) -> None:
        with RawConnection(self._port) as connection:
            while not self.ended:
                target = f"{PATH}?offset={self.offset}&live=long-poll"
                answer = connection.request("GET", target)
                assert answer.status in (200, 204), (answer.status, answer.body)
                closed = "stream-closed" in answer.headers
                offset = answer.headers["stream-next-offset"]
                self.take(answer.body.decode(), offset, closed=closed)


class EventFollower(Follower):
    def follow(self) -> None:
        with open_events(self._port, f"{PATH}?offset={self.offset}&live=sse") as events:
            while not self.ended:
                batch = events.batch()
                control = batch.control
                closed = bool(control.get("streamClosed"))
                self.take(batch.data or "", control["streamNextOffset"], closed=closed)


class Followed:
    """Writers and followers of one stream, over several lives of its server."""

    def __init__(self, env: dict[str, str], directory: Path) -> None:
        self._env = env
        self._directory = directory
        self._random = random.Random(7)
        self._numbers = dict.fromkeys((f"w{number}" for number in range(WRITERS)), 0)
        self.checker = DeliveryChecker()
        self.followers: list[Follower] = []

    def live(self, end: Callable[[ServerProcess], None]) -> None:
        server = ServerProcess(self._env, cwd=str(self._directory))
        server.start()
        if not self.followers:
            httpx.put(server.url + PATH, headers=TEXT)
        self._follow(server.port)
        writers = [
            Writer(server.port, PATH, name, first, self.checker)
            for name, first in self._numbers.items()
        ]
        enough = len(self.checker.acknowledged) + self._random.randrange(50, 700)
        for writer in writers:
            writer.start()
        eventually(lambda: len(self.checker.acknowledged) >= enough, "writers are acknowledged")
        end(server)
        for thread in [*writers, *self.followers]:
            thread.join(DEADLINE_SECS)
            assert not thread.is_alive(), thread
        for writer in writers:
            self._numbers[writer.name] = writer.number

    def _follow(self, port: int) -> None:
        kinds = [LongPoller, EventFollower] * FOLLOWERS
        past: list[Follower] = self.followers
        self.followers = [
            kind(port, past[index] if past else None) for index, kind in enumerate(kinds)
        ]
        for follower in self.followers:
            follower.start()

    def finish(self) -> str:
        """Close the stream, let every follower reach its end; what the stream then holds."""
        with ServerProcess(self._env, cwd=str(self._directory)) as server:
            httpx.post(server.url + PATH, headers={"stream-closed": "true"})
            self._follow(server.port)
            for follower in self.followers:
                follower.join(DEADLINE_SECS)
            self.answers_from = {
                offset: read_from(server, offset)
                for follower in self.followers
                for offset, _ in self._random.sample(follower.offsets, 5)
            }
            return read_from(server, "-1")


def read_from(server: ServerProcess, offset: str) -> str:
    with httpx.Client(base_url=server.url, timeout=DEADLINE_SECS) as client:
        return b"".join(answer.content for answer in catch_up(client, PATH, offset)).decode()


def kill(server: ServerProcess) -> None:
    server.kill()


@pytest.fixture(scope="module", params=KEPT_MODES)
def followed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Followed, str]:
    directory = tmp_path_factory.mktemp("live")
    one = Followed(settings(request.param, directory / "data"), directory)
    for _ in range(CYCLES):
        one.live(kill)
    stored = one.finish()
    messages = len(stored.splitlines())
    print(
        f"{request.param}: {CYCLES} kills, {messages} messages, "
        f"{messages * len(one.followers)} delivered"
    )
    return one, stored


def test_every_follower_sees_exactly_what_is_stored(followed: tuple[Followed, str]) -> None:
    one, stored = followed
    assert one.checker.violations(stored.splitlines()) == []
    for follower in one.followers:
        assert follower.fault is None
        assert follower.ended
        assert follower.text == stored


def test_every_offset_a_follower_was_given_continues_where_it_was_given(
    followed: tuple[Followed, str],
) -> None:
    one, stored = followed
    places = dict(place for follower in one.followers for place in follower.offsets)
    for offset, rest in one.answers_from.items():
        assert rest == stored[places[offset] :]


@pytest.mark.parametrize("mode", DURABLE_MODES)
def test_a_server_that_shows_what_is_not_durable_is_caught(mode: str, tmp_path: Path) -> None:
    env = settings(mode, tmp_path / "data") | mutant("acknowledge_early")
    one = Followed(env, tmp_path)
    for _ in range(MUTANT_CYCLES_MAX):
        one.live(kill)
        with ServerProcess(env, cwd=str(tmp_path)) as server:
            stored = read_from(server, "-1")
        if not all(stored.startswith(follower.text) for follower in one.followers):
            return
    pytest.fail(f"{MUTANT_CYCLES_MAX} kills found nothing wrong")
