"""Which streams belong to which subscription: links, and the watchers that keep them current.

An append finds its subscriptions as watchers of its stream; nothing here runs over all of them.
A new stream finds them by name: those that wait for it, and those whose glob matches it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from headrace.engine.engine import Engine
from headrace.engine.tails import Stream
from headrace.errors import HeadraceError, StreamDeleted, StreamNotFound, StreamSetAside
from headrace.protocol.buckets import is_bucketed
from headrace.protocol.offsets import START
from headrace.subscriptions.errors import SubscriptionsFull
from headrace.subscriptions.globs import Glob, GlobIndex
from headrace.subscriptions.ledger import Kept, LinkRecord
from headrace.subscriptions.model import Subscription

logger = logging.getLogger(__name__)

LINKS_MAX: Final = 1_000_000  # one `**` over as many streams as a server holds; 0.4 GB


class Member:
    """A subscription in place; it listens at the tail of each of its streams."""

    __slots__ = ("_membership", "glob", "subscription")

    def __init__(self, subscription: Subscription, membership: Membership) -> None:
        pattern = subscription.config.pattern
        self.subscription = subscription
        self.glob = Glob(pattern) if pattern is not None else None
        self._membership = membership

    def on_advance(self, stream: Stream) -> None:
        self.subscription.advance(stream.state.name, stream.visible)
        self._membership.on_advance(self)

    def on_gone(self, stream: Stream) -> None:
        self._membership.lose(self, stream)

    def on_fault(self, fault: HeadraceError) -> None:
        """Nobody waits for an answer: the next advance, or its timer, wakes the subscription."""


class Membership:
    """`on_advance` hears of every subscription with a stream that grew, during the append;
    `on_loss` of every one that lost a stream."""

    def __init__(
        self,
        engine: Engine,
        on_advance: Callable[[Member], None],
        on_loss: Callable[[Member], None],
    ) -> None:
        self.link_count = 0
        self.on_advance = on_advance
        self.on_loss = on_loss
        self._engine = engine
        self._globs: GlobIndex[Member] = GlobIndex()
        # Explicit links to streams that do not exist yet.
        self._awaiting: dict[str, dict[Member, None]] = {}
        engine.on_stream_created(self._on_created)

    def enrol(self, subscription: Subscription) -> Member:
        """Put a new subscription in place: everything that exists counts as read."""
        member = Member(subscription, self)
        now = self._engine.now()
        matching: list[Stream] = []
        if member.glob is not None:
            matches = member.glob.matches
            matching = [
                stream
                for name, stream in self._engine.streams.items()
                if not is_bucketed(name)
                and matches(name)
                and not stream.state.deleted
                and not stream.is_expired(now)
            ]
        self._reserve(len(matching) + len(subscription.config.streams))
        self.add(member, subscription.config.streams)
        for stream in matching:
            self._link(member, stream, fresh=False, explicit=False)
        if member.glob is not None:
            self._globs.add(member.glob, member)
        return member

    def restore(self, kept: Iterable[Kept]) -> list[Member]:
        """Put the subscriptions of an earlier run in place."""
        members = [self._restore(found) for found in kept]
        for name, stream in self._engine.streams.items():
            if stream.state.deleted or is_bucketed(name):
                continue
            for member in self._globs.matching(name):
                # One that has no document yet came while nobody could write it down.
                self._link(member, stream, fresh=True, explicit=False)
        return members

    def _restore(self, kept: Kept) -> Member:
        member = Member(kept.subscription, self)
        if member.glob is not None:
            self._globs.add(member.glob, member)
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
        self.link_count += 1
        member.subscription.link(
            stream.state.name,
            link.position,
            stream.visible,
            explicit=link.explicit,
            stream_id=stream.state.id,
        )
        stream.attach_watcher(member)

    def withdraw(self, member: Member) -> None:
        if member.glob is not None:
            self._globs.remove(member.glob, member)
        for name in list(member.subscription.links):
            self.unlink(member, name)

    def add(self, member: Member, names: Iterable[str]) -> None:
        """Follow these streams, too: from their tails, or from the start of those to come."""
        links = member.subscription.links
        new = [name for name in names if name not in links or not links[name].explicit]
        self._reserve(sum(name not in links for name in new))
        for name in new:
            stream = self._find(name)
            if stream is not None:
                self._link(member, stream, fresh=False, explicit=True)
                continue
            self._await(member, name)

    def _await(self, member: Member, name: str) -> None:
        """Follow a stream that does not exist yet."""
        self.link_count += name not in member.subscription.links
        member.subscription.link(name, START, START, explicit=True)
        self._awaiting.setdefault(name, {})[member] = None

    def lose(self, member: Member, stream: Stream) -> None:
        """A stream is gone; one that has its name by now is another."""
        link = member.subscription.links.get(stream.state.name)
        if link is not None and link.stream_id == stream.state.id:
            self.unlink(member, stream.state.name)
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
        member.subscription.unlink(name)
        stream = self._engine.streams.get(name)
        if stream is not None:
            stream.detach_watcher(member)
        waiting = self._awaiting.get(name)
        if waiting is not None:
            waiting.pop(member, None)
            if not waiting:
                del self._awaiting[name]

    def _on_created(self, stream: Stream) -> None:
        name = stream.state.name
        for member in self._awaiting.pop(name, ()):
            self._link(member, stream, fresh=True, explicit=True)
        for member in self._globs.matching(name):
            if self.link_count >= LINKS_MAX:
                logger.error(
                    "%d streams are linked to subscriptions, the most there may be; a "
                    "subscription does not follow a new stream that it matches",
                    LINKS_MAX,
                    extra={"subscription": member.subscription.id, "stream": name},
                )
                continue
            self._forget_former(member, stream)
            self._link(member, stream, fresh=True, explicit=False)

    def _forget_former(self, member: Member, stream: Stream) -> None:
        """A stream may have a successor before its end is durable and its watchers hear of it."""
        link = member.subscription.links.get(stream.state.name)
        if link is not None and link.stream_id != stream.state.id:
            self.unlink(member, stream.state.name)
            self.on_loss(member)

    def _find(self, name: str) -> Stream | None:
        try:
            return self._engine.find(name)
        except (StreamNotFound, StreamDeleted, StreamSetAside):
            return None

    def _reserve(self, count: int) -> None:
        if self.link_count + count > LINKS_MAX:
            raise SubscriptionsFull("streams linked to subscriptions", LINKS_MAX)

    def _link(self, member: Member, stream: Stream, *, fresh: bool, explicit: bool) -> None:
        """`fresh`: the stream begins now, and nothing of it has been read."""
        name, tail = stream.state.name, stream.visible
        self.link_count += name not in member.subscription.links
        member.subscription.link(
            name, None if fresh else tail, tail, explicit=explicit, stream_id=stream.state.id
        )
        stream.attach_watcher(member)
