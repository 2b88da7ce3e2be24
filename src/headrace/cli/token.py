"""`headrace token`: a token for the local stack, valid or with a chosen fault."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.options import EXIT_REFUSED, fail
from headrace.cli.stack_options import StateOption, state_directory


def token(
    sub: Annotated[str, typer.Option("--sub", help="The `sub` claim.")] = "test-user",
    expired: Annotated[
        bool, typer.Option("--expired", help="Make it expired an hour ago.")
    ] = False,
    wrong_issuer: Annotated[
        bool, typer.Option("--wrong-issuer", help="Use another issuer.")
    ] = False,
    wrong_audience: Annotated[
        bool, typer.Option("--wrong-audience", help="Use another audience.")
    ] = False,
    forged: Annotated[bool, typer.Option("--forged", help="Sign it with another key.")] = False,
    lifetime: Annotated[
        int, typer.Option("--lifetime", metavar="SECONDS", min=1, help="Lifetime of the token.")
    ] = 3600,
    state: StateOption = None,
) -> None:
    """Print a token that the local stack's Envoy accepts, or rejects for a chosen reason.

    The signing keys are created on first use and kept in the state directory.
    """
    try:
        from headrace.stack.tokens import TokenKeys, TokenKind
    except ImportError as error:
        fail(
            f"Tokens need {error.name}: pip install '.[stack]' in a clone of Headrace.",
            EXIT_REFUSED,
        )
    faults = {
        TokenKind.EXPIRED: expired,
        TokenKind.WRONG_ISSUER: wrong_issuer,
        TokenKind.WRONG_AUDIENCE: wrong_audience,
        TokenKind.FORGED: forged,
    }
    chosen = [kind for kind, wanted in faults.items() if wanted]
    if len(chosen) > 1:
        names = " and ".join(f"--{kind}" for kind in chosen)
        fail(f"{names} exclude each other: choose one.", EXIT_REFUSED)
    kind = chosen[0] if chosen else TokenKind.VALID
    typer.echo(TokenKeys(state_directory(state).path).mint(kind, sub, lifetime))
