"""Requests whose answers cannot be taken for one another, and what each answer must be.

A story is a few requests about resources of its own. Its marker is in their names, in their
content type, in every byte of their bodies, in producer epochs, and in every size: no two stories
of a run share an offset. So each answer but the 204 of a DELETE shows whose it is, and that one is
followed by a read that must be told that the stream is gone.

After a fault in a story, what it did is unknown: then an answer may also be one of the refusals
that follow from that, but never speak of anything that is not the story's own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from headrace.testing.raw_http import RawResponse, request_bytes

ROOT: Final = "/v1/stream"
CONTROL: Final = f"{ROOT}/__ds"
TAILS: Final = f"{CONTROL}/tails"
JSON: Final = "application/json"
PROBLEM_TYPE: Final = "application/problem+json"
PROBLEM: Final = b"urn:headrace:problem:"
FAULTED: Final = (500, 504)
IN_DOUBT: Final = (200, 201, 204, 404, 409)
MORE_BYTES: Final = 5000  # of each message but the first, whose size is the story's own
BOUNDARY: Final = "multipart/mixed; boundary="


@dataclass(frozen=True)
class Answer:
    """What an answer must be. None is a header that it must not have."""

    status: int
    headers: Mapping[str, str | None] = field(default_factory=dict)
    body: Callable[[bytes], bool] = lambda body: not body

    def difference(self, found: RawResponse) -> str:
        if found.status != self.status:
            return f"{found.status} and not {self.status}"
        for name, wanted in self.headers.items():
            value = found.headers.get(name)
            if value != wanted and not (name == "location" and _ends(value, wanted)):
                return f"{name}: {value} and not {wanted}"
        return "" if self.body(found.body) else f"a body that is another's: {found.body[:300]!r}"


def _ends(url: str | None, path: str | None) -> bool:
    return url is not None and path is not None and url.endswith(path)


@dataclass
class Story:
    """One marker, and whether all of its requests were answered as they should be so far."""

    marker: str
    number: int
    size: int
    in_doubt: bool = False

    def __post_init__(self) -> None:
        self.name = f"faults/{self.marker}"
        self.path = f"{ROOT}/{self.name}"
        self.media_type = f"text/x-{self.marker}"
        self.first = self._text(self.size)
        self.more = self._text(MORE_BYTES)

    def _text(self, size: int) -> bytes:
        unit = f"<{self.marker}>".encode()
        return (unit * (size // len(unit) + 1))[:size]

    def offset(self, messages: int) -> str:
        size = self.size + (messages - 1) * MORE_BYTES if messages else 0
        return f"{messages:016d}_{size:016d}"


@dataclass(frozen=True)
class Sent:
    """A request of a story, and the answer to it; `also` is right without a fault, too."""

    story: Story
    method: str
    target: str
    data: bytes = field(repr=False)
    answer: Answer = field(repr=False)
    also: tuple[Answer, ...] = field(default=(), repr=False)

    def check(self, found: RawResponse) -> bool:
        """Whether the server failed on it; anything else but its own answer is an error."""
        if found.status in FAULTED:
            assert PROBLEM in found.body or self.method == "HEAD", (self, found)
            self.story.in_doubt = True
            return True
        differences = [answer.difference(found) for answer in (self.answer, *self.also)]
        if "" not in differences:
            assert self.story.in_doubt, (self, differences, found)
            assert found.status in IN_DOUBT, (self, found)
            self._check_ownership(found)
        return False

    def _check_ownership(self, found: RawResponse) -> None:
        """Whatever it says, it says of this story."""
        story, headers = self.story, found.headers
        kind = headers.get("content-type", "")
        assert kind in ("", story.media_type, JSON, PROBLEM_TYPE) or kind.startswith(BOUNDARY), (
            found
        )
        own_offsets = [None, *map(story.offset, range(4))]
        assert headers.get("stream-next-offset") in own_offsets, (self, found)
        assert story.marker in headers.get("location", story.marker), (self, found)
        assert headers.get("producer-epoch") in (None, str(story.number)), (self, found)
        assert not found.body or story.marker.encode() in found.body, (self, found)


# -- answers -----------------------------------------------------------------------------------


def holds(**wanted: Any) -> Callable[[bytes], bool]:
    """A body that is a JSON object with these members."""

    def check(body: bytes) -> bool:
        found = json.loads(body)
        return all(found.get(name) == value for name, value in wanted.items())

    return check


def exactly(wanted: bytes) -> Callable[[bytes], bool]:
    return lambda body: body == wanted


def contains(*wanted: bytes) -> Callable[[bytes], bool]:
    return lambda body: all(part in body for part in wanted)


def _created(story: Story, path: str) -> Answer:
    facts = {"location": path, "content-type": story.media_type}
    return Answer(201, {"stream-next-offset": story.offset(1), **facts})


def _appended(story: Story, messages: int) -> Answer:
    absent = dict.fromkeys(("location", "producer-epoch", "stream-cursor"))
    return Answer(204, {"stream-next-offset": story.offset(messages), **absent})


def _produced(story: Story, status: int) -> Answer:
    facts = {"producer-epoch": str(story.number), "producer-seq": "0"}
    return Answer(status, {"stream-next-offset": story.offset(2), **facts})


def _read(story: Story, messages: int, body: bytes) -> Answer:
    facts = {"content-type": story.media_type, "stream-next-offset": story.offset(messages)}
    return Answer(200, facts, exactly(body))


def _tail(story: Story, messages: int) -> Answer:
    def check(body: bytes) -> bool:
        [found] = json.loads(body)["streams"]
        facts = [found.get(name) for name in ("stream", "next_offset", "content_type")]
        return facts == [story.name, story.offset(messages), story.media_type]

    return Answer(200, {"content-type": JSON}, check)


NOTHING: Final = Answer(204, dict.fromkeys(("stream-next-offset", "location", "stream-cursor")))


# -- stories -----------------------------------------------------------------------------------


def _sent(
    story: Story, method: str, target: str, answer: Answer, body: bytes = b"", **headers: str
) -> Sent:
    return Sent(story, method, target, request_bytes(method, target, body, **headers), answer)


def create(story: Story, path: str = "") -> Sent:
    target, kind = path or story.path, story.media_type
    return _sent(story, "PUT", target, _created(story, target), story.first, Content_Type=kind)


def append(story: Story, messages: int = 2) -> Sent:
    answer, kind = _appended(story, messages), story.media_type
    return _sent(story, "POST", story.path, answer, story.more, Content_Type=kind)


def _get(story: Story, path: str) -> Sent:
    return _sent(story, "GET", path, _read(story, 1, story.first))


def appends(story: Story) -> list[Sent]:
    return [create(story), append(story), append(story, 3)]


def repeats(story: Story) -> list[Sent]:
    """The same twice, with producer headers: the second is recognised."""
    producer = {
        "Producer_Id": story.marker,
        "Producer_Epoch": str(story.number),
        "Producer_Seq": "0",
        "Content_Type": story.media_type,
    }
    data = request_bytes("POST", story.path, story.more, **producer)
    answers = (_produced(story, 200), _produced(story, 204))
    sent = (Sent(story, "POST", story.path, data, answer) for answer in answers)
    return [create(story), *sent]


def reads(story: Story) -> list[Sent]:
    facts = {"content-type": story.media_type, "stream-next-offset": story.offset(1)}
    head = _sent(story, "HEAD", story.path, Answer(200, facts))
    return [create(story), _get(story, f"{story.path}?offset=-1"), head]


def deletes(story: Story) -> list[Sent]:
    gone = Answer(404, {"content-type": PROBLEM_TYPE}, holds(stream=story.name))
    delete = _sent(story, "DELETE", story.path, NOTHING)
    return [create(story), delete, _sent(story, "GET", story.path, gone)]


def forks(story: Story) -> list[Sent]:
    path = f"{story.path}/fork"
    fork = _sent(story, "PUT", path, _created(story, path), Stream_Forked_From=story.path)
    return [create(story), fork, _get(story, f"{path}?offset=-1")]


def tails(story: Story) -> list[Sent]:
    body = json.dumps({"streams": [story.name]}).encode()
    answer = _tail(story, 1)
    return [create(story), _sent(story, "POST", TAILS, answer, body, Content_Type=JSON)]


def poll_that_ends(story: Story) -> list[Sent]:
    """At the tail until the time is up."""
    poll = _sent(story, "GET", f"{story.path}?offset=now&live=long-poll", _waited_in_vain(story))
    return [create(story), poll]


def _waited_in_vain(story: Story) -> Answer:
    facts = {"stream-next-offset": story.offset(1), "stream-up-to-date": "true", "location": None}
    return Answer(204, facts)


def buckets(story: Story) -> list[Sent]:
    """A bucket, a stream in it with a snapshot, what can be read of them, and their ends."""
    bucket, offset, snapshot = f"/{story.marker}", story.offset(1), story.more
    doc = f"{bucket}/doc"
    published = Answer(204, {"stream-snapshot-offset": offset, "stream-next-offset": offset})
    held = Answer(200, {"stream-snapshot-offset": offset}, exactly(snapshot))
    whole = Answer(200, {"stream-next-offset": offset}, contains(snapshot))
    listed = Answer(200, {"content-type": JSON}, contains(story.marker.encode(), offset.encode()))
    made = Answer(201, {"location": bucket}, holds(bucket_id=story.marker))
    gone = Answer(404, {"content-type": PROBLEM_TYPE}, holds(bucket=story.marker))
    return [
        _sent(story, "PUT", bucket, made),
        create(story, doc),
        _sent(story, "PUT", f"{doc}/snapshot/{offset}", published, snapshot),
        _sent(story, "GET", f"{doc}/snapshot/{offset}", held),
        _sent(story, "GET", f"{doc}/bootstrap", whole),
        _sent(story, "GET", f"{bucket}/streams", listed),
        _sent(story, "DELETE", doc, NOTHING),
        _sent(story, "DELETE", bucket, NOTHING),
        _sent(story, "GET", bucket, gone),
    ]


def subscriptions(story: Story) -> list[Sent]:
    """A pull-wake subscription, one claim of what was appended, and its end."""
    target = f"{CONTROL}/subscriptions/{story.marker}"
    config = {"type": "pull-wake", "wake_stream": "wakes", "streams": [story.name]}
    put = json.dumps(config).encode()
    worker = json.dumps({"worker": story.marker}).encode()
    described = holds(id=story.marker, wake_stream="wakes", stream_count=1)
    work = contains(f'"path":"{story.name}"'.encode(), story.offset(2).encode())
    nobody = Answer(404, {"content-type": PROBLEM_TYPE}, contains(story.marker.encode()))
    claim = _sent(
        story, "POST", f"{target}/claim", Answer(200, {}, work), worker, Content_Type=JSON
    )
    # A fault may have kept this subscription from hearing of the append, whose answer it was not.
    nothing = Answer(409, {"content-type": PROBLEM_TYPE}, contains(b"no-pending-work"))
    return [
        create(story),
        _sent(story, "PUT", target, Answer(201, {}, described), put, Content_Type=JSON),
        append(story),
        _sent(story, "GET", target, Answer(200, {}, described)),
        replace(claim, also=(nothing,)),
        _sent(story, "DELETE", target, NOTHING),
        _sent(story, "GET", target, nobody),
    ]


STORIES: Final[dict[Callable[[Story], list[Sent]], int]] = {
    appends: 6,
    repeats: 6,
    reads: 4,
    deletes: 4,
    forks: 4,
    tails: 4,
    buckets: 3,
    subscriptions: 3,
    poll_that_ends: 1,
}
"""How often each is chosen."""


# -- live reads, which wait for an append that comes over another connection -----------------------


def long_poll(story: Story) -> Sent:
    target = f"{story.path}?offset={story.offset(1)}&live=long-poll"
    sent = _sent(story, "GET", target, _read(story, 2, story.more))
    return replace(sent, also=(_waited_in_vain(story),))


def tails_poll(story: Story) -> Sent:
    body = json.dumps({"streams": [{"stream": story.name, "from": story.offset(1)}]}).encode()
    target, answer = f"{TAILS}?live=long-poll", _tail(story, 2)
    sent = _sent(story, "POST", target, answer, body, Content_Type=JSON)
    return replace(sent, also=(_tail(story, 1),))


def events(story: Story) -> Sent:
    """Only the head is an answer; `texts` are the events after it."""
    facts = {"content-type": "text/event-stream"}
    return _sent(story, "GET", f"{story.path}?offset=-1&live=sse", Answer(200, facts))


POLLS: Final = (long_poll, tails_poll)
