"""Damage to what is stored in the file modes: every bit, every cut, every swap, every file.

Whatever is done to a small data directory, a server either refuses it, or says which stream is
damaged, or serves exactly what was stored; and `verify` reports whatever a server stumbles over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from random import Random

from headrace.errors import Corrupt, DirectoryMismatch
from headrace.protocol.producers import ProducerHeaders
from headrace.protocol.requests import Append, Create, ForkRequest
from headrace.storage.base import Recovered
from headrace.storage.file.file_storage import FileStorage
from headrace.storage.file.verify_files import verify_files
from headrace.testing.simulated_disk import SimulatedDisk
from headrace.testing.simulated_loop import SimulatedLoop
from tests.durability.crash_machine import LIMITS, Machine, Violation
from tests.durability.crash_model import Described, describe_recovered

SEGMENT_BYTES = 700
BLOCK_BYTES = 16  # of a swap: small, so that it falls inside records and across them
Damage = tuple[str, Callable[[dict[str, bytearray]], None]]


def small_directory() -> SimulatedDisk:
    """Streams in files, in the journal and in both, forked and closed, after a kill and a start."""
    machine = Machine(3, streams_only=True)
    machine.segment_bytes = SEGMENT_BYTES
    machine.start()
    for name, kind in (("a", "text/plain"), ("b", "application/json")):
        machine.create(name, Create(b"", kind))
    for number in range(12):
        machine.append("a", Append(b"%d" % number * (1 + number % 5)))
        machine.append("b", Append(b"[%d,22]" % number, producer=ProducerHeaders(b"p", 0, number)))
        machine.loop.run()
    machine.keep({"note": b"kept"})
    machine.engine.housekeeping.run()
    machine.loop.run()
    machine.create("c", Create(b"", fork=ForkRequest("a", None, 0)), "a")
    machine.loop.run()
    machine.append("c", Append(b"own"))
    machine.append("a", Append(b"last", close=True))
    machine.loop.run()
    machine.disk.kill()
    machine.start()
    return machine.disk.copy()


def look(disk: SimulatedDisk) -> Described:
    """What a server would serve; raises where it refuses the directory or a stream of it."""
    loop = SimulatedLoop(Random(0))
    storage = FileStorage(
        disk, LIMITS, loop.as_loop, sync=True, segment_bytes=SEGMENT_BYTES, worker_factory=loop.lane
    )
    found: list[Recovered] = list(storage.recover())
    return describe_recovered(found, storage.take_documents(), storage.blobs, LIMITS)


def judge(sound: SimulatedDisk, expected: Described, damage: Damage) -> str:
    """`detected` or `harmless`; raises Violation where wrong bytes are served."""
    name, inflict = damage
    disk = sound.copy()
    inflict(disk.files())
    verdict = "harmless"
    try:
        found = look(disk.copy())
    except (Corrupt, DirectoryMismatch, OSError):
        verdict = "detected"
    else:
        if found != expected:
            raise Violation(f"{name}: other bytes are served, and nobody is told")
    if verdict == "detected" and not verify_files(disk).findings:
        raise Violation(f"{name}: a server refuses it, and verify finds nothing")
    return verdict


def flips(files: dict[str, bytearray], bits: Callable[[int], range]) -> Iterator[Damage]:
    """`bits(n)` says which bits of byte n to flip."""
    for name, content in files.items():
        for at in range(len(content)):
            for bit in bits(at):
                yield f"bit {bit} of byte {at} of {name}", partial(_flip, name, at, bit)


def cuts(files: dict[str, bytearray]) -> Iterator[Damage]:
    for name, content in files.items():
        for size in range(len(content)):
            yield f"{name} cut to {size} bytes", partial(_cut, name, size)


def swaps(files: dict[str, bytearray], random: Random, count: int) -> Iterator[Damage]:
    """Two blocks of one file, each in the place of the other."""
    names = [name for name, content in files.items() if len(content) >= 2 * BLOCK_BYTES]
    for _ in range(count):
        name = random.choice(names)
        one, other = random.sample(range(len(files[name]) // BLOCK_BYTES), 2)
        yield f"blocks {one} and {other} of {name} swapped", partial(_swap, name, one, other)


def _flip(name: str, at: int, bit: int, files: dict[str, bytearray]) -> None:
    files[name][at] ^= 1 << bit


def _cut(name: str, size: int, files: dict[str, bytearray]) -> None:
    del files[name][size:]


def _swap(name: str, one: int, other: int, files: dict[str, bytearray]) -> None:
    content = files[name]
    a, b = (slice(n * BLOCK_BYTES, (n + 1) * BLOCK_BYTES) for n in (one, other))
    content[a], content[b] = content[b], content[a]


def is_missed(disk: SimulatedDisk, expected: Described) -> bool:
    """Whether a lost file is noticed, or was not needed; `verify` must notice it, too."""
    try:
        return look(disk.copy()) == expected
    except (Corrupt, OSError):
        return bool(verify_files(disk).findings)
