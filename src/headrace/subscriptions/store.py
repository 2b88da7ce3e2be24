"""What survives a restart of each subscription: which documents are stored, and their content.

    keys/webhook                     the private key that signs webhooks
    keys/token                       the secret behind callback and claim tokens
    subscriptions/ID                 what the subscription was created as
    subscriptions/ID/delivery        its generation, and the wake in flight with its lease or retry
    subscriptions/ID/tails           what finishing that wake acknowledges
    subscriptions/ID/links/STREAM    how far one stream is acknowledged

A stream that matched a glob at its creation, without an acknowledged position yet, has no
document: after a restart an unknown stream is followed from its start anyway. Links store the
stream's id as well as its name, so that a stream recreated under the name is not mistaken for it.

A subscription with a document that cannot be decoded is set aside: its documents stay as they
are, and it is not served, because a generation or an acknowledgement must never be guessed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from headrace.engine.engine import Engine
from headrace.errors import StoredBytesUnreadable
from headrace.protocol.offsets import Position
from headrace.subscriptions.globs import Glob
from headrace.subscriptions.model import (
    Delivery,
    Link,
    Subscription,
    SubscriptionConfig,
    SubscriptionKind,
    Wake,
    WebhookRetry,
)
from headrace.subscriptions.signing import (
    TOKEN_KEY_BYTES,
    CallbackTokens,
    SigningKey,
    new_token_key,
)

KEYS: Final = "keys/"
SUBSCRIPTIONS: Final = "subscriptions/"
_WEBHOOK_KEY: Final = "webhook"
_TOKEN_KEY: Final = "token"
_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.decode


class SubscriptionRecord(msgspec.Struct, array_like=True):
    kind: SubscriptionKind
    pattern: str | None
    streams: tuple[str, ...]
    webhook_url: str | None
    wake_stream: str | None
    lease_ttl_ms: int
    description: str | None
    base_url: str
    created_at_ms: int


class WakeRecord(msgspec.Struct, array_like=True):
    id: str
    generation: int
    stream: str
    holder: str | None
    lease_until_ms: int | None


class DeliveryRecord(msgspec.Struct, array_like=True):
    generation: int
    wake: WakeRecord | None
    retry: tuple[int, int] | None


class TailRecord(msgspec.Struct, array_like=True):
    stream: str
    stream_id: int
    tail: tuple[int, int]


class LinkRecord(msgspec.Struct, array_like=True):
    """`stream_id` 0 is a stream that does not exist yet."""

    stream_id: int
    acked: tuple[int, int] | None
    explicit: bool

    @property
    def position(self) -> Position | None:
        return None if self.acked is None else Position(*self.acked)


class StoredSubscription(NamedTuple):
    """A subscription of an earlier run: itself, and what is known of its streams and its wake."""

    subscription: Subscription
    links: dict[str, LinkRecord]
    delivery: DeliveryRecord
    tails: list[TailRecord]


class SubscriptionStore:
    """Writes down what changed, and only that."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._written: dict[Subscription, Delivery] = {}
        self.set_aside: dict[str, str] = {}
        """Subscriptions that cannot be read, and why."""
        self._left_alone: dict[str, list[str]] = {}  # their documents

    # -- keys ------------------------------------------------------------------------------

    def keys(self) -> tuple[SigningKey, CallbackTokens]:
        """Those of earlier runs, or new ones."""
        found = self._engine.take_documents(KEYS)
        # Both or none: they are stored together, so one without the other is damage.
        if not found:
            found = {_WEBHOOK_KEY: SigningKey.generate().secret, _TOKEN_KEY: new_token_key()}
            self._engine.keep({KEYS + name: secret for name, secret in found.items()})
        webhook, token = found.get(_WEBHOOK_KEY, b""), found.get(_TOKEN_KEY, b"")
        if len(token) < TOKEN_KEY_BYTES:
            raise _damaged_key(_TOKEN_KEY)
        try:
            return SigningKey.load(webhook), CallbackTokens(token)
        except ValueError:
            raise _damaged_key(_WEBHOOK_KEY) from None

    # -- writing ---------------------------------------------------------------------------

    def put(self, subscription: Subscription) -> None:
        """Store a new subscription, or one whose base URL has changed."""
        config = subscription.config
        record = SubscriptionRecord(
            config.kind,
            config.pattern,
            config.streams,
            config.webhook_url,
            config.wake_stream,
            config.lease_ttl_ms,
            config.description,
            subscription.base_url,
            subscription.created_at_ms,
        )
        documents = self._changes(subscription)
        self._engine.keep({_name(subscription): _encode(record), **documents})

    def save(self, subscription: Subscription) -> None:
        documents = self._changes(subscription)
        if documents:
            self._engine.keep(documents)

    def save_links(self, subscription: Subscription) -> None:
        """Only the links: of a subscription that is not entered yet, or no longer.

        What a crash leaves of them without their subscription the next start removes.
        """
        documents = self._link_changes(subscription)
        if documents:
            self._engine.keep(documents)

    def delete(self, subscription: Subscription) -> None:
        """Delete a subscription; its links are deleted afterwards, in steps."""
        name = _name(subscription)
        self._engine.keep({name: None, f"{name}/delivery": None, f"{name}/tails": None})
        self._written.pop(subscription, None)

    def _link_changes(self, subscription: Subscription) -> dict[str, bytes | None]:
        name = _name(subscription)
        documents: dict[str, bytes | None] = {}
        for stream in subscription.changed:
            link = subscription.links.get(stream)
            documents[f"{name}/links/{stream}"] = None if link is None else _encode_link(link)
        subscription.changed.clear()
        return documents

    def _changes(self, subscription: Subscription) -> dict[str, bytes | None]:
        name = _name(subscription)
        documents = self._link_changes(subscription)
        delivery = subscription.delivery
        before = self._written.get(subscription)
        # Deliveries are frozen, so another state is another object. The tails have a document of
        # their own: up to a thousand streams, which a new lease or retry leaves as they are.
        if delivery is not before:
            documents[f"{name}/delivery"] = _encode_delivery(delivery)
            tails = delivery.wake.tails if delivery.wake else None
            if tails is not (before.wake.tails if before and before.wake else None):
                documents[f"{name}/tails"] = _encode_tails(subscription)
            self._written[subscription] = delivery
        return documents

    # -- reading ---------------------------------------------------------------------------

    def recover(self) -> Iterator[StoredSubscription]:
        """The subscriptions of earlier runs, in the order of their ids."""
        documents = self._engine.take_documents(SUBSCRIPTIONS)
        by_id: dict[str, dict[str, bytes]] = {}
        for name in sorted(documents):
            id, _, part = name.partition("/")
            by_id.setdefault(id, {})[part] = documents[name]
        found: list[StoredSubscription] = []
        orphans: list[str] = []
        for id, parts in by_id.items():
            names = [f"{_prefix(id)}/{part}" if part else _prefix(id) for part in parts]
            if "" not in parts:
                orphans += names
                continue
            try:
                found.append(_decode_stored(id, parts))
            except (msgspec.MsgspecError, ValueError, KeyError) as error:
                self._left_alone[id] = names
                self.set_aside[id] = self._engine.aside.leave_out_document(_prefix(id), error)
        if orphans:
            # Links are written before their subscription and removed after it, in steps.
            self._engine.keep(dict.fromkeys(orphans))
        return iter(found)

    def discard(self, id: str) -> None:
        """Forget a subscription that is set aside."""
        del self.set_aside[id]
        self._engine.keep(dict.fromkeys(self._left_alone.pop(id)))

    def restore_delivery(self, kept: StoredSubscription) -> None:
        """Once its links are in place: what a wake says of streams that are gone is void."""
        subscription, record = kept.subscription, kept.delivery
        links = subscription.links
        tails = {
            tail.stream: Position(*tail.tail)
            for tail in kept.tails
            if tail.stream in links and links[tail.stream].stream_id == tail.stream_id
        }
        found = record.wake
        wake = None
        if found is not None:
            wake = Wake(
                found.id, found.generation, found.stream, tails, found.holder, found.lease_until_ms
            )
        retry = None if record.retry is None else WebhookRetry(*record.retry)
        subscription.delivery = Delivery(record.generation, wake, retry)
        self._written[subscription] = subscription.delivery


