"""Requests that are not one unambiguous HTTP/1.1 request get one right answer and no more.

None of them is answered 500, none hangs, and none disturbs a connection that was open all along.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import pytest

from headrace.testing.raw_http import EndOfConnection, RawConnection, RawResponse
from headrace.testing.server_process import ServerProcess

STREAM = "/v1/stream/malformed"
HOST = b"Host: localhost\r\n"
END = b"Connection: close\r\n\r\n"
GOOD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
LAST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + END
TLS_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(range(200))
ANY_4XX = tuple(range(400, 500))


class Case(NamedTuple):
    """Bytes to send, and which statuses each answer may have; the server closes after them."""

    id: str
    sent: bytes
    answers: tuple[tuple[int, ...], ...]
    half_close: bool = False


def line(id: str, request_line: bytes, *statuses: int) -> Case:
    """A request line on its own merits."""
    return Case(f"line-{id}", request_line + b"\r\n" + HOST + END, (statuses or (400,),))


def header(id: str, lines: bytes, *statuses: int) -> Case:
    """Header lines after a good Host."""
    sent = b"GET /healthz HTTP/1.1\r\n" + HOST + lines + b"\r\n" + END
    return Case(f"header-{id}", sent, (statuses or (400,),))


def host(id: str, lines: bytes, *statuses: int) -> Case:
    """Header lines in place of the Host."""
    sent = b"GET /healthz HTTP/1.1\r\n" + lines + END
    return Case(f"host-{id}", sent, (statuses or (400,),))


def framed(id: str, lines: bytes, body: bytes = b"hello", *statuses: int) -> Case:
    """An append whose framing is in doubt."""
    head = f"POST {STREAM} HTTP/1.1\r\n".encode() + HOST + b"Content-Type: text/plain\r\n"
    return Case(f"framing-{id}", head + lines + b"\r\n\r\n" + body, (statuses or (400,),))


def chunked(id: str, body: bytes, *statuses: int) -> Case:
    return framed(
        f"chunk-{id}", b"Transfer-Encoding: chunked\r\nConnection: close", body, *statuses
    )


SMUGGLED = framed("", b"Content-Length: 6\r\nTransfer-Encoding: chunked", b"0\r\n\r\nG").sent

CASES = [
    # the request line
    line("empty-method", b" /healthz HTTP/1.1"),
    line("lower-case-method", b"get /healthz HTTP/1.1"),
    line("mixed-case-method", b"Get /healthz HTTP/1.1"),
    line("unknown-method", b"FOO /healthz HTTP/1.1"),
    line("longer-method", b"GETT /healthz HTTP/1.1"),
    line("method-only", b"GET"),
    line("no-target", b"GET HTTP/1.1"),
    line("two-spaces", b"GET  /healthz HTTP/1.1", 200, 400),
    line("tab", b"GET\t/healthz\tHTTP/1.1"),
    line("space-in-target", b"GET /health z HTTP/1.1"),
    line("trailing-word", b"GET /healthz HTTP/1.1 x"),
    line("no-version", b"GET /healthz"),
    line("version-0.9", b"GET /healthz HTTP/0.9"),
    line("version-1.2", b"GET /healthz HTTP/1.2"),
    line("version-2.0", b"GET /healthz HTTP/2.0"),
    line("version-3.0", b"GET /healthz HTTP/3.0"),
    line("version-11", b"GET /healthz HTTP/11"),
    line("version-lower-case", b"GET /healthz http/1.1"),
    line("version-rtsp", b"DESCRIBE /healthz RTSP/1.0", 400, 405),
    line("version-icecast", b"SOURCE /healthz ICE/1.0", 400, 405),
    line("control-byte", b"GET /heal\x01thz HTTP/1.1"),
    line("nul", b"GET /heal\x00thz HTTP/1.1"),
    line("delete-byte", b"GET /heal\x7fthz HTTP/1.1"),
    line("not-utf-8", b"GET /v1/stream/\xff\xfe HTTP/1.1"),
    line("encoded-nul", b"GET /v1/stream/a%00b HTTP/1.1"),
    line("encoded-newline", b"GET /v1/stream/a%0d%0aX:y HTTP/1.1"),
    line("relative-target", b"GET healthz HTTP/1.1"),
    line("authority-form", b"GET localhost:80 HTTP/1.1"),
    line("asterisk-form", b"GET * HTTP/1.1", *ANY_4XX),
    line("other-scheme", b"GET ftp://localhost/healthz HTTP/1.1", *ANY_4XX),
    line("absolute-form", b"GET http://localhost/healthz HTTP/1.1", 200),
    line("patch", f"PATCH {STREAM} HTTP/1.1".encode(), 405),
    line("trace", f"TRACE {STREAM} HTTP/1.1".encode(), 405),
    line("propfind", b"PROPFIND /healthz HTTP/1.1", 405),
    line("long-url", b"GET /" + b"a" * 9000 + b" HTTP/1.1", 414),
    line("long-query", b"GET /healthz?" + b"a" * 9000 + b" HTTP/1.1", 414),
    Case("line-endless-url", b"GET /" + b"a" * 20_000, ((414,),)),
    Case("line-bare-lf", b"GET /healthz HTTP/1.1\nHost: localhost\n\n", ((400,),)),
    Case("line-bare-cr", b"GET /healthz HTTP/1.1\rHost: localhost\r\r", ((400,),)),
    Case("http-0.9", b"GET /healthz\r\n\r\n", ((400,),)),
    Case("connect", b"CONNECT localhost:443 HTTP/1.1\r\n" + HOST + b"\r\n", (ANY_4XX,)),
    Case("http-2-preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", ((400,),)),
    Case("garbage", b"\x00\x01\x02\xff\xfe garbage \r\n\r\n", ((400,),)),
    Case("tls-hello", TLS_HELLO, ((400,),)),
    Case("response", b"HTTP/1.1 200 OK\r\n\r\n", ((400,),)),
    # Host
    host("none", b""),
    host("two", HOST + HOST),
    host("two-different", HOST + b"host: other\r\n"),
    host("empty", b"Host:\r\n"),
    host("space", b"Host: a b\r\n"),
    host("path", b"Host: localhost/x\r\n"),
    host("user", b"Host: user@localhost\r\n"),
    host("no-number", b"Host: localhost:http\r\n"),
    host("half-bracket", b"Host: [::1\r\n"),
    host("not-ascii", b"Host: h\xc3\xb6st\r\n"),
    host("quote", b'Host: a"b\r\n'),
    # headers
    header("space-before-colon", b"X-A : b"),
    header("no-colon", b"X-A"),
    header("empty-name", b": b"),
    header("space-in-name", b"X A: b"),
    header("bracket-in-name", b"X(A): b"),
    header("not-ascii-name", b"X-\xc3\xa4: b"),
    header("nul-in-name", b"X\x00A: b"),
    header("nul-in-value", b"X-A: b\x00c"),
    header("control-in-value", b"X-A: b\x01c"),
    header("delete-in-value", b"X-A: b\x7fc"),
    header("folded-by-space", b"X-A: b\r\n c"),
    header("folded-by-tab", b"X-A: b\r\n\tc"),
    header("bare-cr", b"X-A: b\rX-B: c"),
    header("bare-lf", b"X-A: b\nX-B: c"),
    header("cr-cr-lf", b"X-A: b\r"),
    header("two-content-types", b"Content-Type: a/b\r\nContent-Type: c/d"),
    header("two-authorizations", b"Authorization: a\r\nAuthorization: b"),
    header("too-many", b"\r\n".join(b"X-%d: y" % n for n in range(120)), 431),
    header("too-large", b"X-A: " + b"a" * 20_000, 431),
    header("too-large-together", b"\r\n".join(b"X-%d: " % n + b"a" * 900 for n in range(20)), 431),
    Case("header-first-folded", b"GET /healthz HTTP/1.1\r\n " + HOST + END, ((400,),)),
    Case("header-endless-value", b"GET / HTTP/1.1\r\nX: " + b"a" * 60_000, ((431,),)),
    Case("header-endless-name", b"GET / HTTP/1.1\r\n" + b"a" * 60_000, ((400, 431),)),
    # framing
    framed("length-and-coding", b"Content-Length: 5\r\nTransfer-Encoding: chunked"),
    framed("coding-and-length", b"Transfer-Encoding: chunked\r\nContent-Length: 5"),
    framed("two-lengths", b"Content-Length: 5\r\nContent-Length: 5"),
    framed("two-different-lengths", b"Content-Length: 5\r\nContent-Length: 6"),
    framed("length-list", b"Content-Length: 5, 5"),
    framed("length-plus", b"Content-Length: +5"),
    framed("length-minus", b"Content-Length: -5"),
    framed("length-hex", b"Content-Length: 0x5"),
    framed("length-space", b"Content-Length: 5 5"),
    framed("length-decimal", b"Content-Length: 5.0"),
    framed("length-empty", b"Content-Length:"),
    framed("length-word", b"Content-Length: five"),
    framed("length-overflow", b"Content-Length: 99999999999999999999999999"),
    framed("length-over-limit", b"Content-Length: 99999999", b"", 413),
    framed("length-over-limit-expected", b"Content-Length: 99999999\r\nExpect: 100-continue", b"",
           413),
    framed("coding-gzip", b"Transfer-Encoding: gzip", b"hello", 400, 501),
    framed("coding-gzip-chunked", b"Transfer-Encoding: gzip, chunked", b"0\r\n\r\n", 400, 501),
    framed("coding-chunked-gzip", b"Transfer-Encoding: chunked, gzip", b"hello", 400, 501),
    framed("coding-chunked-twice", b"Transfer-Encoding: chunked, chunked", b"0\r\n\r\n", 400, 501),
    framed("coding-identity", b"Transfer-Encoding: identity", b"hello", 400, 501),
    framed("coding-like-chunked", b"Transfer-Encoding: xchunked", b"hello", 400, 501),
    framed("coding-quoted", b'Transfer-Encoding: "chunked"', b"hello", 400, 501),
    framed("coding-empty", b"Transfer-Encoding:", b"hello", 400, 501),
    framed("two-codings", b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
           b"0\r\n\r\n", 400, 501),
    framed("two-codings-identity", b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked",
           b"0\r\n\r\n", 400, 501),
    framed("coding-control-byte", b"Transfer-Encoding: \x0bchunked", b"0\r\n\r\n", 400, 501),
    framed("coding-name-space", b"Transfer-Encoding : chunked", b"0\r\n\r\n"),
    chunked("size-garbage", b"xyz\r\nhello\r\n0\r\n\r\n"),
    chunked("size-empty", b"\r\nhello\r\n0\r\n\r\n"),
    chunked("size-minus", b"-5\r\nhello\r\n0\r\n\r\n"),
    chunked("size-hex-prefix", b"0x5\r\nhello\r\n0\r\n\r\n"),
    chunked("size-leading-space", b" 5\r\nhello\r\n0\r\n\r\n"),
    chunked("size-overflow", b"fffffffffffffffff\r\nhello\r\n0\r\n\r\n"),
    chunked("size-bare-lf", b"5\nhello\r\n0\r\n\r\n"),
    chunked("too-long", b"4\r\nhello\r\n0\r\n\r\n"),
    chunked("no-crlf-after", b"5\r\nhello0\r\n\r\n"),
    chunked("extension-bare-lf", b"5;a=b\nhello\r\n0\r\n\r\n"),
    chunked("extension-nul", b"5;a=\x00\r\nhello\r\n0\r\n\r\n"),
    chunked("last-bare-lf", b"5\r\nhello\r\n0\n\n"),
    chunked("trailer-folded", b"5\r\nhello\r\n0\r\nX: a\r\n b\r\n\r\n"),
    chunked("trailer-nul", b"5\r\nhello\r\n0\r\nX: \x00\r\n\r\n"),
    chunked("trailer-endless", b"5\r\nhello\r\n0\r\nX: " + b"a" * 300_000, 400, 431),
    # cut off: nothing is owed, nothing happens, nothing stays open
    Case("cut-request-line", b"GET /heal", (), half_close=True),
    Case("cut-headers", b"GET /healthz HTTP/1.1\r\nHost: loc", (), half_close=True),
    Case("cut-body", framed("", b"Content-Length: 10", b"hello").sent, (), half_close=True),
    Case("cut-chunk", chunked("", b"a\r\nhello").sent, (), half_close=True),
    Case("cut-before-last-chunk", chunked("", b"5\r\nhello\r\n").sent, (), half_close=True),
    Case("nothing", b"", (), half_close=True),
    # several requests in one packet
    Case("good-bad-good", GOOD + b"BAD\r\n\r\n" + GOOD, ((200,), (400,))),
    Case("good-no-host-good", GOOD + b"GET / HTTP/1.1\r\n\r\n" + GOOD, ((200,), (400,))),
    Case("good-then-both-lengths", GOOD + SMUGGLED + GOOD, ((200,), (400,))),
    Case("pipelined-large-headers", GOOD + b"GET /healthz HTTP/1.1\r\nX: " + b"a" * 20_000
         + b"\r\n" + HOST + END, ((200,), (431,))),
    Case("closed-then-more", LAST + GOOD, ((200,),)),
    # odd but allowed, or to be ignored
    Case("leading-empty-lines", b"\r\n\r\n" + LAST, ((200,),)),
    Case("upgrade-offered", b"GET /healthz HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n"
         + HOST + b"\r\n" + LAST, ((200,), (200,))),
    Case("websocket-offered", b"GET /healthz HTTP/1.1\r\nConnection: Upgrade\r\n"
         b"Upgrade: websocket\r\n" + HOST + b"\r\n" + LAST, ((200,), (200,))),
    header("unknown-expectation", b"Expect: the-unexpected", 200, 417),
    header("body-on-get", b"Content-Length: 0", 200),
]  # fmt: skip


@pytest.fixture(scope="module")
def witness(server: ServerProcess) -> Iterator[RawConnection]:
    """A connection that was open before the first malformed request and stays open."""
    with RawConnection(server.port) as connection:
        connection.request("PUT", STREAM, Content_Type="text/plain")
        yield connection


def answers(server: ServerProcess, case: Case) -> list[RawResponse]:
    """Every answer until the server closes; a wait past its deadline fails the test."""
    received: list[RawResponse] = []
    with RawConnection(server.port, deadline_secs=15) as connection:
        with suppress(ConnectionError):  # a refusal may come while we are still sending
            connection.send(case.sent)
            if case.half_close:
                connection.finish_sending()
        with suppress(EndOfConnection):
            while not connection.is_at_end():
                received.append(connection.response())
    return received


def check_problem(response: RawResponse) -> None:
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["cache-control"] == "no-store"
    document = response.json()
    assert document["status"] == response.status
    assert document["detail"]


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_a_malformed_request_is_answered_once_and_disturbs_nobody(
    server: ServerProcess, witness: RawConnection, case: Case
) -> None:
    received = answers(server, case)
    assert len(received) == len(case.answers), received
    for response, allowed in zip(received, case.answers, strict=True):
        assert response.status in allowed
        if response.status >= 400:
            check_problem(response)
        if response.status == 405:
            assert "GET" in response.headers["allow"]
    assert witness.request("GET", "/healthz").body == b"ok"
    assert witness.request("GET", STREAM).body == b"", "nothing was appended"


def test_there_are_enough_cases_and_each_has_a_name() -> None:
    assert len(CASES) == len({case.id for case in CASES}) >= 120
