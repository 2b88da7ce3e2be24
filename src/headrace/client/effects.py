"""What the client's logic asks of the outside: requests, bytes of a body, time.

All logic of the client is generators that yield these effects and are sent their results, so
that it is written once, without input or output. `client.sync_driver` and `client.async_driver`
carry the effects out.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from headrace.client.settings import Fields

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request:
    """One request, before its dynamic headers and parameters are asked for."""

    method: str
    url: str
    headers: Fields = field(default_factory=dict)
    params: Fields = field(default_factory=dict)
    body: bytes | None = None
    timeout_secs: float | None = None
    repeatable: bool = True
    """Whether sending it twice does no harm, so that a lost answer can be asked for again."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A status, headers with names in lower case, and the body unless it is still to be pulled."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    took_secs: float = 0.0

    def flag(self, name: str) -> bool:
        return self.headers.get(name, "").lower() == "true"

    def number(self, name: str) -> int | None:
        value = self.headers.get(name, "")
        return int(value) if value.isascii() and value.isdigit() else None


@dataclass(frozen=True, slots=True)
class Ask:
    """Send it and bring the whole answer."""

    request: Request


@dataclass(frozen=True, slots=True)
class Open:
    """Send it and bring the head of the answer; `Pull` brings the body, `HangUp` ends it.

    An answer that is not a success comes with its body, and there is nothing to pull.
    """

    request: Request


@dataclass(frozen=True, slots=True)
class Pull:
    """The next bytes of the opened body; None at its end."""


@dataclass(frozen=True, slots=True)
class HangUp:
    """Release the opened body."""


@dataclass(frozen=True, slots=True)
class Wait:
    secs: float


@dataclass(frozen=True, slots=True)
class Emit(Generic[T]):
    """Not an effect for the driver: an item for the caller that iterates."""

    value: T


Effect = Ask | Open | Pull | HangUp | Wait
Steps = Generator[Effect, Any, T]
Flow = Generator[Effect | Emit[T], Any, None]
