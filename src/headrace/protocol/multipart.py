"""multipart/mixed (RFC 2046) as bootstrap uses it: one message per part, bytes untouched.

A delimiter is a line of its own, so a payload can only be mistaken for one if it holds the
boundary. The boundary is drawn at random for each answer, after what the answer holds is fixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

BOUNDARY_BYTES: Final = 24  # of randomness: no payload can have known it, none will hit it


class Framing:
    """The delimiters of one answer."""

    def __init__(self, boundary: str) -> None:
        self.content_type = f"multipart/mixed; boundary={boundary}"
        self._delimiter = f"--{boundary}".encode("ascii")

    def first(self, content_type: str) -> bytes:
        """What precedes the body of the first part."""
        return self._delimiter + _head(content_type)

    def next(self, content_type: str) -> bytes:
        """What precedes the body of each further part."""
        return b"\r\n" + self._delimiter + _head(content_type)

    def end(self) -> bytes:
        return b"\r\n" + self._delimiter + b"--\r\n"


def _head(content_type: str) -> bytes:
    return f"\r\nContent-Type: {content_type}\r\n\r\n".encode("latin-1")


def parts(separator: bytes, data: bytes, lengths: Sequence[int], *, trim: int) -> bytes:
    """Messages as parts; `trim` bytes at the end of each are the log's own, not the message's."""
    pieces: list[bytes] = []
    at = 0
    for length in lengths:
        pieces += (separator, data[at : at + length - trim])
        at += length
    return b"".join(pieces)
