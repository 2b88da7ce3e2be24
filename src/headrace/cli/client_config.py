"""Which server a command talks to, and with which token.

For each of the two, the first of these that has it:

1. the flags `--url` and `--token`, after the verb or before it,
2. the profile that `--profile NAME` before the verb names,
3. the environment: HEADRACE_URL, HEADRACE_TOKEN,
4. the profile that HEADRACE_PROFILE names, or else the one chosen by `headrace profile use`,
5. `client.toml`, or the file that HEADRACE_CLIENT_CONFIG names.

A profile is a file `profiles/NAME.toml` with the same keys as `client.toml`: url and token. The
files are below `headrace/` in the user's configuration directory, readable by the user alone.
A token that a file stores with a URL is sent to that server only: `--url` never carries it
elsewhere.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from headrace.cli.before_verb import before_verb
from headrace.cli.options import EXIT_REFUSED, fail

DEFAULT_URL = "http://localhost:4437"
SCHEMES = ("http://", "https://")
KEYS = ("url", "token")
PROFILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Stored:
    """What a file says."""

    url: str | None = None
    token: str | None = None

    def token_for(self, url: str) -> str | None:
        if self.url is None or _origin(self.url) == _origin(url):
            return self.token
        return None


def configured(url: str | None, token: str | None) -> tuple[str, str | None]:
    """The URL and the token in force, given the flags after the verb."""
    url, token = url or before_verb.url, token or before_verb.token
    environment: Mapping[str, str] = os.environ
    if before_verb.profile is not None:
        stored, environment = read_profile(before_verb.profile), {}
    else:
        stored = _in_force()
    where = url or environment.get("HEADRACE_URL") or stored.url or DEFAULT_URL
    check_url(where)
    return where, token or environment.get("HEADRACE_TOKEN") or stored.token_for(where)


def check_url(url: str) -> None:
    if not url.startswith(SCHEMES):
        fail(f"{url!r} is not the URL of a server; {DEFAULT_URL} is one.", EXIT_REFUSED)


def profile_names() -> list[str]:
    return sorted(path.stem for path in _profiles().glob("*.toml"))


def current_profile() -> str | None:
    """The profile that commands use if none is named; HEADRACE_PROFILE precedes the choice."""
    named = os.environ.get("HEADRACE_PROFILE")
    if named:
        return named
    try:
        return _choice().read_text("utf-8").strip() or None
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{_choice()} cannot be read: {error}", EXIT_REFUSED)


def read_profile(name: str) -> Stored:
    path = _profile(name)
    if not path.is_file():
        known = ", ".join(profile_names()) or "none"
        fail(f"There is no profile {name!r}; profiles: {known}.", EXIT_REFUSED)
    return _read(path)


def write_profile(name: str, stored: Stored) -> None:
    given = {key: value for key in KEYS if (value := getattr(stored, key)) is not None}
    lines = (f"{key} = {_toml_text(value)}\n" for key, value in given.items())
    write_private(_profile(name), "".join(lines))


def remove_profile(name: str) -> None:
    read_profile(name)
    _profile(name).unlink()


def use_profile(name: str | None) -> None:
    """Choose the profile for all further commands; None for no profile."""
    if name is None:
        _choice().unlink(missing_ok=True)
        return
    read_profile(name)
    write_private(_choice(), f"{name}\n")


def _in_force() -> Stored:
    """The current profile, or else client.toml."""
    name = current_profile()
    if name is not None:
        return read_profile(name)
    given = os.environ.get("HEADRACE_CLIENT_CONFIG")
    path = Path(given) if given else _directory() / "client.toml"
    return _read(path) if given or path.is_file() else Stored()


def _read(path: Path) -> Stored:
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        fail(f"{path} cannot be read: {error}", EXIT_REFUSED)
    for key, value in values.items():
        if key not in KEYS or not isinstance(value, str):
            fail(f"{path}: {key} is not a known key with a text; keys are url and token.", 2)
    return Stored(**values)


def _directory() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "headrace"


def _profiles() -> Path:
    return _directory() / "profiles"


def _choice() -> Path:
    return _directory() / "current-profile"


def _profile(name: str) -> Path:
    if not PROFILE_NAME.fullmatch(name):
        fail(f"{name!r} is not a name of a profile: use letters, digits, '.', '_', '-'.", 2)
    return _profiles() / f"{name}.toml"


def write_private(path: Path, text: str) -> None:
    """Replace the file at once, readable by its owner alone: it may hold a token."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.unlink(missing_ok=True)
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    part.replace(path)


def _toml_text(value: str) -> str:
    escaped = "".join(_escaped(character) for character in value)
    return f'"{escaped}"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    return character if character.isprintable() else f"\\U{ord(character):08X}"


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.lower()
