"""The admin API that the stream browser uses: details of streams, lists of buckets.

`GET {root}/__ds/streams`, `GET {root}/__ds/buckets` and `GET {root}/__ds/set-aside` are read-only
and renew no TTL. They show what readers may see: what is decided but not durable yet is left out.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import islice
from typing import Any, Final
from urllib.parse import parse_qsl

from headrace.engine.buckets import Bucket
from headrace.engine.engine import Engine
from headrace.engine.stream_runtime import Stream
from headrace.errors import (
    InvalidName,
    InvalidRequest,
    MethodNotAllowed,
    RouteNotFound,
    StreamDeleted,
    StreamNotFound,
    StreamSetAside,
)
from headrace.http.exchange import Exchange, Request
from headrace.http.permissions import Action, permit_all
from headrace.protocol import buckets, names, responses
from headrace.protocol.offsets import Position, parse_token
from headrace.protocol.producers import ProducerState, written_between
from headrace.protocol.requests import parse_query
from headrace.subscriptions.links import Follower
from headrace.subscriptions.payloads import status_of

STREAMS_MAX: Final = 200  # more rows than a screen shows; about 40 KiB of answer
LISTED_MAX: Final = 1000  # producers, forks and subscriptions of one stream; a count says if more
BUCKETS_MAX: Final = 10_000  # about 1.3 MiB of answer
WRITERS_MAX: Final = 1000  # messages; 10,000 producers of a stream are looked through in 3 ms
WRITERS_FROM: Final = "writers_from"
WRITERS_UNTIL: Final = "writers_until"
SEARCHED_MAX: Final = 20_000  # streams of a bucket that are searched for forks; 5 ms
METHODS: Final = "GET, HEAD, OPTIONS"
Document = dict[str, Any]


class StreamMetadata:
    def __init__(self, engine: Engine, stream_root: str) -> None:
        self._engine = engine
        self._root = f"{stream_root}/{names.CONTROL_PREFIX}/".encode()
        self._forks = ForkIndex(engine)

    def owns(self, path: bytes) -> bool:
        """Whether `path`, without a query, is one of these resources."""
        return path[len(self._root) :].split(b"/", 1)[0] in (b"streams", b"buckets", b"set-aside")

    def handle(self, request: Request, exchange: Exchange) -> None:
        request.operation = "inspection"
        if request.method not in (b"GET", b"HEAD"):
            raise MethodNotAllowed(METHODS)
        path, _, query = request.target[len(self._root) :].partition(b"?")
        permit = request.guard or permit_all
        match path.split(b"/"):
            case [b"streams"]:
                wanted = _names(query)
                for name in wanted:
                    permit(Action.ADMIN, name)
                exchange.respond(responses.json_document(responses.OK, self._many(wanted)))
            case [b"streams", *rest]:
                name = names.decode_name(_utf8(b"/".join(rest)))
                permit(Action.ADMIN, name)
                self._answer(name, query, exchange)
            case [b"buckets"]:
                permit(Action.ADMIN, "")
                exchange.respond(responses.json_document(responses.OK, self._buckets()))
            case [b"set-aside"]:
                permit(Action.ADMIN, "")
                exchange.respond(responses.json_document(responses.OK, self._set_aside()))
            case [b"buckets", bucket, stream]:
                name = _bucketed(bucket, stream)
                permit(Action.ADMIN, name)
                self._engine.buckets.find(buckets.ids_of(name)[0])
                self._answer(name, query, exchange)
            case _:
                raise RouteNotFound(_utf8(request.target.partition(b"?")[0]))

    def _answer(self, name: str, query: bytes, exchange: Exchange) -> None:
        stretch = _stretch(query)
        try:
            stream = self._find(name)
            document = self._one(stream) if stretch is None else _writers(stream, *stretch)
        except (StreamNotFound, StreamDeleted) as refusal:
            self._engine.refuse_when_durable(
                name, refusal, lambda error: exchange.respond(responses.problem(error))
            )
            return
        exchange.respond(responses.json_document(responses.OK, document))

    def _buckets(self) -> Document:
        found = self._engine.buckets.counts(BUCKETS_MAX)
        listed = [_bucket(bucket, stream_count) for bucket, stream_count in found]
        # Beyond what is listed, buckets whose creation is not durable yet count, too.
        count = len(found) if len(found) < BUCKETS_MAX else len(self._engine.buckets)
        return {"buckets": listed, "bucket_count": count}

    def _set_aside(self) -> Document:
        """The streams that the start could not recover, and why."""
        aside = self._engine.aside
        listed = [{"stream": name, "reason": why} for name, why in islice(aside, LISTED_MAX)]
        return {"set_aside": listed, "set_aside_count": len(aside)}

    def _find(self, name: str) -> Stream:
        if buckets.is_bucketed(name) and not buckets.ids_of(name)[1]:
            raise StreamNotFound(name)  # a bucket is a stream to the engine alone
        return self._engine.find_visible(name)

    def _many(self, wanted: list[str]) -> Document:
        """Those of the wanted streams that exist, in brief."""
        streams = []
        for name in wanted:
            try:
                streams.append(self._summary(self._find(name)))
            except (StreamNotFound, StreamDeleted, StreamSetAside):
                continue
        return {"now_ms": self._engine.clock.now_ms(), "streams": streams}

    def _summary(self, stream: Stream) -> Document:
        state = stream.state
        lifetime, fork = state.config.lifetime, state.config.fork
        return {
            "stream": state.name,
            "content_type": state.config.content_type,
            "created_at_ms": state.created_at_ms,
            "earliest_offset": state.trim_offset.token(),
            "tail_offset": stream.visible.token(),
            "closed": stream.visible_closed,
            "ttl_secs": lifetime.ttl_secs,
            # A sliding TTL does not run while live readers are attached.
            "expires_at_ms": None
            if lifetime.ttl_secs is not None and stream.readers
            else self._expires_at_ms(stream),
            "live_readers": len(stream.readers or ()),
            "forked_from": None
            if fork is None
            else {"stream": fork.request.source, "offset": fork.point.token()},
            "fork_count": stream.fork_count,
        }

    def _expires_at_ms(self, stream: Stream) -> int | None:
        """As a time of day."""
        state = stream.state
        lifetime = state.config.lifetime
        deadline_ms = lifetime.deadline_ms(state.touched_ms)
        if deadline_ms is None or lifetime.ttl_secs is None:
            return deadline_ms
        return deadline_ms + self._wall_ahead_ms()

    def _wall_ahead_ms(self) -> int:
        """What to add to a time of the steady clock for the time of day, as of now.

        In whole seconds: the two clocks are not read in the same instant, and a deadline must not
        seem to move between two looks at it.
        """
        now = self._engine.now()
        return round((now.wall_ms - now.steady_ms) / 1000) * 1000

    def _one(self, stream: Stream) -> Document:
        state = stream.state
        known = state.producers or {}
        members = [w for w in stream.watchers or () if isinstance(w, Follower)]
        return {
            **self._summary(stream),
            "now_ms": self._engine.clock.now_ms(),
            "stream_seq": state.stream_seq.decode("latin-1") if state.stream_seq else None,
            "producer_count": len(known),
            "producers": _producers(known, stream.visible),
            "forks": [_fork(fork) for fork in islice(self._forks.of(stream), LISTED_MAX)],
            "subscription_count": len(members),
            "subscriptions": [
                _subscription(member, state.name, self._wall_ahead_ms())
                for member in members[:LISTED_MAX]
            ],
        }


class ForkIndex:
    """Which streams were forked from which. The engine itself only counts them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ids: dict[int, dict[str, int]] = {}
        for stream in engine.streams.values():
            self._add(stream)
        engine.on_stream_created(self._add)

    def of(self, source: Stream) -> list[Stream]:
        """The forks of `source` that hold it, in the order they were made."""
        if buckets.is_bucketed(source.state.name):
            return self._of_bucketed(source)
        ids = self._ids.get(source.state.id, {})
        streams = self._engine.streams
        found = [streams[n] for n, id in ids.items() if n in streams and streams[n].state.id == id]
        return [fork for fork in found if fork.creation_durable]

    def _of_bucketed(self, source: Stream) -> list[Stream]:
        """A fork stays in its bucket, so that is where to look."""
        bucket_id = buckets.ids_of(source.state.name)[0]
        if not source.fork_count:
            return []
        ids = self._engine.buckets.find(bucket_id).ids.after("", inclusive=True)
        streams = self._engine.streams
        seen = (streams[buckets.stream_name(bucket_id, id)] for id in islice(ids, SEARCHED_MAX))
        return list(islice((s for s in seen if s.source is source), source.fork_count))

    def _add(self, stream: Stream) -> None:
        fork = stream.state.config.fork
        if fork is None or stream.source is None:
            return
        ids = self._ids.setdefault(fork.source_id, {})
        # Forks come and go: what is gone is dropped before it outweighs what is there.
        if len(ids) > 2 * stream.source.fork_count + LISTED_MAX:
            ids = self._ids[fork.source_id] = {
                kept.state.name: kept.state.id for kept in self.of(stream.source)
            }
        ids[stream.state.name] = stream.state.id


