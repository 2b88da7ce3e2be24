"""Carries the client's steps out over one connection of its own, for jobs that ask very often.

A data source asks thousands of times a second and for nothing special: no proxy, no body that
comes bit by bit. A socket and a parser do that with a fraction of what a general HTTP library
spends on a request. Several steps can be sent at once; they are answered in their order.
"""

from __future__ import annotations

import socket
import ssl
import time
import urllib.request
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar
from urllib.parse import SplitResult, quote, urlencode, urlsplit

import httptools

from headrace.client.effects import Answer, Ask, Effect, Request, Steps, Wait
from headrace.client.errors import BadAnswer, ConnectFailed, ConnectionLost
from headrace.client.settings import Settings
from headrace.client.sync_driver import now
from headrace.client.transport import tls_context
from headrace.errors import HeadraceError, InvalidRequest

T = TypeVar("T")

_RECEIVE_BYTES: Final = 1024 * 1024
_PORTS: Final = {"http": 80, "https": 443}
_FINAL_MIN: Final = 200
_OK_MAX: Final = 299


def is_direct(settings: Settings) -> bool:
    """Whether the server is reached without a proxy, so that a wire will do."""
    place = urlsplit(settings.url)
    if settings.proxy is not None or place.scheme not in _PORTS or not place.hostname:
        return False
    if "@" in place.netloc or not settings.url.isascii():
        return False
    proxies = urllib.request.getproxies()
    proxied = place.scheme in proxies or "all" in proxies
    return not proxied or bool(urllib.request.proxy_bypass(place.hostname))


