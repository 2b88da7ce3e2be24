"""`headrace stack`: start, stop and inspect the local stack."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import stack_services
from headrace.cli.options import EXIT_FAILED, EXIT_REFUSED, fail
from headrace.cli.stack_options import StateOption, state_directory

if TYPE_CHECKING:
    from headrace.stack.ports import Ports
    from headrace.stack.state_directory import StackRecord

EXIT_NOT_UP = 3
FOLLOW_POLL_SECS = 0.2

app = typer.Typer(
    name="stack",
    help="The local stack: server, Envoy and, by profile, Postgres, sync and pages to watch it.",
    no_args_is_help=True,
)

ProfileOption = Annotated[str, typer.Option("--profile", help="default, sync or dev.")]


@app.command()
def up(
    profile: ProfileOption = "default",
    state: StateOption = None,
    port: Annotated[
        list[str] | None,
        typer.Option("--port", metavar="NAME=PORT", help="Another port for a service; 0 is any."),
    ] = None,
    free_ports: Annotated[
        bool, typer.Option("--free-ports", help="Any free port for every service.")
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return once everything is running.")
    ] = False,
) -> None:
    """Start every part of a profile and keep it running until Ctrl-C."""
    _need_the_extra()
    from headrace.stack import lifecycle
    from headrace.stack.ports import NoFreePort
    from headrace.stack.profiles import BadSetup
    from headrace.stack.supervisor import StackFailed

    directory = state_directory(state)
    ports = _ports(port or [], free_ports)
    try:
        if detach:
            arguments = ["--profile", profile, "--state", str(directory.path)]
            arguments += [f"--port={pair}" for pair in port or []]
            arguments += ["--free-ports"] if free_ports else []
            _print_up(lifecycle.detach(arguments, directory))
        else:
            lifecycle.up(profile, directory, ports, _say, _print_up)
    except BadSetup as error:
        fail(str(error), EXIT_REFUSED)
    except (lifecycle.AlreadyUp, StackFailed, NoFreePort) as error:
        fail(str(error), EXIT_FAILED)


@app.command()
def down(state: StateOption = None) -> None:
    """End every service, also when the supervisor was killed."""
    from headrace.stack import lifecycle

    ended = lifecycle.down(state_directory(state))
    _say(f"Ended {', '.join(ended)}." if ended else "Nothing was running.")


@app.command()
def ui(state: StateOption = None) -> None:
    """Print the URL of the stream browser of the running stack."""
    record = state_directory(state).read()
    page = next((p.page for p in record.services if p.page), "") if record is not None else ""
    if not page:
        fail("No stack with a stream browser is up: start one with `make dev`.", EXIT_NOT_UP)
    typer.echo(page)


@app.command()
def status(
    state: StateOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show each service: where it listens, and whether it answers.

    Exit code 0 if all answer, 1 if one does not, 3 if no stack is up.
    """
    from headrace.stack import lifecycle

    record = state_directory(state).read()
    if record is None:
        fail("No stack is up here: start one with `headrace stack up`.", EXIT_NOT_UP)
    answers = lifecycle.live_health(record.services)
    if as_json:
        services = [
            {**asdict(service), "health": answers[service.name]} for service in record.services
        ]
        typer.echo(json.dumps({"profile": record.profile, "parts": services}, indent=2))
    else:
        _print_table(record, answers)
        for warning in lifecycle.warnings(record.services):
            _say(f"warning: {warning}")
    if not record.supervisor.is_alive:
        fail(
            "The supervisor is not running: `headrace stack down` ends its services.",
            EXIT_FAILED,
        )
    if any(answer != "ok" for answer in answers.values()):
        raise typer.Exit(EXIT_FAILED)


