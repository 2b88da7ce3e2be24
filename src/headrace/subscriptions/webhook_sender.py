"""Sends one webhook to an address that `callback_urls` has checked; the receiver is not trusted."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Sequence
from typing import Any, Final

import httpcore
import orjson

from headrace.subscriptions.callback_urls import (
    Address,
    TargetRules,
    WebhookTarget,
    check_addresses,
    parse_target,
    resolve,
)
from headrace.subscriptions.delivery import Delivered, Failed, Outgoing, addresses_of
from headrace.subscriptions.errors import SubscriptionRefused
from headrace.subscriptions.webhook_intake import (
    ANSWER_BYTES_MAX,
    AnswerTooCostly,
    BoundedBackend,
    Intake,
)

CONNECT_SECS_MAX: Final = 3.0  # per address, so that a dead first one leaves time for the next
_HTTP_ERRORS: Final = (
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.TimeoutException,
    OSError,
)
logger = logging.getLogger(__name__)


class WebhookSender:
    """Sends one webhook at a time to where the rules allow it."""

    def __init__(self, rules: TargetRules, tls: ssl.SSLContext | None = None) -> None:
        self._rules = rules
        self._tls = tls

    async def addresses(self, host: str) -> Sequence[Address]:
        return await addresses_of(host, self._rules)

    async def post(
        self, outgoing: Outgoing, addresses: Sequence[Address] = ()
    ) -> Delivered | Failed:
        try:
            async with asyncio.timeout(outgoing.timeout_secs):
                target = parse_target(outgoing.url, self._rules)
                if addresses:
                    check_addresses(target, addresses, self._rules)
                else:
                    loop = asyncio.get_running_loop()
                    addresses = await resolve(target, self._rules, loop)
                return await self._post(target, addresses, outgoing)
        except TimeoutError:
            return Failed(f"no answer within {outgoing.timeout_secs:g} s")
        except SubscriptionRefused as refusal:
            return Failed(refusal.detail)
        except AnswerTooCostly as error:
            return Failed(str(error))
        except _HTTP_ERRORS as error:
            return Failed(f"{type(error).__name__}: {error}")
        except Exception as error:
            # Whatever one delivery meets must not end the others. Seen: a receiver that hangs up
            # while it is being connected to makes the HTTP library raise AttributeError.
            logger.warning("a webhook delivery failed unexpectedly: %r", error)
            return Failed(f"{type(error).__name__}: {error}")

    async def _trust(self) -> ssl.SSLContext:
        """OpenSSL's own trust store, which honours SSL_CERT_FILE and SSL_CERT_DIR.

        Most servers never need it, and it takes longer to load than all else at their start.
        """
        if self._tls is None:
            self._tls = await asyncio.to_thread(ssl.create_default_context)
        return self._tls

    async def _post(
        self, target: WebhookTarget, addresses: Sequence[Address], outgoing: Outgoing
    ) -> Delivered | Failed:
        *others, last = addresses
        for address in others:
            try:
                return await self._post_to(address, target, outgoing)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return await self._post_to(last, target, outgoing)

    async def _post_to(
        self, address: Address, target: WebhookTarget, outgoing: Outgoing
    ) -> Delivered | Failed:
        # A bare pool follows no redirect, keeps no cookie and reads no proxy settings. A new one
        # each time keeps no connection either: one that was opened under another name for the same
        # address would carry that name's certificate.
        tls = await self._trust()
        intake = Intake()
        backend = BoundedBackend(intake)
        async with httpcore.AsyncConnectionPool(tls, network_backend=backend) as pool:
            response = await pool.handle_async_request(_request(address, target, outgoing))
            try:
                if not 200 <= response.status < 300:
                    return Failed(f"the receiver answered {response.status}")
                return Delivered(_is_done(await _read(response, intake)))
            finally:
                await response.aclose()


def _request(address: Address, target: WebhookTarget, outgoing: Outgoing) -> httpcore.Request:
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
    headers: dict[bytes | str, bytes | str] = {
        "Host": target.authority,
        "User-Agent": "headrace",
        "Accept": "application/json",
        "Accept-Encoding": "identity",
        "Content-Type": "application/json",
        "Content-Length": str(len(outgoing.body)),
        "Webhook-Signature": outgoing.signature,
    }
    url = httpcore.URL(
        scheme=target.scheme, host=str(address), port=target.port, target=target.path
    )
    return httpcore.Request(
        "POST", url, headers=headers, content=outgoing.body, extensions=extensions
    )


async def _read(response: httpcore.Response, intake: Intake) -> bytes | None:
    """The body as sent, or None if it is longer than any answer of ours."""
    body = b""
    async for chunk in response.aiter_stream():
        intake.add_piece()
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
