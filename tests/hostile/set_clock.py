"""A server whose wall clock a test can set: it reads how far off it is from a file.

The monotonic clock is the machine's own, as it is for a server whose administrator sets the time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from headrace import clock
from headrace.cli import main
from headrace.testing.server_process import ServerProcess

_VARIABLE = "HEADRACE_TEST_CLOCK"


class SetClockServer(ServerProcess):
    """`set_clock` moves the wall clock of this server, whether it runs or not."""

    module = "tests.hostile.set_clock"

    def __init__(self, env: Mapping[str, str], directory: Path) -> None:
        self._offset = directory / "clock"
        self.set_clock(0)
        # The tests are a package of the repository, not of the environment.
        paths = filter(None, [env.get("PYTHONPATH", ""), *sys.path])
        found = {"PYTHONPATH": os.pathsep.join(paths), _VARIABLE: str(self._offset)}
        super().__init__({**env, **found}, cwd=str(directory))

    def set_clock(self, offset_secs: int) -> None:
        """So many seconds ahead of the machine's clock, or behind it."""
        self._say(f"{1000 * offset_secs} 1")

    def stop_clock(self, now_ms: int) -> None:
        """It shows this from now on."""
        self._say(f"{now_ms} 0")

    def _say(self, text: str) -> None:
        new = self._offset.with_suffix(".new")
        new.write_text(text)
        new.rename(self._offset)

    def restart(self, *, kill: bool = False) -> None:
        (self.kill if kill else self.stop)()
        self.url = ""
        self.start()


def _run() -> None:
    own = clock.SystemClock.now_ms
    offset = Path(os.environ[_VARIABLE])

    def now_ms(self: clock.SystemClock) -> int:
        off_ms, runs = offset.read_text().split()
        return int(off_ms) + int(runs) * own(self)

    clock.SystemClock.now_ms = now_ms  # type: ignore[method-assign]
    main()


if __name__ == "__main__":
    _run()
