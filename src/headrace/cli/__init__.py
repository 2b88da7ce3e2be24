"""The `headrace` command: one file per verb, put together here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from inspect import cleandoc
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from headrace.cli.before_verb import before_verb
from headrace.cli.options import EXIT_REFUSED, fail
from headrace.cli.version import version_line

_STREAMS = (
    "create append read tail head close delete trim fork copy ls bootstrap bucket snapshot "
    "subscribe"
)
_SERVER = "profile serve config verify export import token shapes bench stack pipeline"
_PANELS = dict.fromkeys(_STREAMS.split(), "Streams") | dict.fromkeys(_SERVER.split(), "Server")
# What other systems' commands call it.
_NAMED_ELSEWHERE = {
    verb: ours
    for ours, verbs in {
        "append": "produce publish pub put write",
        "read": "cat get",
        "tail": "consume follow sub",
        "head": "info stat",
        "delete": "rm",
        "ls": "list topic topics",
        "profile": "context",
    }.items()
    for verb in verbs.split()
}
_FILES = {"import": "import_"}  # a word of Python's own


class _PlainFlags:
    """Help in which a flag has no type: `--json <bool>` reads as if a value had to follow."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False) and param.metavar is None:
                param.metavar = ""
        return params


class _Verb(_PlainFlags, TyperCommand):
    pass


class _Group(_PlainFlags, TyperGroup):
    pass


class _Verbs(_Group):
    """The verbs, and a sentence for those of nats, rpk, kcat and others."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if (ours := _NAMED_ELSEWHERE.get(args[0])) is not None:
            fail(f"There is no command {args[0]!r}. It is: headrace {ours}", EXIT_REFUSED)
        return super().resolve_command(ctx, args)


def command(verbs: Iterable[str] = _PANELS) -> typer.Typer:
    """The command with these verbs; the files of the others are not loaded."""
    app = typer.Typer(
        name="headrace",
        cls=_Verbs,
        help="Append-only streams over HTTP: the Durable Streams protocol.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        callback=_headrace,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for verb in verbs:
        file = _FILES.get(verb, verb)
        module = import_module(f"{__name__}.{file}")
        if hasattr(module, "app"):
            app.add_typer(module.app, cls=_Group, rich_help_panel=_PANELS[verb])
            shown = module.app.registered_commands
        else:
            app.command(verb, rich_help_panel=_PANELS[verb])(getattr(module, file))
            shown = app.registered_commands[-1:]
        for each in shown:
            each.cls, each.help = _Verb, _help(each.callback)
    return app


def _help(function: Callable[..., object]) -> str:
    """The docstring with a paragraph per line: typer joins the lines of the first one only."""
    paragraphs = cleandoc(function.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version_line())
        raise typer.Exit


def _headrace(
    ctx: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="URL of the server, for every verb.")
    ] = None,
    token: Annotated[
        str | None, typer.Option("--token", metavar="TOKEN", help="Bearer token, for every verb.")
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option("--profile", metavar="NAME", help="Server and token of `headrace profile`."),
    ] = None,
) -> None:
    before_verb.url, before_verb.token, before_verb.profile = url, token, profile
    # They hold for this command only, not for whatever else the process does afterwards.
    ctx.call_on_close(before_verb.clear)


def main() -> None:
    """The entry point of the `headrace` command."""
    verb = _verb(sys.argv[1:])
    # A server need not wait for the files of all the other verbs.
    app = command((verb,)) if verb in _PANELS else command()
    app(prog_name="headrace")


def _verb(arguments: Sequence[str]) -> str | None:
    """The first word that is neither an option nor the value of one."""
    words = iter(arguments)
    for word in words:
        if word in ("--url", "--token", "--profile"):
            next(words, None)
        elif not word.startswith("-"):
            return word
    return None
