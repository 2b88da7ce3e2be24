"""A server on a disk that another process fills to its last byte and empties again, life by life.

Whatever was acknowledged is there after every life; whatever was refused says so; the server stays
up, and takes writes again when there is room.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import Random

import httpx

from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import eventually
from tests.durability.modes import settings

ROOT = "/v1/stream"
TEXT = {"content-type": "text/plain"}
STREAMS = 12
STEPS = 60
ROOM_SECS = 60.0
WRITTEN = {200, 201, 204}
REFUSED = {404, 409, 500, 503, 507}


def fill(disk: Path) -> Path:
    """Take the last byte of it, as another process might."""
    taken = disk / "somebody else's"
    with taken.open("ab", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))
    return taken


class FullDisk:
    """Lives of one server; `wrong` says what should not have happened."""

    def __init__(self, mode: str, disk: Path, work: Path, seed: int = 0) -> None:
        self._disk = disk
        self._server = ServerProcess(settings(mode, disk / "data"), cwd=str(work))
        self._random = Random(seed)
        # What each stream must hold, and what more it may: appends of which nothing is known.
        self._kept: dict[str, list[str]] = {}
        self._perhaps: dict[str, set[str]] = {}
        self._number = 0
        self.lives = self.written = self.refused = 0
        self.wrong: list[str] = []

    @property
    def sentence(self) -> str:
        return f"{self.lives} lives, {self.written:,} writes acknowledged, {self.refused:,} refused"

    def live(self) -> None:
        """Start, perhaps on a full disk; write, delete and read; end, perhaps by a kill."""
        self.lives += 1
        self._server.url = ""
        self._server.start()
        try:
            with httpx.Client(base_url=self._server.url + ROOT, timeout=60) as client:
                self._check(client)
                for _ in range(STEPS):
                    self._step(client)
                self._make_room()
                eventually(lambda: self._is_writable(client), "there is room", secs=ROOM_SECS)
                self._check(client)
        finally:
            if not self._server.is_running:
                self.wrong.append(f"life {self.lives}: the server ended by itself")
            if self._random.random() < 0.3:
                fill(self._disk)
            (self._server.kill if self._random.random() < 0.7 else self._server.stop)()

    def _step(self, client: httpx.Client) -> None:
        chance = self._random.random()
        if chance < 0.08:
            fill(self._disk)
        elif chance < 0.12:
            self._make_room()
        elif chance < 0.25:
            self._delete(client, self._name())
        else:
            self._append(client, self._name())

    def _name(self) -> str:
        return f"/{self._random.randrange(STREAMS)}"

    def _make_room(self) -> None:
        (self._disk / "somebody else's").unlink(missing_ok=True)

    def _is_writable(self, client: httpx.Client) -> bool:
        return client.put("/probe", headers=TEXT).status_code in WRITTEN and bool(
            client.post("/probe", content="x", headers=TEXT).status_code == 204
        )

    def _append(self, client: httpx.Client, name: str) -> None:
        self._number += 1
        line = f"{self._number}:" + "x" * self._random.choice((10, 1000, 20_000)) + "\n"
        is_new = name not in self._kept
        answer = (client.put if is_new else client.post)(name, content=line, headers=TEXT)
        if answer.status_code == 200:
            self._kept[name] = []  # it is there still, as it was: a delete was refused
        elif self._is_written(answer):
            self._kept.setdefault(name, []).append(line)
        elif answer.status_code == 500 or is_new:
            # Not known, or refused and written all the same when there was room: a PUT may be.
            self._perhaps.setdefault(name, set()).add(line)

    def _delete(self, client: httpx.Client, name: str) -> None:
        answer = client.delete(name)
        if self._is_written(answer) or answer.status_code == 404:
            self._kept.pop(name, None)
            self._perhaps.pop(name, None)
        else:
            # It may happen when there is room.
            self._perhaps.setdefault(name, set()).update(self._kept.pop(name, []))

    def _is_written(self, answer: httpx.Response) -> bool:
        is_written = answer.status_code in WRITTEN
        self.written += is_written
        self.refused += not is_written
        if not is_written and answer.status_code not in REFUSED:
            self.wrong.append(f"{answer.request.method} was answered with {answer.status_code}")
        return is_written

    def _check(self, client: httpx.Client) -> None:
        for number in range(STREAMS):
            name = f"/{number}"
            found = self._read(client, name)
            kept, perhaps = self._kept.get(name, []), self._perhaps.get(name, set())
            missing = [line[:20] for line in kept if line not in found]
            invented = [line[:20] for line in found if line not in kept and line not in perhaps]
            if missing or invented or len(found) != len(set(found)):
                self.wrong.append(f"{name} lacks {missing[:3]} and has {invented[:3]} beyond")
            if found:
                self._kept[name] = found
            else:
                self._kept.pop(name, None)

    def _read(self, client: httpx.Client, name: str) -> list[str]:
        text, offset = "", "-1"
        while True:
            answer = client.get(name, params={"offset": offset})
            if answer.status_code == 404:
                return []
            assert answer.status_code == 200, answer.text
            text += answer.text
            offset = answer.headers["stream-next-offset"]
            if "stream-up-to-date" in answer.headers:
                return text.splitlines(keepends=True)
