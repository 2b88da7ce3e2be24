"""The description of the HTTP API, OpenAPI 3.1, at /openapi.json.

It is built when it is asked for the first time, and answered from memory afterwards. It holds
nothing of what the server stores. `stream_operations` and `control_operations` have one entry for
each path and method, `components` what they share, and `document` puts them together.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

import orjson

from headrace.http.exchange import Exchange, Request
from headrace.protocol import caching, responses
from headrace.protocol.responses import OK, Response, line

PATH: Final = "/openapi.json"


class ApiDescription:
    """Answers GET and HEAD of the description."""

    def __init__(self, stream_root: str, bucket_root: str, *, browser: bool) -> None:
        self._surface = (stream_root, bucket_root.rstrip("/"), browser)
        self._response: Response | None = None
        self._etag = ""

    def serve(self, request: Request, exchange: Exchange) -> None:
        request.operation = "openapi"
        if self._response is None:
            # Imported here: a server need not wait for it to start.
            from headrace.http.openapi.document import document

            body = orjson.dumps(document(*self._surface))
            self._etag = f'"{sha256(body).hexdigest()[:32]}"'
            headers = line("Content-Type", "application/json") + line("ETag", self._etag)
            self._response = Response(OK, headers + line("Cache-Control", "no-cache"), body)
        held = request.headers.get(b"if-none-match")
        if held is not None and caching.matches(held, self._etag):
            exchange.respond(responses.not_modified(self._response))
        else:
            exchange.respond(self._response)
