"""What a hostile client sends, at the limits of what the server takes; and how it sends much.

Each is a well-formed request unless its name says otherwise. Nothing here judges an answer.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice

from headrace.testing.raw_http import RawConnection, request_bytes

ROOT = "/v1/stream"
BODY_BYTES_MAX = 16 * 1024 * 1024  # limits.max_body_bytes
MESSAGES_MAX = 200_000  # limits.max_append_messages
NAME_BYTES_MAX = 4096
NAMES_MAX = 10_000  # of one subscription or one tails request
JSON_TYPE = "application/json"
TEXT_TYPE = "text/plain"


# -- bodies ----------------------------------------------------------------------------------


def small_elements(size: int = BODY_BYTES_MAX) -> bytes:
    """The most messages that a JSON body of this size can hold."""
    return b"[" + b"1," * (size // 2 - 2) + b"1]"


def most_elements(element: bytes = b"1") -> bytes:
    """As many messages as one append may hold."""
    return b"[" + (element + b",") * (MESSAGES_MAX - 1) + element + b"]"


def most_spaced() -> bytes:
    return most_elements(b"1 ")


def spaced_elements(size: int = BODY_BYTES_MAX) -> bytes:
    """The same with spaces, so that no message stands as it is stored."""
    return b"[" + b"1 , " * (size // 4 - 2) + b"1 ]"


def small_beside_deep(size: int = BODY_BYTES_MAX // 2) -> bytes:
    """Small elements and one that nests as deeply as JSON may."""
    depth = 1020
    return b"[" + b"1," * (size // 2) + b"[" * depth + b"]" * depth + b"]"


def deepest(size: int = BODY_BYTES_MAX) -> bytes:
    return b"[" * (size // 2) + b"]" * (size // 2)


def large_text(size: int = BODY_BYTES_MAX // 2) -> bytes:
    """Lines of one byte: each is a line of its own in an event."""
    return b"x\n" * (size // 2)


# -- names and patterns ----------------------------------------------------------------------


def long_name(number: int) -> str:
    """A name of as many segments as fit."""
    return f"deep/{number}/" + "a/" * ((NAME_BYTES_MAX - 40) // 2) + "a"


def many_stars() -> str:
    """As many `**` as fit, between segments that every long name is full of, and no match."""
    return "deep/**/" + "a/**/" * ((NAME_BYTES_MAX - 40) // 5) + "never"


def long_run() -> str:
    """One `**`, and after it what nearly matches at every place of a long name."""
    return "deep/**/" + "a/" * (NAME_BYTES_MAX // 4) + "never"


# -- sending ---------------------------------------------------------------------------------


def answers(port: int, requests: Sequence[bytes], connections: int = 100) -> Counter[int]:
    """Send all over a number of connections at once, pipelined on each; how often each status."""
    share = -(-len(requests) // connections)
    statuses: Counter[int] = Counter()
    with ExitStack() as stack:
        busy = []
        for part in _parts(requests, share):
            connection = stack.enter_context(RawConnection(port))
            connection.send(b"".join(part))
            busy.append((connection, part))
        for connection, part in busy:
            for request in part:
                answer = connection.response(head_only=request.startswith(b"HEAD"))
                statuses[answer.status] += 1
    return statuses


def _parts(requests: Sequence[bytes], share: int) -> Iterator[list[bytes]]:
    rest = iter(requests)
    while part := list(islice(rest, share)):
        yield part


@contextmanager
def waiting_readers(port: int, targets: Iterable[str]) -> Iterator[list[RawConnection]]:
    """Live reads that are open and not read from."""
    with ExitStack() as stack:
        readers = []
        for target in targets:
            reader = stack.enter_context(RawConnection(port))
            reader.send(request_bytes("GET", target))
            readers.append(reader)
        yield readers


def create(
    name: str, body: bytes = b"", content_type: str | None = TEXT_TYPE, **headers: str
) -> bytes:
    if content_type is not None:
        headers["Content_Type"] = content_type
    return request_bytes("PUT", f"{ROOT}/{name}", body, **headers)


def fork(name: str, source: str, **headers: str) -> bytes:
    return create(name, b"", None, Stream_Forked_From=f"{ROOT}/{source}", **headers)


def append(name: str, body: bytes, content_type: str = TEXT_TYPE, **headers: str) -> bytes:
    return request_bytes("POST", f"{ROOT}/{name}", body, Content_Type=content_type, **headers)


def chunked(name: str, body: bytes) -> bytes:
    """An append that comes in chunks of one byte, six bytes each."""
    head = f"POST {ROOT}/{name} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {TEXT_TYPE}\r\n"
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    return b"%bTransfer-Encoding: chunked\r\n\r\n%b0\r\n\r\n" % (head.encode(), chunks)


def heads(target: str, size: int = 50_000) -> list[bytes]:
    """As many HEAD requests as `size` bytes hold, which is one packet to the server."""
    request = f"HEAD {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    return [request] * (size // len(request))


def tails_of_nested() -> bytes:
    """As long as it may be, and mostly what no request for tails has."""
    nested = b"[" * 100 + b"]" * 100 + b","
    body = b'{"x":[%b1],"streams":["a"]}' % (nested * (4_190_000 // len(nested)))
    return request_bytes("POST", f"{ROOT}/__ds/tails", body, Content_Type=JSON_TYPE)


def tails_poll(starts: Mapping[str, str]) -> bytes:
    """A long-poll over many streams, each from an offset of its own."""
    document = {"streams": [{"stream": name, "from": start} for name, start in starts.items()]}
    body = json.dumps(document).encode()
    return request_bytes("POST", f"{ROOT}/__ds/tails?live=long-poll", body, Content_Type=JSON_TYPE)


def subscription(id: str, **config: object) -> bytes:
    body = json.dumps(config).encode()
    target = f"{ROOT}/__ds/subscriptions/{id}"
    return request_bytes("PUT", target, body, Content_Type=JSON_TYPE)
