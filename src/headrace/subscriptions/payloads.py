"""What subscriptions look like on the wire: descriptions, webhook bodies, wake events, URLs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, Final
from urllib.parse import quote

from headrace.protocol.headers import format_time
from headrace.protocol.names import CONTROL_PREFIX
from headrace.subscriptions.model import WAKE_STREAMS_MAX, Link, Subscription, Wake

DESCRIBED_STREAMS_MAX: Final = 10_000  # about a megabyte; stream_count says if there are more
_ID_SAFE: Final = "!~*'()"  # what encodeURIComponent leaves alone


class Urls:
    """Where the control resources are, for a client that sees the server at `base_url`."""

    def __init__(self, stream_root: str) -> None:
        self._root = f"{stream_root}/{CONTROL_PREFIX}"

    def jwks(self, base_url: str) -> str:
        return f"{base_url}{self._root}/jwks.json"

    def callback(self, subscription: Subscription) -> str:
        name = quote(subscription.id, safe=_ID_SAFE)
        return f"{subscription.base_url}{self._root}/subscriptions/{name}/callback"


def describe(subscription: Subscription, urls: Urls, kid: str) -> dict[str, Any]:
    links = islice(subscription.links.items(), DESCRIBED_STREAMS_MAX)
    streams = [_cursor(name, link) for name, link in links]
    return _summary(subscription, urls, kid) | {"streams": streams}


def page(
    subscriptions: Sequence[Subscription], prefix: str, urls: Urls, kid: str, *, has_more: bool
) -> dict[str, Any]:
    """One page of the list of subscriptions."""
    return {
        "prefix": prefix,
        "subscription_count": len(subscriptions),
        "subscriptions": [_summary(subscription, urls, kid) for subscription in subscriptions],
        "next_cursor": subscriptions[-1].id if has_more else None,
        "has_more": has_more,
    }


def _summary(subscription: Subscription, urls: Urls, kid: str) -> dict[str, Any]:
    """All of a subscription but its streams."""
    config = subscription.config
    webhook = None
    if config.webhook_url is not None:
        jwks_url = urls.jwks(subscription.base_url)
        webhook = {
            "url": config.webhook_url,
            "signing": {"alg": "ed25519", "kid": kid, "jwks_url": jwks_url},
        }
    return {
        "id": subscription.id,
        "subscription_id": subscription.id,
        "type": config.kind,
        "pattern": config.pattern,
        "stream_count": len(subscription.links),
        "webhook": webhook,
        "wake_stream": config.wake_stream,
        "lease_ttl_ms": config.lease_ttl_ms,
        "created_at": format_time(subscription.created_at_ms),
        "generation": subscription.delivery.generation,
        "status": status_of(subscription),
        "degraded": subscription.degraded,
        "description": config.description,
    }


def status_of(subscription: Subscription) -> str:
    if subscription.is_failing:
        return "failed"
    return "active" if subscription.degraded is None else "degraded"


def _cursor(name: str, link: Link) -> dict[str, Any]:
    return {
        "path": name,
        "link_type": "explicit" if link.explicit else "glob",
        "acked_offset": link.acked_token,
    }


def webhook_body(
    subscription: Subscription, wake: Wake, callback_url: str, token: str
) -> dict[str, Any]:
    """The tails are those of the wake, which `done` acknowledges, and not what came since."""
    streams = []
    for name, tail in wake.tails.items():
        link = subscription.links[name]
        pending = link.is_behind(tail)
        streams.append(_cursor(name, link) | {"tail_offset": tail.token(), "has_pending": pending})
    return {
        "subscription_id": subscription.id,
        "wake_id": wake.id,
        "generation": wake.generation,
        "streams": streams,
        "callback_url": callback_url,
        "callback_token": token,
    }


def claimed(subscription: Subscription, wake: Wake, token: str) -> dict[str, Any]:
    links = islice(subscription.listed(), WAKE_STREAMS_MAX)
    return {
        "wake_id": wake.id,
        "generation": wake.generation,
        "token": token,
        "streams": [
            _cursor(name, link) | {"tail_offset": link.tail.token(), "has_pending": link.is_pending}
            for name, link in links
        ],
        "lease_ttl_ms": subscription.config.lease_ttl_ms,
    }


def wake_event(subscription: Subscription, wake: Wake, now_ms: int) -> dict[str, Any]:
    return {
        "type": "wake",
        "subscription_id": subscription.id,
        "stream": wake.stream,
        "generation": wake.generation,
        "ts": now_ms,
    }
