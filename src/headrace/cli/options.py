"""What the verbs share: the flags that choose a configuration, and how a refusal is said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from headrace.config import Loaded

EXIT_FAILED = 1
EXIT_REFUSED = 2  # the command or the configuration is wrong; trying again will not help

HostOption = Annotated[
    str | None, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")
]
# A string here, so that a bad one is refused in the same words as in a file or a variable.
PortOption = Annotated[
    str | None, typer.Option("--port", metavar="PORT", help="Port to listen on; 0 for any free.")
]
ModeOption = Annotated[
    str | None,
    typer.Option(
        "--mode", metavar="MODE", help="Storage: memory, file-fast, file-durable or acid."
    ),
]
DataDirOption = Annotated[
    str | None, typer.Option("--data-dir", metavar="DIR", help="Where --mode stores streams.")
]
ProfileOption = Annotated[
    str | None, typer.Option("--profile", metavar="NAME", help="Read config/NAME.toml.")
]
ConfigFileOption = Annotated[
    str | None, typer.Option("--config", metavar="FILE", help="Read FILE after the other files.")
]


def load_or_exit(
    flags: Mapping[str, str | None], profile: str | None, config_file: str | None
) -> Loaded:
    """The configuration, or the end of the command with one sentence; `flags` is by setting."""
    # Imported here: the verbs of a client need no server's settings, which take 40 ms to load.
    from headrace.config import ConfigError, load

    try:
        loaded = load(profile=profile, config_file=config_file, flags=flags)
    except ConfigError as error:
        fail(str(error), EXIT_REFUSED)
    if flags["storage.data_dir"] is not None and loaded.config.storage.mode == "memory":
        fail(
            "--data-dir has no effect in memory mode, which stores nothing: add "
            "--mode file-durable.",
            EXIT_REFUSED,
        )
    return loaded


def fail(sentence: str, code: int) -> NoReturn:
    """End the command with one sentence on stderr."""
    typer.echo(f"headrace: {sentence}", err=True)
    raise typer.Exit(code)
