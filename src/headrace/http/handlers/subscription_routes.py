"""The control surface below `__ds`: subscriptions and the keys that sign webhooks.

Routes, methods, bodies and tokens are read here; what they mean is the manager's. A refusal is a
problem document (RFC 9457) that also carries upstream's `error` member, so that clients of
either kind understand it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import orjson

from headrace.engine.slices import Slices
from headrace.errors import InvalidName, InvalidRequest
from headrace.http.exchange import Exchange, Request
from headrace.http.fault_answers import fault_answer
from headrace.http.forwarded import ForwardedOrigins
from headrace.http.handlers.body_work import BodyWork
from headrace.http.permissions import Action
from headrace.protocol import names, responses
from headrace.protocol.listing import parse_listing
from headrace.protocol.responses import PROBLEM_TYPE_PREFIX, Response, line
from headrace.subscriptions import requests
from headrace.subscriptions.errors import (
    PROBLEMS,
    Code,
    SubscriptionRefused,
    SubscriptionsFull,
    invalid,
    problem_name,
)
from headrace.subscriptions.manager import SubscriptionManager
from headrace.subscriptions.model import SubscriptionKind

BODY_BYTES_MAX: Final = 1024 * 1024  # 10,000 stream names of 100 bytes
ID_BYTES_MAX: Final = 256
JWKS_MEDIA_TYPE: Final = "application/jwk-set+json"
JWKS_CACHE_CONTROL: Final = "public, max-age=300"

Steps = Generator[None, None, Response]
Handler = Callable[[Request, str], Response | Steps]
Methods = Mapping[bytes, Handler]


class SubscriptionRoutes:
    def __init__(
        self,
        manager: SubscriptionManager,
        origins: ForwardedOrigins,
        stream_root: str,
        slices: Slices,
    ) -> None:
        self._manager = manager
        self._slices = slices
        self._origins = origins
        self._stream_root = stream_root
        self._root = f"{stream_root}/{names.CONTROL_PREFIX}/".encode()
        self._jwks: Methods = {b"GET": self._get_jwks, b"HEAD": self._get_jwks}
        self._subscription: Methods = {
            b"GET": self._get,
            b"HEAD": self._get,
            b"PUT": self._put,
            b"DELETE": self._delete,
        }
        self._list: Methods = {b"GET": self._page, b"HEAD": self._page}
        self._actions: dict[bytes, Methods] = {
            b"streams": {b"POST": self._add_streams},
            b"callback": {b"POST": self._callback},
            b"claim": {b"POST": self._claim},
            b"ack": {b"POST": self._ack},
            b"release": {b"POST": self._release},
        }

    def handle(self, request: Request, exchange: Exchange) -> None:
        try:
            response = self._dispatch(request)
        except (SubscriptionRefused, SubscriptionsFull) as refusal:
            response = _problem(refusal)
        if isinstance(response, Response):
            self._answer_when_durable(response, exchange)
        else:
            begin = partial(self._finish, response, exchange)
            work = BodyWork(request, exchange, begin, is_atomic=True)
            self._slices.run(work, fault_answer(exchange))

    def _finish(self, steps: Steps, exchange: Exchange) -> Iterator[None]:
        """What takes as long as there are streams is done in slices."""
        try:
            response = yield from steps
        except (SubscriptionRefused, SubscriptionsFull) as refusal:
            response = _problem(refusal)
        self._answer_when_durable(response, exchange)

    def _answer_when_durable(self, response: Response, exchange: Exchange) -> None:
        self._manager.when_durable(
            lambda: exchange.respond(response),
            lambda error: exchange.respond(responses.problem(error)),
        )

    def _dispatch(self, request: Request) -> Response | Steps:
        path = request.target.partition(b"?")[0]
        segments = path.removeprefix(self._root).split(b"/")
        if request.guard is not None and not _has_own_token(segments):
            request.guard(Action.ADMIN, "")
        # Split first, decode after: an id may hold an encoded slash only to be refused for it.
        match segments:
            case [b"jwks.json"]:
                return _call(self._jwks, request, "")
            case [b"subscriptions"]:
                return _call(self._list, request, "")
            case [b"subscriptions", raw_id] if raw_id:
                return _call(self._subscription, request, _parse_id(raw_id))
            case [b"subscriptions", raw_id, action] if raw_id and action in self._actions:
                return _call(self._actions[action], request, _parse_id(raw_id))
            case [b"subscriptions", raw_id, b"streams", *rest] if raw_id and any(rest):
                name = _parse_stream(b"/".join(rest))
                handlers: Methods = {b"DELETE": lambda _, id: self._remove_stream(id, name)}
                return _call(handlers, request, _parse_id(raw_id))
        raise SubscriptionRefused(
            Code.ROUTE_NOT_FOUND, f"Nothing is served at {path.decode('latin-1')!r}."
        )

    def _get_jwks(self, _: Request, __: str) -> Response:
        headers = line("Content-Type", JWKS_MEDIA_TYPE) + line("Cache-Control", JWKS_CACHE_CONTROL)
        return Response(responses.OK, headers, orjson.dumps(self._manager.jwks()))

    def _page(self, request: Request, _: str) -> Response:
        try:
            listing = parse_listing(request.target.partition(b"?")[2].decode("latin-1"))
        except InvalidRequest as refusal:
            raise invalid(refusal.detail) from None
        return responses.json_document(responses.OK, self._manager.page(*listing))

    def _get(self, _: Request, id: str) -> Response:
        return responses.json_document(responses.OK, self._manager.get(id))

    def _put(self, request: Request, id: str) -> Steps:
        config = requests.parse_config(_parse_body(request), self._stream_root)
        self._manager.check_wake_stream(id, config)
        base_url = self._origins.base_url(request)
        created, description = yield from self._manager.put_steps(id, config, base_url)
        return responses.json_document(responses.CREATED if created else responses.OK, description)

    def _delete(self, _: Request, id: str) -> Steps:
        yield from self._manager.delete_steps(id)
        return responses.deleted()

    def _add_streams(self, request: Request, id: str) -> Response:
        streams = requests.parse_streams(_parse_body(request), self._stream_root)
        self._manager.add_streams(id, streams)
        return responses.deleted()

    def _remove_stream(self, id: str, name: str) -> Response:
        self._manager.remove_stream(id, name)
        return responses.deleted()

    def _callback(self, request: Request, id: str) -> Response:
        return self._answer(request, id, SubscriptionKind.WEBHOOK)

    def _ack(self, request: Request, id: str) -> Response:
        return self._answer(request, id, SubscriptionKind.PULL_WAKE)

    def _answer(self, request: Request, id: str, kind: SubscriptionKind) -> Response:
        token = _bearer_token(request)
        answer = requests.parse_answer(_parse_body(request))
        return responses.json_document(responses.OK, self._manager.answer(id, kind, token, answer))

    def _claim(self, request: Request, id: str) -> Response:
        worker = requests.parse_worker(_parse_body(request))
        return responses.json_document(responses.OK, self._manager.claim(id, worker))

    def _release(self, request: Request, id: str) -> Response:
        token = _bearer_token(request)
        self._manager.release(id, token, requests.parse_answer(_parse_body(request)))
        return responses.deleted()


def _has_own_token(segments: list[bytes]) -> bool:
    """Whether the resource is public, or checks a token that came with a wake."""
    match segments:
        case [b"jwks.json"] | [b"subscriptions", _, b"callback" | b"ack" | b"release"]:
            return True
    return False


def _call(methods: Methods, request: Request, id: str) -> Response | Steps:
    handler = methods.get(request.method)
    if handler is None:
        allow = ", ".join([*(method.decode() for method in methods), "OPTIONS"])
        raise SubscriptionRefused(
            Code.METHOD_NOT_ALLOWED, f"This resource supports {allow} only.", allow=allow
        )
    return handler(request, id)


def _parse_id(raw: bytes) -> str:
    try:
        id = unquote_to_bytes(raw).decode("utf-8")
    except UnicodeDecodeError:
        raise invalid("The subscription id is not UTF-8 once percent-decoded.") from None
    if len(id.encode()) > ID_BYTES_MAX:
        raise invalid(f"A subscription id must not exceed {ID_BYTES_MAX} bytes.")
    if "/" in id or not all(map(names.is_name_character, id)):
        raise invalid("A subscription id has no slashes and no control characters.")
    return id


def _parse_stream(raw: bytes) -> str:
    try:
        return names.decode_name(raw.decode("utf-8").strip("/"))
    except UnicodeDecodeError:
        raise invalid("The stream name is not UTF-8.") from None
    except InvalidName as refusal:
        raise invalid(refusal.detail) from None


def _parse_body(request: Request) -> requests.Document:
    if len(request.body) > BODY_BYTES_MAX:
        raise SubscriptionRefused(
            Code.BODY_TOO_LARGE, f"The body must not exceed {BODY_BYTES_MAX} bytes."
        )
    try:
        document = orjson.loads(request.body)
    except orjson.JSONDecodeError as error:
        raise invalid(f"The body is not JSON: {error.msg}.") from None
    if not isinstance(document, dict):
        raise invalid("The body must be a JSON object.")
    return document


def _bearer_token(request: Request) -> str:
    scheme, _, token = request.headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() != b"bearer" or not token.strip():
        raise SubscriptionRefused(
            Code.TOKEN_INVALID, "Send the wake's token as Authorization: Bearer <token>."
        )
    return token.strip().decode("latin-1")


def _problem(refusal: SubscriptionRefused | SubscriptionsFull) -> Response:
    code = refusal.code
    status, title = PROBLEMS[code]
    error: dict[str, Any] = {"code": code, "message": refusal.detail}
    headers = b""
    if isinstance(refusal, SubscriptionsFull):
        headers = line("Retry-After", str(refusal.retry_after_secs))
    else:
        if refusal.current_holder is not None:
            error["current_holder"] = refusal.current_holder
        if refusal.generation is not None:
            error["generation"] = refusal.generation
        if refusal.allow is not None:
            headers = line("Allow", refusal.allow)
    if code in (Code.TOKEN_INVALID, Code.TOKEN_EXPIRED):
        headers = line("WWW-Authenticate", "Bearer")
    document = {
        "type": PROBLEM_TYPE_PREFIX + problem_name(code),
        "title": title,
        "status": status,
        "detail": refusal.detail,
        "error": error,
    }
    response = responses.json_document(status, document, "application/problem+json")
    return Response(status, response.headers + headers, response.body)
