"""Damage to a small acid directory, one at a time; LMDB may end the process that looks.

Run as a program it inflicts what standard input says (`bit N`, `cut N`), one line each, on copies
of a directory, and prints what a server would make of it. Whoever started it goes on with the
next line when it dies.
"""

from __future__ import annotations

import pickle
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from headrace.engine.engine import Engine
from headrace.errors import Corrupt
from headrace.protocol.producers import ProducerHeaders
from headrace.protocol.requests import Append, Create
from headrace.storage.acid.acid_storage import AcidStorage
from headrace.testing.simulated_loop import SimulatedLoop
from headrace.testing.virtual_clock import VirtualClock
from tests.durability.crash_machine import LIMITS
from tests.durability.crash_model import Described, describe_recovered

PAGE_BYTES = 4096
PAGE_HEADER_BYTES = 16
DATA = "acid/shard-000/data.mdb"


def make(directory: Path, shard_count: int = 1) -> Described:
    """A few streams, written in many transactions; what a look at them finds."""
    loop = SimulatedLoop(Random(1))
    storage = AcidStorage(directory, shard_count, loop.as_loop, loop.lane)
    engine = Engine(storage, VirtualClock(), LIMITS)
    answers: list[Any] = []
    for name in ("a", "b", "c"):
        engine.create(name, Create(b"[1]", "application/json"), answers.append)
        loop.run()
    for number in range(30):
        stream = engine.find("abc"[number % 3])
        claim = ProducerHeaders(b"p", 0, number // 3)
        engine.append(stream, Append(b"[%d]" % number, producer=claim), answers.append)
        loop.run()
    engine.close()
    return look(directory, shard_count)


def look(directory: Path, shard_count: int = 1) -> Described:
    loop = SimulatedLoop(Random(1))
    storage = AcidStorage(directory, shard_count, loop.as_loop, loop.lane)
    try:
        found = list(storage.recover())
        return describe_recovered(found, storage.take_documents(), storage.blobs, LIMITS)
    finally:
        storage.close()


def verdict(directory: Path, expected: Described) -> str:
    """`wrong` is what must never be: a stream that is there and holds other bytes."""
    try:
        found = look(directory)
    except Corrupt:
        return "detected"
    if found == expected:
        return "harmless"
    for stream_id, described in found.streams.items():
        wanted = expected.streams.get(stream_id)
        if wanted is None or not wanted[-2].startswith(described[-2]):
            return "wrong"
    return "older or missing"


def misplaced_nodes(content: bytes, stream_ids: Iterable[int]) -> Iterator[bytes]:
    """In one page with a stream, one after the other: the first node is said to be far off.

    It is then some 60 KiB further on than its page, and so behind the end of a small file.
    """
    keys = [stream_id.to_bytes(8, "big") for stream_id in stream_ids]
    for page in range(2 * PAGE_BYTES, len(content), PAGE_BYTES):
        if any(key in content[page : page + PAGE_BYTES] for key in keys):
            damaged = bytearray(content)
            damaged[page + PAGE_HEADER_BYTES + 1] |= 0xF0
            yield bytes(damaged)


def inflict(path: Path, content: bytes, line: str) -> None:
    kind, number = line.split()
    if kind == "cut":
        path.write_bytes(content[: int(number)])
        return
    at, bit = divmod(int(number), 8)
    damaged = bytearray(content)
    damaged[at] ^= 1 << bit
    path.write_bytes(damaged)


def main(sound: Path, work: Path) -> None:
    expected: Described = pickle.loads((sound.parent / "expected").read_bytes())
    content = (sound / DATA).read_bytes()
    for line in sys.stdin:
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(sound, work)
        inflict(work / DATA, content, line)
        print(verdict(work, expected), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
