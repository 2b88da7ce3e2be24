"""What the commands about the stack share: where it keeps everything."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from headrace.stack.state import StateDirectory

StateOption = Annotated[
    Path | None,
    typer.Option(
        "--state", metavar="DIR", help="Where the stack keeps everything; else .headrace."
    ),
]


def state_directory(path: Path | None) -> StateDirectory:
    from headrace.stack.state import StateDirectory, default_directory

    return StateDirectory(path or default_directory())
