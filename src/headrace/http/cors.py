"""Headers for browsers: who may read an answer from another origin, and what they may see."""

from __future__ import annotations

from headrace.protocol.headers import Headers
from headrace.protocol.responses import NO_CONTENT, Response

METHODS = b"GET, POST, PUT, DELETE, HEAD, OPTIONS"
REQUEST_HEADERS = (
    b"Content-Type, Authorization, If-None-Match, Stream-Seq, Stream-TTL, Stream-Expires-At, "
    b"Stream-Closed, Stream-Forked-From, Stream-Fork-Offset, Stream-Fork-Sub-Offset, "
    b"Stream-Snapshot-Match, Producer-Id, Producer-Epoch, Producer-Seq, Last-Event-ID"
)
EXPOSED_HEADERS = (
    b"Stream-Next-Offset, Stream-Cursor, Stream-Up-To-Date, Stream-Closed, Stream-TTL, "
    b"Stream-Expires-At, Stream-SSE-Data-Encoding, Stream-Content-Type, Stream-Created-At-Ms, "
    b"Stream-Snapshot-Offset, Repr-Digest, Producer-Epoch, Producer-Seq, "
    b"Producer-Expected-Seq, Producer-Received-Seq, ETag, Location, Retry-After, Allow"
)
SECURITY = b"X-Content-Type-Options: nosniff\r\nCross-Origin-Resource-Policy: %b\r\n"
# Whether pages of other origins may embed an answer (an image, a script) without reading it.
FOR_ALL_PAGES = SECURITY % b"cross-origin"
FOR_OWN_PAGES = SECURITY % b"same-origin"
PREFLIGHT_MAX_AGE_SECS = 86_400


class CorsPolicy:
    """What every response says to browsers, from the configured origins."""

    def __init__(self, origins: tuple[str, ...]) -> None:
        self._origins = frozenset(origin.encode() for origin in origins)
        self._exposed = b"Access-Control-Expose-Headers: %b\r\n" % EXPOSED_HEADERS
        self.for_everyone: bytes | None = None
        """The headers of every response, where they do not depend on the request."""
        if "*" in origins:
            allowed = b"Access-Control-Allow-Origin: *\r\n"
            self.for_everyone = FOR_ALL_PAGES + allowed + self._exposed
        elif not origins:
            self.for_everyone = FOR_OWN_PAGES

    def headers(self, request_headers: Headers) -> bytes:
        if self.for_everyone is not None:
            return self.for_everyone
        origin = request_headers.get(b"origin")
        if origin not in self._origins:
            return FOR_OWN_PAGES + b"Vary: Origin\r\n"
        allowed = b"Access-Control-Allow-Origin: %b\r\n" % origin
        return FOR_OWN_PAGES + b"Vary: Origin\r\n" + allowed + self._exposed

    def preflight(self) -> Response:
        return Response(
            NO_CONTENT,
            b"Access-Control-Allow-Methods: %b\r\nAccess-Control-Allow-Headers: %b\r\n"
            b"Access-Control-Max-Age: %d\r\nAllow: %b\r\n"
            % (METHODS, REQUEST_HEADERS, PREFLIGHT_MAX_AGE_SECS, METHODS),
        )
