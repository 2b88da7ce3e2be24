"""Bytes into requests, within bounds.

httptools finds the structure; this reader owns what a parser leaves open: the size and number of
headers, exactly one Host, unambiguous framing, body limits and deadlines.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, Protocol

import httptools

from headrace.clock import monotonic
from headrace.errors import (
    BodyTooLarge,
    HeadersTooLarge,
    HeadraceError,
    MalformedHttp,
    Overloaded,
    RequestTimeout,
    UnsupportedTransferCoding,
    UrlTooLong,
)
from headrace.faults import internal_fault
from headrace.http.access import Access
from headrace.http.connections.head_cache import HeadCache
from headrace.http.connections.large_bodies import MISSING_BYTES_MIN, LargeBody
from headrace.http.connections.response_head import ResponseHead
from headrace.http.exchange import Client, Request
from headrace.http.forwarded import HOST
from headrace.protocol.headers import Headers

_ONCE: Final = frozenset(
    {b"host", b"content-length", b"transfer-encoding", b"content-type", b"authorization"}
)
_UPGRADE: Final = frozenset({b"upgrade", b"connection", b"http2-settings"})
# A body must keep this rate on average. It may fall behind by the time limit for bodies, and what
# came early does not count for later: a client that stops is given up after that time.
BODY_BYTES_PER_SEC_MIN: Final = 64 * 1024
# While others find no room, those that are this far behind a higher rate make some.
PRESSED_BYTES_PER_SEC_MIN: Final = 1024 * 1024
BEHIND_SECS_WHEN_PRESSED: Final = 5.0
# This much of a body must arrive before memory for the rest is allocated.
LARGE_BODY_BEGUN_BYTES: Final = 64 * 1024
# What chunk sizes and trailers may add to a body: a chunk of one byte takes six.
FRAMING_BYTES_MAX: Final = 16 * 1024
FRAMING_PER_BODY_BYTE_MAX: Final = 16
# Bodies up to this size are not counted against the budget: a head may be larger.
SMALL_BODY_BYTES: Final = 4096
# Parts of a body that are smaller are put together as they come: each is an object of its own.
_PART_BYTES_MIN: Final = 4096
# More than this in one read is parsed in pieces: chunks of one byte, or small requests, take the
# parser and what it calls a millisecond for every 4 to 20 KiB.
READ_AT_ONCE_BYTES: Final = 4096
_PIECE_BYTES: Final = 16 * 1024
NEVER: Final = float("inf")
_SLASH: Final = ord("/")


@dataclass(slots=True)
class ReaderLimits:
    """Bounds of one request, and who may send one."""

    header_bytes_max: int = 16 * 1024  # h11 and node: 16 KiB
    header_count_max: int = 100  # Apache httpd: 100
    url_bytes_max: int = 8 * 1024  # nginx and Apache httpd: 8 KiB
    body_bytes_max: int = 16 * 1024 * 1024
    header_timeout_secs: float = 10
    body_timeout_secs: float = 30
    access: Access = field(default_factory=Access)


class Upload(Protocol):
    """A body that is being received, and counted."""

    held_bytes: int
    paid_until: float
    """When all that has come would have come at PRESSED_BYTES_PER_SEC_MIN, without credit."""


class BodyBudget:
    """Bytes that all request bodies in flight may hold together, counted as they arrive.

    If the budget is exhausted, the slowest uploads are aborted until half of it is free: a
    client that sends just fast enough not to be given up otherwise would keep the others out.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.reserved_bytes = 0
        self._is_pressed = False  # an upload was refused since the last check
        self._uploads: dict[Upload, None] = {}
        self._chosen: set[Upload] = set()

    def has_room(self, count: int) -> bool:
        if self.reserved_bytes + count > self.bytes_max:
            self._is_pressed = True
            return False
        return True

    def reserve(self, count: int) -> bool:
        if not self.has_room(count):
            return False
        self.reserved_bytes += count
        return True

    def release(self, count: int) -> None:
        self.reserved_bytes -= count

    def begin(self, upload: Upload) -> None:
        """The first bytes of it are counted."""
        self._uploads[upload] = None

    def end(self, upload: Upload) -> None:
        """It is complete, or given up; the new owner of its bytes releases them."""
        self._uploads.pop(upload, None)
        self._chosen.discard(upload)

    def choose_slowest(self, now: float) -> None:
        """Called about once a second, before the connections are checked."""
        self._chosen = set()
        if not self._is_pressed:
            return
        self._is_pressed = False
        to_free = self.reserved_bytes - self.bytes_max // 2
        for upload in sorted(self._uploads, key=lambda upload: upload.paid_until):
            if to_free <= 0 or upload.paid_until > now - BEHIND_SECS_WHEN_PRESSED:
                return
            self._chosen.add(upload)
            to_free -= upload.held_bytes

    def is_chosen(self, upload: Upload) -> bool:
        """Whether it is one of the slowest, and to be given up."""
        return upload in self._chosen


