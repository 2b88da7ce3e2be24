"""What an entry of the API description is, and the shapes that most of them have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from headrace.http.openapi.components import ref

Content = dict[str, Any]

ANY: Final[Content] = {"*/*": {}}
TEXT: Final[Content] = {"text/plain": {}}
EVENTS: Final[Content] = {"text/event-stream": {}}
FRAMED: Final[Content] = {"application/vnd.headrace.messages": {}}


def json_of(name: str) -> Content:
    return {"application/json": {"schema": ref(name)}}


@dataclass(frozen=True)
class Success:
    """A success: what it says, the headers it may have, the kinds of its body."""

    what: str
    headers: tuple[str, ...] = ()
    content: Content = field(default_factory=dict)


@dataclass(frozen=True)
class Operation:
    """`problems` are the types of RFC 9457 that this operation itself answers with."""

    method: str
    path: str
    id: str
    summary: str
    tag: str
    answers: Mapping[int, Success]
    problems: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    body: dict[str, Any] | None = None
    with_token: bool = False


def body_of(content: Content, *, required: bool = True) -> dict[str, Any]:
    return {"required": required, "content": content}


def with_head(operation: Operation) -> tuple[Operation, Operation]:
    """A GET, and the HEAD that the server answers like it, without the body."""
    name = operation.id[0].upper() + operation.id[1:]
    return operation, replace(operation, method="head", id=f"head{name}")


def document_of(path: str, id: str, summary: str, tag: str, schema: str, **more: Any) -> Operation:
    """A GET of one JSON document."""
    return Operation(
        "get", path, id, summary, tag, {200: Success(summary, (), json_of(schema))}, **more
    )
