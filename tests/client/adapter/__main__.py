"""The adapter for upstream's client conformance harness: JSON lines in, JSON lines out.

`python -m tests.client.adapter sync|async`, started by the harness (see docs/client.md). It uses
nothing but the public interface of `headrace.client`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from headrace.client import Client, Retry
from tests.client.adapter.commands import Adapter
from tests.client.awaited import awaited_client

RETRY = Retry(retries_max=6, delay_ms=20, delay_max_ms=500)


def main() -> None:
    make = awaited_client if sys.argv[1] == "async" else Client

    def connect(url: str, **settings: Any) -> Client:
        return make(url, retry=RETRY, **settings)

    adapter = Adapter(connect, sys.argv[1])
    for line in sys.stdin:
        if line.strip():
            command = json.loads(line)
            print(json.dumps(adapter.answer(command)), flush=True)
            if command["type"] == "shutdown":
                return


main()
