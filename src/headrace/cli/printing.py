"""Prints results: a table at a terminal, plain lines or JSON in a pipe."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import typer


def facts(values: Mapping[str, Any], *, as_json: bool) -> None:
    """Names and values; None is left out."""
    known = {name: value for name, value in values.items() if value is not None}
    if as_json:
        typer.echo(json.dumps(known))
        return
    width = max(map(len, known), default=0)
    for name, value in known.items():
        typer.echo(f"{typer.style(f'{name:<{width}}', dim=True)}  {_plain(value)}")


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, as_json: bool) -> None:
    """A table at a terminal, JSON lines when asked for, else columns separated by tabs."""
    if as_json:
        for row in rows:
            typer.echo(json.dumps(dict(zip(columns, row, strict=True))))
    elif sys.stdout.isatty():
        _print_table(columns, rows)
    else:
        for row in rows:
            typer.echo("\t".join(map(_plain, row)))


def _print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        shown.add_column(column, overflow="fold")  # a truncated name cannot be copied
    for row in rows:
        # Text, not markup: a name such as [bold] is not a style.
        shown.add_row(*(Text(_plain(value)) for value in row))
    Console().print(shown)


def note(sentence: str) -> None:
    """A note to stderr, only at a terminal: it never mixes with the output."""
    if sys.stderr.isatty():
        typer.secho(sentence, err=True, dim=True)


def done(sentence: str, values: Mapping[str, Any], *, as_json: bool) -> None:
    """Report success of a command without other output: a note, or JSON."""
    if as_json:
        facts(values, as_json=True)
    else:
        note(sentence)


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)
