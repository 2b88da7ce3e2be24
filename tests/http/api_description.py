"""What the tests need to compare answers with the description at /openapi.json."""

from __future__ import annotations

from functools import cache
from typing import Any

import httpx
import jsonschema_rs

from headrace.http.openapi.document import document

ANY = "*/*"


@cache
def described() -> dict[str, Any]:
    return document("/v1/stream", "")


@cache
def operations() -> dict[str, tuple[str, str, dict[str, Any]]]:
    """Path, method and description by operation id."""
    return {
        operation["operationId"]: (path, method, operation)
        for path, methods in described()["paths"].items()
        for method, operation in methods.items()
    }


def documented() -> set[tuple[str, int]]:
    """Every operation with every status that it says it may answer with."""
    return {
        (id, int(status))
        for id, (_, _, operation) in operations().items()
        for status in operation["responses"]
        if status != "default"
    }


def fault_of(id: str, answer: httpx.Response) -> str | None:
    """What the description does not say about this answer; None if it is as described."""
    _, method, operation = operations()[id]
    response = operation["responses"].get(str(answer.status_code))
    if response is None:
        return f"{answer.status_code} is not described: {answer.text}"
    missing = [
        name
        for name in response.get("headers", {})
        if described()["components"]["headers"][name]["required"] and name not in answer.headers
    ]
    if missing:
        return f"{answer.status_code} lacks the headers {missing}"
    if method == "head" or not answer.content:
        return None if not answer.content else "it has a body"
    return _fault_of_body(response.get("content", {}), answer)


def _fault_of_body(content: dict[str, Any], answer: httpx.Response) -> str | None:
    kind = answer.headers["content-type"].partition(";")[0]
    media = content.get(kind, content.get(ANY))
    if media is None:
        return f"{answer.status_code} with a body of {kind}"
    if "schema" not in media:
        return None
    validator = jsonschema_rs.validator_for(
        media["schema"] | {"components": described()["components"]}
    )
    faults = [error.message for error in validator.iter_errors(answer.json())]
    return f"{answer.status_code} {answer.text}: {faults}" if faults else None
