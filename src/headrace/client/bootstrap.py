"""Beginning in the middle: a snapshot and what follows it, in one answer."""

from __future__ import annotations

from dataclasses import dataclass
from email.message import Message as HeaderParser

from headrace.client.effects import Answer, Steps
from headrace.client.errors import BadAnswer
from headrace.client.requests import OK, Target, ask
from headrace.protocol.offsets import BEGINNING


@dataclass(frozen=True, slots=True)
class Part:
    content_type: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """What a reader needs to start: the snapshot, the messages since, and where to go on."""

    snapshot: Part | None
    snapshot_offset: str
    messages: list[Part]
    next_offset: str
    up_to_date: bool


def bootstrap(target: Target) -> Steps[Bootstrap]:
    at = target.below("bootstrap")
    answer = yield from ask(at, at.request("GET"), (OK,))
    parts = parse_multipart(at.url, answer)
    snapshot_offset = answer.headers.get("stream-snapshot-offset", BEGINNING)
    next_offset = answer.headers.get("stream-next-offset")
    if not parts or next_offset is None:
        raise BadAnswer(at.url, "a bootstrap has a first part and Stream-Next-Offset")
    return Bootstrap(
        None if snapshot_offset == BEGINNING else parts[0],
        snapshot_offset,
        parts[1:],
        next_offset,
        answer.flag("stream-up-to-date"),
    )


def parse_multipart(url: str, answer: Answer) -> list[Part]:
    """The parts of a multipart/mixed body, byte for byte."""
    header = HeaderParser()
    header["Content-Type"] = answer.headers.get("content-type", "")
    boundary = header.get_boundary()
    if header.get_content_maintype() != "multipart" or boundary is None:
        raise BadAnswer(url, "it is not multipart/mixed")
    mark = b"\r\n--" + boundary.encode("ascii", "replace")
    first, *sections = (b"\r\n" + answer.body).split(mark)
    if first.strip() or not sections or not sections[-1].startswith(b"--"):
        raise BadAnswer(url, "its last part is missing")
    return [_part(url, section) for section in sections[:-1]]


def _part(url: str, section: bytes) -> Part:
    head, blank, body = section.partition(b"\r\n\r\n")
    if not blank:
        raise BadAnswer(url, "a part has no head")
    content_type = "application/octet-stream"
    for line in head.decode("latin-1").split("\r\n"):
        name, _, value = line.partition(":")
        if name.strip().lower() == "content-type":
            content_type = value.strip()
    return Part(content_type, body)
