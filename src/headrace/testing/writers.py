"""Clients under fire: threads that write until their server is killed, and say what they heard.

A client is started anew for each life of the server, and goes on where the last one was cut off.
"""

from __future__ import annotations

import http.client
import threading
from abc import ABC, abstractmethod
from itertools import count

from headrace.testing.oracle import Fate, Fates, Oracle

DEADLINE_SECS = 30.0
HEADERS = {"Content-Type": "text/plain"}
INDETERMINATE = 500  # storage failed under the request: the same as no answer
STORAGE_FAILED = 503  # storage had failed before: it did not happen, and the server is about to end


class Client(threading.Thread, ABC):
    """One connection to one life of a server; ends when that breaks."""

    def __init__(self, port: int, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._port = port

    def run(self) -> None:
        self._connection = http.client.HTTPConnection(
            "127.0.0.1", self._port, timeout=DEADLINE_SECS
        )
        try:
            while self.step():
                pass
        finally:
            self._connection.close()

    @abstractmethod
    def step(self) -> bool:
        """One thing this client does; False ends it."""

    def ask(self, method: str, path: str, body: str = "", **headers: str) -> int | None:
        """The status of the answer; None if it may or may not have happened."""
        fields = HEADERS | {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            self._connection.request(method, path, body, fields)
            response = self._connection.getresponse()
            response.read()
        except (OSError, http.client.HTTPException):
            return None
        return None if response.status == INDETERMINATE else response.status


class Writer(Client):
    """Appends `writer:number` lines to one stream; never sends a message twice."""

    def __init__(self, port: int, path: str, name: str, first: int, oracle: Oracle) -> None:
        super().__init__(port, name)
        self._path = path
        self._oracle = oracle
        self.number = first

    def step(self) -> bool:
        message = f"{self.name}:{self.number}"
        self.number += 1
        status = self.ask("POST", self._path, f"{message}\n")
        if status is None:
            self._oracle.unanswered.add(message)
            return False
        accepted = status in (200, 204)
        (self._oracle.acknowledged if accepted else self._oracle.refused).add(message)
        return True


class Producer(Client):
    """Appends `producer:number` lines with producer headers; repeats what was not answered."""

    def __init__(self, port: int, path: str, name: str, first: int, oracle: Oracle) -> None:
        super().__init__(port, name)
        self._path = path
        self._oracle = oracle
        self.number = first
        self.repeats = 0

    def step(self) -> bool:
        message = f"{self.name}:{self.number}"
        headers = {
            "Producer_Id": self.name,
            "Producer_Epoch": "0",
            "Producer_Seq": str(self.number),
        }
        oracle = self._oracle
        oracle.refused.discard(message)  # what an earlier life refused is sent again
        status = self.ask("POST", self._path, f"{message}\n", **headers)
        if status is None:
            oracle.unanswered.add(message)
            return False
        accepted = status in (200, 204)
        self.repeats += status == 204
        if accepted:
            oracle.acknowledged.add(message)
        elif message not in oracle.unanswered:
            oracle.refused.add(message)
        self.number += accepted
        return accepted


class Churner(Client):
    """Creates streams; leaves a third open, closes a third and deletes a third."""

    def __init__(self, port: int, root: str, name: str, numbers: count[int], fates: Fates) -> None:
        super().__init__(port, name)
        self._root = root
        self._numbers = numbers
        self._fates = fates

    def step(self) -> bool:
        number = next(self._numbers)
        path = f"{self._root}/{self.name}/{number}"
        if not self._make(path, Fate.OPEN, "PUT"):
            return False
        if number % 3 == 1:
            return self._make(path, Fate.CLOSED, "POST", Stream_Closed="true")
        if number % 3 == 2:
            return self._make(path, Fate.ABSENT, "DELETE")
        return True

    def _make(self, path: str, fate: Fate, method: str, **headers: str) -> bool:
        self._fates.attempt(path, fate)
        status = self.ask(method, path, **headers)
        if status is None or status == STORAGE_FAILED:
            return False
        assert status in (200, 201, 204), f"{method} {path} was answered {status}"
        self._fates.confirm(path, fate)
        return True
