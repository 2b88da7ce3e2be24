"""The state directory: what is recorded about a running stack, and who may run one there.

stack.json   the supervisor, its mark, and every service with pid, start time and address
lock         held by the supervisor while it lives
logs/        one file per service
keys/ streams/ postgres/ envoy.json ...   what the services themselves keep
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headrace.stack.processes import Identity
from headrace.stack.services import HealthProbe

DEFAULT_DIRECTORY = Path(".headrace")
VARIABLE = "HEADRACE_STATE_DIR"


@dataclass
class Recorded:
    """What `status`, `logs` and the next `up` know about one service."""

    name: str
    state: str = "waiting"
    pid: int | None = None
    started: str | None = None
    address: str = ""
    page: str = ""
    note: str = ""
    restarts: int = 0
    since: float = 0.0  # seconds since the epoch
    health: HealthProbe = field(default_factory=lambda: HealthProbe("process"))

    @property
    def identity(self) -> Identity | None:
        return (
            None if self.pid is None or self.started is None else Identity(self.pid, self.started)
        )


@dataclass
class StackRecord:
    """stack.json."""

    profile: str
    mark: str
    supervisor: Identity
    ready: bool = False
    services: list[Recorded] = field(default_factory=list)


class StateDirectory:
    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._lock: int | None = None

    @property
    def record_file(self) -> Path:
        return self.path / "stack.json"

    def log(self, service: str) -> Path:
        return self.path / "logs" / f"{service}.log"

    def create(self) -> None:
        self.log("x").parent.mkdir(parents=True, exist_ok=True)

    def acquire(self) -> bool:
        """Whether this process is now the only supervisor here; it is until it ends."""
        self.create()
        handle = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return False
        self._lock = handle
        return True

    def release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def write(self, record: StackRecord) -> None:
        """Whole or not at all: a supervisor may be killed while it writes."""
        raw = asdict(record)
        raw["parts"] = raw.pop("services")  # the name of the key in the file since version 0.1
        text = json.dumps(raw, indent=1)
        handle, name = tempfile.mkstemp(dir=self.path, prefix="stack.", suffix=".tmp")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, self.record_file)

    def read(self) -> StackRecord | None:
        try:
            raw = json.loads(self.record_file.read_text("utf-8"))
        except FileNotFoundError:
            return None
        return _record(raw)

    def forget(self) -> None:
        self.record_file.unlink(missing_ok=True)
        for left in self.path.glob("stack.*.tmp"):
            left.unlink(missing_ok=True)


def _record(raw: dict[str, Any]) -> StackRecord:
    services = [
        Recorded(**{**service, "health": HealthProbe(**service["health"])})
        for service in raw.pop("parts")
    ]
    supervisor = Identity(**raw.pop("supervisor"))
    return StackRecord(**raw, supervisor=supervisor, services=services)


def default_directory() -> Path:
    return Path(os.environ.get(VARIABLE) or DEFAULT_DIRECTORY)
