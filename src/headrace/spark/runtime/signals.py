"""SIGTERM ends a pipeline through its driver alone; JVM and workers end with it.

systemd sends SIGTERM to every process of a service, GNU timeout to its process group. Java would
then close its session under the running batch, and Python workers would end under their tasks. They
do not hear it: all of them end when the driver does, because their standard input ends.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_starting = threading.local()
_is_hooked = False


@contextmanager
def java_ignores_sigterm() -> Iterator[None]:
    """The Java machine that this thread starts meanwhile does not hear SIGTERM, nor what it starts.

    The signal stays as it is in this process: one that comes meanwhile is not lost.
    """
    global _is_hooked
    if not _is_hooked:
        _is_hooked = True
        # Spark starts Java with a function of its own before exec, so the hooks of a fork run.
        os.register_at_fork(after_in_child=_in_child)
    _starting.is_java = True
    try:
        yield
    finally:
        _starting.is_java = False


def _in_child() -> None:
    """Ignored, since Java takes over no signal that is; blocked, since its children set handlers.

    Spark's Python daemons do, and both are inherited by every process that Java starts.
    """
    if getattr(_starting, "is_java", False):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
