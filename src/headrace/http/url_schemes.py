"""The two surfaces: how a URL path names a stream, and how a stream's URL is written.

`/v1/stream/{path}` has hierarchical names and no buckets; `/{bucket}/{stream}` has buckets. All
stream operations are the same on both: they differ in names only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from headrace.engine.buckets import Buckets
from headrace.errors import HeadraceError, InvalidName, StreamDeleted, StreamNotFound
from headrace.http.exchange import Request
from headrace.http.forwarded import ForwardedOrigins
from headrace.protocol import buckets, names

_PERCENT: Final = ord("%")  # `37 in path` has a fifth of the cost of `b"%" in path`


class UrlScheme(Protocol):
    def name(self, path: bytes) -> str:
        """The name to look up; what is not a valid name is not the name of a stream either."""
        ...

    def checked_name(self, path: bytes) -> str:
        """The same, once it is known to be one that a stream may have here."""
        ...

    def explain(self, refusal: StreamNotFound | StreamDeleted) -> HeadraceError:
        """The reason the stream does not exist; raises InvalidName if it cannot exist."""
        ...

    def url(self, request: Request, name: str) -> str: ...

    def source_of(self, request: Request, name: str) -> Callable[[str], str]:
        """How Stream-Forked-From names the source of a new stream `name`."""
        ...


class BaseUrls:
    """`root` is where a request came in, and so where answers point; `roots` are all there are.

    The first of them is the stream root, below which every stream has a URL.
    """

    def __init__(
        self, origins: ForwardedOrigins, root: str, roots: Sequence[str], taken: Sequence[str]
    ) -> None:
        self._origins = origins
        self._root = root
        self._roots = roots
        # What is served below `root` and is not a stream of it. A name may look like such a path.
        self._taken = tuple(f"{path}/" for path in taken if path.startswith(f"{root}/"))

    def name(self, path: bytes) -> str:
        # A name that begins with a slash is a bucket's business.
        if _PERCENT not in path and path.isascii() and path[:1] != b"/":
            return path.decode("ascii")
        return self._decode(path)

    def _decode(self, path: bytes) -> str:
        try:
            return names.decode_name(path.decode("utf-8"))
        except UnicodeDecodeError:
            raise InvalidName("The stream name is not UTF-8.") from None

    def checked_name(self, path: bytes) -> str:
        name = self._decode(path)
        if names.is_reserved(name):
            raise InvalidName(f"Names that begin with {names.CONTROL_PREFIX} are reserved.")
        return name

    def explain(self, refusal: StreamNotFound | StreamDeleted) -> HeadraceError:
        names.check_name(refusal.stream)
        return refusal

    def url(self, request: Request, name: str) -> str:
        path = f"{self._root}/{names.encode_name(name)}"
        if f"{path}/".startswith(self._taken):
            path = f"{self._roots[0]}/{names.encode_name(name)}"
        return f"{self._origins.base_url(request)}{path}"

    def source_of(self, request: Request, name: str) -> Callable[[str], str]:
        mount = request.client.mount
        return partial(names.decode_source, stream_roots=[mount + root for root in self._roots])


class BucketUrls:
    """`path` is `bucket/stream` here: two segments, each percent-encoded for itself."""

    def __init__(self, known: Buckets, origins: ForwardedOrigins, bucket_root: str) -> None:
        self._buckets = known
        self._origins = origins
        self._root = bucket_root

    def name(self, path: bytes) -> str:
        if _PERCENT not in path and path.isascii():
            return "/" + path.decode("ascii")
        return buckets.stream_name(*self._decode(path))

    def _decode(self, path: bytes) -> tuple[str, str]:
        bucket_id, _, stream_id = path.partition(b"/")
        bucket, stream = buckets.decode_segment(bucket_id), buckets.decode_segment(stream_id)
        buckets.check_bucket_id(bucket)
        buckets.check_stream_id(bucket, stream)
        return bucket, stream

    def checked_name(self, path: bytes) -> str:
        bucket_id, stream_id = self._decode(path)
        self._buckets.find(bucket_id)
        return buckets.stream_name(bucket_id, stream_id)

    def explain(self, refusal: StreamNotFound | StreamDeleted) -> HeadraceError:
        bucket_id, stream_id = buckets.ids_of(refusal.stream)
        buckets.check_bucket_id(bucket_id)
        buckets.check_stream_id(bucket_id, stream_id)
        self._buckets.find(bucket_id)
        return refusal

    def bucket_url(self, request: Request, bucket_id: str) -> str:
        return f"{self._origins.base_url(request)}{self._root}/{bucket_id}"

    def url(self, request: Request, name: str) -> str:
        bucket_id, stream_id = buckets.ids_of(name)
        return f"{self.bucket_url(request, bucket_id)}/{buckets.encode_segment(stream_id)}"

    def source_of(self, request: Request, name: str) -> Callable[[str], str]:
        root = f"{request.client.mount}{self._root}"
        bucket_id = buckets.ids_of(name)[0]
        return partial(buckets.decode_source, root=root, bucket_id=bucket_id)
