"""Answers as bytes of HTTP/1.1: head, framing, and bodies that are sent whole.

`lines` are the beginning of the head, from `ResponseHead`. Every answer says in one of three ways
where it ends, so that what follows it on the connection cannot be taken for a part of it:

    without a body       the status says so (204, 304), or `Content-Length: 0`
    with a body          its Content-Length
    without a length     chunks; of HTTP/1.0, the end of the connection
"""

from __future__ import annotations

from typing import Final

from headrace.protocol.responses import WITHOUT_BODY, Response

LAST_CHUNK: Final = b"0\r\n\r\n"
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_CLOSE: Final = b"Connection: close\r\n"
END: Final = b"\r\n"
END_EMPTY: Final = b"Content-Length: 0\r\n\r\n"


def whole_answer(lines: bytes, response: Response, *, to_head: bool, closes: bool) -> bytes:
    """Head and body; `to_head` is for a HEAD request, which gets the head of a GET."""
    body = response.body
    head = lines + response.headers + (_CLOSE if closes else b"")
    if to_head:
        # What a GET would carry: of a stream's own HEAD the size is not known.
        return head + (b"Content-Length: %d\r\n\r\n" % len(body) if body else END)
    if response.status in WITHOUT_BODY:
        return head + END
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def head_with_length(lines: bytes, response: Response, *, closes: bool) -> bytes:
    """The head of a large answer, whose body follows in windows."""
    head = lines + response.headers + (_CLOSE if closes else b"")
    return head + b"Content-Length: %d\r\n\r\n" % len(response.body)


def head_without_length(lines: bytes, response: Response, *, is_chunked: bool) -> bytes:
    """The head of an answer that goes on until its end is known; the connection ends with it."""
    chunked = b"Transfer-Encoding: chunked\r\n" if is_chunked else b""
    return lines + response.headers + chunked + _CLOSE + END
