"""What both drivers share below HTTP: pools, TLS, building requests, errors of the transport."""

from __future__ import annotations

import ssl
from functools import cache
from typing import Any

import httpx

from headrace.client.effects import Answer, Request
from headrace.client.errors import BadAnswer, ConnectFailed, ConnectionLost
from headrace.client.settings import Settings
from headrace.errors import HeadraceError, InvalidRequest

_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
KEPT_CONNECTIONS_MAX = 20  # httpx's own default


def pool_options(settings: Settings, tls: ssl.SSLContext) -> dict[str, Any]:
    limits = httpx.Limits(
        max_connections=settings.connections_max, max_keepalive_connections=KEPT_CONNECTIONS_MAX
    )
    return {"verify": tls, "proxy": settings.proxy, "limits": limits}


def tls_context(settings: Settings) -> ssl.SSLContext:
    if isinstance(settings.verify, str):
        return ssl.create_default_context(cafile=settings.verify)
    return _usual_tls_context(settings.verify)


@cache
def _usual_tls_context(verify: bool) -> ssl.SSLContext:
    # Made once: reading the usual certificates takes longer than a hundred requests.
    return httpx.create_ssl_context(verify=verify)


class Contact:
    """Whether the server has answered at all; shared by everything that one client does."""

    __slots__ = ("made",)

    def __init__(self) -> None:
        self.made = False


def transport_error(
    request: Request, error: httpx.HTTPError | httpx.InvalidURL, contact: Contact
) -> HeadraceError:
    """What went wrong below HTTP, by whether anything can have been sent."""
    reason = str(error) or type(error).__name__
    if isinstance(error, (httpx.UnsupportedProtocol, httpx.InvalidURL)):
        return InvalidRequest(f"{request.url!r} is not a URL to ask: {error}")
    if isinstance(error, httpx.LocalProtocolError):
        return InvalidRequest(f"The request to {request.url} cannot be sent: {error}")
    if isinstance(error, _NOT_SENT):
        timed_out = isinstance(error, httpx.ConnectTimeout)
        return ConnectFailed(request.url, reason, is_first=not contact.made, timed_out=timed_out)
    if isinstance(error, httpx.DecodingError):
        return BadAnswer(request.url, reason)
    return ConnectionLost(request.url, reason)


def built(
    http: httpx.Client | httpx.AsyncClient,
    request: Request,
    headers: dict[str, str],
    params: dict[str, str],
    settings: Settings,
) -> httpx.Request:
    headers = {name: value for name, value in headers.items() if value}
    for name, value in headers.items():
        # Checked here, so that the refusal does not repeat the value: it may be a token.
        if not (value.isascii() and value.isprintable()):
            raise InvalidRequest(f"The header {name} holds a character that cannot be sent.")
    timeout = httpx.Timeout(request.timeout_secs, connect=settings.timeouts.connect_secs)
    url = httpx.URL(request.url).copy_merge_params(params)
    return http.build_request(
        request.method, url, headers=headers, content=request.body, timeout=timeout
    )


def head_of(response: httpx.Response, took_secs: float, body: bytes = b"") -> Answer:
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Answer(response.status_code, headers, body, took_secs)


class Stopped(Exception):
    """The flow was stopped from outside."""
