"""One stream's verbs as steps, for both clients: what is sent, and what is remembered of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypedDict, Unpack

from headrace.client import range_reads, requests
from headrace.client.effects import Steps
from headrace.client.encoding import encode_data, encode_json
from headrace.client.requests import Appended, Created, ProducerStamp, StreamInfo, Target
from headrace.client.settings import Fields
from headrace.client.stream_reading import Live, Reading
from headrace.client.urls import control_place, locate
from headrace.errors import InvalidRequest
from headrace.protocol.headers import is_json


class CreateOptions(TypedDict, total=False):
    ttl_secs: int | None
    """It expires after this long without a read or a write."""
    expires_at: str | None
    """It expires at this moment (RFC 3339)."""
    closed: bool
    """It is complete from the start."""
    data: bytes | str | None
    """Its first append."""


class ForkOptions(TypedDict, total=False):
    offset: str | None
    """Where to fork; the tail if not given."""
    sub_offset: int | None
    """So many messages (JSON) or bytes further."""
    content_type: str
    ttl_secs: int | None
    expires_at: str | None


class AppendOptions(TypedDict, total=False):
    producer: ProducerStamp | None
    """Makes it repeatable: the stream takes each stamp once."""
    seq: str | None
    """Stream-Seq: refused unless greater than the last one of the stream."""
    close: bool
    """Close the stream with it."""
    repeat_in_doubt: bool
    """Send it again when an answer is lost, at the risk of appending it twice."""


class ReadOptions(TypedDict, total=False):
    skip: int
    """Leave out so many messages in the view `events`."""
    headers: Fields | None
    params: Fields | None


def check_options(options: Mapping[str, Any], kind: type) -> None:
    """TypeError for an option that does not exist: a `ttl` that is ignored would be found late."""
    unknown = sorted(options.keys() - kind.__annotations__.keys())
    if unknown:
        there_are = ", ".join(kind.__annotations__)
        raise TypeError(f"There is no option {', '.join(unknown)}; there are {there_are}.")


class StreamOps:
    """A stream as a client knows it: where it is and, once known, its content type."""

    def __init__(self, target: Target, content_type: str | None = None) -> None:
        self.target = target
        self.content_type = content_type

    def create(self, content_type: str, **options: Unpack[CreateOptions]) -> Steps[Created]:
        check_options(options, CreateOptions)
        data = options.get("data")
        created = yield from requests.create(
            self.target,
            content_type,
            ttl_secs=options.get("ttl_secs"),
            expires_at=options.get("expires_at"),
            closed=options.get("closed", False),
            body=None if data is None else encode_data(data),
        )
        self.content_type = created.content_type
        return created

    def fork(self, source: str, **options: Unpack[ForkOptions]) -> Steps[Created]:
        check_options(options, ForkOptions)
        path = locate(self.target.settings, source, path_only=True)
        created = yield from requests.create(
            self.target,
            options.get("content_type", ""),
            ttl_secs=options.get("ttl_secs"),
            expires_at=options.get("expires_at"),
            fork=requests.fork_headers(path, options.get("offset"), options.get("sub_offset")),
        )
        self.content_type = created.content_type
        return created

    def head(self) -> Steps[StreamInfo]:
        info = yield from requests.head(self.target)
        self.content_type = info.content_type
        return info

    def offset_of_last(self, count: int) -> Steps[str]:
        url, name = control_place(self.target.settings, self.target.url, "tails")
        return range_reads.offset_of_last(replace(self.target, url=url), name, count)

    def trim(self, before: str | None, keep_messages: int | None) -> Steps[str]:
        if (before is None) == (keep_messages is None):
            raise TypeError("trim takes one of before and keep_messages")
        url, name = control_place(self.target.settings, self.target.url, "trim")
        return requests.trim(replace(self.target, url=url), name, before, keep_messages)

    def learn_type(self) -> Steps[str]:
        """The content type, asked for once."""
        if self.content_type is None:
            yield from self.head()
        assert self.content_type is not None, "HEAD tells the content type"
        return self.content_type

    def learn_json(self) -> Steps[str]:
        """The content type, which must be JSON: values in other streams would run together."""
        content_type = yield from self.learn_type()
        if not is_json(content_type):
            raise InvalidRequest(
                f"{self.target.url} holds {content_type}, which has no JSON values. Use append, "
                "with the bytes as they are to be read."
            )
        return content_type

    def append(self, data: bytes | str, **options: Unpack[AppendOptions]) -> Steps[Appended]:
        check_options(options, AppendOptions)
        body = encode_data(data)
        content_type = yield from self.learn_type()
        return (yield from requests.append(self.target, body, content_type, **options))

    def append_json(
        self, values: tuple[Any, ...], **options: Unpack[AppendOptions]
    ) -> Steps[Appended]:
        check_options(options, AppendOptions)
        body = encode_json(values)
        content_type = yield from self.learn_json()
        return (yield from requests.append(self.target, body, content_type, **options))

    def close(self, data: bytes | str | None, producer: ProducerStamp | None) -> Steps[Appended]:
        if data is not None:
            return self.append(data, producer=producer, close=True)
        return requests.append(self.target, None, None, producer=producer, close=True)

    def delete(self) -> Steps[bool]:
        return requests.delete(self.target)

    def reading(self, offset: str, live: Live, options: ReadOptions) -> Reading:
        check_options(options, ReadOptions)
        target = self.target.with_fields(options.get("headers"), options.get("params"))
        return Reading(target, offset, live, skip=options.get("skip", 0))


class ReaderPosition:
    """Where a reader is."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    @property
    def offset(self) -> str:
        """Where the next read goes on."""
        return self._reading.offset

    @property
    def up_to_date(self) -> bool:
        return self._reading.up_to_date

    @property
    def closed(self) -> bool:
        """Whether the stream is closed and everything of it was read."""
        return self._reading.closed

    @property
    def cursor(self) -> str | None:
        return self._reading.cursor

    @property
    def content_type(self) -> str | None:
        """What the stream holds, once an answer said it."""
        return self._reading.content_type

    @property
    def status(self) -> int | None:
        """The status of the latest answer: 204 is a long-poll that ended without news."""
        return self._reading.status