class RawHttpDriver:
    """Performs steps that ask and wait, over one connection that is made when it is needed."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._wire: _Wire | None = None

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def run(self, steps: Steps[T]) -> T:
        """Perform steps to their end; their result."""
        try:
            effect: Effect = next(steps)
            while True:
                effect = self._advance(steps, effect)
        except StopIteration as finished:
            result: T = finished.value
            return result

    def run_in_order(self, several: Sequence[Steps[T]]) -> list[T]:
        """Perform steps that each begin by asking; none is asked before the one it follows.

        All are sent at once. What comes after one that failed is asked again after it, unless it
        was done: so the server must refuse what has lost its predecessor, and know repeats.
        """
        if len(several) == 1:
            return [self.run(several[0])]
        asked = [next(steps) for steps in several]
        requests = [_request(effect) for effect in asked]
        assert all(request.method != "HEAD" for request in requests), "it has no end to find"
        answers = self._ask_all(requests)
        has_failed = False
        results: list[T] = []
        for steps, effect, answer in zip(several, asked, answers, strict=True):
            is_done = isinstance(answer, Answer) and answer.status <= _OK_MAX
            # Behind a failure: refused for want of the one before, or never answered.
            is_open = has_failed and not is_done
            has_failed = has_failed or not is_done
            results.append(self._finish(steps, effect, None if is_open else answer))
        return results

    def _finish(self, steps: Steps[T], effect: Effect, answer: Answer | HeadraceError | None) -> T:
        try:
            if isinstance(answer, Answer):
                effect = steps.send(answer)
            elif answer is not None:
                effect = steps.throw(answer)
            while True:
                effect = self._advance(steps, effect)
        except StopIteration as finished:
            result: T = finished.value
            return result

    def _advance(self, steps: Steps[Any], effect: Effect) -> Effect:
        if isinstance(effect, Wait):
            time.sleep(effect.secs)
            return steps.send(None)
        [answer] = self._ask_all([_request(effect)])
        return steps.send(answer) if isinstance(answer, Answer) else steps.throw(answer)

    def _ask_all(self, requests: Sequence[Request]) -> list[Answer | HeadraceError]:
        """An answer or a failure for each. Past a lost connection all have failed."""
        answers: list[Answer | HeadraceError] = []
        try:
            wire = self._connected(requests[0])
            for answer in wire.exchange(requests):
                answers.append(answer)
        except HeadraceError as error:
            self.close()
            answers += [error] * (len(requests) - len(answers))
        return answers

    def _connected(self, request: Request) -> _Wire:
        if self._wire is not None and self._wire.is_stale(request):
            self.close()
        if self._wire is None:
            self._wire = _Wire(request, self.settings)
        return self._wire


def _request(effect: Effect) -> Request:
    assert isinstance(effect, Ask), "a wire carries whole answers only"
    return effect.request


class _Wire:
    """A connection: requests go out, answers come back in their order."""

    def __init__(self, request: Request, settings: Settings) -> None:
        place = urlsplit(request.url)
        self._origin = place.scheme, place.netloc
        self._settings = settings
        self._closes = False
        self._is_head_done = False
        self._done: deque[Answer] = deque()
        self._parser = httptools.HttpResponseParser(self)
        self._socket = _connect(request, place, settings)
        self._buffer = memoryview(bytearray(_RECEIVE_BYTES))

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def is_stale(self, request: Request) -> bool:
        """Whether it leads elsewhere, or the other side has hung up."""
        place = urlsplit(request.url)
        if (place.scheme, place.netloc) != self._origin or self._closes:
            return True
        self._socket.settimeout(0)
        try:
            self._socket.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        except OSError:
            return True
        return True  # the end, or bytes that answer nothing

    def exchange(self, requests: Sequence[Request]) -> Iterator[Answer]:
        began = time.monotonic()
        self._methods = deque(request.method for request in requests)
        self._url = requests[0].url
        try:
            self._socket.settimeout(requests[0].timeout_secs)
            self._send(b"".join(_encoded(each, self._settings) for each in requests))
            for _ in requests:
                while not self._done:
                    self._receive()
                answer = self._done.popleft()
                yield Answer(answer.status, answer.headers, answer.body, time.monotonic() - began)
        except OSError as error:
            reason = f"{type(error).__name__}: {error}".removesuffix(": ")
            raise ConnectionLost(self._url, reason) from error

    def _send(self, data: bytes) -> None:
        # A server may refuse a body before it has all of it, and hang up: its answer counts.
        with suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(data)

    def _receive(self) -> None:
        count = 0 if self._closes else self._socket.recv_into(self._buffer)
        if not count:
            raise ConnectionLost(self._url, "the server hung up")
        try:
            self._parser.feed_data(self._buffer[:count])
            if self._is_head_done:
                self._parser, self._is_head_done = httptools.HttpResponseParser(self), False
        except httptools.HttpParserError as error:
            raise BadAnswer(self._url, str(error)) from None

    # -- called by the parser --------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        key = name.decode("latin-1").lower()
        text = value.decode("latin-1")
        self._headers[key] = f"{self._headers[key]}, {text}" if key in self._headers else text

    def on_headers_complete(self) -> None:
        """The answer to a HEAD ends here, whatever its headers say of a body."""
        if self._methods and self._methods[0] == "HEAD":
            self._methods.popleft()
            self._is_head_done = True
            self._closes = self._headers.get("connection", "").lower() == "close"
            self._done.append(Answer(self._parser.get_status_code(), self._headers))

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < _FINAL_MIN or self._is_head_done:
            return
        self._methods.popleft()
        self._closes = not self._parser.should_keep_alive()
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._done.append(Answer(self._parser.get_status_code(), self._headers, body))


def _connect(request: Request, place: SplitResult, settings: Settings) -> socket.socket:
    try:
        port = place.port or _PORTS[place.scheme]
        address = place.hostname or "", port
        made = socket.create_connection(address, settings.timeouts.connect_secs)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if place.scheme == "https":
            made = tls_context(settings).wrap_socket(made, server_hostname=place.hostname)
        return made
    except (OSError, ssl.SSLError) as error:
        reason = f"{type(error).__name__}: {error}".removesuffix(": ")
        raise ConnectFailed(request.url, reason) from error
    except (KeyError, ValueError) as error:
        raise InvalidRequest(f"{request.url!r} is not a URL to ask: {error}") from None


def _encoded(request: Request, settings: Settings) -> bytes:
    place = urlsplit(request.url)
    query = urlencode({name: now(value) for name, value in request.params.items()}, quote_via=quote)
    target = place.path or "/"
    joined = "&".join(part for part in (place.query, query) if part)
    lines = [f"{request.method} {target}{'?' if joined else ''}{joined} HTTP/1.1"]
    fields = {"Host": place.netloc.rpartition("@")[2], "Accept": "*/*"}
    fields |= {name: text for name, value in request.headers.items() if (text := now(value))}
    if request.body is not None or request.method in ("POST", "PUT"):
        fields["Content-Length"] = str(len(request.body or b""))
    for name, value in fields.items():
        # Checked here, so that the refusal does not repeat the value: it may be a token.
        if not (value.isascii() and value.isprintable()):
            raise InvalidRequest(f"The header {name} holds a character that cannot be sent.")
        lines.append(f"{name}: {value}")
    head = "\r\n".join(lines).encode("ascii")
    return b"%b\r\n\r\n%b" % (head, request.body or b"")