@app.command()
def logs(
    services: Annotated[list[str] | None, typer.Argument(help="Default: all of them.")] = None,
    state: StateOption = None,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, help="Lines to print of each log.")
    ] = 20,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the logs until Ctrl-C.")
    ] = False,
) -> None:
    """Print the end of each service's log."""
    directory = state_directory(state)
    files = {path.stem: path for path in sorted(directory.log("x").parent.glob("*.log"))}
    if not files:
        fail(
            f"There are no logs in {directory.path}: no stack has run here. Start one with "
            "`headrace stack up`, or pass its directory with --state.",
            EXIT_NOT_UP,
        )
    unknown = [name for name in services or [] if name not in files]
    if unknown:
        fail(f"No service is called {', '.join(unknown)}; logs: {', '.join(files)}.", EXIT_REFUSED)
    chosen = {name: path for name, path in files.items() if not services or name in services}
    prefix = len(chosen) > 1
    for name, line in _last_lines(chosen, lines):
        typer.echo(f"{name} | {line}" if prefix else line)
    if follow:
        try:
            _follow(chosen, prefix)
        except KeyboardInterrupt:
            return


def _need_the_extra() -> None:
    missing = [name for name in ("envoy", "joserfc") if find_spec(name) is None]
    if missing:
        fail(
            f"The stack needs {' and '.join(missing)}: pip install '.[stack,spark]' in a clone of "
            "Headrace.",
            EXIT_REFUSED,
        )


def _ports(pairs: Sequence[str], any_free: bool) -> Ports:
    from headrace.stack.ports import PORT_MAP, Ports

    wanted = {}
    for pair in pairs:
        name, _, number = pair.partition("=")
        if name not in PORT_MAP or not number.isascii() or not number.isdigit():
            fail(f"--port {pair} is not NAME=PORT of {', '.join(PORT_MAP)}.", EXIT_REFUSED)
        if int(number) > 65_535:
            fail(f"--port {pair}: a port is at most 65535.", EXIT_REFUSED)
        wanted[name] = int(number)
    return Ports(wanted, any_free=any_free)


def _say(sentence: str) -> None:
    typer.echo(sentence, err=True)


def _print_up(record: StackRecord) -> None:
    _print_table(record, None)
    if any(service.name == "sync" for service in record.services):
        _say(
            "A message in the stream session-events becomes a row of session_events, and a row of "
            "items a message in the stream pg-items."
        )
    _say("Everything is up. `headrace token` mints a token, `headrace stack down` ends the stack.")


def _print_table(record: StackRecord, answers: dict[str, str] | None) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("service", "state", "pid", "address", "restarts", "", box=box.SIMPLE_HEAD)
    for service in record.services:
        state = service.state
        if answers is not None and answers[service.name] != "ok":
            state = f"{state}: {answers[service.name]}"
        pid = "" if service.pid is None else str(service.pid)
        cells = (service.name, state, pid, service.address, str(service.restarts), service.note)
        table.add_row(*(Text(cell) for cell in cells))
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    console.print(table)


def _last_lines(files: dict[str, Path], count: int) -> Iterator[tuple[str, str]]:
    for name, path in files.items():
        lines = path.read_text("utf-8", "replace").splitlines()
        for line in lines[-count:] if count else []:
            yield name, line


def _follow(files: dict[str, Path], prefix: bool) -> None:
    positions = {name: path.stat().st_size for name, path in files.items()}
    while True:
        for name, path in files.items():
            size = path.stat().st_size
            if size < positions[name]:  # it was cut
                positions[name] = 0
            if size > positions[name]:
                positions[name] = _print_from(name, path, positions[name], prefix)
        time.sleep(FOLLOW_POLL_SECS)


def _print_from(name: str, path: Path, position: int, prefix: bool) -> int:
    """Print the whole lines behind `position`; where they end."""
    with path.open("rb") as file:
        file.seek(position)
        text, newline, _ = file.read().rpartition(b"\n")
    for line in text.decode("utf-8", "replace").splitlines() if newline else []:
        typer.echo(f"{name} | {line}" if prefix else line)
    return position + len(text) + len(newline)


for service in stack_services.COMMANDS:
    app.command()(service)
