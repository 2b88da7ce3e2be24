"""Buckets, snapshots and listings as steps, for both clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from headrace.client.effects import Emit, Flow, Steps
from headrace.client.errors import BadAnswer
from headrace.client.requests import CREATED, NO_CONTENT, OK, Target, ask
from headrace.client.state import State
from headrace.errors import InvalidRequest
from headrace.protocol.headers import DEFAULT_CONTENT_TYPE

REDIRECTED = 307
PAGE_MAX = 1000  # the protocol's own bound


class BucketInfo(msgspec.Struct):
    bucket_id: str
    streams: int
    created_at_ms: int | None = None
    """Only a Headrace server says."""


class _Buckets(msgspec.Struct):
    buckets: list[BucketInfo]


class StreamEntry(msgspec.Struct):
    """One line of a listing."""

    stream_id: str
    status: str
    content_type: str
    tail_offset: int
    """Bytes before the tail."""
    created_at_ms: int | None = None
    last_write_at_ms: int | None = None
    next_offset: str | None = None
    """Where to read on from; only a Headrace server says."""


class _Page(msgspec.Struct):
    streams: list[StreamEntry]
    next_cursor: str | None = None
    has_more: bool = False


@dataclass(frozen=True, slots=True)
class RegisteredStream:
    """A stream outside of buckets, as the registry announces it."""

    name: str
    content_type: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot and the offset it covers."""

    content_type: str
    data: bytes
    offset: str
    next_offset: str
    up_to_date: bool


def decode(url: str, body: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise BadAnswer(url, str(error)) from None


# -- buckets --------------------------------------------------------------------------------------


def create_bucket(target: Target) -> Steps[None]:
    yield from ask(target, target.request("PUT"), (OK, CREATED))


def bucket_info(target: Target) -> Steps[BucketInfo]:
    answer = yield from ask(target, target.request("GET"), (OK,))
    info: BucketInfo = decode(target.url, answer.body, BucketInfo)
    return info


def delete_bucket(target: Target) -> Steps[None]:
    yield from ask(target, target.request("DELETE"), (OK, NO_CONTENT))


def list_buckets(target: Target) -> Steps[list[BucketInfo]]:
    """The buckets of the server: at most 10,000, which is all that its listing has."""
    answer = yield from ask(target, target.request("GET"), (OK,))
    found: _Buckets = decode(target.url, answer.body, _Buckets)
    return sorted(found.buckets, key=lambda bucket: bucket.bucket_id)


def list_streams(target: Target, prefix: str) -> Flow[StreamEntry]:
    """Every stream of a bucket, page by page, sorted by id."""
    at = target.below("streams")
    params = {"limit": str(PAGE_MAX), "prefix": prefix}
    while True:
        answer = yield from ask(at, at.request("GET", params=params), (OK,))
        page: _Page = decode(at.url, answer.body, _Page)
        for entry in page.streams:
            yield Emit(entry)
        if not page.has_more or page.next_cursor is None:
            return
        params = {**params, "after": page.next_cursor}


def registered(state: State, prefix: str) -> list[RegisteredStream]:
    """The streams that the registry holds, sorted by name."""
    rows = state.rows("stream")
    return [
        RegisteredStream(name, rows[name].get("contentType") or DEFAULT_CONTENT_TYPE)
        for name in sorted(rows)
        if name.startswith(prefix)
    ]


# -- snapshots ------------------------------------------------------------------------------------


def publish_snapshot(target: Target, offset: str, data: bytes, content_type: str) -> Steps[None]:
    at = target.below("snapshot", offset)
    request = at.request("PUT", headers={"Content-Type": content_type}, body=data)
    answer = yield from ask(at, request, (OK, CREATED, NO_CONTENT))
    if answer.status == CREATED and "stream-next-offset" in answer.headers:
        # Outside of buckets this is the URL of a stream like any other, and it was free.
        yield from ask(at, at.request("DELETE"), (OK, NO_CONTENT))
        raise InvalidRequest("Only a stream in a bucket has snapshots: name it /bucket/stream.")


def read_snapshot(target: Target, offset: str | None) -> Steps[Snapshot]:
    """The snapshot at `offset`, or the latest."""
    if offset is None:
        latest = target.below("snapshot")
        answer = yield from ask(latest, latest.request("GET"), (REDIRECTED,))
        path = urlsplit(answer.headers.get("location", "")).path
        offset = unquote(path.rpartition("/")[2])
        if not offset:
            raise BadAnswer(latest.url, "it does not say where the latest snapshot is")
    at = target.below("snapshot", offset)
    answer = yield from ask(at, at.request("GET"), (OK,))
    return Snapshot(
        answer.headers.get("content-type", DEFAULT_CONTENT_TYPE),
        answer.body,
        answer.headers.get("stream-snapshot-offset", offset),
        answer.headers.get("stream-next-offset", offset),
        answer.flag("stream-up-to-date"),
    )


def delete_snapshot(target: Target, offset: str) -> Steps[None]:
    at = target.below("snapshot", offset)
    yield from ask(at, at.request("DELETE"), (OK, NO_CONTENT))
