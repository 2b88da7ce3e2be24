"""Which streams belong to which subscription: links, and the watchers that keep them current.

An append finds its subscriptions as watchers of its stream; nothing here runs over all of them.
A new stream finds them by name: those that wait for it, and those whose glob matches it.

What runs over all streams, or over all links of a subscription, is a generator: whoever calls it
lets others have their turn between its steps. Subscriptions and links have a budget; a link that
does not fit is missed, its subscription says that it is degraded, and follows the stream from its
start once there is room.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from headrace.engine.engine import Engine
from headrace.engine.tails import Stream
from headrace.errors import HeadraceError, StreamDeleted, StreamNotFound, StreamSetAside
from headrace.protocol.buckets import is_bucketed
from headrace.protocol.offsets import START
from headrace.subscriptions.errors import SubscriptionsFull
from headrace.subscriptions.globs import INTERNAL_PREFIX, Glob, GlobIndex
from headrace.subscriptions.ledger import Kept, Ledger, LinkRecord
from headrace.subscriptions.model import Subscription, SubscriptionConfig

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


class Member:
    """A subscription in place; it listens at the tail of each of its streams.

    It is `present` until it is withdrawn, and `active` once the ledger knows it: before that
    nothing wakes it, and nothing is written down but its links.
    """

    __slots__ = ("_membership", "active", "glob", "present", "subscription")

    def __init__(self, subscription: Subscription, membership: Membership) -> None:
        pattern = subscription.config.pattern
        self.subscription = subscription
        self.glob = Glob(pattern) if pattern is not None else None
        self.active = False
        self.present = False
        self._membership = membership

    def on_advance(self, stream: Stream) -> None:
        self.subscription.advance(stream.state.name, stream.visible)
        if self.active:
            self._membership.on_advance(self)

    def on_gone(self, stream: Stream) -> None:
        self._membership.lose(self, stream)

    def on_fault(self, fault: HeadraceError) -> None:
        """Nobody waits for an answer: the next advance, or its timer, wakes the subscription."""


class Membership:
    """`on_advance` hears of every subscription with a stream that grew, during the append;
    `on_loss` of every one that lost a stream; `on_room` that links may be made which were missed;
    `later` takes work that is too long to be done within the creation of a stream."""

    def __init__(
        self,
        engine: Engine,
        ledger: Ledger,
        quota: Quota,
        *,
        on_advance: Callable[[Member], None],
        on_loss: Callable[[Member], None],
        on_room: Callable[[], None],
        later: Callable[[Iterator[None]], None],
    ) -> None:
        self.link_count = 0
        self.used_bytes = 0
        self.degraded: dict[Member, None] = {}
        self.on_advance = on_advance
        self.on_loss = on_loss
        self._on_room = on_room
        self._later = later
        self._engine = engine
        self._ledger = ledger
        self._quota = quota
        self._globs: GlobIndex[Member] = GlobIndex()
        self._searching_count = 0
        # Explicit links to streams that do not exist yet.
        self._awaiting: dict[str, dict[Member, None]] = {}
        engine.on_stream_created(self._on_created)

    # -- subscriptions -----------------------------------------------------------------------

    def enrol(self, subscription: Subscription) -> Generator[None, None, Member]:
        """Put a new subscription in place: everything that exists counts as read.

        In the end everything is written down but the subscription itself.
        """
        member = Member(subscription, self)
        self._check_room_for(member)
        self._admit(member)
        try:
            yield from self._enrol(member)
        except HeadraceError:
            yield from self.withdraw(member)
            raise
        return member

    def _enrol(self, member: Member) -> Iterator[None]:
        names = member.subscription.config.streams
        for first in range(0, len(names), STREAMS_PER_STEP):
            self.add(member, names[first : first + STREAMS_PER_STEP])
            self._ledger.save_links(member.subscription)
            yield
        for stream in self._matching(member):
            if stream is None:
                self._ledger.save_links(member.subscription)
                yield
                continue
            if stream.state.name not in member.subscription.links:
                self._reserve(member, [stream.state.name])
            self._link(member, stream, fresh=False, explicit=False)

    def _matching(self, member: Member) -> Iterator[Stream | None]:
        """The streams of now that the glob of `member` matches; None is a step."""
        if member.glob is None:
            return
        now = self._engine.now()
        matches, streams = member.glob.matches, self._engine.streams
        per_step = 1 if member.glob.is_searching else STREAMS_PER_STEP
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

    def withdraw(self, member: Member) -> Iterator[None]:
        """The subscription is gone; its links go in steps."""
        self._dismiss(member)
        links = member.subscription.links
        while links:
            for name in list(islice(links, STREAMS_PER_STEP)):
                self.unlink(member, name)
            self._ledger.save_links(member.subscription)
            yield
        self._ledger.save_links(member.subscription)

    def _check_room_for(self, member: Member) -> None:
        searches = member.glob is not None and member.glob.is_searching
        if searches and self._searching_count >= SEARCHING_MAX:
            raise SubscriptionsFull("patterns with something between two **", SEARCHING_MAX)
        if self.used_bytes + _size_of(member.subscription.config) > self._quota.bytes_max:
            raise self._full()

    def _admit(self, member: Member) -> None:
        member.present = True
        self.used_bytes += _size_of(member.subscription.config)
        if member.glob is not None:
            self._searching_count += member.glob.is_searching
            self._globs.add(member.glob, member)

    def _dismiss(self, member: Member) -> None:
        member.active = member.present = False
        self.used_bytes -= _size_of(member.subscription.config)
        self.degraded.pop(member, None)
        if member.glob is not None:
            self._searching_count -= member.glob.is_searching
            self._globs.remove(member.glob, member)

    def restore(self, kept: Iterable[Kept]) -> list[Member]:
        """Put the subscriptions of an earlier run in place, whatever the quota is now."""
        members = [self._restore(found) for found in kept]
        for name, stream in self._engine.streams.items():
            if stream.state.deleted or is_bucketed(name):
                continue
            for member in self._globs.matching(name):
                # One that has no document yet came while nobody could write it down.
                self._link_new(member, stream)
        return members

    def _restore(self, kept: Kept) -> Member:
        member = Member(kept.subscription, self)
        member.active = True
        self._admit(member)
        # In the order of `enrol`: those that were named, then those that were found.
        for name, link in sorted(kept.links.items(), key=lambda item: not item[1].explicit):
            stream = self._find(name)
            if stream is not None and link.stream_id in (0, stream.state.id):
                self._relink(member, stream, link)
            elif link.explicit and not link.stream_id:
                self._await(member, name)
            elif name in self._engine.aside:
                continue  # how far it got is kept for when the stream can be recovered
            else:
                kept.subscription.changed.add(name)
                continue
            kept.subscription.links[name].kept = True
            kept.subscription.changed.discard(name)
        return member

    def _relink(self, member: Member, stream: Stream, link: LinkRecord) -> None:
        self._charge(member, stream.state.name)
        member.subscription.link(
            stream.state.name,
            link.position,
            stream.visible,
            explicit=link.explicit,
            stream_id=stream.state.id,
        )
        stream.attach_watcher(member)

    # -- links -------------------------------------------------------------------------------

    def add(self, member: Member, names: Iterable[str]) -> None:
        """Follow these streams, too: from their tails, or from the start of those to come."""
        links = member.subscription.links
        new = [name for name in names if name not in links or not links[name].explicit]
        self._reserve(member, [name for name in new if name not in links])
        for name in new:
            stream = self._find(name)
            if stream is not None:
                self._link(member, stream, fresh=False, explicit=True)
                continue
            self._await(member, name)

    def _await(self, member: Member, name: str) -> None:
        """Follow a stream that does not exist yet."""
        self._charge(member, name)
        member.subscription.link(name, START, START, explicit=True)
        self._awaiting.setdefault(name, {})[member] = None

    def lose(self, member: Member, stream: Stream) -> None:
        """A stream is gone; one that has its name by now is another."""
        link = member.subscription.links.get(stream.state.name)
        if link is not None and link.stream_id == stream.state.id:
            self.unlink(member, stream.state.name)
            self._tell_loss(member)

    def _tell_loss(self, member: Member) -> None:
        if member.active:
            self.on_loss(member)

    def remove(self, member: Member, name: str) -> None:
        """Follow this stream no longer, unless the glob matches it."""
        link = member.subscription.links.get(name)
        if link is None:
            return
        if link.by_glob:
            member.subscription.unlink_explicit(name)
        else:
            self.unlink(member, name)

    def unlink(self, member: Member, name: str) -> None:
        """Follow this stream no longer, whatever linked it."""
        if name not in member.subscription.links:
            return
        self.link_count -= 1
        self.used_bytes -= LINK_BYTES + len(name)
        member.subscription.unlink(name)
        stream = self._engine.streams.get(name)
        if stream is not None:
            stream.detach_watcher(member)
        waiting = self._awaiting.get(name)
        if waiting is not None:
            waiting.pop(member, None)
            if not waiting:
                del self._awaiting[name]
        if self.degraded:
            self._on_room()

    def _on_created(self, stream: Stream) -> None:
        name = stream.state.name
        for member in self._awaiting.pop(name, ()):
            self._link(member, stream, fresh=True, explicit=True)
        if name.startswith(INTERNAL_PREFIX):
            return
        segments = name.split("/")
        searching: list[Member] = []
        for member, glob in self._globs.candidates(segments):
            if glob is not None and glob.is_searching:
                searching.append(member)
            elif glob is None or glob.matches_after_first(segments):
                self._link_new(member, stream)
        search = self._search(searching, stream, segments)
        if len(searching) > SEARCHED_AT_ONCE_MAX:
            self._later(search)
        else:
            for _ in search:
                pass

    def _search(self, members: list[Member], stream: Stream, segments: list[str]) -> Iterator[None]:
        """Link a new stream to those of `members` whose globs match it."""
        for member in members:
            if self._engine.streams.get(stream.state.name) is not stream:
                return
            glob = member.glob
            assert glob is not None, "who has no glob does not search"
            is_linked = stream.watchers is not None and member in stream.watchers
            if member.present and not is_linked and glob.matches_after_first(segments):
                self._link_new(member, stream)
                self._tell_pending(member)
            yield

    def _tell_pending(self, member: Member) -> None:
        if member.active and member.subscription.pending:
            self.on_advance(member)

    def _link_new(self, member: Member, stream: Stream) -> None:
        """Follow a stream that a glob matches from its start, or say that there is no room."""
        self._forget_former(member, stream)
        name = stream.state.name
        if name not in member.subscription.links:
            shortage = self._shortage(member, [name])
            if shortage is not None:
                self._degrade(member, shortage)
                return
        self._link(member, stream, fresh=True, explicit=False)

    def _forget_former(self, member: Member, stream: Stream) -> None:
        """A stream may have a successor before its end is durable and its watchers hear of it."""
        link = member.subscription.links.get(stream.state.name)
        if link is not None and link.stream_id not in (0, stream.state.id):
            self.unlink(member, stream.state.name)
            self._tell_loss(member)

    def _find(self, name: str) -> Stream | None:
        try:
            return self._engine.find(name)
        except (StreamNotFound, StreamDeleted, StreamSetAside):
            return None

    def _link(self, member: Member, stream: Stream, *, fresh: bool, explicit: bool) -> None:
        """`fresh`: the stream begins now, and nothing of it has been read."""
        name, tail = stream.state.name, stream.visible
        self._charge(member, name)
        member.subscription.link(
            name, None if fresh else tail, tail, explicit=explicit, stream_id=stream.state.id
        )
        stream.attach_watcher(member)

    # -- the budget --------------------------------------------------------------------------

    def _charge(self, member: Member, name: str) -> None:
        if name not in member.subscription.links:
            self.link_count += 1
            self.used_bytes += LINK_BYTES + len(name)

    def _reserve(self, member: Member, names: list[str]) -> None:
        shortage = self._shortage(member, names)
        if shortage is not None:
            raise shortage

    def _shortage(self, member: Member, names: list[str]) -> SubscriptionsFull | None:
        """Why these streams cannot be linked as well, if so."""
        most = self._quota.links_per_subscription_max
        if len(member.subscription.links) + len(names) > most:
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

    def _degrade(self, member: Member, shortage: SubscriptionsFull) -> None:
        subscription = member.subscription
        if subscription.degraded is None:
            facts = {"subscription": subscription.id, "reason": shortage.detail}
            logger.error("a subscription does not follow streams that it matches", extra=facts)
        subscription.degraded = (
            f"It does not follow every stream that its pattern matches. {shortage.detail}"
        )
        self.degraded[member] = None

    def catch_up(self) -> Iterator[None]:
        """Link what was missed, as far as there is room by now."""
        for member in list(self.degraded):
            if member in self.degraded and self._shortage(member, [""]) is None:
                yield from self._catch_up(member)

    def _catch_up(self, member: Member) -> Iterator[None]:
        subscription = member.subscription
        del self.degraded[member]  # it comes back if a stream is missed from now on
        for stream in self._matching(member):
            if stream is None:
                yield
            elif not member.present:
                return
            elif stream.state.name not in subscription.links:
                self._link_new(member, stream)
            if member in self.degraded:
                break
        self._tell_pending(member)
        if member.present and member not in self.degraded:
            subscription.degraded = None
            facts = {"subscription": subscription.id}
            logger.info("a subscription follows every stream that it matches again", extra=facts)


def _size_of(config: SubscriptionConfig) -> int:
    """What a subscription takes in memory, without its links."""
    texts = (config.pattern, config.webhook_url, config.wake_stream, config.description)
    size = SUBSCRIPTION_BYTES + sum(len(text) for text in texts if text)
    size += sum(len(name) for name in config.streams)
    return size + SEGMENT_BYTES * (config.pattern.count("/") + 1 if config.pattern else 0)
