"""What the data source asks of the server: tails, ranges and which streams there are.

The one place of the source that sends requests; made anew in each process that needs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from headrace.client import requests
from headrace.client.feeds import Change, Changes, list_streams, read_feed, streams_target
from headrace.client.range_reads import FramedChunk, Tail, read_framed, tails
from headrace.client.raw_http import RawHttpDriver, is_direct
from headrace.client.requests import Appended, ProducerStamp, Target
from headrace.client.settings import Settings
from headrace.client.sync_driver import Driver
from headrace.client.urls import locate
from headrace.errors import StreamDeleted, StreamNotFound
from headrace.protocol.buckets import encode_segment
from headrace.protocol.headers import DEFAULT_CONTENT_TYPE
from headrace.protocol.names import CONTROL_PREFIX, check_name


@dataclass(frozen=True, slots=True)
class StreamSnapshot:
    body: bytes
    content_type: str
    offset: str


class StreamApi:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._driver: Driver | RawHttpDriver = (
            RawHttpDriver(settings) if is_direct(settings) else Driver(settings)
        )

    def close(self) -> None:
        self._driver.close()

    def target(self, stream: str) -> Target:
        """`a/b`, or `/bucket/stream`; the names of documents, not encoded for a URL."""
        if stream.startswith("/"):
            stream = "/" + "/".join(map(encode_segment, stream[1:].split("/", 1)))
        else:
            # A name may come from a row. As a URL it would send the row, and the token, elsewhere.
            check_name(stream)
        return Target(locate(self.settings, stream), self.settings)

    def read_range(self, stream: str, start: str, end: str) -> Iterator[FramedChunk]:
        """Chunks that hold exactly the bytes from `start` to `end`."""
        target = self.target(stream)
        while start != end:
            chunk = self._driver.run(read_framed(target, start, end))
            yield chunk
            if chunk.next_offset == start:
                return
            start = chunk.next_offset

    def read_on(self, stream: str, start: str) -> Iterator[FramedChunk]:
        """Chunks from `start` to the tail."""
        target = self.target(stream)
        while True:
            chunk = self._driver.run(read_framed(target, start))
            yield chunk
            if chunk.up_to_date or chunk.next_offset == start:
                return
            start = chunk.next_offset

    def tails(self, queries: Iterable[Mapping[str, Any]], *, wait: bool = False) -> list[Tail]:
        root = f"{self.settings.url}{self.settings.stream_root}/{CONTROL_PREFIX}"
        target = Target(f"{root}/tails", self.settings)
        return self._driver.run(tails(target, queries, wait=wait))

    def tail(self, stream: str) -> Tail:
        """As `tails` of one stream, of any server of the protocol."""
        try:
            info = self._driver.run(requests.head(self.target(stream)))
        except (StreamNotFound, StreamDeleted) as error:
            return Tail(stream, problem="stream-not-found", detail=error.detail)
        return Tail(stream, info.next_offset, content_type=info.content_type)

    def list_bucket(self, bucket: str, prefix: str) -> list[Change]:
        return self._driver.run(list_streams(streams_target(self.settings, bucket), prefix))

    def feed(self, bucket: str, cursor: str, *, wait: bool = False) -> Changes:
        """Streams of a bucket that changed since `cursor`."""
        target = streams_target(self.settings, bucket)
        return self._driver.run(read_feed(target, cursor, wait=wait))

    def snapshot(self, stream: str, offset: str) -> StreamSnapshot:
        """What the stream's messages before `offset` amount to."""
        at = self.target(stream)
        target = Target(f"{at.url}/snapshot/{quote(offset, safe='')}", self.settings)
        answer = self._driver.run(requests.ask(target, target.request("GET"), (requests.OK,)))
        content_type = answer.headers.get("content-type", DEFAULT_CONTENT_TYPE)
        return StreamSnapshot(answer.body, content_type, offset)

    def publish_snapshot(
        self, stream: str, offset: str, body: bytes, content_type: str, instead_of: str
    ) -> None:
        """Publish what the messages before `offset` amount to, if `instead_of` is still there."""
        at = self.target(stream)
        target = Target(f"{at.url}/snapshot/{quote(offset, safe='')}", self.settings)
        headers = {"Content-Type": content_type, "Stream-Snapshot-Match": instead_of}
        request = target.request("PUT", headers=headers, body=body)
        self._driver.run(requests.ask(target, request, (requests.NO_CONTENT,)))

    # -- writing ---------------------------------------------------------------------------------

    def content_type(self, stream: str) -> str:
        return self._driver.run(requests.head(self.target(stream))).content_type

    def create(self, stream: str, content_type: str) -> str:
        """Make sure that the stream is there; the content type it has."""
        return self._driver.run(requests.create(self.target(stream), content_type)).content_type

    def append(
        self, stream: str, body: bytes, content_type: str, producer: ProducerStamp | None
    ) -> Appended:
        [appended] = self.append_all(stream, [body], content_type, [producer])
        return appended

    def append_all(
        self,
        stream: str,
        bodies: Sequence[bytes],
        content_type: str,
        producers: Sequence[ProducerStamp | None],
    ) -> list[Appended]:
        """Append one after another; stamped ones without waiting for the answer to each."""
        target = self.target(stream)
        several = [
            requests.append(
                target, body, content_type, producer=producer, repeat_in_doubt=producer is None
            )
            for body, producer in zip(bodies, producers, strict=True)
        ]
        # Without stamps the server would take the next one though this one failed.
        if isinstance(self._driver, RawHttpDriver) and None not in producers:
            return self._driver.run_in_order(several)
        return [self._driver.run(steps) for steps in several]
