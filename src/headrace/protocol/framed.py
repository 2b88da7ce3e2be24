"""Framed bodies: a range of a stream with the length, and so the offset, of each message.

All numbers are little-endian.

     0  4 bytes  "HRM1"
     4  u32      separator: bytes at the end of each stride that are not the message's own
     8  u64      count of messages
    16  u64      messages before the first one     the two halves of the offset
    24  u64      bytes before the first one        the range begins at
    32  u32[]    count strides: the length of each message, its separator included
        bytes    the messages, one stride each

The strides lie in one array and the messages in another, so that a client takes both as they
are, without a loop over messages. The offset after message i has the halves `messages + i + 1`
and `bytes + stride[0] + ... + stride[i]`, each written with 16 digits and joined by `_`.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple

from headrace.protocol.offsets import Position

MEDIA_TYPE: Final = "application/vnd.headrace.messages"
MAGIC: Final = b"HRM1"
HEAD: Final = struct.Struct("<4sIQQQ")
assert array("I").itemsize == 4, "strides are four bytes"


class Frame(NamedTuple):
    """The parts of a framed body; `strides` is u32 little-endian, still as bytes."""

    start: Position
    message_count: int
    separator_bytes: int
    strides: memoryview
    data: memoryview


def encode(start: Position, lengths: Sequence[int], separator_bytes: int, data: bytes) -> bytes:
    strides = array("I", lengths)
    if sys.byteorder == "big":
        strides.byteswap()
    head = HEAD.pack(MAGIC, separator_bytes, len(strides), *start)
    return b"".join((head, strides.tobytes(), data))


def decode(body: bytes) -> Frame:
    """The parts of `body`; ValueError where it is not a framed body."""
    if len(body) < HEAD.size or not body.startswith(MAGIC):
        raise ValueError("not a framed body")
    _, separator_bytes, count, messages, first_byte = HEAD.unpack_from(body)
    view = memoryview(body)
    data_at = HEAD.size + 4 * count
    if data_at > len(body):
        raise ValueError("a framed body was cut short")
    start = Position(messages, first_byte)
    return Frame(start, count, separator_bytes, view[HEAD.size : data_at], view[data_at:])
