"""Request bodies of the subscription interface as values, checked as far as the body alone allows.

Each parser takes the decoded JSON document and returns a value or raises INVALID_REQUEST with a
sentence that names the field. A field that is not known is refused where a configuration is made,
because a misspelt one would be missed for as long as the subscription lives; workers may send
others in what they answer.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, Final

from headrace.errors import InvalidName, InvalidOffset
from headrace.protocol import names
from headrace.protocol.offsets import parse_token
from headrace.subscriptions.callback_urls import URL_BYTES_MAX
from headrace.subscriptions.errors import Code, SubscriptionRefused, invalid
from headrace.subscriptions.globs import Glob, check_bounds
from headrace.subscriptions.model import Ack, SubscriptionConfig, SubscriptionKind, WorkerAnswer

LEASE_TTL_MS_MIN: Final = 1_000
LEASE_TTL_MS_MAX: Final = 600_000
LEASE_TTL_MS_DEFAULT: Final = 30_000
DESCRIPTION_CHARS_MAX: Final = 4096  # for people; a page is 3000
WORKER_CHARS_MAX: Final = 256  # a host name and a process id fit in 70
EXPLICIT_STREAMS_MAX: Final = 10_000  # per request and per subscription; a glob has no such bound

CONFIG_FIELDS: Final = (
    "type",
    "pattern",
    "streams",
    "webhook",
    "wake_stream",
    "lease_ttl_ms",
    "description",
)
STREAM_ROOT: Final = "/v1/stream"
_FIELD_CHARS_MAX: Final = 64  # of an unknown one, in the refusal
_AUTHORITY: Final = re.compile("https?://[^/]*", re.IGNORECASE)

ACKS_MAX: Final = 10_000  # ten times what one wake names; 50 ms

Document = dict[str, Any]


def parse_config(document: Document, stream_root: str = STREAM_ROOT) -> SubscriptionConfig:
    _refuse_unknown(document, CONFIG_FIELDS, "A subscription")
    kind = _parse_kind(document)
    pattern = _text(document, "pattern")
    streams = parse_streams(document, stream_root, CONFIG_FIELDS) if document.get("streams") else ()
    if not pattern and not streams:
        raise invalid("A subscription needs a pattern, streams, or both.")
    config = SubscriptionConfig(
        kind=kind,
        pattern=_parse_pattern(pattern, stream_root) if pattern else None,
        streams=streams,
        webhook_url=_parse_webhook_url(document) if kind is SubscriptionKind.WEBHOOK else None,
        wake_stream=_parse_wake_stream(document, stream_root)
        if kind is SubscriptionKind.PULL_WAKE
        else None,
        lease_ttl_ms=_parse_lease(document),
        description=_text(document, "description", DESCRIPTION_CHARS_MAX),
    )
    if config.wake_stream is not None:
        refuse_own_wake_stream(config, config.streams)
    return config


def refuse_own_wake_stream(config: SubscriptionConfig, streams: tuple[str, ...]) -> None:
    """A subscription that its own wake events woke would never rest."""
    wake_stream = config.wake_stream
    if wake_stream is None:
        return
    if wake_stream in streams:
        raise invalid(f"streams must not hold the wake stream {wake_stream!r} itself.")
    if config.pattern is not None and Glob(config.pattern).matches(wake_stream):
        raise invalid(f"pattern must not match the wake stream {wake_stream!r} itself.")


def _parse_kind(document: Document) -> SubscriptionKind:
    try:
        return SubscriptionKind(_text(document, "type") or "")
    except ValueError:
        raise invalid('type must be "webhook" or "pull-wake".') from None


def _parse_pattern(text: str, stream_root: str) -> str:
    _refuse_url(text, "pattern", stream_root)
    pattern = text.strip("/")
    try:
        check_bounds(Glob(pattern))
    except ValueError as error:
        raise invalid(str(error)) from None
    return pattern


def _parse_webhook_url(document: Document) -> str:
    webhook = document.get("webhook")
    if isinstance(webhook, dict):
        _refuse_unknown(webhook, ("url",), "A webhook", "webhook.")
    url = webhook.get("url") if isinstance(webhook, dict) else None
    if not isinstance(url, str) or not url:
        raise invalid("A webhook subscription needs webhook.url, a string.")
    if len(url) > URL_BYTES_MAX:
        raise invalid(f"webhook.url must not exceed {URL_BYTES_MAX} bytes.")
    return url


def _parse_wake_stream(document: Document, stream_root: str) -> str:
    text = _text(document, "wake_stream")
    if not text:
        raise invalid("A pull-wake subscription needs wake_stream, the name of a stream.")
    name = _parse_stream(text, "wake_stream", stream_root)
    if name == names.REGISTRY_NAME:
        raise invalid(f"{names.REGISTRY_NAME} cannot be a wake stream: it takes no appends.")
    return name


def _parse_lease(document: Document) -> int:
    lease_ttl_ms = document.get("lease_ttl_ms")
    if lease_ttl_ms is None:
        return LEASE_TTL_MS_DEFAULT
    if type(lease_ttl_ms) is not int or not LEASE_TTL_MS_MIN <= lease_ttl_ms <= LEASE_TTL_MS_MAX:
        raise invalid(
            f"lease_ttl_ms must be an integer from {LEASE_TTL_MS_MIN} to {LEASE_TTL_MS_MAX}."
        )
    return lease_ttl_ms


def parse_streams(
    document: Document,
    stream_root: str = STREAM_ROOT,
    fields: Collection[str] = ("streams",),
) -> tuple[str, ...]:
    """The names in `streams`, sorted, each once."""
    _refuse_unknown(document, fields, "A list of streams")
    streams = document.get("streams")
    if not isinstance(streams, list) or not streams:
        raise invalid("streams must be an array of stream names that is not empty.")
    if len(streams) > EXPLICIT_STREAMS_MAX:
        raise invalid(f"streams must not hold more than {EXPLICIT_STREAMS_MAX} names.")
    return tuple(sorted({_parse_stream(stream, "streams", stream_root) for stream in streams}))


def _parse_stream(value: object, field: str, stream_root: str) -> str:
    """A stream name relative to the stream root; slashes around it do not matter."""
    if not isinstance(value, str):
        raise invalid(f"{field}: the name of a stream must be a string.")
    _refuse_url(value, field, stream_root)
    name = value.strip("/")
    try:
        names.check_name(name)
    except InvalidName as refusal:
        raise invalid(f"{field}: {refusal.detail}") from None
    if names.is_reserved(name):
        raise invalid(f"{field}: names that begin with {names.CONTROL_PREFIX} are reserved.")
    return name


def _refuse_url(text: str, field: str, stream_root: str) -> None:
    """The path of a URL is taken for a name else, and matches no stream for ever."""
    path = _AUTHORITY.sub("", text, count=1)
    if path == text and not path.startswith(f"{stream_root}/"):
        return
    name = path.removeprefix(f"{stream_root}/").strip("/")
    raise invalid(
        f"{field} must be relative to {stream_root}/, not the path of a URL: "
        f'write "{name}" instead of "{text}".'
    )


def _refuse_unknown(
    document: Document, known: Collection[str], what: str, prefix: str = ""
) -> None:
    for field in document:
        if field not in known:
            fields = ", ".join(f"{prefix}{name}" for name in known)
            shown = f"{prefix}{field[:_FIELD_CHARS_MAX]}"
            raise invalid(f'The field "{shown}" is not known. {what} has {fields}.')


def parse_worker(document: Document) -> str:
    worker = _text(document, "worker", WORKER_CHARS_MAX)
    if not worker:
        raise invalid("worker must be a string that is not empty.")
    return worker


def parse_answer(document: Document) -> WorkerAnswer:
    wake_id, generation = document.get("wake_id"), document.get("generation")
    if not isinstance(wake_id, str) or type(generation) is not int:
        raise invalid("wake_id, a string, and generation, an integer, must be those of the wake.")
    acks = document.get("acks")
    if acks is None:
        acks = []
    if not isinstance(acks, list):
        raise invalid("acks must be an array.")
    if len(acks) > ACKS_MAX:
        raise invalid(f"acks must not hold more than {ACKS_MAX}.")
    done = document.get("done", False)
    if not isinstance(done, bool):
        raise invalid("done must be true or false.")
    return WorkerAnswer(wake_id, generation, tuple(_parse_ack(ack) for ack in acks), done)


def _parse_ack(value: object) -> Ack:
    if not isinstance(value, dict):
        raise invalid('An ack must be an object: {"stream": ..., "offset": ...}.')
    stream = value.get("stream", value.get("path"))
    offset = value.get("offset")
    if not isinstance(stream, str) or not isinstance(offset, str):
        raise invalid("An ack needs a stream and an offset, both strings.")
    try:
        return Ack(stream.strip("/"), parse_token(offset))
    except InvalidOffset as refusal:
        raise SubscriptionRefused(Code.INVALID_OFFSET, refusal.detail) from None


def _text(document: Document, field: str, chars_max: int | None = None) -> str | None:
    value = document.get(field)
    if value is None:
        return None
    if not isinstance(value, str):
        raise invalid(f"{field} must be a string.")
    if chars_max is not None and len(value) > chars_max:
        raise invalid(f"{field} must not exceed {chars_max} characters.")
    return value
