"""The layers: which source decides a setting, and what is refused in it."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.config.settings import (
    BY_ENV,
    BY_KEY,
    SECTIONS,
    SETTINGS,
    VALUE_SHOWN_CHARS_MAX,
    Config,
    ConfigError,
    Setting,
    settings_of,
    shown,
)

DEFAULT_SOURCE = "default"


@dataclass(frozen=True)
class Loaded:
    """A configuration, and where each of its values came from."""

    config: Config
    sources: Mapping[str, str]  # by key: "default", "config/dev.toml", "DS_SERVER__PORT", "--port"
    files: tuple[str, ...]  # the files that were read, in order


@dataclass(frozen=True)
class _Entry:
    """One value that one layer gives."""

    setting: Setting
    value: object
    source: str


def load(
    profile: str | None = None,
    config_file: str | Path | None = None,
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Loaded:
    """Put the layers together. `flags` is by key; a flag that is None was not given."""
    cwd = cwd or Path.cwd()
    files: list[str] = []
    entries: list[_Entry] = []
    for name, required in _file_names(profile, config_file):
        if (table := _read_toml(cwd / name, name, required)) is not None:
            files.append(name)
            entries += _from_table(table, name)
    entries += _from_environ(os.environ if environ is None else environ)
    entries += _from_flags(flags or {})
    loaded = _combine(entries, tuple(files))
    _check_tls_files(loaded, cwd)
    return loaded


def _file_names(profile: str | None, config_file: str | Path | None) -> Iterator[tuple[str, bool]]:
    """The files to read in order, each with whether it must exist."""
    yield "config/default.toml", False
    if profile is not None:
        if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", profile):
            raise ConfigError(
                f"--profile {shown(profile)} is not a profile: it must be a name, such as dev for "
                "config/dev.toml.",
                source="--profile",
                allowed="a name",
            )
        yield f"config/{profile}.toml", True
    yield "config/local.toml", False
    if config_file is not None:
        yield str(config_file), True


def _read_toml(path: Path, name: str, required: bool) -> dict[str, object] | None:
    try:
        return tomllib.loads(path.read_bytes().decode())
    except FileNotFoundError:
        if not required:
            return None
        raise ConfigError(
            f"The configuration file {name} does not exist: looked for {path.absolute()}.",
            source=name,
        ) from None
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
    except UnicodeDecodeError as error:
        problem = f"is not UTF-8 (at byte {error.start})"
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        problem = f"is not valid TOML ({str(error).rstrip('.')})"
    raise ConfigError(f"The configuration file {name} {problem}.", source=name)


def _from_table(table: Mapping[str, object], source: str) -> Iterator[_Entry]:
    for section, body in table.items():
        if section not in SECTIONS:
            raise _unknown(_first_key(section, body), source)
        if not isinstance(body, dict):
            raise ConfigError(
                f"{section} in {source} must be a table: write [{section}] and its keys below it.",
                key=section,
                source=source,
                allowed="a table",
            )
        for name, raw in body.items():
            if (setting := BY_KEY.get(f"{section}.{name}")) is None:
                raise _unknown(f"{section}.{name}", source)
            yield _Entry(setting, setting.parse(raw, source), source)


def _first_key(section: str, body: object) -> str:
    return f"{section}.{next(iter(body))}" if isinstance(body, dict) and body else section


def _from_environ(environ: Mapping[str, str]) -> Iterator[_Entry]:
    # A name without `__` is somebody else's: DS_SERVER_URL belongs to the sync service.
    for name in sorted(n for n in environ if n.startswith("DS_") and "__" in n):
        if (setting := BY_ENV.get(name)) is None:
            raise _unknown(name, None)
        yield _Entry(setting, setting.parse(environ[name], name), name)
    # Compose files pass RUST_LOG on whether or not it is set; empty is unset.
    if (rust_log := environ.get("RUST_LOG", "")).strip():
        setting = BY_KEY["log.rust_log"]
        yield _Entry(setting, setting.parse(rust_log, "RUST_LOG"), "RUST_LOG")


def _from_flags(flags: Mapping[str, object]) -> Iterator[_Entry]:
    for key, raw in flags.items():
        setting = BY_KEY[key]
        if raw is not None:
            yield _Entry(setting, setting.parse(raw, setting.flag), setting.flag)


def _combine(entries: list[_Entry], files: tuple[str, ...]) -> Loaded:
    sources = dict.fromkeys(BY_KEY, DEFAULT_SOURCE)
    values: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for entry in entries:
        sources[entry.setting.key] = entry.source
        values[entry.setting.section][entry.setting.name] = entry.value
    try:
        sections: dict[str, Any] = {name: SECTIONS[name](**values[name]) for name in SECTIONS}
    except ConfigError as error:
        raise _with_source(error, sources) from None
    return Loaded(Config(**sections), sources, files)


def _with_source(error: ConfigError, sources: Mapping[str, str]) -> ConfigError:
    """The same refusal of values that do not go together, naming where they came from."""
    given = {k: s for k, s in sources.items() if k in str(error) and s != DEFAULT_SOURCE}
    origin = ", ".join(f"{key} is from {source}" for key, source in given.items())
    sentence = f"{str(error).rstrip('.')} ({origin})."
    source = sources.get(error.key or "")
    return ConfigError(sentence, key=error.key, source=source, allowed=error.allowed)


def _check_tls_files(loaded: Loaded, cwd: Path) -> None:
    for key in ("tls.cert_path", "tls.key_path"):
        path = loaded.config.value(key)
        if not isinstance(path, Path):
            continue
        try:
            with (cwd / path).open("rb"):
                pass
        except OSError as error:
            source = loaded.sources[key]
            raise ConfigError(
                f"{key} = {shown(path)} (from {source}) must be a file that can be read: "
                f"{error.strerror}.",
                key=key,
                source=source,
                allowed="a file that can be read",
            ) from None


def _unknown(name: str, file: str | None) -> ConfigError:
    """The refusal of a key in a file, or (without one) of an environment variable."""
    key = name if file else name.removeprefix("DS_").lower().replace("__", ".", 1)
    nearest = _nearest(key)
    suggestion = None
    if nearest:
        suggestion = nearest.key if file else nearest.env
    section = key.partition(".")[0]
    if section in SECTIONS:
        allowed = f"[{section}] has {', '.join(s.name for s in settings_of(SECTIONS[section]))}"
    else:
        allowed = f"the sections are {', '.join(SECTIONS)}"
    hint = f" (did you mean {suggestion}?)" if suggestion else ""
    where = f"{_bare(name)} in {file}" if file else f"The environment variable {_bare(name)}"
    return ConfigError(
        f"{where} is not a setting{hint}; {allowed}.",
        key=key,
        source=file or name,
        allowed=allowed,
        suggestion=suggestion,
    )


def _bare(name: str) -> str:
    return shown(name)[1:-1] if len(name) <= VALUE_SHOWN_CHARS_MAX else shown(name)[1:]


def _nearest(key: str) -> Setting | None:
    """The right name in another section, else the closest spelling."""
    same_name = [s for s in SETTINGS if s.name == key.rpartition(".")[2]]
    if len(same_name) == 1:
        return same_name[0]
    close = difflib.get_close_matches(key, BY_KEY, n=1)
    return BY_KEY[close[0]] if close else None
