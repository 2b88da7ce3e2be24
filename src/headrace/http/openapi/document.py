"""The description as one document: from the entries to OpenAPI's own form.

Statuses of errors come from the tables in `protocol.responses` and `subscriptions.errors`.
"""

from __future__ import annotations

from typing import Any, Final

from headrace import __version__
from headrace.http.openapi.components import HEADERS, PARAMETERS, SCHEMAS, TAGS
from headrace.http.openapi.control_operations import BROWSER_OPERATIONS, CONTROL_OPERATIONS
from headrace.http.openapi.operation import Operation
from headrace.http.openapi.stream_operations import STREAM_OPERATIONS
from headrace.protocol.responses import PROBLEMS
from headrace.subscriptions.errors import PROBLEMS as SUBSCRIPTION_PROBLEMS
from headrace.subscriptions.errors import problem_name

_STATUS_OF: Final = {problem.name: problem.status for problem in PROBLEMS.values()} | {
    problem_name(code): problem.status for code, problem in SUBSCRIPTION_PROBLEMS.items()
}
_PROBLEM: Final = {
    "application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}},
}
_ANY_PROBLEM: Final = {
    "description": "Refusals that any request may get: a malformed or too large request, another "
    "site's page, a host that is not served, a limit, a full disk, a fault. See `type`.",
    "content": _PROBLEM,
}
_INTRODUCTION: Final = (
    "Append-only streams over HTTP: the Durable Streams protocol, buckets, snapshots, and "
    "subscriptions. Offsets are opaque. A stream name may contain slashes, as they are or as %2F. "
    "OPTIONS works everywhere; other methods get 405 with Allow. The server itself checks no "
    "tokens: a proxy in front of it does."
)


def document(stream_root: str, bucket_root: str, browser: bool = True) -> dict[str, Any]:
    """The whole description, for surfaces at these mount points."""
    operations = STREAM_OPERATIONS + CONTROL_OPERATIONS + (BROWSER_OPERATIONS if browser else ())
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        path = operation.path.replace("{root}", stream_root).replace("{buckets}", bucket_root)
        paths.setdefault(path, {})[operation.method] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headrace",
            "version": __version__,
            "description": _INTRODUCTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        # Relative to where this document is: behind a proxy, and mounted, too.
        "servers": [{"url": "./"}],
        "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "parameters": PARAMETERS,
            "headers": HEADERS,
            "securitySchemes": {"wake": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.id,
        "summary": operation.summary,
        "tags": [operation.tag],
        "responses": _responses(operation),
    }
    if operation.parameters:
        described["parameters"] = [
            {"$ref": f"#/components/parameters/{name}"} for name in operation.parameters
        ]
    if operation.body is not None:
        described["requestBody"] = operation.body
    if operation.with_token:
        described["security"] = [{"wake": []}]
    return described


def _responses(operation: Operation) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for status, answer in operation.answers.items():
        described: dict[str, Any] = {"description": answer.what}
        if answer.headers:
            described["headers"] = {
                name: {"$ref": f"#/components/headers/{name}"} for name in answer.headers
            }
        if answer.content and operation.method != "head":
            described["content"] = answer.content
        found[str(status)] = described
    for status, names in sorted(_by_status(operation.problems).items()):
        described = {"description": "Problem of type " + " or ".join(f"`{n}`" for n in names) + "."}
        if operation.method != "head":
            described["content"] = _PROBLEM
        found[str(status)] = described
    found["default"] = _ANY_PROBLEM
    return found


def _by_status(names: tuple[str, ...]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for name in names:
        found.setdefault(_STATUS_OF[name], []).append(name)
    return found
