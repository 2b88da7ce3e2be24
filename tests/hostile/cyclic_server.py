"""A server whose garbage collector runs when it is asked to, and says what it found.

`GET /v1/stream/__ds/streams?name=cycles` collects everything and answers with how many objects of
each of our types only the collector could free: those that refer to themselves, over others.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from pathlib import Path
from types import CoroutineType, FrameType, FunctionType, GeneratorType, MethodType

from headrace.cli import main
from headrace.http import process_memory
from headrace.http.handlers.stream_metadata import Document, StreamMetadata
from headrace.testing.server_process import ServerProcess

_many = StreamMetadata._many


class CyclicServer(ServerProcess):
    module = "tests.hostile.cyclic_server"

    def __init__(self, env: dict[str, str], cwd: str) -> None:
        paths = (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", ""))
        super().__init__(env | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}, cwd=cwd)


def collect_never() -> None:
    gc.collect()
    gc.freeze()
    gc.disable()


def found_in_cycles() -> Counter[str]:
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    found = Counter(filter(None, map(origin, gc.garbage)))
    gc.set_debug(0)
    gc.garbage.clear()
    gc.collect()  # what was kept to be looked at is garbage still
    return found


def origin(thing: object) -> str | None:
    """Which of our code made it."""
    match thing:
        case FunctionType():
            module, name = thing.__module__ or "", thing.__qualname__
        case MethodType():
            return None  # its object is counted
        case CoroutineType():
            module, name = _module(thing.cr_code.co_filename), thing.__qualname__
        case GeneratorType():
            module, name = _module(thing.gi_code.co_filename), thing.__qualname__
        case FrameType():
            module, name = _module(thing.f_code.co_filename), thing.f_code.co_qualname
        case BaseException():
            module, name = "headrace", f"exception {type(thing).__name__}"
        case _:
            kind = type(thing)
            module, name = kind.__module__, kind.__qualname__
    return f"{module}.{name}" if module.startswith(("headrace", "uvloop")) else None


def _module(path: str) -> str:
    return "headrace" if "/headrace/" in path else ""


def many(self: StreamMetadata, wanted: list[str]) -> Document:
    if wanted == ["cycles"]:
        return dict(found_in_cycles())
    return _many(self, wanted)


if __name__ == "__main__":
    process_memory.tune_gc = collect_never
    StreamMetadata._many = many  # type: ignore[method-assign]
    main()
