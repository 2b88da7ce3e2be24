"""Range reads and tails: what a batch job asks of a server, as steps of the client.

These are additions of a Headrace server (docs/protocol.md): a range of a stream that ends exactly
where it was planned to, each message with its length, and the tails of many streams at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from headrace.client.effects import Steps
from headrace.client.errors import BadAnswer
from headrace.client.requests import OK, Target, ask
from headrace.errors import InvalidRequest, StreamNotFound
from headrace.protocol.framed import MEDIA_TYPE
from headrace.protocol.headers import DEFAULT_CONTENT_TYPE
from headrace.protocol.offsets import parse_token
from headrace.protocol.tails import BODY_BYTES_MAX, STREAMS_MAX


@dataclass(frozen=True, slots=True)
class FramedChunk:
    """One answer of a range read: a framed body, and where it ends."""

    body: bytes
    next_offset: str
    content_type: str
    up_to_date: bool
    created_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Tail:
    """One stream in an answer about many; `problem` says why it has no tail."""

    stream: str
    next_offset: str = ""
    earliest_offset: str = ""
    content_type: str = DEFAULT_CONTENT_TYPE
    created_at_ms: int | None = None
    closed: bool = False
    messages: int = 0
    bytes: int = 0
    until_offset: str | None = None
    problem: str | None = None
    detail: str = ""

    @property
    def retained(self) -> tuple[int, int]:
        """How many messages and bytes can still be read."""
        end, start = parse_token(self.next_offset), parse_token(self.earliest_offset)
        return end.messages - start.messages, end.bytes - start.bytes


def read_framed(
    target: Target, offset: str, until: str | None = None, bytes_max: int | None = None
) -> Steps[FramedChunk]:
    """What follows `offset`, up to one chunk of the server and no further than `until`."""
    params = {"offset": offset, "format": "framed"}
    if until is not None:
        params["until"] = until
    if bytes_max is not None:
        params["max_bytes"] = str(bytes_max)
    answer = yield from ask(target, target.request("GET", params=params), (OK,))
    next_offset = answer.headers.get("stream-next-offset")
    if answer.headers.get("content-type") != MEDIA_TYPE or next_offset is None:
        raise BadAnswer(target.url, "it is not framed; is this a Headrace server?")
    created_at_ms = answer.headers.get("stream-created-at-ms")
    return FramedChunk(
        answer.body,
        next_offset,
        answer.headers.get("stream-content-type", DEFAULT_CONTENT_TYPE),
        answer.flag("stream-up-to-date"),
        None if created_at_ms is None else int(created_at_ms),
    )


def tails(
    target: Target, queries: Iterable[Mapping[str, Any]], *, wait: bool = False
) -> Steps[list[Tail]]:
    """The tail of each stream; with `wait`, once one of them has moved or the time is up.

    `target` is the resource that answers for them; waiting is for as many as one request holds.
    """
    bodies = _bodies(queries)
    found: list[Tail] = []
    wait = wait and len(bodies) == 1
    for body in bodies:
        request = target.request(
            "POST",
            params={"live": "long-poll"} if wait else {},
            body=body,
            headers={"Content-Type": "application/json"},
            timeout_secs=target.settings.timeouts.live_secs if wait else None,
        )
        answer = yield from ask(target, request, (OK,))
        found += [_tail(target.url, entry) for entry in _streams_of(target.url, answer.body)]
    return found


def offset_of_last(target: Target, stream: str, count: int) -> Steps[str]:
    """The offset from which `count` messages were left when it was asked, or all if fewer are."""
    tail = yield from _known_tail(target, stream, {})
    offset = tail.earliest_offset
    left = tail.retained[0] - count
    while left > 0:
        query = {"from": offset, "max_messages": left}
        reached = (yield from _known_tail(target, stream, query)).until_offset
        # The server may stop earlier where history is long, but always makes progress.
        if reached is None or reached <= offset:
            raise BadAnswer(target.url, f"it does not say what is {left} messages behind {offset}")
        left -= parse_token(reached).messages - parse_token(offset).messages
        offset = reached
    return offset


def _known_tail(target: Target, stream: str, query: Mapping[str, Any]) -> Steps[Tail]:
    found = yield from tails(target, [{"stream": stream, **query}])
    if not found:
        raise BadAnswer(target.url, "it leaves out the stream that was asked for")
    (tail,) = found
    if tail.problem == "stream-not-found":
        raise StreamNotFound(stream)
    if tail.problem is not None:
        raise InvalidRequest(tail.detail)
    return tail


def _bodies(queries: Iterable[Mapping[str, Any]]) -> list[bytes]:
    """As many requests as it takes, by how many streams and how many bytes one may hold."""
    batches: list[list[bytes]] = []
    room = 0
    for query in queries:
        text = orjson.dumps(query)
        if not batches or len(batches[-1]) >= STREAMS_MAX or len(text) >= room:
            batches.append([])
            room = BODY_BYTES_MAX - len(b'{"streams":[]}')
        batches[-1].append(text)
        room -= len(text) + 1
    return [b'{"streams":[%b]}' % b",".join(batch) for batch in batches]


def _streams_of(url: str, body: bytes) -> list[dict[str, Any]]:
    try:
        streams = orjson.loads(body)["streams"]
    except (ValueError, KeyError, TypeError):
        raise BadAnswer(url, "it does not name streams and their tails") from None
    if not isinstance(streams, list):
        raise BadAnswer(url, "it does not name streams and their tails")
    return streams


def _tail(url: str, entry: dict[str, Any]) -> Tail:
    try:
        return Tail(**{name: entry[name] for name in Tail.__slots__ if name in entry})
    except TypeError:
        raise BadAnswer(url, "an entry names no stream") from None
