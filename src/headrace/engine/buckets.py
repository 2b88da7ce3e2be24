"""Buckets: made explicitly, listed in order, deleted when empty.

A bucket is a stream of its own, `/bucket`, that clients cannot name: so it is as durable as any
stream, in every storage mode. What is listed and counted is what readers may know: a stream
appears when its creation is durable and leaves when its removal is, or when its time is over,
whether or not it has been removed yet. A bucket can be deleted once nothing of its
streams is left that a crash could bring back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.engine.append_replies import translate
from headrace.engine.feed import Feed
from headrace.engine.sorted_ids import SortedIds
from headrace.engine.stream_runtime import Stream
from headrace.errors import (
    BucketExists,
    BucketNotEmpty,
    BucketNotFound,
    HeadraceError,
)
from headrace.protocol.buckets import bucket_name, ids_of, is_bucketed, stream_name
from headrace.storage.base import Orphaned

if TYPE_CHECKING:
    from headrace.engine.engine import Engine

CLEARED_AT_ONCE_MAX: Final = 200  # expired streams that one step of a deletion clears away; 6 ms
COUNTED_ONE_BY_ONE_MAX: Final = 1000  # streams of a bucket, rather than all that have expired


class Bucket:
    __slots__ = ("feed", "id", "ids", "pending", "stream")

    def __init__(self, id: str, stream: Stream, feed: Feed) -> None:
        self.id = id
        self.stream = stream
        self.feed = feed
        self.ids = SortedIds()
        # Streams whose creation or removal is not durable yet.
        self.pending: dict[int, Stream] = {}


class Page(NamedTuple):
    streams: list[Stream]
    has_more: bool


BucketReply = Callable[[Bucket | HeadraceError], None]


class Buckets:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._buckets: dict[str, Bucket] = {}
        self._ids = SortedIds()

    def __len__(self) -> int:
        return len(self._buckets)

    def __iter__(self) -> Iterator[Bucket]:
        """The buckets that clients may know of, in the order of their ids."""
        found = (self._buckets[id] for id in self._ids.after("", inclusive=True))
        return (bucket for bucket in found if bucket.stream.creation_durable)

    def recover(self) -> None:
        """Take stock of the streams that the engine has recovered."""
        ids: dict[str, list[str]] = {}
        named = [name for name in self._engine.streams if is_bucketed(name)]
        for name in named:
            bucket_id, stream_id = ids_of(name)
            stream = self._engine.streams[name]
            if not stream_id:
                self._buckets[bucket_id] = self._bucket(bucket_id, stream)
                stream.read_only = True
            elif not stream.state.deleted:
                ids.setdefault(bucket_id, []).append(stream_id)
        self._ids = SortedIds(self._buckets)
        for bucket_id, stream_ids in ids.items():
            streams = [self._engine.streams[stream_name(bucket_id, each)] for each in stream_ids]
            if bucket_id not in self._buckets:
                self._set_aside(bucket_id, streams)
                continue
            bucket = self._buckets[bucket_id]
            bucket.ids = SortedIds(stream_ids)
            for stream in streams:
                stream.feed = bucket.feed
            bucket.feed.correct(streams)

    def _set_aside(self, bucket_id: str, streams: list[Stream]) -> None:
        """Their bucket could not be recovered."""
        error = Orphaned(f"Its bucket, {bucket_id!r}, is missing or set aside.")
        for stream in streams:
            self._engine.aside.take_out(stream, error)

    def _bucket(self, bucket_id: str, stream: Stream) -> Bucket:
        return Bucket(bucket_id, stream, Feed(self._engine.feeds, stream))

    def find(self, bucket_id: str) -> Bucket:
        """A bucket as clients know it: one whose creation is not durable is not there yet."""
        bucket = self._buckets.get(bucket_id)
        if bucket is None or not bucket.stream.creation_durable:
            self._engine.aside.check(bucket_name(bucket_id))
            raise BucketNotFound(bucket_id)
        return bucket

    def create(self, bucket_id: str, reply: BucketReply) -> None:
        engine, name = self._engine, bucket_name(bucket_id)
        if bucket_id in self._buckets:
            engine.refuse_when_durable(name, BucketExists(bucket_id), reply)
            return
        engine.aside.check(name)
        engine.check_writable()
        stream = engine.creation.create_internal(name)
        bucket = self._buckets[bucket_id] = self._bucket(bucket_id, stream)
        self._ids.add(bucket_id)
        engine.creation.begin(stream, translate(bucket, reply))

    def delete(self, bucket_id: str, reply: BucketReply) -> None:
        try:
            bucket = self.find(bucket_id)
        except BucketNotFound as refusal:
            self._engine.refuse_when_durable(bucket_name(bucket_id), refusal, reply)
            return
        if self._engine.aside.is_any_in(bucket_id):
            reply(BucketNotEmpty(bucket_id))
            return
        if self._engine.storage.removal_refusal is not None:
            reply(self._engine.storage.removal_refusal)
            return
        if not self._clear_some(bucket):
            reply(BucketNotEmpty(bucket_id))
        elif len(bucket.ids):
            # Decided anew in each slice: between two of them a stream may have been created.
            self._engine.maintenance.add(partial(self._delete_on, bucket_id, reply))
        # A crash could bring them back, and a bucket that is gone has no place for them.
        elif bucket.pending:
            # Whether it is empty shows when what is under way is durable.
            under_way = next(iter(bucket.pending.values()))
            self._engine.storage.when_durable(
                under_way.log, lambda: self.delete(bucket_id, reply), reply
            )
        else:
            del self._buckets[bucket_id]
            self._ids.discard(bucket_id)
            self._engine.removal.remove(bucket.stream, translate(bucket, reply))

    def _delete_on(self, bucket_id: str, reply: BucketReply) -> bool:
        self.delete(bucket_id, reply)
        return False  # it comes back if it is not done

    def _clear_some(self, bucket: Bucket) -> bool:
        """Clear away streams whose time is over; False where one comes whose time is not."""
        now = self._engine.now()
        for stream_id in list(islice(bucket.ids.after("", inclusive=True), CLEARED_AT_ONCE_MAX)):
            stream = self._known(stream_name(bucket.id, stream_id))
            if stream is not None and not stream.is_expired(now):
                return False
            if stream is None or stream.state.deleted:
                # Its removal is under way, which `pending` says.
                bucket.ids.discard(stream_id)
            else:
                self._engine.removal.expire(stream)
        return True

    # -- what happens to the streams of buckets --------------------------------------------

    def expect(self, stream: Stream) -> None:
        """A stream is being created."""
        bucket = self._buckets[ids_of(stream.state.name)[0]]
        bucket.pending[stream.state.id] = stream

    def leave(self, stream: Stream, *, expired: bool) -> None:
        """A stream is being removed; one whose time was over is not listed from now on."""
        bucket_id, stream_id = ids_of(stream.state.name)
        if not stream_id:
            return
        bucket = self._buckets[bucket_id]
        bucket.pending[stream.state.id] = stream
        if expired:
            bucket.ids.discard(stream_id)

    def arrived(self, stream: Stream) -> None:
        """A creation is durable; if the removal is under way already, that is still to come."""
        bucket_id, stream_id = ids_of(stream.state.name)
        if stream_id and not stream.state.deleted:
            bucket = self._buckets[bucket_id]
            bucket.pending.pop(stream.state.id, None)
            bucket.ids.add(stream_id)
            stream.feed = bucket.feed
            bucket.feed.note(stream)

    def departed(self, stream: Stream) -> None:
        """A removal is durable."""
        bucket_id, stream_id = ids_of(stream.state.name)
        if stream_id:
            bucket = self._buckets[bucket_id]
            bucket.pending.pop(stream.state.id, None)
            bucket.feed.note(stream)
            if not self._is_followed(stream):
                bucket.ids.discard(stream_id)

    def _is_followed(self, stream: Stream) -> bool:
        """Whether another stream has the name by now, and is listed under it."""
        other = self._engine.streams.get(stream.state.name)
        return other is not None and other is not stream and other.creation_durable

    # -- listing ---------------------------------------------------------------------------

    def count(self, bucket: Bucket) -> int:
        """How many streams a bucket has, by the clock."""
        if len(bucket.ids) <= COUNTED_ONE_BY_ONE_MAX:
            return sum(1 for _ in self._listed(bucket, "", ""))
        return len(bucket.ids) - sum(1 for _ in self._over(bucket))

    def counts(self, buckets_max: int) -> list[tuple[Bucket, int]]:
        """The same for the first buckets that clients may know of."""
        over = Counter(
            ids_of(stream.state.name)[0] for stream in self._expired() if _is_listed(stream)
        )
        buckets = islice(self, buckets_max)
        return [(bucket, len(bucket.ids) - over[bucket.id]) for bucket in buckets]

    def _expired(self) -> Iterator[Stream]:
        return self._engine.expiring.over(self._engine.now())

    def _over(self, bucket: Bucket) -> Iterator[Stream]:
        """Streams of a bucket whose time is over, and that are still among its ids."""
        if not len(bucket.ids):
            return iter(())
        prefix = stream_name(bucket.id, "")
        return (
            stream
            for stream in self._expired()
            if stream.state.name.startswith(prefix) and _is_listed(stream)
        )

    def page(self, bucket: Bucket, prefix: str, after: str, limit: int) -> Page:
        """At most `limit` streams whose ids begin with `prefix` and follow `after`."""
        found = list(islice(self._listed(bucket, prefix, after), limit + 1))
        return Page(found[:limit], len(found) > limit)

    def _listed(self, bucket: Bucket, prefix: str, after: str) -> Iterator[Stream]:
        now = self._engine.now()
        ids = (
            bucket.ids.after(after) if after >= prefix else bucket.ids.after(prefix, inclusive=True)
        )
        for stream_id in ids:
            if not stream_id.startswith(prefix):
                return
            stream = self._known(stream_name(bucket.id, stream_id))
            if stream is not None and not stream.is_expired(now):
                yield stream

    def _known(self, name: str) -> Stream | None:
        """The stream that readers know by this name: until its removal is durable, the old one."""
        stream = self._engine.streams.get(name)
        if stream is None or not stream.creation_durable:
            return self._engine.pending_removals.get(name)
        return stream


def _is_listed(stream: Stream) -> bool:
    """Whether a stream whose removal has not begun is among the ids of its bucket."""
    return stream.creation_durable and is_bucketed(stream.state.name)
