"""Which streams each subscription follows: links, and the watchers that keep them current.

An append reaches its subscriptions as watchers of its stream, so its cost does not depend on the
number of subscriptions. A new stream finds its subscriptions by name: those that named it before
it existed, and those whose glob matches.

Work over all streams, or over all links of one subscription, is a generator that yields between
slices; the caller lets requests run in between. Subscriptions and links have a memory budget. A
link that does not fit is left out, its subscription reports itself as degraded, and the stream is
followed from its start once there is room.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from headrace.engine.engine import Engine
from headrace.engine.stream_runtime import Stream
from headrace.errors import HeadraceError, StreamDeleted, StreamNotFound, StreamSetAside
from headrace.protocol.buckets import is_bucketed
from headrace.protocol.offsets import START
from headrace.subscriptions.errors import SubscriptionsFull
from headrace.subscriptions.globs import INTERNAL_PREFIX, Glob, GlobIndex
from headrace.subscriptions.model import Subscription, SubscriptionConfig
from headrace.subscriptions.store import LinkRecord, StoredSubscription, SubscriptionStore

logger = logging.getLogger(__name__)

# Measured: what a link, a subscription and a segment of its pattern take, without their text.
LINK_BYTES: Final = 400
SUBSCRIPTION_BYTES: Final = 4096
SEGMENT_BYTES: Final = 350
# Globs that search names, half a millisecond each for the longest name.
SEARCHING_MAX: Final = 1000
SEARCHED_AT_ONCE_MAX: Final = 8
STREAMS_PER_STEP: Final = 200  # half a millisecond


@dataclass(frozen=True, slots=True)
class Quota:
    """What all subscriptions may take together, and what one may."""

    bytes_max: int = 512 * 1024 * 1024
    links_per_subscription_max: int = 250_000


class Follower:
    """A subscription in place; it listens at the tail of each of its streams.

    It is `present` until it is withdrawn, and `active` once it is stored: before that
    nothing wakes it, and only its links are stored.
    """

    __slots__ = ("_owner", "active", "glob", "present", "subscription")

    def __init__(self, subscription: Subscription, owner: Links) -> None:
        pattern = subscription.config.pattern
        self.subscription = subscription
        self.glob = Glob(pattern) if pattern is not None else None
        self.active = False
        self.present = False
        self._owner = owner

    def on_advance(self, stream: Stream) -> None:
        """A link may be to another stream of that name by now, which starts again at 0."""
        link = self.subscription.links.get(stream.state.name)
        if link is None or link.stream_id != stream.state.id:
            return
        self.subscription.advance(stream.state.name, stream.visible)
        if self.active:
            self._owner.on_advance(self)

    def on_gone(self, stream: Stream) -> None:
        self._owner.stream_removed(self, stream)

    def on_fault(self, fault: HeadraceError) -> None:
        """No client waits for an answer: the next advance, or its timer, wakes the subscription."""


class Links:
    """`on_advance` is called for every subscription whose stream grew, during the append;
    `on_loss` of every one that lost a stream; `on_room` that links may be made which were missed;
    `later` takes work that is too long to be done within the creation of a stream; `on_defect` is
    called while an exception is handled that concerns one subscription and not the others."""

    def __init__(
        self,
        engine: Engine,
        store: SubscriptionStore,
        quota: Quota,
        *,
        on_advance: Callable[[Follower], None],
        on_loss: Callable[[Follower], None],
        on_room: Callable[[], None],
        later: Callable[[Iterator[None]], None],
        on_defect: Callable[[Follower], None],
    ) -> None:
        self.link_count = 0
        self.used_bytes = 0
        self.degraded: dict[Follower, None] = {}
        self.on_advance = on_advance
        self.on_loss = on_loss
        self._on_room = on_room
        self._later = later
        self._on_defect = on_defect
        self._engine = engine
        self._store = store
        self._quota = quota
        self._globs: GlobIndex[Follower] = GlobIndex()
        self._searching_count = 0
        # Explicit links to streams that do not exist yet.
        self._awaiting: dict[str, dict[Follower, None]] = {}
        engine.on_stream_created(self._on_created)

    # -- subscriptions -----------------------------------------------------------------------

    def add_subscription(self, subscription: Subscription) -> Generator[None, None, Follower]:
        """Link a new subscription to its streams: everything that exists counts as read.

        In the end all its links are stored, and the subscription itself is not.
        """
        follower = Follower(subscription, self)
        self._check_room_for(follower)
        self._register(follower)
        try:
            yield from self._link_existing(follower)
        except HeadraceError:
            yield from self.remove_subscription(follower)
            raise
        return follower

    def _link_existing(self, follower: Follower) -> Iterator[None]:
        names = follower.subscription.config.streams
        for first in range(0, len(names), STREAMS_PER_STEP):
            self.add(follower, names[first : first + STREAMS_PER_STEP])
            self._store.save_links(follower.subscription)
            yield
        for stream in self._matching(follower):
            if stream is None:
                self._store.save_links(follower.subscription)
                yield
                continue
            if stream.state.name not in follower.subscription.links:
                self._reserve(follower, [stream.state.name])
            self._link(follower, stream, fresh=False, explicit=False)

    def _matching(self, follower: Follower) -> Iterator[Stream | None]:
        """The streams of now that the glob of `follower` matches; None is a step."""
        if follower.glob is None:
            return
        now = self._engine.now()
        matches, streams = follower.glob.matches, self._engine.streams
        per_step = 1 if follower.glob.is_searching else STREAMS_PER_STEP
        for number, stream in enumerate(list(streams.values())):
            name = stream.state.name
            if (
                not is_bucketed(name)
                and matches(name)
                and streams.get(name) is stream  # the steps let others in between
                and not stream.state.deleted
                and not stream.is_expired(now)
            ):
                yield stream
            if number % per_step == 0:
                yield None
        yield None

    def remove_subscription(self, follower: Follower) -> Iterator[None]:
        """Remove the links of a deleted subscription, in steps."""
        self._unregister(follower)
        links = follower.subscription.links
        while links:
            for name in list(islice(links, STREAMS_PER_STEP)):
                self.unlink(follower, name)
            self._store.save_links(follower.subscription)
            yield
        self._store.save_links(follower.subscription)

    def _check_room_for(self, follower: Follower) -> None:
        searches = follower.glob is not None and follower.glob.is_searching
        if searches and self._searching_count >= SEARCHING_MAX:
            raise SubscriptionsFull("patterns with something between two **", SEARCHING_MAX)
        if self.used_bytes + _size_of(follower.subscription.config) > self._quota.bytes_max:
            raise self._full()

    def _register(self, follower: Follower) -> None:
        follower.present = True
        self.used_bytes += _size_of(follower.subscription.config)
        if follower.glob is not None:
            self._searching_count += follower.glob.is_searching
            # Before the streams of now are looked through, in steps: one that is created meanwhile
            # is found by its creation, so none falls between.
            self._globs.add(follower.glob, follower)

    def _unregister(self, follower: Follower) -> None:
        follower.active = follower.present = False
        self.used_bytes -= _size_of(follower.subscription.config)
        self.degraded.pop(follower, None)
        if follower.glob is not None:
            self._searching_count -= follower.glob.is_searching
            self._globs.remove(follower.glob, follower)

    def restore(self, kept: Iterable[StoredSubscription]) -> list[Follower]:
        """Put the subscriptions of an earlier run in place, whatever the quota is now."""
        followers = [self._restore(found) for found in kept]
        for name, stream in self._engine.streams.items():
            if stream.state.deleted or is_bucketed(name):
                continue
            for follower in self._globs.matching(name):
                # One without a document arrived while documents could not be written.
                self._link_new(follower, stream)
        return followers

    def _restore(self, kept: StoredSubscription) -> Follower:
        follower = Follower(kept.subscription, self)
        follower.active = True
        self._register(follower)
        # In the order of `add_subscription`: those that were named, then those that were found.
        for name, link in sorted(kept.links.items(), key=lambda item: not item[1].explicit):
            stream = self._find(name)
            if stream is not None and link.stream_id in (0, stream.state.id):
                self._relink(follower, stream, link)
            elif link.explicit and not link.stream_id:
                self._await(follower, name)
            elif name in self._engine.aside:
                continue  # how far it got is kept for when the stream can be recovered
            else:
                kept.subscription.changed.add(name)
                continue
            kept.subscription.links[name].is_stored = True
            kept.subscription.changed.discard(name)
        return follower

    def _relink(self, follower: Follower, stream: Stream, link: LinkRecord) -> None:
        self._charge(follower, stream.state.name)
        follower.subscription.link(
            stream.state.name,
            link.position,
            stream.visible,
            explicit=link.explicit,
            stream_id=stream.state.id,
        )
        stream.attach_watcher(follower)

    # -- links -------------------------------------------------------------------------------

    def add(self, follower: Follower, names: Iterable[str]) -> None:
        """Follow these streams, too: from their tails, or from the start of those to come."""
        links = follower.subscription.links
        new = [name for name in names if name not in links or not links[name].explicit]
        self._reserve(follower, [name for name in new if name not in links])
        for name in new:
            stream = self._find(name)
            if stream is not None:
                self._link(follower, stream, fresh=False, explicit=True)
                continue
            self._await(follower, name)

    def _await(self, follower: Follower, name: str) -> None:
        """Follow a stream that does not exist yet."""
        self._charge(follower, name)
        follower.subscription.link(name, START, START, explicit=True)
        self._awaiting.setdefault(name, {})[follower] = None

    def stream_removed(self, follower: Follower, stream: Stream) -> None:
        """A stream is gone; one that has its name by now is another."""
        link = follower.subscription.links.get(stream.state.name)
        if link is not None and link.stream_id == stream.state.id:
            self.unlink(follower, stream.state.name)
            self._notify_loss(follower)

    def _notify_loss(self, follower: Follower) -> None:
        if follower.active:
            self.on_loss(follower)

    def remove(self, follower: Follower, name: str) -> None:
        """Follow this stream no longer, unless the glob matches it."""
        link = follower.subscription.links.get(name)
        if link is None:
            return
        if link.by_glob:
            follower.subscription.unlink_explicit(name)
        else:
            self.unlink(follower, name)

    def unlink(self, follower: Follower, name: str) -> None:
        """Follow this stream no longer, whatever linked it."""
        if name not in follower.subscription.links:
            return
        self.link_count -= 1
        self.used_bytes -= LINK_BYTES + len(name)
        follower.subscription.unlink(name)
        stream = self._engine.streams.get(name)
        if stream is not None:
            stream.detach_watcher(follower)
        waiting = self._awaiting.get(name)
        if waiting is not None:
            waiting.pop(follower, None)
            if not waiting:
                del self._awaiting[name]
        # What was just given up may be the room that another subscription lacks.
        if self.degraded:
            self._on_room()

    def _on_created(self, stream: Stream) -> None:
        name = stream.state.name
        for follower in self._awaiting.pop(name, ()):
            # Each by itself: this runs within the creation of a stream by some other client, which
            # must not fail for a defect here.
            self._attempt(follower, self._link_awaited, stream)
        if name.startswith(INTERNAL_PREFIX):
            return
        segments = name.split("/")
        searching: list[Follower] = []
        for follower, glob in self._globs.candidates(segments):
            if glob is not None and glob.is_searching:
                searching.append(follower)
            elif glob is None or glob.matches_after_first(segments):
                self._attempt(follower, self._link_new, stream)
        search = self._search(searching, stream, segments)
        if len(searching) > SEARCHED_AT_ONCE_MAX:
            self._later(search)
        else:
            for _ in search:
                pass

    def _search(
        self, followers: list[Follower], stream: Stream, segments: list[str]
    ) -> Iterator[None]:
        """Link a new stream to those of `followers` whose globs match it."""
        for follower in followers:
            if self._engine.streams.get(stream.state.name) is not stream:
                return
            self._attempt(follower, self._link_found, stream, segments)
            yield

    def _attempt(
        self, follower: Follower, link: Callable[..., None], stream: Stream, *arguments: list[str]
    ) -> None:
        try:
            link(follower, stream, *arguments)
        except Exception:
            self._on_defect(follower)

    def _link_awaited(self, follower: Follower, stream: Stream) -> None:
        self._link(follower, stream, fresh=True, explicit=True)

    def _link_found(self, follower: Follower, stream: Stream, segments: list[str]) -> None:
        glob = follower.glob
        assert glob is not None, "a follower without a glob does not search"
        is_linked = stream.watchers is not None and follower in stream.watchers
        if follower.present and not is_linked and glob.matches_after_first(segments):
            self._link_new(follower, stream)
            self._tell_pending(follower)

    def _tell_pending(self, follower: Follower) -> None:
        if follower.active and follower.subscription.pending:
            self.on_advance(follower)

    def _link_new(self, follower: Follower, stream: Stream) -> None:
        """Follow a stream that a glob matches from its start, or say that there is no room."""
        self._forget_former(follower, stream)
        name = stream.state.name
        if name not in follower.subscription.links:
            shortage = self._shortage(follower, [name])
            if shortage is not None:
                self._degrade(follower, shortage)
                return
        self._link(follower, stream, fresh=True, explicit=False)

    def _forget_former(self, follower: Follower, stream: Stream) -> None:
        """A stream may have a successor before its removal is durable and watchers are called."""
        link = follower.subscription.links.get(stream.state.name)
        if link is not None and link.stream_id not in (0, stream.state.id):
            self.unlink(follower, stream.state.name)
            self._notify_loss(follower)

    def _find(self, name: str) -> Stream | None:
        try:
            return self._engine.find(name)
        except (StreamNotFound, StreamDeleted, StreamSetAside):
            return None

    def _link(self, follower: Follower, stream: Stream, *, fresh: bool, explicit: bool) -> None:
        """`fresh`: the stream begins now, and nothing of it has been read."""
        name, tail = stream.state.name, stream.visible
        self._charge(follower, name)
        follower.subscription.link(
            name, None if fresh else tail, tail, explicit=explicit, stream_id=stream.state.id
        )
        stream.attach_watcher(follower)

    # -- the budget --------------------------------------------------------------------------

    def _charge(self, follower: Follower, name: str) -> None:
        if name not in follower.subscription.links:
            self.link_count += 1
            self.used_bytes += LINK_BYTES + len(name)

    def _reserve(self, follower: Follower, names: list[str]) -> None:
        shortage = self._shortage(follower, names)
        if shortage is not None:
            raise shortage

    def _shortage(self, follower: Follower, names: list[str]) -> SubscriptionsFull | None:
        """Why these streams cannot be linked as well, if so."""
        most = self._quota.links_per_subscription_max
        if len(follower.subscription.links) + len(names) > most:
            return SubscriptionsFull(
                "streams linked to one subscription (webhooks.max_links_per_subscription)", most
            )
        wanted = sum(LINK_BYTES + len(name) for name in names)
        return self._full() if self.used_bytes + wanted > self._quota.bytes_max else None

    def _full(self) -> SubscriptionsFull:
        return SubscriptionsFull(
            "bytes for subscriptions and their links (webhooks.max_memory_bytes)",
            self._quota.bytes_max,
        )

    def _degrade(self, follower: Follower, shortage: SubscriptionsFull) -> None:
        subscription = follower.subscription
        if subscription.degraded is None:
            facts = {"subscription": subscription.id, "reason": shortage.detail}
            logger.error("a subscription does not follow streams that it matches", extra=facts)
        subscription.degraded = (
            f"It does not follow every stream that its pattern matches. {shortage.detail}"
        )
        self.degraded[follower] = None

    def catch_up(self) -> Iterator[None]:
        """Link what was missed, as far as there is room by now."""
        for follower in list(self.degraded):
            # Without room for one more link there is nothing to look for.
            if follower not in self.degraded or self._shortage(follower, [""]) is not None:
                continue
            try:
                yield from self._catch_up(follower)
            except Exception:
                self._on_defect(follower)

    def _catch_up(self, follower: Follower) -> Iterator[None]:
        subscription = follower.subscription
        del self.degraded[follower]  # it comes back if a stream is missed from now on
        for stream in self._matching(follower):
            if stream is None:
                yield
            elif not follower.present:
                return
            elif stream.state.name not in subscription.links:
                self._link_new(follower, stream)
            if follower in self.degraded:
                break
        self._tell_pending(follower)
        if follower.present and follower not in self.degraded:
            subscription.degraded = None
            facts = {"subscription": subscription.id}
            logger.info("a subscription follows every stream that it matches again", extra=facts)


def _size_of(config: SubscriptionConfig) -> int:
    """What a subscription takes in memory, without its links."""
    texts = (config.pattern, config.webhook_url, config.wake_stream, config.description)
    size = SUBSCRIPTION_BYTES + sum(len(text) for text in texts if text)
    size += sum(len(name) for name in config.streams)
    return size + SEGMENT_BYTES * (config.pattern.count("/") + 1 if config.pattern else 0)
