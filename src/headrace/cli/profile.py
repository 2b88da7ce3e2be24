"""`headrace profile`: named servers, each with its URL and token."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli import client_config, printing
from headrace.cli.client_config import Stored
from headrace.cli.remote import JsonOption

app = typer.Typer(
    name="profile",
    help="Profiles: named servers, each with its URL and token.",
    no_args_is_help=True,
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the profile.")]


@app.command()
def add(
    name: NameArgument,
    url: Annotated[str, typer.Option("--url", metavar="URL", help="URL of the server.")],
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            metavar="TOKEN",
            envvar="HEADRACE_TOKEN",
            show_envvar=False,
            help="Bearer token (default: HEADRACE_TOKEN).",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Add a profile, or replace it. The first one becomes the current profile."""
    client_config.check_url(url)
    is_first = not client_config.profile_names()
    client_config.write_profile(name, Stored(url, token))
    if is_first:
        client_config.use_profile(name)
    values = {"profile": name, "url": url, "current": client_config.current_profile() == name}
    printing.facts(values, as_json=as_json)


@app.command()
def use(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="Profile to use; omit it to use none."),
    ] = None,
) -> None:
    """Use a profile in all further commands; without a name, use none."""
    client_config.use_profile(name)
    printing.note(f"commands use the profile {name}" if name else "commands use no profile")


@app.command()
def ls(as_json: JsonOption = False) -> None:
    """List the profiles: name, URL, whether it has a token, whether it is the current one."""
    current = client_config.current_profile()
    rows = []
    for name in client_config.profile_names():
        stored = client_config.read_profile(name)
        rows.append((name, stored.url, stored.token is not None, name == current))
    printing.table(("profile", "url", "token", "current"), rows, as_json=as_json)


@app.command()
def delete(name: NameArgument) -> None:
    """Delete a profile."""
    client_config.remove_profile(name)
    if client_config.current_profile() == name:
        client_config.use_profile(None)
    printing.note(f"the profile {name} is deleted")
