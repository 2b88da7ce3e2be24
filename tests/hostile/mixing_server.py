"""A server that now and then gives an append the answer of the append before: a mutant.

That one may be anybody's. It is what a test of honest tenants must notice.
"""

from __future__ import annotations

import os
from pathlib import Path

from headrace.cli import main
from headrace.engine.engine import AppendOutcome
from headrace.http.handlers import streams
from headrace.protocol.responses import Response, append_answer
from headrace.testing.server_process import ServerProcess

EVERY = 20

_given: list[Response] = []


class MixingServer(ServerProcess):
    module = "tests.hostile.mixing_server"

    def __init__(self, cwd: str) -> None:
        paths = (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", ""))
        super().__init__({"PYTHONPATH": os.pathsep.join(filter(None, paths))}, cwd=cwd)


def mixed_answer(outcome: AppendOutcome) -> Response:
    _given.append(append_answer(outcome))
    return _given[-2 if len(_given) % EVERY == 0 else -1]


if __name__ == "__main__":
    streams.append_answer = mixed_answer  # type: ignore[attr-defined]
    main()
