"""`headrace serve` with little room for what is not yet in stream files."""

from __future__ import annotations

from unittest.mock import patch

from headrace.cli import main
from headrace.storage.file import checkpoint_scheduler
from headrace.testing.server_process import ServerProcess

BACKLOG_BYTES_MAX = 100_000


class SmallBacklog(ServerProcess):
    module = "tests.durability.small_backlog"


if __name__ == "__main__":
    with patch.object(checkpoint_scheduler, "PINNED_BYTES_MAX", BACKLOG_BYTES_MAX):
        main()
