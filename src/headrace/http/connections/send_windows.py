"""Answers that clients have not taken yet: cut into windows, and counted in one budget.

Everything large that waits for a client is counted here, once, however many clients share it. Past
the budget no large answer is begun, live readers wait with their position only, and clients that
take too little for too long are cut off. Small answers, health probes among them, go out always.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final, Protocol

from headrace.errors import Overloaded
from headrace.faults import Faultable, hand_over, internal_fault
from headrace.http.exchange import Frame
from headrace.protocol import sse

UNSENT_BYTES_MAX: Final = 256 * 1024 * 1024
# An answer up to this size goes out in one write and is not refused.
SMALL_ANSWER_BYTES: Final = 64 * 1024
# In two windows instead of one, an answer of 1 MiB takes a fifth longer; TLS holds one per client.
ANSWER_WINDOW_BYTES: Final = 1024 * 1024
# What the kernel takes of it from a client that reads nothing: see `acceptor`, and a last segment.
IN_KERNEL_BYTES: Final = 256 * 1024
EVENT_WINDOW_BYTES: Final = 32 * 1024  # with the kernel's buffer, what a stalled reader costs
# While the budget is exceeded, a client must take this much on average, after a grace.
TAKEN_BYTES_PER_SEC_MIN: Final = 64 * 1024
GRACE_SECS: Final = 5.0
_WOKEN_TOGETHER: Final = 4
_WOKEN_EVERY_SECS: Final = 0.02


class Holder(Protocol):
    """An owner of unsent bytes for one client."""

    def on_cut(self) -> None:
        """The client is too slow: release everything that is kept for it."""
        ...


class Waiting(Faultable, Protocol):
    """An owner of a large answer that waits for room in the budget."""

    def on_room(self) -> None: ...


class UnsentBudget:
    """Bytes that wait for clients, all of them together."""

    def __init__(self, loop: asyncio.AbstractEventLoop, bytes_max: int = UNSENT_BYTES_MAX) -> None:
        self._loop = loop
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self.is_exceeded = False
        self.cut_count = 0
        # When each client would be if it had taken all it was given at the least rate.
        self._paid_until: dict[Holder, float] = {}
        self._waiting: OrderedDict[Waiting, None] = OrderedDict()
        self._waking = False
        self._bodies: dict[int, int] = {}  # how many answers share the object with this id

    def add(self, count: int) -> None:
        self.used_bytes += count
        self.is_exceeded = self.used_bytes > self.bytes_max

    def remove(self, count: int) -> None:
        self.used_bytes -= count
        self.is_exceeded = self.used_bytes > self.bytes_max
        if self._waiting and not self.is_exceeded and not self._waking:
            self._waking = True
            self._loop.call_soon(self._wake)

    def add_body(self, body: bytes) -> None:
        """For one more client. One append is the answer to all who wait for it: one object."""
        sharing = self._bodies.get(id(body), 0)
        self._bodies[id(body)] = sharing + 1
        # Counted for each client in full, 90 healthy long-polls of 3 MB refused the 91st, though
        # all were sent one object.
        self.add(min(len(body), IN_KERNEL_BYTES) + (0 if sharing else len(body)))

    def remove_body(self, body: bytes) -> None:
        sharing = self._bodies.pop(id(body)) - 1
        if sharing:
            self._bodies[id(body)] = sharing
        self.remove(min(len(body), IN_KERNEL_BYTES) + (0 if sharing else len(body)))

    def refusal(self) -> Overloaded:
        return Overloaded("bytes of answers not yet taken", self.bytes_max)

    # -- waiting for room ------------------------------------------------------------------

    def wait(self, waiting: Waiting) -> None:
        """Call `on_room` once, when there is room again; first come, first served."""
        self._waiting[waiting] = None

    def leave(self, waiting: Waiting) -> None:
        self._waiting.pop(waiting, None)

    def _wake(self) -> None:
        """A few at a time: what they take counts when it has been read, which may be later."""
        for _ in range(_WOKEN_TOGETHER):
            if not self._waiting or self.is_exceeded:
                break
            waiting, _ = self._waiting.popitem(last=False)
            try:
                waiting.on_room()
            except Exception:
                hand_over(waiting.on_fault, internal_fault("sending what waited for room"))
        self._waking = bool(self._waiting) and not self.is_exceeded
        if self._waking:
            self._loop.call_later(_WOKEN_EVERY_SECS, self._wake)

    # -- holders of unsent bytes ----------------------------------------------------------

    def begin(self, holder: Holder) -> None:
        """Something large is on its way to a client."""
        self._paid_until[holder] = self._loop.time()

    def taken(self, holder: Holder, count: int) -> None:
        """The client has taken so much of it. What it took early it cannot save up."""
        paid_until = self._paid_until.get(holder)
        if paid_until is not None:
            paid_until += count / TAKEN_BYTES_PER_SEC_MIN
            self._paid_until[holder] = min(paid_until, self._loop.time())

    def end(self, holder: Holder) -> None:
        self._paid_until.pop(holder, None)

    def cut_slowest(self) -> None:
        """Called about once a second: past the budget, those furthest behind are cut off.

        Until half of it is free: or the next of their kind would take what was gained.
        """
        if not self.is_exceeded:
            return
        late = self._loop.time() - GRACE_SECS
        behind = sorted(self._paid_until.items(), key=lambda item: item[1])
        for holder, paid_until in behind:
            if paid_until > late or self.used_bytes <= self.bytes_max // 2:
                return
            self.cut_count += 1
            self.end(holder)
            holder.on_cut()


class LargeAnswer:
    """The body of one answer on its way to one client, counted until the client has taken it."""

    def __init__(self, body: bytes, budget: UnsentBudget, holder: Holder) -> None:
        self._rest = memoryview(body)
        self._body: bytes | None = body
        self._budget = budget
        self._holder = holder
        self._untaken_bytes = 0  # of the window under way
        budget.add_body(body)
        budget.begin(holder)

    @property
    def rest_bytes(self) -> int:
        """What the transport does not have yet."""
        return len(self._rest)

    def window(self) -> memoryview:
        """The next part; asked for when the client has taken the one before."""
        self._budget.taken(self._holder, self._untaken_bytes)
        window, self._rest = self._rest[:ANSWER_WINDOW_BYTES], self._rest[ANSWER_WINDOW_BYTES:]
        self._untaken_bytes = len(window)
        return window

    def note_unsent(self, unsent_bytes: int) -> None:
        """The transport still has so much: a slow client may take longer than the grace for one."""
        left_bytes = min(unsent_bytes, self._untaken_bytes)
        self._budget.taken(self._holder, self._untaken_bytes - left_bytes)
        self._untaken_bytes = left_bytes

    def release(self) -> None:
        """The transport has released it, too."""
        self._budget.end(self._holder)
        body, self._body = self._body, None
        if body is not None:
            self._budget.remove_body(body)


class SharedEvent:
    """One large data event: kept and counted once for all readers, encoded as far as one took it.

    So an event that no reader takes costs little time.
    """

    def __init__(self, payload: bytes, budget: UnsentBudget) -> None:
        self._payload = payload
        self._payload_at = 0
        self._encoded = bytearray()
        self._budget = budget
        self._counted_bytes = 0
        self._readers = 0
        self._last_at = -1
        self._last = Frame(b"")

    def acquire(self) -> None:
        self._readers += 1
        self._count()

    def release(self) -> None:
        self._readers -= 1
        if not self._readers:
            self._budget.remove(self._counted_bytes)
            self._counted_bytes = 0

    def _count(self) -> None:
        held_bytes = len(self._payload) + len(self._encoded)
        self._budget.add(held_bytes - self._counted_bytes)
        self._counted_bytes = held_bytes

    def window(self, at: int) -> Frame:
        """A part of it, for as many readers as ask for the same one in a row."""
        if at != self._last_at:
            end = at + EVENT_WINDOW_BYTES
            self._encode(end)
            self._last_at = at
            self._last = Frame(bytes(self._encoded[at:end]))
        return self._last

    def _encode(self, end: int) -> None:
        if len(self._encoded) >= end or self._payload_at == len(self._payload):
            return
        while len(self._encoded) < end and self._payload_at < len(self._payload):
            part, self._payload_at = sse.data_event_part(
                self._payload, self._payload_at, EVENT_WINDOW_BYTES
            )
            self._encoded += part
        self._count()

    def is_over(self, at: int) -> bool:
        """Whether `at` is the end of it."""
        return self._payload_at == len(self._payload) and at >= len(self._encoded)
