"""Clients under fire: threads that write until their server is killed, and say what they heard.

A client is started anew for each life of the server, and goes on where the last one was cut off.
"""

from __future__ import annotations

import http.client
import threading
from abc import ABC, abstractmethod
from itertools import count

from headrace.testing.delivery_checker import DeliveryChecker, Existence, LifecycleChecker

DEADLINE_SECS = 30.0
HEADERS = {"Content-Type": "text/plain"}
INDETERMINATE = 500  # storage failed under the request: the same as no answer
DISK_FULL = 507
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

    def __init__(
        self, port: int, path: str, name: str, first: int, checker: DeliveryChecker
    ) -> None:
        super().__init__(port, name)
        self._path = path
        self._checker = checker
        self.number = first

    def step(self) -> bool:
        message = f"{self.name}:{self.number}"
        self.number += 1
        status = self.ask("POST", self._path, f"{message}\n")
        if status is None:
            self._checker.unanswered.add(message)
            return False
        accepted = status in (200, 204)
        (self._checker.acknowledged if accepted else self._checker.refused).add(message)
        return True


class Producer(Client):
    """Appends `producer:number` lines with producer headers; repeats what was not answered."""

    def __init__(
        self, port: int, path: str, name: str, first: int, checker: DeliveryChecker
    ) -> None:
        super().__init__(port, name)
        self._path = path
        self._checker = checker
        self.number = first
        self.repeats = 0

    def step(self) -> bool:
        message = f"{self.name}:{self.number}"
        headers = {
            "Producer_Id": self.name,
            "Producer_Epoch": "0",
            "Producer_Seq": str(self.number),
        }
        checker = self._checker
        checker.refused.discard(message)  # what an earlier life refused is sent again
        status = self.ask("POST", self._path, f"{message}\n", **headers)
        if status is None:
            checker.unanswered.add(message)
            return False
        accepted = status in (200, 204)
        self.repeats += status == 204
        if accepted:
            checker.acknowledged.add(message)
        elif message not in checker.unanswered:
            checker.refused.add(message)
        self.number += accepted
        return accepted


class LifecycleClient(Client):
    """Creates streams; leaves a third open, closes a third and deletes a third."""

    def __init__(
        self, port: int, root: str, name: str, numbers: count[int], lifecycles: LifecycleChecker
    ) -> None:
        super().__init__(port, name)
        self._root = root
        self._numbers = numbers
        self._lifecycles = lifecycles

    def step(self) -> bool:
        number = next(self._numbers)
        path = f"{self._root}/{self.name}/{number}"
        if not self._make(path, Existence.OPEN, "PUT"):
            return False
        if number % 3 == 1:
            return self._make(path, Existence.CLOSED, "POST", Stream_Closed="true")
        if number % 3 == 2:
            return self._make(path, Existence.ABSENT, "DELETE")
        return True

    def _make(self, path: str, existence: Existence, method: str, **headers: str) -> bool:
        self._lifecycles.attempt(path, existence)
        status = self.ask(method, path, **headers)
        if status is None or status in (STORAGE_FAILED, DISK_FULL):
            return False
        assert status in (200, 201, 204), f"{method} {path} was answered {status}"
        self._lifecycles.confirm(path, existence)
        return True
