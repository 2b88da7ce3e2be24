"""What the tests of sessions and of kills both say and read."""

from __future__ import annotations

from typing import Any

import httpx

from headrace.testing.following import catch_up

JSON = {"Content-Type": "application/json"}


def event(key: str, kind: str = "message", operation: str = "set", **value: Any) -> dict[str, Any]:
    return {"key": key, "type": kind, "operation": operation, "value": value}


def read_all(client: httpx.Client, stream: str) -> list[dict[str, Any]]:
    """Every message of a stream; none where there is no stream yet."""
    path = f"/v1/stream/{stream}"
    if client.head(path).status_code == 404:
        return []
    return [message for answer in catch_up(client, path) for message in answer.json()]
