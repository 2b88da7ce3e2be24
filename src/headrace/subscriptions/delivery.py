"""Sending webhooks: one task group, a bound on everything, and no trust in the other side.

`Poster` sends one request to an address that `targets` has checked. `Deliveries` decides what is
sent when: at most one request per subscription at a time, at most POSTS_MAX in all, and at most
half of those are repeats, so that receivers that are down do not hold up those that are not.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

import httpx
import orjson

from headrace.subscriptions.errors import SubscriptionRefused
from headrace.subscriptions.targets import Address, Target, TargetRules, parse_target, resolve

POSTS_MAX: Final = 32  # half of the descriptors that the server keeps from its clients
REPEATS_MAX: Final = POSTS_MAX // 2
ANSWER_BYTES_MAX: Final = 64 * 1024  # {"done": true} is 14
logger = logging.getLogger(__name__)

CONNECT_SECS_MAX: Final = 3.0  # per address, so that a dead first one leaves time for the next

K = TypeVar("K", bound=Hashable)


class Outgoing(NamedTuple):
    """One webhook, ready to be sent."""

    wake_id: str
    url: str
    signature: str
    body: bytes
    timeout_secs: float


class Delivered(NamedTuple):
    """The receiver answered with success; `done`: it has finished the wake."""

    done: bool


class Failed(NamedTuple):
    reason: str


class Poster:
    """Sends one webhook at a time to where the rules allow it."""

    def __init__(self, rules: TargetRules, tls: ssl.SSLContext | None = None) -> None:
        self._rules = rules
        self._tls = tls

    async def post(self, outgoing: Outgoing) -> Delivered | Failed:
        try:
            async with asyncio.timeout(outgoing.timeout_secs):
                target = parse_target(outgoing.url, self._rules)
                loop = asyncio.get_running_loop()
                return await self._post(target, await resolve(target, self._rules, loop), outgoing)
        except TimeoutError:
            return Failed(f"no answer within {outgoing.timeout_secs:g} s")
        except SubscriptionRefused as refusal:
            return Failed(refusal.detail)
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            return Failed(f"{type(error).__name__}: {error}")
        except Exception as error:
            # Whatever one delivery meets must not end the others. Seen: a receiver that hangs up
            # while it is being connected to makes the HTTP library raise AttributeError.
            logger.warning("a webhook delivery failed in an unknown way: %r", error)
            return Failed(f"{type(error).__name__}: {error}")

    async def _trust(self) -> ssl.SSLContext:
        """OpenSSL's own trust store, which honours SSL_CERT_FILE and SSL_CERT_DIR.

        Most servers never need it, and it takes longer to load than all else at their start.
        """
        if self._tls is None:
            self._tls = await asyncio.to_thread(ssl.create_default_context)
        return self._tls

    async def _post(
        self, target: Target, addresses: Sequence[Address], outgoing: Outgoing
    ) -> Delivered | Failed:
        *others, last = addresses
        for address in others:
            try:
                return await self._post_to(address, target, outgoing)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                continue
        return await self._post_to(last, target, outgoing)

    async def _post_to(
        self, address: Address, target: Target, outgoing: Outgoing
    ) -> Delivered | Failed:
        # The bare transport follows no redirect, keeps no cookie and reads no proxy settings. A
        # new one each time keeps no connection either: one that was opened under another name
        # for the same address would carry that name's certificate.
        tls = await self._trust()
        async with httpx.AsyncHTTPTransport(verify=tls, trust_env=False) as transport:
            response = await transport.handle_async_request(_request(address, target, outgoing))
            try:
                if not response.is_success:
                    return Failed(f"the receiver answered {response.status_code}")
                return Delivered(_is_done(await _read(response)))
            finally:
                await response.aclose()


def _request(address: Address, target: Target, outgoing: Outgoing) -> httpx.Request:
    wait = outgoing.timeout_secs
    extensions: dict[str, Any] = {
        "sni_hostname": target.host.rstrip("."),
        "timeout": {
            "connect": min(wait, CONNECT_SECS_MAX),
            "read": wait,
            "write": wait,
            "pool": wait,
        },
    }
    headers = {
        "Host": target.authority,
        "User-Agent": "headrace",
        "Accept": "application/json",
        "Accept-Encoding": "identity",
        "Content-Type": "application/json",
        "Webhook-Signature": outgoing.signature,
    }
    url = httpx.URL(
        scheme=target.scheme,
        host=str(address),
        port=target.port,
        raw_path=target.path.encode("ascii"),
    )
    return httpx.Request("POST", url, headers=headers, content=outgoing.body, extensions=extensions)


async def _read(response: httpx.Response) -> bytes | None:
    """The body as sent, or None if it is longer than any answer of ours."""
    assert isinstance(response.stream, httpx.AsyncByteStream), "an async transport made it"
    body = b""
    async for chunk in response.stream:
        body += chunk
        if len(body) > ANSWER_BYTES_MAX:
            return None
    return body


def _is_done(body: bytes | None) -> bool:
    try:
        answer = orjson.loads(body or b"null")
    except orjson.JSONDecodeError:
        return False
    return isinstance(answer, dict) and answer.get("done") is True


class Deliveries(Generic[K]):
    """The queue in front of a Poster, and the task group behind it.

    `prepare` makes the webhook of a subscription when its turn comes, or None if there is nothing
    to send any more; `finish` hears how it went.
    """

    def __init__(
        self,
        poster: Poster,
        prepare: Callable[[K], Outgoing | None],
        finish: Callable[[K, Outgoing, Delivered | Failed], None],
    ) -> None:
        self._poster = poster
        self._prepare = prepare
        self._finish = finish
        # Each holds a subscription at most once, so their bound is that of subscriptions.
        self._fresh: OrderedDict[K, None] = OrderedDict()
        self._repeats: OrderedDict[K, None] = OrderedDict()
        self._again: dict[K, bool] = {}
        self._active: dict[K, asyncio.Task[None]] = {}
        self._active_repeats = 0
        self._changed = asyncio.Event()

    def enqueue(self, key: K, *, repeat: bool) -> None:
        """Send the webhook of `key` when there is room, and not before its last one has ended."""
        if key in self._active:
            self._again[key] = repeat
            return
        (self._repeats if repeat else self._fresh)[key] = None
        self._changed.set()

    def drop(self, key: K) -> None:
        """Send nothing more for `key`, and break off what is being sent."""
        self._fresh.pop(key, None)
        self._repeats.pop(key, None)
        self._again.pop(key, None)
        if key in self._active:
            self._active[key].cancel()

    async def run(self) -> None:
        """For ever; raises what a delivery died of, which is a defect of ours."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._changed.wait()
                self._changed.clear()
                self._fill(group)

    def _fill(self, group: asyncio.TaskGroup) -> None:
        while len(self._active) < POSTS_MAX:
            if self._fresh:
                key, repeat = self._fresh.popitem(last=False)[0], False
            elif self._repeats and self._active_repeats < REPEATS_MAX:
                key, repeat = self._repeats.popitem(last=False)[0], True
            else:
                return
            outgoing = self._prepare(key)
            if outgoing is None:
                continue
            self._active_repeats += repeat
            task = group.create_task(self._deliver(key, outgoing))
            self._active[key] = task
            task.add_done_callback(partial(self._ended, key, repeat))

    async def _deliver(self, key: K, outgoing: Outgoing) -> None:
        result = await self._poster.post(outgoing)
        self._finish(key, outgoing, result)

    def _ended(self, key: K, repeat: bool, _: asyncio.Task[None]) -> None:
        self._active_repeats -= repeat
        del self._active[key]
        if key in self._again:
            self.enqueue(key, repeat=self._again.pop(key))
        self._changed.set()
