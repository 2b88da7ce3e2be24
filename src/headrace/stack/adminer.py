"""Adminer without installing anything: Debian's packages, unpacked into the state directory.

Where that cannot be done (no apt, no network, a library missing) `find` says None, and the stack
serves its own read-only page instead.
"""

from __future__ import annotations

import glob
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from psycopg.conninfo import conninfo_to_dict

from headrace.stack.apt_fetch import unpacked

PHP_VERSION = "8.2"
GUARD = Path(__file__).with_name("adminer_guard.php")  # other web pages are kept out by this
PACKAGES = ("adminer", *(f"php{PHP_VERSION}-{part}" for part in ("cli", "common", "pgsql")))


@dataclass(frozen=True)
class Adminer:
    """A PHP that can talk to Postgres, and the page for it."""

    php: tuple[str, ...]
    page: Path
    sessions: Path

    def command(self, host: str, port: int) -> list[str]:
        options = ["-d", f"session.save_path={self.sessions}"]
        return [*self.php, *options, "-S", f"{host}:{port}", str(GUARD)]

    def environment(
        self, allowed_hosts: Sequence[str] = (), postgres_url: str | None = None
    ) -> dict[str, str]:
        """What the guard needs; `allowed_hosts` are answered in addition to those of loopback.

        With `postgres_url` the login form opens on that database.
        """
        return {
            "ADMINER_PAGE": str(self.page),
            "ADMINER_ALLOWED_HOSTS": ",".join(allowed_hosts),
            "ADMINER_LOGIN": login(postgres_url) if postgres_url else "",
        }


def login(postgres_url: str) -> str:
    """The query by which Adminer's form has everything but the password."""
    parts = conninfo_to_dict(postgres_url)
    host, port = str(parts.get("host") or "127.0.0.1"), parts.get("port")
    # Adminer splits host and port at the first colon: an IPv6 address cannot be filled in.
    server = "" if ":" in host else f"{host}:{port}" if port else host
    fields = {"username": parts.get("user", ""), "db": parts.get("dbname", "")}
    return urlencode({"pgsql": server, **fields})


def find(directory: Path) -> Adminer | None:
    """What was unpacked before, or is unpacked now; None if it does not work here."""
    sessions = directory / "sessions"
    sessions.mkdir(parents=True, exist_ok=True, mode=0o700)
    root = unpacked(PACKAGES, directory)
    if root is None:
        return None
    page = root / "usr/share/adminer/adminer.php"
    binary = root / f"usr/bin/php{PHP_VERSION}"
    extensions = glob.glob(str(root / "usr/lib/php/*/pgsql.so"))
    if not page.exists() or not binary.exists() or not extensions:
        return None
    home = str(Path(extensions[0]).parent)
    php = (str(binary), "-n", "-d", f"extension_dir={home}", "-d", "extension=pgsql")
    return Adminer(php, page, sessions) if _works(php) else None


def _works(php: tuple[str, ...]) -> bool:
    probe = [*php, "-r", 'exit(extension_loaded("pgsql") ? 0 : 1);']
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0
