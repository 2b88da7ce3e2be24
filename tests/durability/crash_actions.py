"""What clients of the crash machine do, at random: every kind of change that is ever stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING

from headrace.limits import Limits
from headrace.protocol.expiry import FOREVER, Lifetime
from headrace.protocol.offsets import Position
from headrace.protocol.producers import ProducerHeaders
from headrace.protocol.requests import Append, Create, ForkRequest
from headrace.protocol.trims import Trim
from headrace.subscriptions.manager import SubscriptionManager
from headrace.subscriptions.model import Ack, SubscriptionKind, WorkerAnswer
from headrace.subscriptions.requests import parse_config

if TYPE_CHECKING:
    from tests.durability.crash_machine import Machine

NAMES = ["a", "b", "c", "d"]
DEPTH_MAX = Limits().fork_depth_max
DEEP = [f"deep/{number}" for number in range(DEPTH_MAX + 2)]  # one more than may be
DEEPER = 24
BUCKET = "bucket"
BUCKETED = [f"/{BUCKET}/a", f"/{BUCKET}/b", f"/{BUCKET}/c"]
TYPES = ["text/plain", "application/json", "application/octet-stream"]
SUBSCRIPTION = {"type": "pull-wake", "pattern": "*", "wake_stream": "d"}
BASE_URL = "http://server.example"


def random_body(random: Random) -> bytes:
    size = random.choice((1, 5, 20, 60, 300))
    if random.random() < 0.4:
        return (
            b"[" + b",".join(b"%d" % random.randrange(10**6) for _ in range(size // 8 + 1)) + b"]"
        )
    return b"%d" % random.randrange(10**size)


def do_create(machine: Machine, name: str) -> None:
    random = machine.random
    lifetime = Lifetime(ttl_secs=1) if random.random() < 0.2 else FOREVER
    body = random_body(random) if random.random() < 0.5 else b""
    closed = random.random() < 0.05
    machine.create(name, Create(body, random.choice(TYPES), lifetime, closed))


def do_append(machine: Machine, name: str) -> None:
    random = machine.random
    seq = b"%06d" % random.randrange(10**6) if random.random() < 0.1 else None
    close = random.random() < 0.03
    machine.append(name, Append(random_body(random), close=close, stream_seq=seq))


def do_produce(machine: Machine, name: str) -> None:
    random = machine.random
    producer = random.choice((b"p", b"q"))
    seq = machine.seq_of(name, producer)
    seq = max(0, seq + random.choice((0, 0, 0, 0, -1, -2, -5, 1)))
    epoch = random.choice((0, 0, 0, 0, 0, 1))
    machine.append(
        name, Append(random_body(random), producer=ProducerHeaders(producer, epoch, seq))
    )


def do_fork(machine: Machine, name: str) -> None:
    source = machine.random.choice(BUCKETED if name in BUCKETED else NAMES)
    request = ForkRequest(source, None, machine.random.choice((0, 0, 1, 3)))
    machine.create(name, Create(fork=request), source)


def do_chain(machine: Machine, name: str) -> None:
    """A chain of forks, each of the one before it, on one of which the next chain may go on."""
    names = machine.random.sample(NAMES, len(NAMES))
    for source, fork in pairwise(names):
        machine.create(fork, Create(fork=ForkRequest(source, None, 0)), source)


def do_deepen(machine: Machine, name: str) -> None:
    """One long chain, two dozen forks longer each time; past the limit of depth half of it goes."""
    at = max((n for n, one in enumerate(DEEP) if one in machine.engine.streams), default=None)
    if at is None:
        machine.create(DEEP[0], Create(random_body(machine.random), "text/plain"))
        return
    if at >= DEPTH_MAX:
        for one in machine.random.sample(DEEP, len(DEEP) // 2) + DEEP[at:]:
            machine.delete(one)
        return
    for source, fork in pairwise(DEEP[at : at + DEEPER + 1]):
        machine.create(fork, Create(fork=ForkRequest(source, None, 0)), source)
        machine.append(fork, Append(b"%d" % machine.random.randrange(100)))


def do_close(machine: Machine, name: str) -> None:
    machine.append(name, Append(b"", close=True))


def do_publish(machine: Machine, name: str) -> None:
    """At the tail, visible or not, or at a place that need not be a boundary."""
    stream = machine.engine.streams.get(name)
    if stream is None or name not in BUCKETED:
        return
    random, state = machine.random, stream.state
    offset = random.choice((state.tail, state.tail, stream.visible, state.trim_offset))
    machine.publish(name, offset, random_body(random))


def do_trim(machine: Machine, name: str) -> None:
    """To the tail, visible or not, to a place that need not be a boundary, or by number."""
    stream = machine.engine.streams.get(name)
    if stream is None:
        return
    random, state = machine.random, stream.state
    if random.random() < 0.3:
        machine.trim(name, Trim(name, keep_messages=random.randrange(1, 8)))
        return
    somewhere = random.randrange(state.tail.messages + 1), random.randrange(state.tail.bytes + 1)
    offset = random.choice((state.tail, stream.visible, state.trim_offset, Position(*somewhere)))
    machine.trim(name, Trim(name, offset))


def do_bucket(machine: Machine, name: str) -> None:
    if machine.random.random() < 0.6:
        machine.create_bucket(BUCKET)
        return
    for one in BUCKETED:
        if machine.random.random() < 0.8:
            machine.delete(one)
    machine.delete_bucket(BUCKET)


def do_keep(machine: Machine, name: str) -> None:
    random = machine.random
    names = random.sample(NAMES, random.randrange(1, 4))
    machine.keep({one: random_body(random) if random.random() < 0.8 else None for one in names})


def do_control(machine: Machine, name: str) -> None:
    """Create, claim, acknowledge, release, delete: with a claim that may be long out of date."""
    machine.control(
        machine.random.choice((_put, _put, _claim, _claim, _ack, _release, _delete))(machine)
    )


def _put(machine: Machine) -> Callable[[SubscriptionManager], None]:
    def act(manager: SubscriptionManager) -> None:
        manager.put("s", parse_config(SUBSCRIPTION), BASE_URL)

    return act


def _claim(machine: Machine) -> Callable[[SubscriptionManager], None]:
    return lambda manager: machine.claims.append(manager.claim("s", "worker"))


def _answer(machine: Machine) -> tuple[str, WorkerAnswer]:
    claim = machine.random.choice(machine.claims[-2:])
    acks = tuple(
        Ack(one["path"], machine.engine.streams[one["path"]].visible)
        for one in claim["streams"]
        if one["path"] in machine.engine.streams
    )
    done = machine.random.random() < 0.5
    return claim["token"], WorkerAnswer(claim["wake_id"], claim["generation"], acks, done)


def _ack(machine: Machine) -> Callable[[SubscriptionManager], None]:
    def act(manager: SubscriptionManager) -> None:
        if machine.claims:
            manager.answer("s", SubscriptionKind.PULL_WAKE, *_answer(machine))

    return act


def _release(machine: Machine) -> Callable[[SubscriptionManager], None]:
    def act(manager: SubscriptionManager) -> None:
        if machine.claims:
            manager.release("s", *_answer(machine))

    return act


def _delete(machine: Machine) -> Callable[[SubscriptionManager], None]:
    return lambda manager: manager.delete("s")


def do_sweep(machine: Machine, name: str) -> None:
    machine.engine.housekeeping.run()
    machine.engine.maintenance.run()


def do_wait(machine: Machine, name: str) -> None:
    machine.clock.advance(ms=1500)
    machine.engine.housekeeping.run()
    machine.engine.maintenance.run()


Action = Callable[["Machine", str], None]
STREAM_ACTIONS: Sequence[tuple[int, Action]] = [
    (4, do_create),
    (40, do_append),
    (20, do_produce),
    (6, do_fork),
    (1, do_close),
    (6, lambda machine, name: machine.delete(name)),
    (8, lambda machine, name: machine.read(name)),
    (4, do_keep),
    (12, do_sweep),
    (1, do_wait),
]
TROUBLED_ACTIONS: Sequence[tuple[int, Action]] = [(6, do_chain), (6, do_deepen)]
ACTIONS: Sequence[tuple[int, Action]] = [
    *STREAM_ACTIONS,
    (8, do_publish),
    (6, do_trim),
    (4, lambda machine, name: machine.read_snapshot(name)),
    (3, do_bucket),
    (6, do_control),
]


def _choose(random: Random, actions: Sequence[tuple[int, Action]]) -> Action:
    [(_, act)] = random.choices(actions, [weight for weight, _ in actions])
    return act


def _or_create(machine: Machine, name: str, act: Action) -> Action:
    """Most of what is done to a stream that is not there is to make it."""
    if name not in machine.engine.streams and machine.random.random() < 0.8:
        return machine.random.choice((do_create, do_fork))
    return act


def stream_action(machine: Machine) -> None:
    """Streams without buckets, snapshots and subscriptions: what older seeds were found with."""
    act = _choose(machine.random, STREAM_ACTIONS)
    name = machine.random.choice(NAMES)
    _or_create(machine, name, act)(machine, name)


def any_action(machine: Machine) -> None:
    more = TROUBLED_ACTIONS if machine.trouble is not None else []
    act = _choose(machine.random, [*ACTIONS, *more])
    name = machine.random.choice(BUCKETED if act is do_publish else NAMES + BUCKETED)
    if name in BUCKETED and f"/{BUCKET}" not in machine.engine.streams:
        machine.create_bucket(BUCKET)
    _or_create(machine, name, act)(machine, name)
