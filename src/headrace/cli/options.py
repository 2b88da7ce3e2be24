"""What the verbs share: the flags that choose a configuration, and how a refusal is said."""

from __future__ import annotations

from typing import Annotated, NoReturn

import typer

from headrace.config import ConfigError, Loaded, load

EXIT_FAILED = 1
EXIT_REFUSED = 2  # the command or the configuration is wrong; trying again will not help

HostOption = Annotated[
    str | None, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")
]
# A string here, so that a bad one is refused in the same words as in a file or a variable.
PortOption = Annotated[
    str | None, typer.Option("--port", metavar="PORT", help="Port to listen on; 0 for any free.")
]
ProfileOption = Annotated[
    str | None, typer.Option("--profile", metavar="NAME", help="Read config/NAME.toml.")
]
ConfigFileOption = Annotated[
    str | None, typer.Option("--config", metavar="FILE", help="Read FILE after the other files.")
]


def load_or_exit(
    host: str | None, port: str | None, profile: str | None, config_file: str | None
) -> Loaded:
    """The configuration, or the end of the command with one sentence."""
    flags = {"server.host": host, "server.port": port}
    try:
        return load(profile=profile, config_file=config_file, flags=flags)
    except ConfigError as error:
        fail(str(error), EXIT_REFUSED)


def fail(sentence: str, code: int) -> NoReturn:
    """End the command with one sentence on stderr."""
    typer.echo(f"headrace: {sentence}", err=True)
    raise typer.Exit(code)
