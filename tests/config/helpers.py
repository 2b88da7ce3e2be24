"""A working directory with configuration files, and `load` inside it with no environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from headrace.config import ConfigError, Loaded, load


def write(cwd: Path, name: str, text: str) -> None:
    """A file below the working directory, with the directories it needs."""
    (cwd / name).parent.mkdir(parents=True, exist_ok=True)
    (cwd / name).write_text(text)


def load_env(cwd: Path, **environ: str) -> Loaded:
    """The configuration that these variables make, and no files but those in `cwd`."""
    return load(environ=environ, cwd=cwd)


def load_toml(cwd: Path, text: str) -> Loaded:
    """The configuration that this text makes as config/local.toml."""
    write(cwd, "config/local.toml", text)
    return load(environ={}, cwd=cwd)


def refusal(
    cwd: Path,
    *,
    toml: str | None = None,
    environ: Mapping[str, str] | None = None,
    profile: str | None = None,
    config_file: str | None = None,
    flags: Mapping[str, object] | None = None,
) -> ConfigError:
    """The error that refuses this configuration."""
    if toml is not None:
        write(cwd, "config/local.toml", toml)
    with pytest.raises(ConfigError) as caught:
        load(profile, config_file, flags, environ or {}, cwd)
    return caught.value
