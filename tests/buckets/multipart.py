"""Reading multipart/mixed the strict way: what a careful client of bootstrap does."""

from __future__ import annotations

from typing import NamedTuple

import httpx


class Part(NamedTuple):
    content_type: str
    body: bytes


class Bootstrap(NamedTuple):
    snapshot_offset: str
    next_offset: str
    snapshot: Part
    messages: list[bytes]
    closed: bool


def parse(content_type: str, body: bytes) -> list[Part]:
    """The parts of a body that is complete: it begins and ends with its delimiters."""
    kind, _, boundary = content_type.partition("; boundary=")
    assert kind == "multipart/mixed"
    delimiter = f"--{boundary}".encode()
    assert body.startswith(delimiter + b"\r\n")
    assert body.endswith(b"\r\n" + delimiter + b"--\r\n")
    inner = body[len(delimiter) : -len(delimiter) - 6]
    parts = []
    for raw in inner.split(b"\r\n" + delimiter):
        head, found, payload = raw.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        assert found, "a part has a head"
        (line,) = head.split(b"\r\n")
        name, _, value = line.decode().partition(": ")
        assert name == "Content-Type"
        parts.append(Part(value, payload))
    return parts


def read(response: httpx.Response) -> Bootstrap:
    assert response.status_code == 200, response.text
    headers = response.headers
    assert headers["stream-up-to-date"] == "true"
    assert headers["cache-control"] == "no-store"
    snapshot, *updates = parse(headers["content-type"], response.content)
    return Bootstrap(
        headers["stream-snapshot-offset"],
        headers["stream-next-offset"],
        snapshot,
        [update.body for update in updates],
        headers.get("stream-closed") == "true",
    )
