"""The registry: change messages that announce which streams exist.

They follow the State Protocol as upstream's own tools read it: one `stream` entity per name.
"""

from __future__ import annotations

import orjson

from headrace.protocol.json_mode import response_body
from headrace.protocol.stream import StreamState


def announce_created(state: StreamState) -> bytes:
    return orjson.dumps(
        {
            "type": "stream",
            "key": state.name,
            "value": {
                "path": state.name,
                "contentType": state.config.content_type,
                "createdAt": state.created_at_ms,
            },
            "headers": {"operation": "insert"},
        }
    )


def announce_deleted(name: str) -> bytes:
    return orjson.dumps({"type": "stream", "key": name, "headers": {"operation": "delete"}})


def note_announced(names: set[str], data: bytes) -> None:
    """Bring `names` up to date with a range of the registry's log."""
    for message in orjson.loads(response_body(data)):
        if message["headers"]["operation"] == "delete":
            names.discard(message["key"])
        else:
            names.add(message["key"])
