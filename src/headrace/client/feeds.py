"""Buckets from a client: the streams there are, and the feed of those that change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from headrace.client.effects import Answer, Steps
from headrace.client.errors import BadAnswer
from headrace.client.requests import NO_CONTENT, OK, Target, ask
from headrace.client.settings import Settings
from headrace.protocol.offsets import NOW


@dataclass(frozen=True, slots=True)
class Change:
    """A stream of a bucket and its tail; without an offset it was deleted."""

    stream_id: str
    next_offset: str | None
    created_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Changes:
    changes: Sequence[Change]
    cursor: str
    up_to_date: bool


def streams_target(settings: Settings, bucket: str) -> Target:
    """The resource that lists and feeds a bucket."""
    return Target(f"{settings.url.rstrip('/')}/{bucket}/streams", settings)


def list_streams(target: Target, prefix: str = "") -> Steps[list[Change]]:
    """Every stream of the bucket, page by page."""
    found: list[Change] = []
    after: str | None = ""
    while after is not None:
        params = {name: value for name, value in (("prefix", prefix), ("after", after)) if value}
        answer = yield from ask(target, target.request("GET", params=params), (OK,))
        page = _document(target, answer)
        found += _changes(target, page.get("streams") if isinstance(page, dict) else None)
        after = page["next_cursor"] if page.get("has_more") else None
    return found


def read_feed(target: Target, cursor: str = NOW, *, wait: bool = False) -> Steps[Changes]:
    """What changed since `cursor`, up to one chunk; with `wait`, once something has."""
    params = {"changes_from": cursor}
    timeout_secs = None
    if wait:
        params["live"] = "long-poll"
        timeout_secs = target.settings.timeouts.live_secs
    request = target.request("GET", params=params, timeout_secs=timeout_secs)
    answer = yield from ask(target, request, (OK, NO_CONTENT))
    lines = _document(target, answer) if answer.status == OK else []
    return Changes(
        _changes(target, lines),
        answer.headers.get("stream-next-offset", cursor),
        answer.flag("stream-up-to-date"),
    )


def _document(target: Target, answer: Answer) -> Any:
    try:
        return orjson.loads(answer.body)
    except orjson.JSONDecodeError:
        raise BadAnswer(target.url, "it is not JSON") from None


def _changes(target: Target, lines: Any) -> list[Change]:
    try:
        return [
            Change(line["stream_id"], line.get("next_offset"), line.get("created_at_ms"))
            for line in lines
        ]
    except (TypeError, KeyError, AttributeError):
        raise BadAnswer(target.url, "it does not name streams") from None
