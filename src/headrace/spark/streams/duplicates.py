"""Whether what the server took for a repeat is one.

A server knows an append by its producer and its number. After a lost checkpoint the same numbers
come with other rows, which would count as written; what is stored tells them apart.
"""

from __future__ import annotations

from headrace.errors import InvalidJson, InvalidOffset, OffsetTrimmed
from headrace.protocol import framed
from headrace.protocol.headers import JSON, media_type
from headrace.protocol.json_mode import Logged, log_form
from headrace.protocol.offsets import START, Position, parse_token
from headrace.spark.streams.stream_api import Server


def is_stored(server: Server, stream: str, content_type: str, body: bytes, end: str) -> bool:
    """Whether the messages before `end` are those of `body`, or can no longer be read."""
    wanted = Logged(body, (len(body),))
    if media_type(content_type) == JSON:
        try:
            wanted = log_form(body, len(body))
        except InvalidJson:
            return False  # a server knows a repeat by its number, before it looks at the body
    tail = parse_token(end)
    start = Position(tail.messages - len(wanted.lengths), tail.bytes - len(wanted.data))
    if start < START:
        return False
    try:
        chunks = server.read_range(stream, start.token(), end)
        return b"".join(bytes(framed.decode(chunk.body).data) for chunk in chunks) == wanted.data
    except OffsetTrimmed:
        return True
    except InvalidOffset:
        return False  # not where a message ends
