"""The supervisor: starts services in the order of their needs, watches them, and ends them all.

Theory of operation. One loop on one thread; only health checks run on others. Each service is in
one of these states, which are also the words in `stack.json` and `headrace stack status`:

    waiting      until the services it needs are ready                  then starting
    starting     its process runs, no health check has passed yet       running; if it dies,
                                                                        backing off
    running      ready                                                  if it dies, or is unhealthy
                                                                        for a minute and was ended:
                                                                        backing off
    backing off  0.25 s, doubling to 30 s; from the beginning once      starting
                 it ran for a minute
    done         a one-shot service that exited with 0                  for ever

Needs order the first start only: a service goes on while one that it needs is started again, on the
same port. A service that never became ready in five starts ends the whole stack, since a wrong
configuration does not heal; one that was ready before is started again for ever.

Identity. A pid is reused, so no signal is sent by pid alone: a process is a pid with its start time
(`processes.Identity`). What a service starts is in its session or carries the stack's mark in its
environment. When the leader of a session has died, what is left of the session is killed before
the service starts again: a child could still hold its port or files.

The end, in this order, so that nothing loses what it needs before its own end:

    1. every service that no other needs gets its stop signal, all at once
    2. in reverse order of start: stop signal, wait `stop_secs`, then SIGKILL to its whole session
    3. SIGKILL to everything with the mark that is still there (daemons with a session of their own)
    4. `stack.json` is removed

If the supervisor itself is killed, the services go on without it. `stack.json` has the mark before
the first start, and each identity within the turn of its start; it is replaced atomically. The
kernel releases the lock on the directory. The next `up` or `down` there ends what the record names,
where the leader still lives, and everything with the mark (`cleanup`); `up` then starts anew.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from headrace.backoff import NO_JITTER, Backoff
from headrace.stack import health_check, processes
from headrace.stack.processes import MARK, Identity
from headrace.stack.services import Service
from headrace.stack.state_directory import Recorded, StackRecord, StateDirectory

TICK_SECS = 0.1
HEALTH_EVERY_SECS = 5.0
UNHEALTHY_MAX = 12  # failed checks in a row, a minute: the service is ended and started again
RESTART_SECS = Backoff(0.25, 30.0, jitter=NO_JITTER)
STABLE_SECS = 60.0  # a service that ran this long has no failures counted against it
FIRST_STARTS_MAX = 5  # starts without ever being ready; then the stack fails
LOG_BYTES_MAX = 50 * 1024 * 1024
LOG_TAIL_LINES = 15

Say = Callable[[str], None]


class StackFailed(RuntimeError):
    """The stack did not start; the text names the service and the end of its log."""


class _Supervised:
    """One service while it is supervised."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.record = Recorded(
            service.name,
            address=service.address,
            page=service.page,
            note=service.note,
            health=service.health,
        )
        self.process: subprocess.Popen[bytes] | None = None
        self.leader: Identity | None = None
        self.was_ready = False
        self.starts = 0
        self.started_at = 0.0
        self.next_at = 0.0
        self.failures = 0
        self.bad_checks = 0
        self.is_stopping = False
        self.checking: Future[str] | None = None

    @property
    def is_ready(self) -> bool:
        return self.record.state in ("running", "done")


