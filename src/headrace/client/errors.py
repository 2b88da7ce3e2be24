"""Answers that are not what was asked for, as errors that say whether it happened.

    Refused          it did not happen, and the same request will not help
    Unavailable      it did not happen; the same request may succeed later
    Indeterminate    it may have happened: the client repeats it only where that does no harm

A Headrace server names its errors, and they arrive as the same classes it raised. Other servers
and proxies are understood by status and headers.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import orjson

from headrace import errors
from headrace.client.effects import Answer, Request
from headrace.errors import HeadraceError, Indeterminate, InvalidRequest, Refused, Unavailable
from headrace.protocol.responses import PROBLEM_TYPE_PREFIX, PROBLEMS

_CLASSES: Final = {problem.name: kind for kind, problem in PROBLEMS.items()}
_TEXT_MAX = 300


@dataclass(eq=False)
class Unauthorized(Refused):
    """401: no token, or one that is not accepted."""

    url: str
    text: str
    status: int = 401

    @property
    def detail(self) -> str:
        return f"{self.url} wants a valid token. {self.text}".rstrip()


@dataclass(eq=False)
class Forbidden(Refused):
    """403: the token does not allow this."""

    url: str
    text: str
    status: int = 403

    @property
    def detail(self) -> str:
        return f"The token does not allow this at {self.url}. {self.text}".rstrip()


@dataclass(eq=False)
class UnexpectedAnswer(Refused):
    """A status that the protocol gives no meaning here."""

    status: int
    url: str
    text: str

    @property
    def detail(self) -> str:
        return f"{self.url} answered {self.status}. {self.text}".rstrip()


@dataclass(eq=False)
class BadAnswer(Refused):
    """An answer that cannot be understood: JSON that is none, an event without its offset."""

    url: str
    reason: str

    @property
    def detail(self) -> str:
        return f"The answer of {self.url} cannot be understood: {self.reason}"


@dataclass(eq=False)
class SubscriptionRefused(Refused):
    """The subscription interface refused, with a code of the protocol such as FENCED."""

    code: str
    reason: str
    status: int

    @property
    def detail(self) -> str:
        return self.reason


@dataclass(eq=False)
class ServerBusy(Unavailable):
    """429, 503 or 507 by a server that gives no more facts."""

    status: int
    url: str
    text: str
    retry_after_secs: int = 0

    @property
    def detail(self) -> str:
        return f"{self.url} answered {self.status} and may work later. {self.text}".rstrip()


@dataclass(eq=False)
class ServerFault(Indeterminate):
    """500, 502 or 504: whether it happened is not known."""

    status: int
    url: str
    text: str

    @property
    def detail(self) -> str:
        return f"{self.url} answered {self.status}: it may have happened. {self.text}".rstrip()


@dataclass(eq=False)
class ConnectFailed(Unavailable):
    """No connection, so nothing was sent."""

    url: str
    reason: str
    retry_after_secs: int = 0
    is_first: bool = False
    """Whether the client has not had a single answer yet: the URL may be wrong."""
    timed_out: bool = False

    @property
    def detail(self) -> str:
        return f"No connection to {self.url}: {self.reason}"


@dataclass(eq=False)
class ConnectionLost(Indeterminate):
    """The connection broke, or no answer came in time, after something was sent."""

    url: str
    reason: str

    @property
    def detail(self) -> str:
        return f"The connection to {self.url} was lost: {self.reason}"


def status_of(error: HeadraceError) -> int | None:
    """The HTTP status behind an error; None if there was no answer."""
    status: int | None = getattr(error, "status", None)
    if status is None and type(error) in PROBLEMS:
        status = PROBLEMS[type(error)].status
    return status


def failure(request: Request, answer: Answer) -> HeadraceError:
    """The error that an answer other than the expected ones means."""
    return _named(answer) or _by_status(request, answer)


def _named(answer: Answer) -> HeadraceError | None:
    document = _problem_document(answer)
    coded = document.get("error")
    if isinstance(coded, dict) and "code" in coded and answer.status < 500:
        return SubscriptionRefused(str(coded["code"]), str(coded.get("message")), answer.status)
    kind = _CLASSES.get(str(document.get("type", "")).removeprefix(PROBLEM_TYPE_PREFIX))
    if kind is None:
        return None
    if issubclass(kind, InvalidRequest):
        return kind(str(document.get("detail", "")))
    known = fields(kind)  # type: ignore[arg-type]
    facts = {f.name: document[f.name] for f in known if f.name in document}
    missing = any(f.name not in facts and f.default is MISSING for f in known)
    return None if missing else kind(**facts)


def _problem_document(answer: Answer) -> dict[str, Any]:
    if "json" not in answer.headers.get("content-type", ""):
        return {}
    try:
        document = orjson.loads(answer.body)
    except orjson.JSONDecodeError:
        return {}
    return document if isinstance(document, dict) else {}


def _by_status(request: Request, answer: Answer) -> HeadraceError:
    status, text = answer.status, _text(answer)
    match status:
        case 400:
            asks_offset = request.method == "GET" and "offset" in request.params
            kind = errors.InvalidOffset if asks_offset else InvalidRequest
            return kind(text or f"{request.url} answered 400.")
        case 401:
            return Unauthorized(request.url, text)
        case 403:
            return _fenced(request, answer) or Forbidden(request.url, text)
        case 404:
            return errors.StreamNotFound(_name_in(request.url))
        case 409:
            return _conflict(request, answer, text)
        case 410:
            earliest = answer.headers.get("stream-next-offset")
            if earliest is not None:
                return errors.OffsetTrimmed(earliest)
            return errors.StreamDeleted(_name_in(request.url))
        case 408 | 425 | 429 | 503 | 507:
            return ServerBusy(status, request.url, text, answer.number("retry-after") or 0)
        case _ if status >= 500:
            return ServerFault(status, request.url, text)
    if "location" in answer.headers:
        text = f"Ask {answer.headers['location']!r} if that is meant: redirects are not followed."
    return UnexpectedAnswer(status, request.url, text)


def _fenced(request: Request, answer: Answer) -> HeadraceError | None:
    current = answer.number("producer-epoch")
    received = request.headers.get("Producer-Epoch")
    if current is None or not isinstance(received, str):
        return None
    return errors.ProducerFenced(current, int(received))


def _conflict(request: Request, answer: Answer, text: str) -> HeadraceError:
    name = _name_in(request.url)
    if answer.flag("stream-closed"):
        return errors.StreamClosed(name, answer.headers.get("stream-next-offset", ""))
    expected, received = (
        answer.number(f"producer-{which}-seq") for which in ("expected", "received")
    )
    if expected is not None and received is not None:
        return errors.ProducerGap(expected, received)
    if request.method == "PUT":
        return errors.ConfigurationMismatch(name, text or "the server does not say what")
    if "Stream-Seq" in request.headers and "content" not in text.lower():
        return errors.SequenceRegression("the last one", str(request.headers["Stream-Seq"]))
    if "content" in text.lower():
        return errors.ContentTypeMismatch(
            "another content type", str(request.headers.get("Content-Type", ""))
        )
    return UnexpectedAnswer(answer.status, request.url, text)


def _text(answer: Answer) -> str:
    document = _problem_document(answer)
    said = document.get("detail") or document.get("message") or document.get("error")
    if isinstance(said, str):
        return said
    return answer.body[:_TEXT_MAX].decode("utf-8", "replace").strip()


def _name_in(url: str) -> str:
    """The stream a URL names, for a sentence: the path without the usual mount point."""
    return unquote(urlsplit(url).path).removeprefix("/v1/stream/")
