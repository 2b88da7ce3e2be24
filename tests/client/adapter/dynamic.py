"""Headers and parameters that are made anew with every request, and what was sent of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

Maker = Callable[[], str]


class Dynamic:
    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._headers: dict[str, Maker] = {}
        self._params: dict[str, Maker] = {}
        self._sent: dict[str, dict[str, str]] = {}

    def set_header(self, name: str, kind: str, initial: str | None) -> None:
        self._headers[name] = partial(self._made, "headersSent", name, _maker(kind, initial))

    def set_param(self, name: str, kind: str) -> None:
        self._params[name] = partial(self._made, "paramsSent", name, _maker(kind, None))

    def headers(self) -> dict[str, Maker]:
        return dict(self._headers)

    def params(self) -> dict[str, Maker]:
        return dict(self._params)

    def sent(self) -> dict[str, dict[str, str]]:
        return self._sent

    def _made(self, where: str, name: str, make: Maker) -> str:
        value = make()
        self._sent.setdefault(where, {})[name] = value
        return value


def _maker(kind: str, initial: str | None) -> Maker:
    if kind == "token":
        return lambda: initial or ""
    if kind == "timestamp":
        return lambda: str(int(time.time() * 1000))
    numbers = iter(range(1, 1_000_000))
    return lambda: str(next(numbers))
