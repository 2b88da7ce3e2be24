"""`headrace shapes`: an Electric-compatible Shape API over a Postgres of one's own."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

import typer

from headrace.cli.options import EXIT_FAILED, EXIT_REFUSED, fail
from headrace.cli.stack_options import AllowedHostsOption, host_rules
from headrace.cli.stack_services import HostOption, log_plainly, postgres_url, server_url


def shapes(
    host: HostOption = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=1, max=65_535, help="Port.")] = 3001,
    slot: Annotated[str, typer.Option("--slot", help="Replication slot.")] = "headrace_shapes",
    prefix: Annotated[
        str, typer.Option("--prefix", help="Streams of the shapes' logs lie below this name.")
    ] = "shapes",
    allow_shape_deletion: Annotated[
        bool, typer.Option("--allow-shape-deletion", help="Answer DELETE /v1/shape.")
    ] = False,
    max_shapes: Annotated[
        int,
        typer.Option(
            "--max-shapes", min=1, help="Maximum shapes; the least recently used one is dropped."
        ),
    ] = 1000,
    names: AllowedHostsOption = "auto",
    cors_origins: Annotated[
        str,
        typer.Option(
            "--cors-origins",
            envvar="DS_HTTP__CORS_ORIGINS",
            metavar="ORIGINS",
            help="Origins whose pages may read shapes, comma-separated; * allows all.",
        ),
    ] = "",
    secret: Annotated[
        str,
        typer.Option(
            "--secret",
            envvar="SHAPES_SECRET",
            metavar="SECRET",
            show_envvar=True,
            help="Required in the parameter secret of every request for shapes.",
        ),
    ] = "",
) -> None:
    """Serve GET /v1/shape for @electric-sql/client, from POSTGRES_URL and DS_SERVER_URL."""
    missing = [name for name in ("psycopg", "starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        fail(
            f"Shapes need {' and '.join(missing)}: install Headrace with its extra `shapes`.",
            EXIT_REFUSED,
        )
    from headrace.shapes.api import AccessRules
    from headrace.shapes.service import Shapes
    from headrace.shapes.serving import serve

    log_plainly()
    access = AccessRules(host_rules(host, names), _origins(cors_origins), secret)
    _refuse_second_reader(slot)
    service = Shapes(postgres_url(), server_url(), slot=slot, prefix=prefix, shapes_max=max_shapes)
    serve(service, allow_deletion=allow_shape_deletion, host=host, port=port, access=access)


def _refuse_second_reader(slot: str) -> None:
    import psycopg

    from headrace.postgres.slot_names import SlotError
    from headrace.postgres.slot_readers import refuse_second_reader

    try:
        refuse_second_reader(postgres_url(), slot)
    except SlotError as error:
        fail(f"{error} --slot chooses one; give it a --prefix of its own, too.", EXIT_FAILED)
    except psycopg.OperationalError as error:
        fail(f"Postgres is unreachable: {str(error).strip()}", EXIT_FAILED)


def _origins(text: str) -> tuple[str, ...]:
    from headrace.config.kinds import ORIGINS

    try:
        return ORIGINS.parse(text)
    except (ValueError, TypeError):
        fail(f"--cors-origins {text} is not allowed: {ORIGINS.allowed}.", EXIT_REFUSED)