def _bucketed(bucket: bytes, stream: bytes) -> str:
    bucket_id, stream_id = buckets.decode_segment(bucket), buckets.decode_segment(stream)
    buckets.check_bucket_id(bucket_id)
    buckets.check_stream_id(bucket_id, stream_id)
    return buckets.stream_name(bucket_id, stream_id)


def _names(query: bytes) -> list[str]:
    try:
        pairs = parse_qsl(_utf8(query), keep_blank_values=True, max_num_fields=STREAMS_MAX)
    except ValueError:
        raise InvalidRequest(f"One request names at most {STREAMS_MAX} streams.") from None
    if not pairs or any(field != "name" for field, _ in pairs):
        raise InvalidRequest("Name the streams to describe: ?name=first&name=second.")
    return [name for _, name in pairs]


def _utf8(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidName("The stream name is not UTF-8.") from None


def _stretch(query: bytes) -> tuple[Position, Position] | None:
    """The offsets between which writers are asked for; None where they are not."""
    fields = parse_query(query.decode("latin-1"), once=(WRITERS_FROM, WRITERS_UNTIL))
    given = [fields[name] for name in (WRITERS_FROM, WRITERS_UNTIL) if name in fields]
    if not given:
        return None
    if len(given) == 1:
        raise InvalidRequest(f"{WRITERS_FROM} and {WRITERS_UNTIL} are given together.")
    start, until = map(parse_token, given)
    if not 0 <= until.messages - start.messages <= WRITERS_MAX:
        raise InvalidRequest(f"One request returns the writers of at most {WRITERS_MAX} messages.")
    return start, until


def _writers(stream: Stream, start: Position, until: Position) -> Document:
    state = stream.state
    closed_at = state.tail if state.closed else None
    until = min(until, stream.visible)
    found = sorted(written_between(state.producers or {}, start, until, closed_at))
    writers = [
        {
            "next_offset": written.end.token(),
            "id": written.id.decode("utf-8", "replace"),
            "epoch": written.epoch,
            "seq": written.seq,
        }
        for written in found
    ]
    return {"stream": state.name, "writers": writers}


def _producers(known: dict[bytes, ProducerState], visible: Position) -> list[Document]:
    found = []
    for id, producer in islice(known.items(), LISTED_MAX):
        receipts = producer.receipts
        seq = producer.seq - (len(receipts) - bisect_right(receipts, visible))
        if seq < 0:
            continue  # nothing of this epoch is durable yet
        receipt = producer.receipt(seq)
        found.append(
            {
                "id": id.decode("utf-8", "replace"),
                "epoch": producer.epoch,
                "seq": seq,
                "offset": receipt.token() if receipt else None,
            }
        )
    return found


def _bucket(bucket: Bucket, stream_count: int) -> Document:
    return {
        "bucket_id": bucket.id,
        "streams": stream_count,
        "created_at_ms": bucket.stream.state.created_at_ms,
        "next_offset": bucket.stream.visible.token(),  # how far its feed is
    }


def _fork(fork: Stream) -> Document:
    origin = fork.state.config.fork
    assert origin is not None, "the index holds forks"
    return {
        "stream": fork.state.name,
        "offset": origin.point.token(),
        "deleted": fork.state.deleted,
        "fork_count": fork.fork_count,
    }


def _subscription(follower: Follower, name: str, wall_ahead_ms: int) -> Document:
    subscription = follower.subscription
    link, delivery = subscription.links[name], subscription.delivery
    wake = delivery.wake
    lease_until_ms = wake.lease_until_ms if wake else None
    return {
        "id": subscription.id,
        "type": subscription.config.kind,
        "status": status_of(subscription),
        "acked_offset": link.acked_token,
        "has_pending": link.is_pending,
        "generation": delivery.generation,
        "holder": wake.holder if wake else None,
        "lease_until_ms": None if lease_until_ms is None else lease_until_ms + wall_ahead_ms,
    }
