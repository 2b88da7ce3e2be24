"""Ending what a stack left behind: by what its record says, never by a name."""

from __future__ import annotations

import signal

from headrace.stack import processes
from headrace.stack.state_directory import StackRecord, StateDirectory

ORPHAN_GRACE_SECS = 10.0
# Postgres ends at once on SIGINT and waits for its clients on SIGTERM; the others take both alike.
ORPHAN_SIGNAL = signal.SIGINT


def end_recorded(state: StateDirectory, record: StackRecord) -> list[str]:
    """End every recorded service that still runs, and whatever carries the stack's mark.

    Only a living leader vouches for its session: behind a dead one the number may be another's.
    What such a leader left carries the mark; Postgres's children, which overwrite their
    environment, end by themselves when it is gone.
    """
    ended = []
    for service in reversed(record.services):
        leader = service.identity
        if leader is not None and leader.is_alive:
            ended.append(service.name)
            processes.end(leader, ORPHAN_SIGNAL, ORPHAN_GRACE_SECS)
    strays = processes.marked(record.mark)
    processes.send(strays, signal.SIGKILL)
    processes.wait_gone(strays, ORPHAN_GRACE_SECS)
    state.forget()
    return ended