class RequestReader:
    """Collects requests from one connection's bytes: complete ones in `ready`, in order.

    Once `refusal` is set nothing more is read: the end of the request is unknown.
    `deadline` is when the request being received must be complete. `needs_attention` says that the
    connection has something to do besides running what is ready. `unread` came in a large read and
    waits for `read_on`, which the connection calls as its turns allow. `large_body` is one that
    the connection receives itself, and then has finished here.
    """

    __slots__ = (
        "_announced_bytes",
        "_begun",
        "_body",
        "_body_bytes",
        "_budget",
        "_checked_host",
        "_client",
        "_fed_bytes",
        "_feed_bytes",
        "_head_cache",
        "_head_done",
        "_headers",
        "_http_11",
        "_judged_bytes",
        "_limits",
        "_parser",
        "_parts",
        "_repeated_fields",
        "_response_head",
        "_trailer_bytes",
        "_upgrading",
        "_url",
        "deadline",
        "expects_continue",
        "held_bytes",
        "large_body",
        "needs_attention",
        "paid_until",
        "ready",
        "refusal",
        "unread",
        "waited_secs",
    )

    def __init__(
        self, limits: ReaderLimits, budget: BodyBudget, response_head: ResponseHead, client: Client
    ) -> None:
        self._limits = limits
        self._budget = budget
        self._response_head = response_head
        self._client = client
        self._parser: Any = httptools.HttpRequestParser(self)
        self._checked_host: bytes | None = None
        self._http_11 = True
        self.held_bytes = 0
        self.unread = b""
        self._feed_bytes = 0
        self._upgrading = False
        self._begun = False
        self._head_cache = HeadCache(
            min(SMALL_BODY_BYTES, limits.body_bytes_max), limits.url_bytes_max
        )
        self.ready: deque[Request] = deque()
        self.refusal: HeadraceError | None = None
        self.large_body: LargeBody | None = None
        self.expects_continue = False
        self.needs_attention = False
        self.waited_secs = limits.header_timeout_secs
        self._begin()
        self.deadline = response_head.deadline(self.waited_secs)

    def _begin(self) -> None:
        """Nothing of the next request is known."""
        self._url = self._body = b""
        self._headers: Headers = {}
        self._head_done = False
        self._parts: list[bytes] = []
        # Of what was fed last, any part may belong to the next request: at most a piece too much.
        self._fed_bytes = self._feed_bytes
        self._body_bytes = self._announced_bytes = 0
        self._repeated_fields = self._trailer_bytes = 0
        self._judged_bytes = -1  # no body has begun
        self.deadline = self.paid_until = NEVER

    @property
    def is_receiving(self) -> bool:
        """Whether part of a request has come."""
        return bool(self._url) or bool(self.unread)

    def partial_request(self) -> Request:
        """What is known of the request being received, to log and count it by."""
        method = self._parser.get_method() if self._url else b""
        request = Request(method, self._url, self._headers, b"", self._client, monotonic())
        request.operation = "refused"
        return request

    def feed(self, data: bytes) -> None:
        if self.unread or len(data) > READ_AT_ONCE_BYTES:
            self.unread += data
        else:
            self._read(data)

    def keep(self, data: bytes) -> None:
        """Take what is to be parsed later, by `read_on`."""
        self.unread += data

    def read_on(self) -> None:
        """Parse the next piece of what is unread."""
        piece, self.unread = self.unread[:_PIECE_BYTES], self.unread[_PIECE_BYTES:]
        self._read(piece)

    def _read(self, data: bytes) -> None:
        if self.refusal is not None:
            self.unread = b""
            return
        if self.large_body is not None:
            self.finish_body()
        if self._begun:
            self._parse(data)
            return
        request = self._head_cache.match(data)
        if request is not None:
            self.ready.append(request)
        else:
            self._parse_first(data)

    def _parse_first(self, data: bytes) -> None:
        """What begins with a request; if it is one whole append, more like it may follow."""
        count = len(self.ready)
        self._parse(data)
        if self._begun or self.refusal is not None or len(self.ready) != count + 1:
            return
        if data.startswith(b"POST "):
            self._head_cache.learn(data, self.ready[-1])

    def _parse(self, data: bytes) -> None:
        self._feed_bytes = len(data)
        self._fed_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._go_on_without_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserCallbackError:
            # Raised by one of the methods below: a refusal of ours, or a defect.
            if self.refusal is None:
                self._set_refusal(internal_fault("reading a request"))
        except httptools.HttpParserError as error:
            self._set_refusal(MalformedHttp(f"The request is not valid HTTP/1.1: {error}."))
        if self._url:
            self._check_progress()

    def _go_on_without_upgrade(self, rest: bytes) -> None:
        """The parser stops at an Upgrade, which a server may ignore: show it the same without."""
        version = b"1.1" if self._http_11 else b"1.0"
        head = b"%b %b HTTP/%b\r\n" % (self._parser.get_method(), self._url, version)
        options = _without_upgrade(self._headers.get(b"connection", b""))
        if options:
            head += b"Connection: %b\r\n" % options
        for name, value in self._headers.items():
            if name not in _UPGRADE:
                head += b"%b: %b\r\n" % (name, value)
        self._upgrading = False
        self._parser = httptools.HttpRequestParser(self)
        self._begun = False
        self._begin()
        self._parse(head + b"\r\n" + rest)

    def _check_progress(self) -> None:
        """A request is under way: its head, and then its body, must come in time and in bounds."""
        if self.refusal is not None:
            return
        limits = self._limits
        body_bytes = max(self._announced_bytes, self._body_bytes)
        framing_bytes_max = FRAMING_BYTES_MAX + body_bytes * FRAMING_PER_BODY_BYTE_MAX
        if self._fed_bytes > limits.url_bytes_max + limits.header_bytes_max + framing_bytes_max:
            self._set_refusal(HeadersTooLarge(f"{limits.header_bytes_max} bytes"))
            return
        if not body_bytes:
            if self.deadline == NEVER:
                self.waited_secs = limits.header_timeout_secs
                self.deadline = self._response_head.deadline(self.waited_secs)
            return
        self._judge_body()
        missing_bytes = self._announced_bytes - self._body_bytes
        has_begun = self._body_bytes >= LARGE_BODY_BEGUN_BYTES and not self.unread
        if has_begun and missing_bytes >= MISSING_BYTES_MIN and self.large_body is None:
            self.large_body = LargeBody(self._announced_bytes, self._parts)
            self._parts = []
            self.needs_attention = True

    def _judge_body(self) -> None:
        """Give the client time for what it has sent since it was judged last."""
        timeout_secs = self._limits.body_timeout_secs
        now, latest = self._response_head.now, self._response_head.deadline(timeout_secs)
        if self._judged_bytes < 0:
            self._judged_bytes = 0
            self.waited_secs = timeout_secs
            self.deadline = latest
            self.paid_until = now
        arrived_bytes = self._body_bytes - self._judged_bytes
        self._judged_bytes = self._body_bytes
        self.deadline = min(self.deadline + arrived_bytes / BODY_BYTES_PER_SEC_MIN, latest)
        self.paid_until = min(self.paid_until + arrived_bytes / PRESSED_BYTES_PER_SEC_MIN, now)

    def overdue(self, now: float) -> HeadraceError | None:
        """Why the client is to be given up, if it is."""
        if self.unread:  # the wait is ours
            self.excuse()
            return None
        if now >= self.deadline:
            return RequestTimeout(self.waited_secs)
        return self._no_room() if self._budget.is_chosen(self) else None

    def excuse(self) -> None:
        """The connection has an answer under way, and may not have listened."""
        if self.deadline != NEVER:
            self.deadline = max(self.deadline, self._response_head.deadline(self.waited_secs))
            self.paid_until = self._response_head.now

    def add_to_body(self, count: int) -> bool:
        """Count received bytes of the large body; False if the budget has no room for them."""
        self._body_bytes += count
        if not self._budget.reserve(self._body_bytes - self.held_bytes):
            self._set_refusal(self._no_room())
            return False
        self._budget.begin(self)
        self.held_bytes = self._body_bytes
        self._judge_body()
        return True

    def drop_body(self) -> None:
        """Of a request that is refused."""
        self.large_body = None
        self._parts = []
        self._give_back()

    def finish_body(self) -> None:
        """Take over a large body, if it is complete; the next request needs a new parser.

        The old one still waits for the body.
        """
        body = self.large_body
        if body is None or not body.is_complete:
            return
        self.large_body = None
        self._parts = [body.take()]
        self.on_message_complete()
        self._parser = httptools.HttpRequestParser(self)

    def release(self) -> None:
        """Forget everything that is not answered yet."""
        self._give_back()
        for request in self.ready:
            request.release_body()
        self.ready.clear()
        self._parts = []
        self.unread = b""
        self.large_body = None
        self._parser = None  # it refers to this reader

    # -- called by the parser --------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._begun = True

    def on_url(self, url: bytes) -> None:
        url = self._url = self._url + url
        if len(url) > self._limits.url_bytes_max:
            self._refuse(UrlTooLong(self._limits.url_bytes_max))

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        headers = self._headers
        if self._head_done or name in headers:
            self._repeat(name, value)
        else:
            headers[name] = value

    def _repeat(self, name: bytes, value: bytes) -> None:
        """A field that occurs twice, or in the trailers, which are ignored."""
        limits = self._limits
        if self._head_done:
            self._trailer_bytes += len(name) + len(value) + 4
            if self._trailer_bytes > limits.header_bytes_max:
                self._refuse(HeadersTooLarge(f"{limits.header_bytes_max} bytes"))
            return
        # Two values would let a proxy in front and this server each believe another one: one of
        # them ends the request elsewhere, or lets another host or user in.
        if name in _ONCE:
            self._refuse(MalformedHttp(f"The header {name.decode('latin-1')} appears twice."))
        self._headers[name] += b", " + value
        self._repeated_fields += 1

    def on_headers_complete(self) -> None:
        self._head_done = True
        headers = self._headers
        limits = self._limits
        if len(headers) + self._repeated_fields > limits.header_count_max:
            self._refuse(HeadersTooLarge(f"{limits.header_count_max} fields"))
        if self._feed_bytes > limits.header_bytes_max or self._fed_bytes > limits.header_bytes_max:
            self._check_head_size(limits.header_bytes_max)
        version = self._parser.get_http_version()
        self._http_11 = version == "1.1"
        if not self._http_11 and version != "1.0":
            self._refuse(MalformedHttp(f"This server speaks HTTP/1.1, not HTTP/{version}."))
        host = headers.get(b"host")
        # Once for each host on a connection: an append repeats it, and pays for the comparison
        # only.
        if host is None or host != self._checked_host:
            self._check_host(host)
        if b"origin" in headers or b"sec-fetch-site" in headers:
            self._check_page(headers)
        if b"content-length" in headers or b"transfer-encoding" in headers:
            self._expect_body(headers)
        if b"expect" in headers and self._http_11:
            self.expects_continue = headers[b"expect"].lower() == b"100-continue"
            self.needs_attention = self.needs_attention or self.expects_continue
        if self._parser.should_upgrade():
            self._check_upgrade()

    def _check_upgrade(self) -> None:
        if self._parser.get_method() == b"CONNECT":
            self._refuse(MalformedHttp("This server is not a proxy."))
        self._upgrading = True

    def _check_head_size(self, bytes_max: int) -> None:
        """What was fed may be mostly body, or several requests: count the head itself."""
        size = sum(len(name) + len(value) for name, value in self._headers.items())
        if size > bytes_max:
            self._refuse(HeadersTooLarge(f"{bytes_max} bytes"))

    def _check_host(self, host: bytes | None) -> None:
        if host is None and not self._http_11:
            return
        if host is None or not HOST.fullmatch(host):
            self._refuse(MalformedHttp("An HTTP/1.1 request names its host in a Host header."))
        refusal = self._limits.access.host_refusal(host)
        if refusal is not None:
            self._refuse(refusal)
        self._checked_host = host

    def _check_page(self, headers: Headers) -> None:
        method = self._parser.get_method()
        refusal = self._limits.access.page_refusal(method, headers, self._client)
        if refusal is not None:
            self._refuse(refusal)

    def _expect_body(self, headers: Headers) -> None:
        coding = headers.get(b"transfer-encoding")
        if coding is not None:
            # The classic of request smuggling: two framings, and two ends of the request.
            if b"content-length" in headers:
                self._refuse(
                    MalformedHttp("Content-Length and Transfer-Encoding cannot be combined.")
                )
            if coding.strip().lower() != b"chunked":
                self._refuse(UnsupportedTransferCoding(coding.decode("latin-1")))
            self._announced_bytes = 1  # at least: its deadline is that of a body
            return
        length = self._announced_bytes = int(headers[b"content-length"])
        if length > self._limits.body_bytes_max:
            self._refuse(BodyTooLarge(self._limits.body_bytes_max))
        # It is counted as it arrives; one that has no room now need not be sent.
        if length > SMALL_BODY_BYTES and not self._budget.has_room(length):
            self._refuse(self._no_room())

    def on_body(self, body: bytes) -> None:
        size = self._body_bytes = self._body_bytes + len(body)
        if size <= self._announced_bytes <= SMALL_BODY_BYTES and not self._body:
            self._body = body
        else:
            self._add_part(body, size)

    def _add_part(self, body: bytes, size: int) -> None:
        if size > self._limits.body_bytes_max:
            self._refuse(BodyTooLarge(self._limits.body_bytes_max))
        if size > SMALL_BODY_BYTES and size > self.held_bytes:
            self._reserve(size - self.held_bytes)
        parts = self._parts
        if not parts:
            parts.append(self._body)
        if len(body) < _PART_BYTES_MIN and len(parts[-1]) < _PART_BYTES_MIN:
            parts[-1] += body
        else:
            parts.append(body)

    def on_message_complete(self) -> None:
        # The parser ends the message at the upgrade; it is parsed again without it.
        if self._upgrading:
            return
        self._begun = False
        parser, url = self._parser, self._url
        request = Request(
            parser.get_method(),
            url if url[0] == _SLASH else _origin_form(url),
            self._headers,
            b"".join(self._parts) if self._parts else self._body,
            self._client,
            monotonic(),
        )
        if not self._http_11 or not parser.should_keep_alive():
            # HTTP/1.0 could ask to stay open; here it closes.
            request.http_11 = self._http_11
            request.keep_alive = False
        if self.held_bytes or self.expects_continue:
            request.reserved_bytes = self.held_bytes
            request.budget = self._budget
            self.held_bytes = 0
            self._budget.end(self)
            self.expects_continue = False
        self._begin()
        # Last: what raises before is refused, and must not be answered besides.
        self.ready.append(request)

    # -- helpers ---------------------------------------------------------------------------

    def _reserve(self, count: int) -> None:
        if not self._budget.reserve(count):
            self._refuse(self._no_room())
        self._budget.begin(self)
        self.held_bytes += count

    def _give_back(self) -> None:
        self._budget.end(self)
        self._budget.release(self.held_bytes)
        self.held_bytes = 0

    def _no_room(self) -> Overloaded:
        return Overloaded("bytes of request bodies in flight", self._budget.bytes_max)

    def _set_refusal(self, refusal: HeadraceError) -> None:
        """The first one counts: the parser then reports an error of its own for it."""
        if self.refusal is None:
            self.refusal = refusal
            self.needs_attention = True

    def _refuse(self, refusal: HeadraceError) -> NoReturn:
        """From inside a callback: the parser stops, `feed` finds the refusal."""
        self._set_refusal(refusal)
        raise refusal


def _without_upgrade(options: bytes) -> bytes:
    """A Connection header without the two options that belong to an Upgrade."""
    kept = (option.strip() for option in options.split(b","))
    return b", ".join(option for option in kept if option and option.lower() not in _UPGRADE)


def _origin_form(url: bytes) -> bytes:
    """The path and query of an absolute-form target; anything else stays as it is."""
    scheme, found, rest = url.partition(b"://")
    if not found or scheme.lower() not in (b"http", b"https"):
        return url
    path_start = rest.find(b"/")
    return rest[path_start:] if path_start >= 0 else b"/"
