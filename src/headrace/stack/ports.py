"""The port map: where each service listens, and what happens when that port is taken."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator, Mapping

LOOPBACK = "127.0.0.1"
PORT_MAP: Mapping[str, int] = {
    "server": 4437,
    "envoy": 8080,
    "envoy-stats": 9901,
    "postgres": 54321,
    "monitor": 9902,
    "adminer": 8081,
    "ui": 3000,
    "shapes": 3001,
}
NEIGHBOURS_TRIED = 100
# Below what kernels hand out for outgoing connections (32768 and above on Linux): a port that is
# free now is still free when the service that gets it starts.
FREE_RANGE = range(10_000, 32_000)


def url(port: int) -> str:
    return f"http://{LOOPBACK}:{port}"


class NoFreePort(RuntimeError):
    """Every port that was tried is taken."""


class Ports:
    """Gives each name its port, once, and says so when it is another than the map's."""

    def __init__(self, wanted: Mapping[str, int] | None = None, *, any_free: bool = False) -> None:
        self._wanted = {**PORT_MAP, **(wanted or {})}
        self._any_free = any_free
        self._given: dict[str, int] = {}
        self.messages: list[str] = []

    def give(self, name: str) -> int:
        if name not in self._given:
            self._given[name] = self._choose(name, self._wanted[name])
        return self._given[name]

    def _choose(self, name: str, wanted: int) -> int:
        chosen = next((port for port in self._candidates(wanted) if self._is_free(port)), None)
        if chosen is None:
            raise NoFreePort(f"No port near {wanted} is free for {name}.")
        if wanted and chosen != wanted and not self._any_free:
            self.messages.append(f"Port {wanted} is taken: {name} listens on {chosen} instead.")
        return chosen

    def _candidates(self, wanted: int) -> Iterator[int]:
        if self._any_free or wanted == 0:
            yield from random.sample(FREE_RANGE, NEIGHBOURS_TRIED)
            return
        yield wanted
        others = set(self._wanted.values())
        last = min(wanted + NEIGHBOURS_TRIED, 65_535)
        yield from (port for port in range(wanted + 1, last + 1) if port not in others)

    def _is_free(self, port: int) -> bool:
        return port not in self._given.values() and is_free(port)


def is_free(port: int) -> bool:
    """Whether nothing on this machine listens on `port`."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True
