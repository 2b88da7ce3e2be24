"""What a decoder that makes no values leaves unseen in a large JSON body, a window at a time.

That is: whether text is UTF-8, how deep values nest, whether each number fits a double, and how
many elements the outermost array has. Everything is counted by operations over whole windows,
because a step of Python for each token would take seconds. What is found of a body that is not
JSON means nothing; the decoder refuses such a body afterwards.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from itertools import accumulate, compress
from operator import not_
from typing import Final

import orjson

from headrace.errors import InvalidJson, TooManyMessages
from headrace.limits import JSON_DEPTH_MAX

WINDOW_BYTES: Final = 32 * 1024  # 3 ms of work at worst
TOO_DEEP: Final = f"The body nests deeper than {JSON_DEPTH_MAX} levels."

_NUMBER_BYTES: Final = b"-+.0123456789eE"
_NUMBERS = re.compile(rb"[-+.0-9eE]{5,}")
# A double ends at 1e308: what is larger has an exponent of three digits, or this many before it.
_MANY_DIGITS: Final = b"0" * 200
_EXPONENT = re.compile(rb"0e0000*[],}\s]")  # as a number ends: in a hash or an id more follows
_DIGITS_ALIKE: Final = bytes.maketrans(b"123456789E+", b"000000000e0")
# How each mark changes the depth, as a signed byte; a comma does not.
_CHANGES: Final = bytes.maketrans(b"[{]},", b"\x01\x01\xff\xff\x00")
_NO_MARKS: Final = bytes(set(range(256)) - set(b"[{]},"))


def may_exceed_doubles(text: bytes) -> bool:
    """Whether something in `text` looks like a number that is too large, in a string perhaps."""
    alike = text.translate(_DIGITS_ALIKE)
    return _MANY_DIGITS in alike or _EXPONENT.search(alike) is not None


class Structure:
    """One pass over one body; raises InvalidJson or TooManyMessages."""

    def __init__(self, body: bytes, messages_max: int) -> None:
        self._body = body
        self._messages_max = messages_max
        # Nothing has more elements than the body has commas, and one.
        self._counts = body.count(b",") >= messages_max and body.lstrip()[:1] == b"["
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._in_string = False
        self._depth = 0
        self._commas = 0
        # A number that goes on in the next window.
        self._unfinished: list[bytes] = []

    def steps(self) -> Iterator[None]:
        body, start = self._body, 0
        while start < len(body):
            end = self._window_end(start)
            self._take(body[start:end])
            start = end
            yield
        self._check_utf8(b"", final=True)
        self._check_numbers(b",")

    def _window_end(self, start: int) -> int:
        """An escape is not cut in two."""
        end = min(start + WINDOW_BYTES, len(self._body))
        window = self._body[start:end]
        backslashes = len(window) - len(window.rstrip(b"\\"))
        return end + backslashes % 2

    def _take(self, window: bytes) -> None:
        self._check_utf8(window, final=False)
        if b"\\" in window:
            window = window.replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = window.split(b'"')
        began_in_string = self._in_string
        outside = b'"'.join(parts[1 if began_in_string else 0 :: 2])
        self._in_string = began_in_string ^ (len(parts) % 2 == 0)
        self._check_marks(outside.translate(_CHANGES, _NO_MARKS))
        self._check_numbers(b'"' + outside if began_in_string else outside)

    def _check_utf8(self, window: bytes, *, final: bool) -> None:
        try:
            self._decode(window, final)
        except UnicodeDecodeError:
            raise InvalidJson("The body is not valid JSON: its text is not UTF-8.") from None

    def _check_marks(self, changes: bytes) -> None:
        opening = changes.count(1)
        if not self._counts and self._depth + opening <= JSON_DEPTH_MAX:
            self._depth += opening - changes.count(255)
            return
        signed = memoryview(changes).cast("b")
        depths = list(accumulate(signed, initial=self._depth))
        if max(depths) > JSON_DEPTH_MAX:
            raise InvalidJson(TOO_DEEP)
        self._depth = depths[-1]
        self._commas += list(compress(depths, map(not_, signed))).count(1)
        if self._counts and self._commas >= self._messages_max:
            raise TooManyMessages(self._messages_max)

    def _check_numbers(self, text: bytes) -> None:
        """`text` is what lies outside of strings; each string in it is reduced to a quote."""
        rest = text.rstrip(_NUMBER_BYTES)
        unfinished = text[len(rest) :]
        if rest:
            whole = b"".join((*self._unfinished, rest))
            self._unfinished.clear()
            if may_exceed_doubles(whole):
                for number in _NUMBERS.findall(whole):
                    _check_number(number)
        if unfinished:
            self._unfinished.append(unfinished)


def _check_number(text: bytes) -> None:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError as error:
        shown = text[:40].decode("latin-1")
        raise InvalidJson(f"The body is not valid JSON: {error.msg} in {shown!r}.") from None
