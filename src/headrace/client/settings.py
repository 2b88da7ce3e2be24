"""The settings of a client: server URL, credentials, timeouts and retries.

Everything here is a frozen value that pickles, so that it can be shipped to other processes
(a callable among headers or parameters must then be one that pickles, too).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict

from headrace.backoff import Backoff

Value = str | Callable[[], str] | Callable[[], Awaitable[str]]
"""A header or parameter: fixed, or asked for anew with every request (the token that expires).

A header that is empty is not sent.
"""

Fields = Mapping[str, Value]

RETRY_AFTER_SECS_MAX = 300.0  # a server that says "in a year" is not believed


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how slowly a request is repeated.

    Waits grow from `delay_ms` by `multiplier` up to `delay_max_ms`, each cut by up to half at
    random so that clients do not return in step. `retries_max=None` never gives up. Live reads
    count failures in a row: progress starts the count again. Until the first answer from the
    server, `first_connect_retries_max` holds as well (about three seconds): the URL may be wrong.
    """

    retries_max: int | None = 10
    delay_ms: float = 100
    delay_max_ms: float = 10_000
    multiplier: float = 2.0
    first_connect_retries_max: int = 5

    def __post_init__(self) -> None:
        if self.retries_max is not None and self.retries_max < 0:
            raise ValueError("retries_max must not be negative.")
        if self.first_connect_retries_max < 0:
            raise ValueError("first_connect_retries_max must not be negative.")
        if self.delay_ms <= 0:
            raise ValueError("delay_ms must be positive.")
        if self.delay_max_ms < self.delay_ms:
            raise ValueError("delay_max_ms must not be less than delay_ms.")
        if self.multiplier < 1.0:
            raise ValueError("multiplier must be at least 1.")

    def allows(self, failures: int) -> bool:
        """Whether to try again after this many failures."""
        return self.retries_max is None or failures <= self.retries_max

    def delay_secs(self, failures: int, chance: float) -> float:
        """How long to wait after the n-th failure; `chance` is random in [0, 1)."""
        waits_ms = Backoff(self.delay_ms, self.delay_max_ms, self.multiplier)
        return waits_ms.after(failures, 1 - chance) / 1000


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long one step of one request may take."""

    connect_secs: float = 10.0
    answer_secs: float = 60.0  # without a byte, on an ordinary request
    live_secs: float = 120.0  # without a byte, on a live read; then it reconnects


class ClientOptions(TypedDict, total=False):
    """The keywords of a client: the fields of `Settings` but for the URL."""

    token: Value | None
    headers: Fields
    params: Fields
    retry: Retry
    timeouts: Timeouts
    stream_root: str
    proxy: str | None
    verify: bool | str
    connections_max: int


@dataclass(frozen=True, slots=True)
class Settings:
    """Where the server is and how to talk to it."""

    url: str = "http://localhost:4437"
    token: Value | None = None
    headers: Fields = field(default_factory=dict)
    params: Fields = field(default_factory=dict)
    retry: Retry = field(default_factory=Retry)
    timeouts: Timeouts = field(default_factory=Timeouts)
    stream_root: str = "/v1/stream"
    proxy: str | None = None  # None: the usual environment variables decide
    verify: bool | str = True  # a file of certificates to trust, or False to check nothing
    connections_max: int = 100

    @staticmethod
    def of(url: str | None, settings: Settings | None, changes: ClientOptions) -> Settings:
        """The given settings, or the defaults, but for these changes."""
        given: dict[str, Any] = {**changes}
        if url is not None:
            given["url"] = url
        return replace(settings or Settings(), **given)
