"""Subscriptions as steps: be woken when streams have something new.

Also the check of a webhook's signature, which needs no client.
"""

from __future__ import annotations

import time
from base64 import urlsafe_b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import msgspec

from headrace.client.bucket_ops import decode
from headrace.client.effects import Emit, Flow, Steps
from headrace.client.requests import CREATED, NO_CONTENT, OK, Target, ask
from headrace.errors import Refused

PAGE_MAX = 1000  # the server's bound
SIGNATURE_AGE_SECS_MAX = 300.0  # as Stripe and Standard Webhooks: bounds replays


class WakeStream(msgspec.Struct):
    """One stream of a wake: from where to where there is something to do."""

    path: str
    acked_offset: str
    tail_offset: str
    has_pending: bool = True


class Wake(msgspec.Struct):
    """Work that was claimed; answers name its id and generation."""

    wake_id: str
    generation: int
    token: str
    streams: list[WakeStream]
    lease_ttl_ms: int = 30_000


class SubscriptionEntry(msgspec.Struct):
    """One subscription of a listing, without its streams."""

    id: str
    type: str
    status: str
    pattern: str | None = None
    stream_count: int = 0
    generation: int | None = None
    """Of the latest wake; None from a server that does not say."""
    wake_stream: str | None = None
    description: str | None = None


class _Page(msgspec.Struct):
    subscriptions: list[SubscriptionEntry]
    next_cursor: str | None = None
    has_more: bool = False


class WebhookConfig(TypedDict):
    url: str


class SubscriptionConfig(TypedDict, total=False):
    """The keywords of `Subscription.create`."""

    type: Literal["webhook", "pull-wake"]
    pattern: str | None
    """Streams by glob: `*` is a segment, `**` any number of them."""
    streams: Sequence[str]
    webhook: WebhookConfig
    wake_stream: str
    lease_ttl_ms: int
    description: str | None


@dataclass(eq=False)
class BadSignature(Refused):
    """A webhook that the server did not sign, or not lately."""

    reason: str

    @property
    def detail(self) -> str:
        return f"The webhook is not to be trusted: {self.reason}."


def put(target: Target, config: Mapping[str, Any]) -> Steps[dict[str, Any]]:
    answer = yield from ask(target, _post(target, "PUT", config), (OK, CREATED))
    return _document(target, answer.body)


def get(target: Target) -> Steps[dict[str, Any]]:
    answer = yield from ask(target, target.request("GET"), (OK,))
    return _document(target, answer.body)


def list_all(target: Target, prefix: str) -> Flow[SubscriptionEntry]:
    """Every subscription, page by page, sorted by id."""
    params = {"limit": str(PAGE_MAX), "prefix": prefix}
    while True:
        answer = yield from ask(target, target.request("GET", params=params), (OK,))
        page: _Page = decode(target.url, answer.body, _Page)
        for entry in page.subscriptions:
            yield Emit(entry)
        if not page.has_more or page.next_cursor is None:
            return
        params = {**params, "after": page.next_cursor}


def delete(target: Target) -> Steps[None]:
    yield from ask(target, target.request("DELETE"), (OK, NO_CONTENT))


def add_streams(target: Target, streams: list[str]) -> Steps[None]:
    at = target.below("streams")
    yield from ask(at, _post(at, "POST", {"streams": streams}), (OK, CREATED, NO_CONTENT))


def claim(target: Target, worker: str) -> Steps[Wake]:
    """Take the pending work; raises when there is none or another worker has it."""
    at = target.below("claim")
    answer = yield from ask(at, _post(at, "POST", {"worker": worker}), (OK,))
    wake: Wake = decode(at.url, answer.body, Wake)
    return wake


def acknowledge(
    target: Target, wake: Wake, offsets: Mapping[str, str], *, done: bool
) -> Steps[dict[str, Any]]:
    """Say how far each stream was worked off; `done` gives the rest back. Extends the lease."""
    acks = [{"stream": path, "offset": offset} for path, offset in offsets.items()]
    return (yield from _answer(target, "ack", wake, {"acks": acks, "done": done}))


def release(target: Target, wake: Wake) -> Steps[dict[str, Any]]:
    return (yield from _answer(target, "release", wake, {}))


def _answer(
    target: Target, verb: str, wake: Wake, more: Mapping[str, Any]
) -> Steps[dict[str, Any]]:
    at = target.below(verb).with_fields({"Authorization": f"Bearer {wake.token}"}, None)
    body = {"wake_id": wake.wake_id, "generation": wake.generation, **more}
    answer = yield from ask(at, _post(at, "POST", body), (OK, NO_CONTENT))
    return _document(at, answer.body)


def _post(target: Target, method: str, document: Mapping[str, Any]) -> Any:
    headers = {"Content-Type": "application/json"}
    return target.request(method, headers=headers, body=msgspec.json.encode(document))


def _document(target: Target, body: bytes) -> dict[str, Any]:
    found: dict[str, Any] = decode(target.url, body, dict[str, Any]) if body else {}
    return found


def verify_webhook(
    body: bytes,
    signature: str,
    jwks: Mapping[str, Any],
    *,
    now_secs: float | None = None,
    age_secs_max: float = SIGNATURE_AGE_SECS_MAX,
) -> dict[str, Any]:
    """The wake in a webhook's body, once its `Webhook-Signature` is known to be the server's.

    `jwks` is what the subscription's `jwks_url` answers. Raises `BadSignature`.
    """
    fields = dict(part.partition("=")[::2] for part in signature.split(","))
    timestamp, kid, signed = (fields.get(name, "") for name in ("t", "kid", "ed25519"))
    if not (timestamp.isascii() and timestamp.isdigit() and signed):
        raise BadSignature("Webhook-Signature does not hold t, kid and ed25519")
    now = time.time() if now_secs is None else now_secs
    if abs(now - int(timestamp)) > age_secs_max:
        raise BadSignature(f"it was signed more than {age_secs_max:g} seconds away from now")
    key = next((key for key in jwks.get("keys", []) if key.get("kid") == kid), None)
    if key is None:
        raise BadSignature(f"the server has no key {kid!r}; fetch its keys again")
    if not _is_signed_by(key, signed, timestamp.encode() + b"." + body):
        raise BadSignature("the signature is not that of the server's key")
    wake: dict[str, Any] = msgspec.json.decode(body)
    return wake


def _is_signed_by(key: Mapping[str, Any], signature: str, signed: bytes) -> bool:
    # Imported here: 15 MB that only receivers of webhooks need.
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        public = Ed25519PublicKey.from_public_bytes(_base64url(key["x"]))
        public.verify(_base64url(signature), signed)
    except (InvalidSignature, ValueError, KeyError):
        return False
    return True


def _base64url(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
