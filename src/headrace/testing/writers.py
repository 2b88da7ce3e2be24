"""Writers under fire: threads that append until their server is killed, and say what they heard."""

from __future__ import annotations

import http.client
import threading

from headrace.testing.oracle import Oracle

HEADERS = {"Content-Type": "text/plain"}


class Writer(threading.Thread):
    """Appends `writer:number` lines to one stream until the connection breaks."""

    def __init__(self, port: int, path: str, name: str, first: int, oracle: Oracle) -> None:
        super().__init__(name=name, daemon=True)
        self._port = port
        self._path = path
        self._oracle = oracle
        self.number = first

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            while self._append(connection):
                self.number += 1
        finally:
            connection.close()

    def _append(self, connection: http.client.HTTPConnection) -> bool:
        message = f"{self.name}:{self.number}"
        try:
            connection.request("POST", self._path, f"{message}\n", HEADERS)
            response = connection.getresponse()
            response.read()
        except (OSError, http.client.HTTPException):
            self._oracle.unanswered.add(message)
            self.number += 1
            return False
        accepted = response.status in (200, 204)
        (self._oracle.acknowledged if accepted else self._oracle.refused).add(message)
        return True
