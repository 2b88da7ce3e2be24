"""`headrace config`: the effective configuration, and where each value came from."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from headrace.cli.options import (
    ConfigFileOption,
    DataDirOption,
    HostOption,
    ModeOption,
    PortOption,
    ProfileOption,
    load_or_exit,
)
from headrace.config import DEFAULT_SOURCE, SETTINGS, Loaded, as_text, plain

UNSET = "(unset)"
Row = tuple[str, str, str]


def config(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    host: HostOption = None,
    port: PortOption = None,
    mode: ModeOption = None,
    data_dir: DataDirOption = None,
    profile: ProfileOption = None,
    config_file: ConfigFileOption = None,
) -> None:
    """Print the configuration that `serve` would use, with the source of each value."""
    flags = {
        "server.host": host,
        "server.port": port,
        "storage.mode": mode,
        "storage.data_dir": data_dir,
    }
    loaded = load_or_exit(flags, profile, config_file)
    if as_json:
        typer.echo(json_report(loaded))
    elif sys.stdout.isatty():
        _print_table(loaded)
    else:
        typer.echo(text_report(loaded))


def json_report(loaded: Loaded) -> str:
    """`{"server": {"port": {"value": 4437, "source": "default"}, ...}, ...}`"""
    report: dict[str, dict[str, object]] = {}
    for setting in SETTINGS:
        value = plain(loaded.config.in_force(setting.key))
        entry = {"value": value, "source": _source(loaded, setting.key)}
        report.setdefault(setting.section, {})[setting.name] = entry
    return json.dumps(report, indent=2)


def text_report(loaded: Loaded) -> str:
    """One aligned line per setting: key, value, source."""
    rows = _rows(loaded)
    key_width, value_width = (max(len(row[column]) for row in rows) for column in (0, 1))
    return "\n".join(f"{k:<{key_width}}  {v:<{value_width}}  {source}" for k, v, source in rows)


def _rows(loaded: Loaded) -> list[Row]:
    keys = [setting.key for setting in SETTINGS]
    return [(k, as_text(loaded.config.in_force(k)) or UNSET, _source(loaded, k)) for k in keys]


def _source(loaded: Loaded, key: str) -> str:
    """Where a value came from, and what it follows if that is the storage mode."""
    follows_mode = loaded.config.in_force(key) != loaded.config.value(key)
    suffix = f" (auto, {loaded.config.storage.mode})" if follows_mode else ""
    return f"{loaded.sources[key]}{suffix}"


def _print_table(loaded: Loaded) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("setting", "value", "source", box=box.SIMPLE_HEAD)
    for key, value, source in _rows(loaded):
        # Text, not markup: a value such as [::1] is not a style.
        style = "dim" if source.startswith(DEFAULT_SOURCE) else "bold"
        table.add_row(Text(key), Text(value, style), Text(source, style))
    Console().print(table)
