"""Single requests as steps: repeat what may be repeated, then read the answer.

Nothing here sends anything; see `client.effects`.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from urllib.parse import quote

import orjson

from headrace.client.effects import Answer, Ask, Request, Steps, Wait
from headrace.client.errors import BadAnswer, ConnectFailed, failure
from headrace.client.settings import RETRY_AFTER_SECS_MAX, Fields, Retry, Settings
from headrace.errors import HeadraceError, Indeterminate, StreamNotFound, Unavailable
from headrace.protocol.headers import DEFAULT_CONTENT_TYPE

OK, CREATED, NO_CONTENT = 200, 201, 204

log = logging.getLogger("headrace.client")


class ProducerStamp(NamedTuple):
    """The producer and this append's place in its sequence, so that a repeat is recognised."""

    id: str
    epoch: int
    seq: int


@dataclass(frozen=True, slots=True)
class Created:
    created: bool
    """False: an equal stream was there already."""
    next_offset: str
    content_type: str
    closed: bool


@dataclass(frozen=True, slots=True)
class Appended:
    next_offset: str | None
    """The tail after this append; None if the server no longer knows it (an old repeat)."""
    duplicate: bool
    closed: bool
    producer_seq: int | None
    """The highest sequence number the stream has of this producer."""


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """What HEAD tells."""

    content_type: str
    next_offset: str
    closed: bool
    ttl_secs: int | None
    expires_at: str | None
    headers: dict[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Target:
    """A URL and what goes with every request to it."""

    url: str
    settings: Settings
    headers: Fields = field(default_factory=dict)
    params: Fields = field(default_factory=dict)

    def request(
        self,
        method: str,
        *,
        headers: Fields | None = None,
        params: Fields | None = None,
        body: bytes | None = None,
        repeatable: bool = True,
        timeout_secs: float | None = None,
    ) -> Request:
        settings = self.settings
        token: Fields = {}
        if settings.token is not None:
            token = {"Authorization": bearer(settings.token)}
        return Request(
            method,
            self.url,
            {**settings.headers, **token, **self.headers, **(headers or {})},
            {**settings.params, **self.params, **(params or {})},
            body,
            timeout_secs or settings.timeouts.answer_secs,
            repeatable,
        )

    def below(self, *segments: str) -> Target:
        """What lies below this URL; segments are encoded."""
        path = "/".join(quote(segment, safe="") for segment in segments)
        return replace(self, url=f"{self.url}/{path}")

    def with_fields(self, headers: Fields | None, params: Fields | None) -> Target:
        if not headers and not params:
            return self
        return replace(
            self,
            headers={**self.headers, **(headers or {})},
            params={**self.params, **(params or {})},
        )


@dataclass(frozen=True, slots=True)
class bearer:  # noqa: N801  used like a function, and pickles
    """A token as a header value that is made anew with every request."""

    token: Any

    def __call__(self) -> Any:
        token = self.token() if callable(self.token) else self.token
        return f"Bearer {token}" if isinstance(token, str) else _bearer_later(token)


async def _bearer_later(token: Any) -> str:
    return f"Bearer {await token}"


# -- asking ---------------------------------------------------------------------------------


def ask(target: Target, request: Request, expected: Collection[int]) -> Steps[Answer]:
    """The answer, if its status is an expected one; repeats what failed and may be repeated."""
    failures = 0
    while True:
        try:
            answer: Answer = yield Ask(request)
            if answer.status in expected:
                return answer
            raise failure(request, answer)
        except HeadraceError as error:
            failures += 1
            if not may_repeat(error, request) or not retry_of(target.settings, error).allows(
                failures
            ):
                raise
            yield pause(target.settings, failures, error)


def may_repeat(error: HeadraceError, request: Request) -> bool:
    if isinstance(error, Indeterminate):
        return request.repeatable
    return isinstance(error, Unavailable)


def retry_of(settings: Settings, error: HeadraceError) -> Retry:
    """The retries in force: fewer until the server has answered for the first time."""
    retry = settings.retry
    if retry.retries_max is None or not (isinstance(error, ConnectFailed) and error.is_first):
        return retry
    # A connection that timed out was waited for long enough already.
    limit = 0 if error.timed_out else min(retry.retries_max, retry.first_connect_retries_max)
    return replace(retry, retries_max=limit)


def pause(settings: Settings, failures: int, error: HeadraceError) -> Wait:
    """The wait before the next attempt: ours, or the server's where that is longer. Logs it."""
    asked_for = float(getattr(error, "retry_after_secs", 0) or 0)
    own = settings.retry.delay_secs(failures, random.random())
    secs = max(own, min(asked_for, RETRY_AFTER_SECS_MAX))
    limit = retry_of(settings, error).retries_max
    of_limit = "" if limit is None else f" of {limit}"
    log.warning("%s. Retry %d%s in %.1f s.", error.detail.rstrip("."), failures, of_limit, secs)
    return Wait(secs)


# -- the verbs ------------------------------------------------------------------------------


def create(
    target: Target,
    content_type: str,
    *,
    ttl_secs: int | None = None,
    expires_at: str | None = None,
    closed: bool = False,
    body: bytes | None = None,
    fork: Fields | None = None,
) -> Steps[Created]:
    headers: dict[str, Any] = {"Content-Type": content_type} if content_type else {}
    headers |= dict(fork or {})
    if ttl_secs is not None:
        headers["Stream-TTL"] = str(ttl_secs)
    if expires_at is not None:
        headers["Stream-Expires-At"] = expires_at
    if closed:
        headers["Stream-Closed"] = "true"
    request = target.request("PUT", headers=headers, body=body)
    answer = yield from ask(target, request, (OK, CREATED))
    return Created(
        answer.status == CREATED,
        answer.headers.get("stream-next-offset", ""),
        answer.headers.get("content-type", content_type or DEFAULT_CONTENT_TYPE),
        answer.flag("stream-closed"),
    )


def fork_headers(source: str, offset: str | None, sub_offset: int | None) -> dict[str, str]:
    headers = {"Stream-Forked-From": source}
    if offset is not None:
        headers["Stream-Fork-Offset"] = offset
    if sub_offset is not None:
        headers["Stream-Fork-Sub-Offset"] = str(sub_offset)
    return headers


def head(target: Target) -> Steps[StreamInfo]:
    answer = yield from ask(target, target.request("HEAD"), (OK,))
    return StreamInfo(
        answer.headers.get("content-type", DEFAULT_CONTENT_TYPE),
        answer.headers.get("stream-next-offset", ""),
        answer.flag("stream-closed"),
        answer.number("stream-ttl"),
        answer.headers.get("stream-expires-at"),
        dict(answer.headers),
    )


def append(
    target: Target,
    body: bytes | None,
    content_type: str | None,
    *,
    producer: ProducerStamp | None = None,
    seq: str | None = None,
    close: bool = False,
    repeat_in_doubt: bool = False,
) -> Steps[Appended]:
    """Append, close, or both. A lost answer is asked for again only if a repeat does no harm."""
    headers: dict[str, str] = {}
    if content_type is not None and body is not None:
        headers["Content-Type"] = content_type
    if producer is not None:
        headers["Producer-Id"] = producer.id
        headers["Producer-Epoch"] = str(producer.epoch)
        headers["Producer-Seq"] = str(producer.seq)
    if seq is not None:
        headers["Stream-Seq"] = seq
    if close:
        headers["Stream-Closed"] = "true"
    repeatable = producer is not None or body is None or repeat_in_doubt
    request = target.request("POST", headers=headers, body=body, repeatable=repeatable)
    answer = yield from ask(target, request, (OK, NO_CONTENT))
    return Appended(
        answer.headers.get("stream-next-offset"),
        producer is not None and body is not None and answer.status == NO_CONTENT,
        answer.flag("stream-closed"),
        answer.number("producer-seq"),
    )


def trim(target: Target, stream: str, before: str | None, keep_messages: int | None) -> Steps[str]:
    """Where the stream begins now; `target` is the resource that trims streams."""
    asked = {"before": before} if keep_messages is None else {"keep_messages": keep_messages}
    request = target.request(
        "POST",
        body=orjson.dumps({"stream": stream, **asked}),
        headers={"Content-Type": "application/json"},
    )
    answer = yield from ask(target, request, (OK,))
    try:
        earliest = orjson.loads(answer.body)["earliest_offset"]
    except (ValueError, KeyError, TypeError):
        raise BadAnswer(target.url, "it does not say where the stream begins") from None
    return str(earliest)


def delete(target: Target) -> Steps[bool]:
    """True if this request deleted it; False if, after a lost answer, it was gone already."""
    request = target.request("DELETE", repeatable=False)
    in_doubt = False
    failures = 0
    while True:
        try:
            yield from ask(target, request, (OK, NO_CONTENT))
            return True
        except StreamNotFound:
            if not in_doubt:
                raise
            return False
        except Indeterminate as error:
            in_doubt = True
            failures += 1
            if not retry_of(target.settings, error).allows(failures):
                raise
            yield pause(target.settings, failures, error)
