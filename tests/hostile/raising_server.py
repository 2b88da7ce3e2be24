"""A server with a defect: an append to a stream of the hostile tenant raises after it is committed.

The append's own request is answered 500, once. What its commit has to say later is nobody's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from headrace.cli import main
from headrace.engine.engine import AppendOutcome, Engine
from headrace.engine.stream_runtime import Stream
from headrace.protocol.requests import Append
from headrace.testing.server_process import ServerProcess

_append = Engine.append


class RaisingServer(ServerProcess):
    module = "tests.hostile.raising_server"

    def __init__(self, env: Mapping[str, str], cwd: str) -> None:
        paths = (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", ""))
        path = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
        super().__init__({**env, **path}, cwd=cwd)


def append(
    self: Engine, stream: Stream, command: Append, reply: Callable[[AppendOutcome], None]
) -> None:
    _append(self, stream, command, reply)
    if stream.state.name.startswith("hostile/"):
        raise RuntimeError("a defect, after the commit")


if __name__ == "__main__":
    Engine.append = append  # type: ignore[method-assign]
    main()
