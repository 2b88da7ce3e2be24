"""A client that keeps the state of a stream: bootstrap, follow, and bootstrap again after a 410.

    headrace serve
    curl -X PUT http://localhost:4437/counters
    curl -X PUT -H 'Content-Type: application/json' http://localhost:4437/counters/votes
    python examples/bootstrap.py http://localhost:4437/counters/votes

The stream holds JSON messages such as {"name": "yes", "add": 1}; the state is the sum for each
name, and a snapshot is the state as JSON. Anyone may publish one, at any offset the stream has
returned. A client that was offline while history was trimmed gets 410 and starts again: it never
has to read the messages that the snapshot replaced.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

import httpx

POLL_SECS = 60.0


class BrokenOff(Exception):
    """The answer to a bootstrap ended before its last delimiter: ask again."""


def parts_of(response: httpx.Response) -> list[bytes]:
    """The bodies of a multipart/mixed answer, in order, exactly as they were sent."""
    delimiter = b"--" + response.headers["content-type"].partition("boundary=")[2].encode()
    first, last = delimiter + b"\r\n", b"\r\n" + delimiter + b"--\r\n"
    if not response.content.startswith(first) or not response.content.endswith(last):
        raise BrokenOff
    parts = response.content[len(first) : -len(last)].split(b"\r\n" + delimiter + b"\r\n")
    return [part.partition(b"\r\n\r\n")[2] for part in parts]


class Votes:
    """The state of one stream, as far as this client has followed it."""

    def __init__(self, client: httpx.Client, url: str) -> None:
        self._client = client
        self._url = url
        self.state: Counter[str] = Counter()
        self.offset: str | None = None
        self.bootstraps = 0

    def bootstrap(self) -> None:
        """Forget everything; begin with the latest snapshot and the messages behind it."""
        response = self._client.get(f"{self._url}/bootstrap").raise_for_status()
        snapshot, *messages = parts_of(response)
        self.state = Counter(json.loads(snapshot)) if snapshot else Counter()
        for message in messages:
            self._apply(json.loads(message))
        self.offset = response.headers["stream-next-offset"]
        self.bootstraps += 1

    def follow(self) -> bool:
        """Take what is new, waiting for it; False once the stream is closed and all is read."""
        if self.offset is None:
            self.bootstrap()
        response = self._client.get(
            self._url, params={"offset": self.offset, "live": "long-poll"}, timeout=POLL_SECS
        )
        if response.status_code == httpx.codes.GONE:
            # History up to the new floor is told by the snapshot now.
            self.bootstrap()
            return True
        response.raise_for_status()
        if response.status_code == httpx.codes.OK:
            for message in response.json():
                self._apply(message)
        self.offset = response.headers["stream-next-offset"]
        return bool(response.headers.get("stream-closed") != "true")

    def publish(self) -> None:
        """Let the state so far stand for everything that led to it."""
        target = f"{self._url}/snapshot/{self.offset}"
        self._client.put(target, json=self.state).raise_for_status()

    def _apply(self, message: dict[str, Any]) -> None:
        self.state[message["name"]] += message["add"]


def main(url: str) -> None:
    with httpx.Client() as client:
        votes = Votes(client, url)
        going = True
        while going:
            going = votes.follow()
            print(votes.offset, dict(votes.state), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
