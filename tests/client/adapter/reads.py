"""A read of the harness: so many chunks, or until caught up, or until its time is over."""

from __future__ import annotations

import json
import threading
from base64 import b64encode
from dataclasses import dataclass, field
from typing import Any

from headrace.client import Chunk, Reader
from headrace.client.chunk_views import parse_json

TIMEOUT_MS = 5000
CHUNKS_MAX = 100


@dataclass
class Found:
    chunks: list[dict[str, Any]] = field(default_factory=list)
    timed_out: bool = False


def collect(reader: Reader, command: dict[str, Any], *, as_json: bool) -> Found:
    found = Found()

    def end() -> None:
        found.timed_out = True
        reader.close()

    deadline = threading.Timer((command.get("timeoutMs") or TIMEOUT_MS) / 1000, end)
    deadline.start()
    try:
        for chunk in reader:
            if chunk.data and (shown := _shown(reader, chunk, as_json)):
                found.chunks.append(shown)
            if len(found.chunks) >= (command.get("maxChunks") or CHUNKS_MAX):
                break
            if command.get("waitForUpToDate") and chunk.up_to_date:
                break
    finally:
        deadline.cancel()
    return found


def _shown(reader: Reader, chunk: Chunk, as_json: bool) -> dict[str, Any] | None:
    if as_json:
        items = parse_json("the server", chunk.data)
        text = json.dumps(items, separators=(",", ":"), ensure_ascii=False)
        return {"data": text, "offset": chunk.next_offset} if items else None
    try:
        return {"data": chunk.data.decode("utf-8"), "offset": chunk.next_offset}
    except UnicodeDecodeError:
        encoded = b64encode(chunk.data).decode("ascii")
        return {"data": encoded, "binary": True, "offset": chunk.next_offset}
