"""The `headrace` command: one file per verb, put together here."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace import __version__
from headrace.cli import stack_parts
from headrace.cli.config import config
from headrace.cli.export import export
from headrace.cli.import_ import import_
from headrace.cli.pipeline import app as pipeline
from headrace.cli.serve import serve
from headrace.cli.shapes import shapes
from headrace.cli.stack import app as stack
from headrace.cli.token import token
from headrace.cli.verify import verify

app = typer.Typer(
    name="headrace",
    help="Append-only streams over HTTP: the Durable Streams protocol.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(serve)
app.command()(config)
app.command()(verify)
app.command()(export)
app.command("import")(import_)
app.command()(token)
app.command()(shapes)
for part in stack_parts.COMMANDS:
    stack.command()(part)
app.add_typer(stack)
app.add_typer(pipeline)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headrace {__version__}")
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
