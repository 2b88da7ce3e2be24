"""Routes of buckets: the buckets, their listing, and the handlers of the streams in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headrace.engine.buckets import Bucket
from headrace.engine.engine import Engine
from headrace.errors import (
    BucketNotFound,
    HeadraceError,
    MethodNotAllowed,
    RouteNotFound,
    StreamDeleted,
    StreamNotFound,
)
from headrace.http.exchange import Exchange, Request
from headrace.http.handlers.snapshots import SnapshotRoutes
from headrace.http.handlers.streams import StreamRoutes
from headrace.http.permissions import BY_METHOD, Action
from headrace.http.url_schemes import BucketUrls
from headrace.protocol import buckets, responses
from headrace.protocol.listing import (
    CHANGES_FROM,
    Listed,
    page_document,
    parse_feed,
    parse_listing,
)
from headrace.protocol.requests import Read
from headrace.protocol.responses import Response

Handler = Callable[[Request, Exchange, str], None]
Methods = Mapping[bytes, Handler]


class BucketRoutes:
    """`root` is the mount point without a slash at its end; `own` are the server's own names."""

    def __init__(
        self,
        engine: Engine,
        streams: StreamRoutes,
        snapshots: SnapshotRoutes,
        urls: BucketUrls,
        root: str,
        own: frozenset[str],
    ) -> None:
        self._engine = engine
        self._streams = streams
        self._snapshots = snapshots
        self._urls = urls
        self.root = f"{root}/".encode()
        self._own = own
        self._bucket: Methods = {
            b"GET": self._describe,
            b"HEAD": self._describe,
            b"PUT": self._create,
            b"DELETE": self._delete,
        }
        self._listing: Methods = {b"GET": self._list, b"HEAD": self._list}

    def handle(self, request: Request, exchange: Exchange, below: bytes) -> None:
        """`below` is the target without `root`."""
        try:
            self._dispatch(request, exchange, below)
        except BucketNotFound as refusal:
            name = buckets.bucket_name(refusal.bucket)
            self._engine.refuse_when_durable(
                name, refusal, lambda error: exchange.respond(responses.problem(error))
            )

    def _dispatch(self, request: Request, exchange: Exchange, below: bytes) -> None:
        path = below.partition(b"?")[0]
        guard = request.guard
        bucket_id, *rest = map(buckets.decode_segment, path.split(b"/"))
        if not bucket_id or (bucket_id in self._own and self.root == b"/"):
            raise _not_served(request)
        match rest:
            case []:
                if guard is not None:
                    action = BY_METHOD.get(request.method, Action.ADMIN)
                    guard(action, buckets.bucket_name(bucket_id))
                _call(self._bucket, request, exchange, bucket_id)
            case [buckets.LISTING]:
                if guard is not None:
                    guard(Action.READ, buckets.bucket_name(bucket_id))
                _call(self._listing, request, exchange, bucket_id)
            case [_]:
                self._streams.handle(request, exchange, below)
            case [stream_id, *resource]:
                buckets.check_bucket_id(bucket_id)
                buckets.check_stream_id(bucket_id, stream_id)
                if guard is not None:
                    is_read = request.method in (b"GET", b"HEAD")
                    action = Action.READ if is_read else Action.SNAPSHOT
                    guard(action, buckets.stream_name(bucket_id, stream_id))
                try:
                    self._below_stream(request, exchange, path, resource)
                except (StreamNotFound, StreamDeleted) as refusal:
                    self._streams.refuse(exchange, refusal)

    def _below_stream(
        self, request: Request, exchange: Exchange, path: bytes, resource: list[str]
    ) -> None:
        stream_path = b"/".join(path.split(b"/")[:2])
        match resource:
            case ["snapshot"]:
                stream = self._streams.find_visible(stream_path)
                self._snapshots.latest(request, exchange, stream)
            case ["snapshot", offset]:
                stream = self._streams.find_visible(stream_path)
                self._snapshots.one(request, exchange, stream, offset)
            case ["bootstrap"]:
                stream = self._streams.find_visible(stream_path)
                query = request.target.partition(b"?")[2]
                self._snapshots.bootstrap(request, exchange, stream, query)
            case _:
                raise _not_served(request)

    # -- buckets ---------------------------------------------------------------------------

    def _create(self, request: Request, exchange: Exchange, bucket_id: str) -> None:
        request.operation = "bucket"
        location = self._urls.bucket_url(request, bucket_id)

        def created(outcome: Bucket | HeadraceError) -> None:
            if isinstance(outcome, HeadraceError):
                exchange.respond(responses.problem(outcome))
            else:
                document = responses.json_document(responses.CREATED, _document(outcome, 0))
                headers = document.headers + responses.line("Location", location)
                exchange.respond(Response(responses.CREATED, headers, document.body))

        self._engine.buckets.create(bucket_id, created)

    def _describe(self, request: Request, exchange: Exchange, bucket_id: str) -> None:
        request.operation = "bucket"
        bucket = self._engine.buckets.find(bucket_id)
        document = _document(bucket, self._engine.buckets.count(bucket))
        exchange.respond(responses.json_document(responses.OK, document))

    def _delete(self, request: Request, exchange: Exchange, bucket_id: str) -> None:
        request.operation = "bucket"

        def deleted(outcome: Bucket | HeadraceError) -> None:
            if isinstance(outcome, HeadraceError):
                exchange.respond(responses.problem(outcome))
            else:
                exchange.respond(responses.deleted())

        self._engine.buckets.delete(bucket_id, deleted)

    def _list(self, request: Request, exchange: Exchange, bucket_id: str) -> None:
        request.operation = "list"
        bucket = self._engine.buckets.find(bucket_id)
        query = request.target.partition(b"?")[2].decode("latin-1")
        read = parse_feed(query) if CHANGES_FROM in query else None
        if read is not None:
            self._follow(request, exchange, bucket, read)
            return
        listing = parse_listing(query)
        page = self._engine.buckets.page(bucket, *listing)
        listed = [Listed(s.state, s.visible, s.visible_closed) for s in page.streams]
        document = page_document(bucket_id, listing, listed, has_more=page.has_more)
        exchange.respond(responses.json_document(responses.OK, document))

    def _follow(self, request: Request, exchange: Exchange, bucket: Bucket, read: Read) -> None:
        """The bucket's feed, read like a stream, once all that was noted before is in it."""
        left = bucket.feed.noted

        def flush() -> bool:
            nonlocal left
            left -= bucket.feed.flush()
            if left > 0 and bucket.feed.is_due:
                return True
            self._engine.storage.when_durable(
                bucket.stream.log, answer, lambda error: exchange.respond(responses.problem(error))
            )
            return False

        def answer() -> None:
            try:
                self._streams.read(request, exchange, bucket.stream, read)
            except HeadraceError as refusal:
                exchange.respond(responses.problem(refusal))

        if flush():
            self._engine.maintenance.add(flush)


def _not_served(request: Request) -> RouteNotFound:
    return RouteNotFound(request.target.partition(b"?")[0].decode("latin-1"))


def _document(bucket: Bucket, streams: int) -> dict[str, object]:
    return {
        "bucket_id": bucket.id,
        "streams": streams,
        "created_at_ms": bucket.stream.state.created_at_ms,
    }


def _call(methods: Methods, request: Request, exchange: Exchange, bucket_id: str) -> None:
    buckets.check_bucket_id(bucket_id)
    handler = methods.get(request.method)
    if handler is None:
        raise MethodNotAllowed(", ".join([*(method.decode() for method in methods), "OPTIONS"]))
    handler(request, exchange, bucket_id)
