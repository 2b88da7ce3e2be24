"""Options the stack commands share: the state directory, and the host names to accept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import EXIT_REFUSED, fail
from headrace.protocol.access import HostRules, is_loopback

if TYPE_CHECKING:
    from headrace.stack.state_directory import StateDirectory

StateOption = Annotated[
    Path | None,
    typer.Option(
        "--state", metavar="DIR", help="State directory of the stack (default: .headrace)."
    ),
]


AllowedHostsOption = Annotated[
    str,
    typer.Option(
        "--allowed-hosts",
        envvar="DS_SERVER__ALLOWED_HOSTS",
        metavar="NAMES",
        help="Host names to accept in addition to loopback names, comma-separated; * accepts any, "
        "auto accepts no others while the service listens on loopback and any otherwise.",
    ),
]


def allowed_hosts(listen: str, names: str) -> tuple[str, ...]:
    """What `names` comes to for a listener: a list, perhaps empty, or `*` alone."""
    from headrace.config.kinds import ALLOWED_HOSTS, AUTO

    try:
        allowed = ALLOWED_HOSTS.parse(names)
    except (ValueError, TypeError):
        fail(f"--allowed-hosts {names} is not allowed: {ALLOWED_HOSTS.allowed}.", EXIT_REFUSED)
    if allowed == (AUTO,):
        return () if is_loopback(listen) else ("*",)
    return allowed


def host_rules(listen: str, names: str) -> HostRules:
    allowed = allowed_hosts(listen, names)
    return HostRules(allowed, any_host=allowed == ("*",))


def state_directory(path: Path | None) -> StateDirectory:
    from headrace.stack.state_directory import StateDirectory, default_directory

    return StateDirectory(path or default_directory())