class Supervisor:
    """Use `run`; `stop` may be called from a signal handler."""

    def __init__(
        self, services: Sequence[Service], profile: str, state: StateDirectory, mark: str, say: Say
    ) -> None:
        identity = processes.identity_of(os.getpid())
        assert identity is not None, "this process lives"
        self._state = state
        self._say = say
        self._supervised = [_Supervised(service) for service in services]
        self._by_name = {supervised.service.name: supervised for supervised in self._supervised}
        records = [supervised.record for supervised in self._supervised]
        self._record = StackRecord(profile, mark, identity, services=records)
        self._stopping = threading.Event()
        self._checks = ThreadPoolExecutor(max_workers=4, thread_name_prefix="health")

    def stop(self) -> None:
        self._stopping.set()

    def run(self, on_ready: Callable[[StackRecord], None]) -> None:
        """Supervise until `stop`; nothing is left when this returns or raises."""
        try:
            self._state.write(self._record)
            while not self._stopping.is_set():
                self._tick()
                if not self._record.ready and all(s.is_ready for s in self._supervised):
                    self._record.ready = True
                    self._write()
                    on_ready(self._record)
                self._stopping.wait(TICK_SECS)
        finally:
            self._end_all()

    def _write(self) -> None:
        self._state.write(self._record)

    def _set(self, supervised: _Supervised, state: str) -> None:
        supervised.record.state = state
        supervised.record.since = time.time()
        self._write()

    # --- one round ---

    def _tick(self) -> None:
        for supervised in self._supervised:
            state = supervised.record.state
            if self._is_due(supervised):
                self._start(supervised)
            elif state in ("starting", "running"):
                self._watch(supervised)
            _bound_log(self._state.log(supervised.service.name))

    def _is_due(self, supervised: _Supervised) -> bool:
        if supervised.record.state == "waiting":
            return self._needs_met(supervised.service)
        return supervised.record.state == "backing off" and time.monotonic() >= supervised.next_at

    def _needs_met(self, service: Service) -> bool:
        return all(self._by_name[name].is_ready for name in service.needs if name in self._by_name)

    def _start(self, supervised: _Supervised) -> None:
        service = supervised.service
        # The mark is in the record since before the first start, so that a supervisor that is
        # killed between here and the next write leaves no process that cannot be found.
        env = {**os.environ, **service.env, MARK: self._record.mark}
        user, group = service.user or (None, None)
        for report in service.reports:
            # Of the run before. A pipeline that was killed once passed for healthy on what its
            # predecessor had reported.
            report.unlink(missing_ok=True)
        with self._state.log(service.name).open("ab") as log:
            process = subprocess.Popen(
                service.argv,
                env=env,
                cwd=service.cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C then reaches the supervisor only, which ends services in their order; and
                # what a service has started is found by its session.
                start_new_session=True,
                user=user,
                group=group,
                extra_groups=[] if service.user else None,
            )
        supervised.process = process
        # None if it has ended already; what it may have started is then found by the mark alone.
        supervised.leader = processes.identity_of(process.pid)
        supervised.started_at = time.monotonic()
        supervised.next_at = 0.0
        supervised.starts += 1
        supervised.bad_checks = 0
        supervised.is_stopping = False
        supervised.checking = None
        supervised.record.pid = process.pid
        supervised.record.started = supervised.leader.started if supervised.leader else None
        self._set(supervised, "starting")

    def _watch(self, supervised: _Supervised) -> None:
        assert supervised.process is not None, "it was started"
        code = supervised.process.poll()
        if code is not None:
            self._ended(supervised, code)
        elif not supervised.service.oneshot:
            self._check(supervised)

    def _ended(self, supervised: _Supervised, code: int) -> None:
        service = supervised.service
        if supervised.leader is not None:  # its children must not hold its port or its files
            processes.end(supervised.leader, service.stop_signal, service.stop_secs)
        supervised.record.pid = supervised.record.started = None
        if service.oneshot and code == 0:
            supervised.was_ready = True
            self._set(supervised, "done")
            return
        # Failures in a row: the pause grows with them, and a first start may fail only so often.
        ran_secs = time.monotonic() - supervised.started_at
        supervised.failures = 0 if ran_secs > STABLE_SECS else supervised.failures + 1
        if not supervised.was_ready and supervised.failures >= FIRST_STARTS_MAX:
            raise StackFailed(self._failure_report(service, code))
        pause = RESTART_SECS.after(max(1, supervised.failures))
        supervised.next_at = time.monotonic() + pause
        supervised.record.restarts += 1
        self._set(supervised, "backing off")
        self._say(f"{service.name} ended ({_ending(code)}); starting it again in {pause:g} s")

    def _failure_report(self, service: Service, code: int) -> str:
        tail = "\n".join(last_lines(self._state.log(service.name), LOG_TAIL_LINES))
        return f"{service.name} does not start ({_ending(code)}). Its log ends:\n{tail}"

    def _check(self, supervised: _Supervised) -> None:
        """Health checks run on threads: one that hangs must not hold up the others."""
        # `next_at` is the time of the next check here, and of the next start while backing off.
        now = time.monotonic()
        if supervised.checking is None:
            if now >= supervised.next_at:
                supervised.checking = self._checks.submit(
                    health_check.check, supervised.service.health
                )
            return
        if not supervised.checking.done():
            return
        answer = supervised.checking.result()
        supervised.checking = None
        if answer == health_check.OK:
            supervised.bad_checks = 0
            supervised.next_at = now + HEALTH_EVERY_SECS
            if supervised.record.state == "starting":
                supervised.was_ready = True
                self._set(supervised, "running")
        # Only a service that was ready: one that starts may take its time, as to recover a large
        # directory. If it dies, `_watch` sees it.
        elif supervised.record.state == "running":
            supervised.bad_checks += 1
            supervised.next_at = now + HEALTH_EVERY_SECS
            if supervised.bad_checks >= UNHEALTHY_MAX:
                self._say(f"{supervised.service.name} {answer}; starting it again")
                self._end(supervised)  # `_watch` then sees that it ended, and backs off

    # --- the end ---

    def _end(self, supervised: _Supervised) -> None:
        if supervised.process is None or supervised.leader is None:
            return
        service = supervised.service
        if supervised.process.poll() is None:
            self._ask_to_stop(supervised)
            try:
                supervised.process.wait(service.stop_secs)
            except subprocess.TimeoutExpired:
                self._say(f"{service.name} does not stop; killing it")
        processes.end(supervised.leader, service.stop_signal, grace_secs=0)
        supervised.process.wait()

    def _ask_to_stop(self, supervised: _Supervised) -> None:
        process = supervised.process
        if process is not None and process.poll() is None and not supervised.is_stopping:
            process.send_signal(supervised.service.stop_signal)
            supervised.is_stopping = True

    def _end_all(self) -> None:
        """In reverse order, so that nothing loses what it needs before its own end."""
        needed = {name for supervised in self._supervised for name in supervised.service.needs}
        try:
            for supervised in self._supervised:
                # No other service needs these, and a pipeline takes a while to finish its batch.
                if supervised.service.name not in needed:
                    self._ask_to_stop(supervised)
            for supervised in reversed(self._supervised):
                self._end(supervised)
        finally:  # also if a step above raised: nothing may be left when `run` returns
            self._checks.shutdown(wait=False, cancel_futures=True)
            strays = processes.marked(self._record.mark)
            processes.send(strays, signal.SIGKILL)
            self._state.forget()


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _bound_log(path: Path) -> None:
    """Services append to their logs, so an oversized log can be truncated in place."""
    try:
        if path.stat().st_size > LOG_BYTES_MAX:
            # Not renamed: the service has the file open and would go on writing to it. What it
            # writes between these two calls is lost.
            shutil.copyfile(path, path.with_suffix(".log.1"))
            os.truncate(path, 0)
    except FileNotFoundError:
        return


def last_lines(path: Path, count: int) -> list[str]:
    try:
        return path.read_text("utf-8", "replace").splitlines()[-count:]
    except FileNotFoundError:
        return []
