"""The stream browser at /ui: static files, answered from memory; and `/`, which leads there.

The page holds no data and needs no identity; what it shows it asks the stream surface for, as
any client does. Its policy lets nothing run but its own files, because what it shows is hostile.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from hashlib import sha256
from importlib.resources import files
from typing import Final

import orjson

from headrace import __version__
from headrace.errors import RouteNotFound
from headrace.http.exchange import Exchange, Request
from headrace.protocol import caching, responses
from headrace.protocol.responses import OK, Response, line

ROOT: Final = "/ui"
INDEX: Final = "index.html"
MEDIA_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        # No string becomes markup or code, not even by a mistake of the page's own.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
# Names carry no hash of their content, so a copy is good only until it is asked for again.
HEADERS: Final = b"".join(
    (
        line("Cache-Control", "no-cache"),
        line("Content-Security-Policy", POLICY),
        line("Referrer-Policy", "no-referrer"),
        line("Cross-Origin-Opener-Policy", "same-origin"),
    )
)

# Not for good: the setting may change, and other clients are answered otherwise.
LEAD: Final = responses.see_elsewhere(f"{ROOT[1:]}/", vary="Accept")

Handler = Callable[[Request, Exchange], None]


def routes(stream_root: str, bucket_root: str) -> dict[bytes, Handler]:
    """A handler for each path of the browser, below the server's own root."""
    # The API roots, relative to the root that /ui is in, which the page determines itself.
    settings = {
        "version": __version__,
        "streamRoot": stream_root,
        "bucketRoot": bucket_root.rstrip("/"),
    }
    found = {f"{ROOT}/{name}": _file(MEDIA_TYPES[kind], body) for name, kind, body in _packaged()}
    found[f"{ROOT}/settings.json"] = _file("application/json", orjson.dumps(settings))
    found[f"{ROOT}/"] = found[f"{ROOT}/{INDEX}"]
    # The page names its files relative to itself. A relative redirect holds behind any proxy.
    found[ROOT] = responses.moved(f"{ROOT[1:]}/")
    handlers = {path.encode(): partial(_answer, response) for path, response in found.items()}
    return {b"/": _lead, **handlers}


def _packaged() -> list[tuple[str, str, bytes]]:
    """Name, kind and content of every file that comes with the package."""
    return [
        (file.name, kind, file.read_bytes())
        for file in files("headrace.ui").iterdir()
        if (kind := file.name.rpartition(".")[2]) in MEDIA_TYPES
    ]


def _file(media_type: str, body: bytes) -> Response:
    etag = f'"{sha256(body).hexdigest()[:32]}"'
    headers = line("Content-Type", media_type) + line("ETag", etag) + HEADERS
    return Response(OK, headers, body)


def _answer(response: Response, request: Request, exchange: Exchange) -> None:
    request.operation = "browser"
    held = request.headers.get(b"if-none-match")
    if held is not None and response.body and caching.matches(held, _etag(response)):
        response = responses.not_modified(response)
    exchange.respond(response)


def _lead(request: Request, exchange: Exchange) -> None:
    """Lead a browser from `/` to the page. A client that does not ask for HTML gets 404."""
    request.operation = "browser"
    if b"text/html" not in request.headers.get(b"accept", b"").lower():
        raise RouteNotFound("/")
    exchange.respond(LEAD)


def _etag(response: Response) -> str:
    return response.headers.partition(b"ETag: ")[2].partition(b"\r\n")[0].decode()