def _name(subscription: Subscription) -> str:
    return _prefix(subscription.id)


def _prefix(id: str) -> str:
    # An id has no slash, so that no two of these names can meet.
    return SUBSCRIPTIONS + id


def _encode_link(link: Link) -> bytes:
    link.is_stored = True
    return _encode(LinkRecord(link.stream_id, link.acked, link.explicit))


def _encode_delivery(delivery: Delivery) -> bytes:
    wake, retry = delivery.wake, delivery.retry
    record = None
    if wake is not None:
        record = WakeRecord(wake.id, wake.generation, wake.stream, wake.holder, wake.lease_until_ms)
    attempts = None if retry is None else (retry.attempts, retry.next_attempt_at_ms)
    return _encode(DeliveryRecord(delivery.generation, record, attempts))


def _encode_tails(subscription: Subscription) -> bytes | None:
    wake = subscription.delivery.wake
    if wake is None:
        return None
    links = subscription.links
    return _encode(
        [TailRecord(name, links[name].stream_id, tail) for name, tail in wake.tails.items()]
    )


def _damaged_key(name: str) -> StoredBytesUnreadable:
    return StoredBytesUnreadable(
        f"the document {KEYS}{name}",
        "it does not hold a key. Receivers and workers would not know one that is made anew: "
        "restore the data directory from a backup",
    )


def _decode_stored(id: str, parts: dict[str, bytes]) -> StoredSubscription:
    """The documents of one subscription, by what follows its id; raises where one is none."""
    links = {
        part.removeprefix("links/"): _decode(value, type=LinkRecord)
        for part, value in parts.items()
        if part.startswith("links/")
    }
    return StoredSubscription(
        _decode_subscription(id, parts[""]),
        links,
        _decode(parts["delivery"], type=DeliveryRecord),
        _decode(parts["tails"], type=list[TailRecord]) if "tails" in parts else [],
    )


def _decode_subscription(id: str, value: bytes) -> Subscription:
    record = _decode(value, type=SubscriptionRecord)
    if record.pattern is not None:
        Glob(record.pattern)  # raises now rather than when it is put in place
    config = SubscriptionConfig(
        record.kind,
        record.pattern,
        record.streams,
        record.webhook_url,
        record.wake_stream,
        record.lease_ttl_ms,
        record.description,
    )
    return Subscription(id, config, record.base_url, record.created_at_ms)
