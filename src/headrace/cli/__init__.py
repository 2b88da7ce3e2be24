"""The `headrace` command: one file per verb, put together here."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli import stack_parts
from headrace.cli.append import append
from headrace.cli.bench import bench
from headrace.cli.bootstrap import bootstrap
from headrace.cli.bucket import app as bucket
from headrace.cli.build import version_line
from headrace.cli.close import close
from headrace.cli.config import config
from headrace.cli.create import create
from headrace.cli.delete import delete
from headrace.cli.export import export
from headrace.cli.fork import fork
from headrace.cli.head import head
from headrace.cli.import_ import import_
from headrace.cli.ls import ls
from headrace.cli.pipeline import app as pipeline
from headrace.cli.read import read
from headrace.cli.serve import serve
from headrace.cli.shapes import shapes
from headrace.cli.snapshot import app as snapshot
from headrace.cli.stack import app as stack
from headrace.cli.subscribe import app as subscribe
from headrace.cli.tail import tail
from headrace.cli.token import token
from headrace.cli.verify import verify

app = typer.Typer(
    name="headrace",
    help="Append-only streams over HTTP: the Durable Streams protocol.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

STREAMS = "Streams"
SERVER = "Server"
for verb in (create, append, read, tail, head, close, delete, fork, ls, bootstrap):
    app.command(rich_help_panel=STREAMS)(verb)
for group in (bucket, snapshot, subscribe):
    app.add_typer(group, rich_help_panel=STREAMS)
for server_verb in (serve, config, verify, export, token, shapes, bench):
    app.command(rich_help_panel=SERVER)(server_verb)
app.command("import", rich_help_panel=SERVER)(import_)
for part in stack_parts.COMMANDS:
    stack.command()(part)
for group in (stack, pipeline):
    app.add_typer(group, rich_help_panel=SERVER)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version_line())
        raise typer.Exit


@app.callback()
def _headrace(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    """The entry point of the `headrace` command."""
    app(prog_name="headrace")
