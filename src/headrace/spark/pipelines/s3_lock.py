"""The lock of a state on S3: an object that its holder renews, and leaves behind if it is killed.

- Free: there is no object, or it says `released`.
- Held: its holder writes it again every few seconds, each time over the tag that it wrote last.
- Abandoned: it stays the same for a whole lease, by the clock of the run that watches, so clocks
  are not compared. On the machine of a holder that was killed it is abandoned at once.

Every write is conditional on the tag it replaces, so of two runs that take an abandoned lock one
fails. A holder that has not renewed it for two thirds of a lease ends its process, because after a
whole one another may write to the state. What a process that was paused for longer still writes
meets the second guard: a sink takes each batch of a query once, and Spark's checkpoint refuses a
batch that is planned already.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import msgspec

from headrace.spark.object_store import ConditionFailed, S3Path
from headrace.spark.pipelines.base import ConfigError

LEASE_SECS: Final = 30.0
_RENEWALS: Final = 6  # per lease
_EXIT_FAILED: Final = 1
_NO_SUCH_TAG: Final = '"00000000000000000000000000000000"'


class Holder(msgspec.Struct, frozen=True):
    """A process, so that another on the same machine can tell whether it still runs."""

    host: str
    pid: int
    machine: str = ""  # since it was booted; empty where the system does not say
    namespace: str = ""  # of process ids: containers on one machine have the same ids
    started: str = ""  # of two processes with the same id

    @classmethod
    def this(cls) -> Holder:
        machine = namespace = ""
        with suppress(OSError):
            machine = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
            namespace = os.readlink("/proc/self/ns/pid")
        return cls(socket.gethostname(), os.getpid(), machine, namespace, _started(os.getpid()))

    def has_ended(self) -> bool:
        """Whether it is certain that it does not run any more."""
        here = Holder.this()
        is_known = bool(self.machine and self.namespace and self.started)
        is_here = (self.machine, self.namespace) == (here.machine, here.namespace)
        return is_known and is_here and _started(self.pid) != self.started


class _Body(msgspec.Struct, frozen=True):
    token: str  # of one holding; a process may have several
    beat: int  # makes every write another object
    released: bool
    holder: Holder


class S3Lock:
    """Use it as a context manager. ConfigError if another run holds the lock."""

    def __init__(
        self,
        path: S3Path,
        *,
        lease_secs: float = LEASE_SECS,
        on_lost: Callable[[str], None] | None = None,
    ) -> None:
        self._path = path
        self._lease_secs = lease_secs
        self._renew_secs = lease_secs / _RENEWALS
        self._on_lost = on_lost or _end_process
        self._token = uuid.uuid4().hex
        self._beat = 0
        self._tag = ""
        self._stopping = threading.Event()
        self._renewing = threading.Thread(target=self._renew, name="s3-lock", daemon=True)

    def __enter__(self) -> Self:
        self._acquire()
        self._refuse_unconditional()
        self._renewing.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self._renewing.join()
        with suppress(OSError):  # then the next run waits for a lease
            self._write(self._tag, released=True)

    def _acquire(self) -> None:
        if self._write(None):
            return
        watched, since = "", 0.0
        while True:
            body, tag = self._read()
            is_over = watched == tag and time.monotonic() - since >= self._lease_secs
            if body.released or body.holder.has_ended() or is_over:
                if self._write(tag):
                    return
                watched = ""  # somebody else was faster
            elif not watched:
                watched, since = tag, time.monotonic()
            elif tag != watched:
                raise ConfigError(
                    f"{self._path.parent} is in use by the process {body.holder.pid} on "
                    f"{body.holder.host}. Stop that run, or give this one another --state."
                )
            self._stopping.wait(self._renew_secs)

    def _refuse_unconditional(self) -> None:
        """A server that ignores conditions would give the lock to everyone."""
        for tag in (None, _NO_SUCH_TAG):
            try:
                self._tag = self._path.write_if(tag, self._body(released=False))
            except ConditionFailed:
                continue
            raise ConfigError(
                f"{self._path}: this server ignores the conditions of a write (If-None-Match, "
                "If-Match), which the lock of a state needs. Use a --state on a disk."
            )

    def _renew(self) -> None:
        renewed = time.monotonic()
        while not self._stopping.wait(self._renew_secs):
            begun, problem = time.monotonic(), ""
            try:
                if not self._write(self._tag):
                    self._on_lost(f"another run has taken {self._path}")
                    return
                renewed = begun
            except OSError as error:
                problem = str(error)
            if time.monotonic() - renewed > self._lease_secs * 2 / 3:
                self._on_lost(f"the lock could not be renewed: {problem}")
                return

    def _write(self, tag: str | None, *, released: bool = False) -> bool:
        """Whether the lock is ours after it."""
        self._beat += 1
        try:
            self._tag = self._path.write_if(tag, self._body(released=released))
        except ConditionFailed:
            # Or else it is what this lock has written, and the answer was lost.
            try:
                body, found = self._read()
            except FileNotFoundError:
                return False
            if body.token != self._token:
                return False
            self._tag = found
        return True

    def _read(self) -> tuple[_Body, str]:
        data, tag = self._path.read_tagged()
        try:
            return msgspec.json.decode(data, type=_Body), tag
        except msgspec.DecodeError as error:
            raise ConfigError(f"{self._path} is not a lock: {error}. Delete it.") from None

    def _body(self, *, released: bool) -> bytes:
        return msgspec.json.encode(_Body(self._token, self._beat, released, Holder.this()))


def _started(pid: int) -> str:
    """When a process was started, in ticks since the machine was; empty if there is none."""
    try:
        # The second field, the program's name, may have spaces and brackets in it.
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _end_process(reason: str) -> None:
    """At once: Java and its workers end with this process."""
    print(f"The state is no longer ours: {reason}.", file=sys.stderr, flush=True)
    os._exit(_EXIT_FAILED)
