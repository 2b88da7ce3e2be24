"""The stack services that are part of Headrace: the supervisor starts them, and they run alone too.

They take their addresses from `POSTGRES_URL` and `DS_SERVER_URL`, as the reference's do.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from headrace.cli.options import EXIT_FAILED, EXIT_REFUSED, fail
from headrace.cli.stack_options import (
    AllowedHostsOption,
    StateOption,
    allowed_hosts,
    host_rules,
    state_directory,
)

SERVER_URL_DEFAULT = "http://localhost:4437"
SOCKET_PATH_BYTES_MAX = 107  # Linux: sockaddr_un
PortOption = Annotated[int, typer.Option("--port", min=1, max=65_535, help="Port to listen on.")]
HostOption = Annotated[str, typer.Option("--host", help="Address to listen on.")]


def log_plainly() -> None:
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)


def postgres_url() -> str:
    url = os.environ.get("POSTGRES_URL")
    if not url:
        fail("POSTGRES_URL is not set: it names the database, as postgresql://...", EXIT_REFUSED)
    return url


def server_url() -> str:
    return os.environ.get("DS_SERVER_URL") or SERVER_URL_DEFAULT


def _until_told() -> threading.Event:
    """An event that SIGTERM and SIGINT set."""
    stop = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
    return stop


def prepare() -> None:
    """Migrate the schema of POSTGRES_URL, and create the stream that sessions append to."""
    from headrace.client import Client
    from headrace.errors import HeadraceError
    from headrace.stack.heartbeat import STREAM

    migrate()
    try:
        with Client(server_url()) as client:
            client.stream(STREAM).create("application/json")
    except HeadraceError as error:
        fail(str(error), EXIT_FAILED)


def migrate() -> None:
    """Migrate the schema of POSTGRES_URL to the latest version; create a missing database."""
    import psycopg

    from headrace.stack.migrate import MigrationError, create_database
    from headrace.stack.migrate import migrate as apply

    url = postgres_url()
    try:
        create_database(url)
        applied = apply(url)
    except (MigrationError, psycopg.Error) as error:
        fail(str(error).strip(), EXIT_FAILED)
    for migration in applied:
        typer.echo(f"applied {migration.version:04d}_{migration.name}")
    if not applied:
        typer.echo("nothing to do")


def heartbeat(
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", min=0.001, help="Time between ticks.")
    ] = 5.0,
) -> None:
    """Write a tick to the stream and to Postgres alternately, until stopped."""
    from headrace.stack.heartbeat import Heartbeat

    log_plainly()
    Heartbeat(postgres_url(), server_url()).run(_until_told(), every)


def monitor(
    port: PortOption,
    slot: Annotated[
        str, typer.Option("--slot", help="Replication slot (default: headrace_<database>).")
    ] = "",
    host: HostOption = "127.0.0.1",
    names: AllowedHostsOption = "auto",
) -> None:
    """Serve replication lag and slot state of the sync as Prometheus metrics."""
    from headrace.stack.monitor import Monitor, serve

    log_plainly()
    rules = host_rules(host, names)
    serve(Monitor(postgres_url(), server_url(), slot=slot), host, port, rules)


def database_page(
    port: PortOption,
    state: StateOption = None,
    host: HostOption = "127.0.0.1",
    names: AllowedHostsOption = "auto",
) -> None:
    """Serve Adminer, or a read-only page of the tables where Adminer is not available."""
    from headrace.stack import adminer, database_page

    log_plainly()
    rules = host_rules(host, names)
    found = adminer.find(state_directory(state).path / "adminer")
    if found is not None:
        command = found.command(host, port)
        environment = found.environment(allowed_hosts(host, names), os.environ.get("POSTGRES_URL"))
        os.execve(command[0], command, {**os.environ, **environment})
    logging.getLogger(__name__).warning("serving the read-only page instead of Adminer")
    database_page.server(postgres_url(), host, port, rules).serve_forever()


def envoy_config(
    server: Annotated[
        str, typer.Option("--server", metavar="HOST:PORT", help="Address of the server.")
    ] = "127.0.0.1:4437",
    listen: Annotated[
        str, typer.Option("--listen", metavar="ADDRESS:PORT", help="Address to listen on.")
    ] = "0.0.0.0:8080",
    admin: Annotated[
        Path, typer.Option("--admin", metavar="SOCKET", help="Unix socket of Envoy's admin API.")
    ] = Path("/run/headrace-envoy/admin.sock"),
    stats: Annotated[
        str,
        typer.Option(
            "--stats", metavar="ADDRESS:PORT", help="Address that serves Envoy's metrics."
        ),
    ] = "127.0.0.1:9901",
    jwks_uri: Annotated[
        str | None, typer.Option("--jwks-uri", help="URL of the keys that sign tokens (JWKS).")
    ] = None,
    issuer: Annotated[str | None, typer.Option("--issuer", help="Required `iss` claim.")] = None,
    audience: Annotated[
        str | None, typer.Option("--audience", help="Required `aud` claim.")
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", help="PEM certificate chain.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", help="PEM private key.")] = None,
    sse_rotation: Annotated[
        float,
        typer.Option("--sse-rotation", help="Seconds; as server.sse_reconnect_interval_secs."),
    ] = 60.0,
    state: StateOption = None,
) -> None:
    """Print an Envoy configuration for your own deployment.

    Without --jwks-uri, Envoy accepts tokens signed with the stack's test keys.
    """
    import json

    from headrace.stack import envoy

    if (tls_cert is None) != (tls_key is None):
        fail("--tls-cert and --tls-key go together: give both or neither.", EXIT_REFUSED)
    if jwks_uri is not None and not re.fullmatch(r"https?://[^/\s]+/\S*", jwks_uri):
        fail(f"--jwks-uri {jwks_uri} is not an http or https URL with a path.", EXIT_REFUSED)
    jwks = None
    if jwks_uri is None:
        # Imported here: with the keys of others the extra `stack` is not needed.
        from headrace.stack.tokens import AUDIENCE, ISSUER, TokenKeys

        jwks = TokenKeys(state_directory(state).path).jwks()
        issuer, audience = issuer or ISSUER, audience or AUDIENCE
    if issuer is None or audience is None:
        fail(
            "--jwks-uri needs --issuer and --audience: the claims that tokens must have.",
            EXIT_REFUSED,
        )
    if not admin.is_absolute() or len(os.fsencode(admin)) > SOCKET_PATH_BYTES_MAX:
        fail(
            f"--admin {admin} is not an absolute path of at most {SOCKET_PATH_BYTES_MAX} bytes: "
            "the admin API is a Unix socket because it needs no token and can stop Envoy.",
            EXIT_REFUSED,
        )
    (address, port), (server_host, server_port) = _host_port(listen), _host_port(server)
    stats_host, stats_port = _host_port(stats)
    setup = envoy.Setup(
        listen_port=port,
        admin_socket=str(admin),
        stats_port=stats_port,
        server_port=server_port,
        jwks=jwks,
        issuer=issuer,
        audience=audience,
        sse_rotation_secs=sse_rotation,
        address=address,
        stats_address=stats_host,
        server_host=server_host,
        jwks_uri=jwks_uri,
        tls=None if tls_cert is None or tls_key is None else (tls_cert, tls_key),
    )
    typer.echo(json.dumps(envoy.bootstrap(setup), indent=1))


def _host_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        fail(f"{text} is not an address and a port, such as 0.0.0.0:8080.", EXIT_REFUSED)
    return host, int(port)


COMMANDS = (envoy_config, migrate, prepare, heartbeat, monitor, database_page)
