"""The services of the profiles `sync` and `dev`: Postgres, its schema, both pipelines, monitoring.

`POSTGRES_URL`, `DS_SERVER_URL` and `ELECTRIC_URL` mean what they mean in the reference: a
database, a server and an Electric of one's own instead of the stack's.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

from psycopg.conninfo import conninfo_to_dict

from headrace.postgres.server import PostgresServer
from headrace.stack.ports import Ports, url
from headrace.stack.services import HEADRACE, HealthProbe, Service
from headrace.stack.state_directory import StateDirectory

POSTGRES_URL = "POSTGRES_URL"
SERVER_URL = "DS_SERVER_URL"
ELECTRIC_URL = "ELECTRIC_URL"
PIPELINES = ("stream-to-postgres", "postgres-to-stream")
PIPELINE_STOP_SECS = 30.0
SPARK_CONFIG = """\
# Written by `headrace stack up`.
[spark]
# For small batches on a small machine: compile once and quickly, collect without extra threads.
"spark.driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# A batch has one job; planning it again while it runs gains nothing.
"spark.sql.adaptive.enabled" = "false"
"spark.sql.shuffle.partitions" = "1"
"""


@dataclass(frozen=True)
class Database:
    """The database, and the service that runs it unless it is an external one."""

    url: str
    service: Service | None = None


def sync_services(
    state: StateDirectory, database: Database, ports: Ports, server: str
) -> list[Service]:
    env = _environment(database, server)
    services = [] if database.service is None else [database.service]
    return [*services, _prepare(env), _sync(state, env), _monitor(ports, env)]


def dev_services(
    state: StateDirectory, database: Database, ports: Ports, server: str
) -> list[Service]:
    env = _environment(database, server)
    heartbeat = Service(
        name="heartbeat",
        argv=(*HEADRACE, "stack", "heartbeat"),
        env=env,
        needs=("prepare", "server"),
        note="odd ticks insert into items, even ticks append to session-events",
    )
    return [heartbeat, _adminer(state, ports, env), _shapes(ports, env)]


def _environment(database: Database, server: str) -> dict[str, str]:
    return {POSTGRES_URL: database.url, SERVER_URL: os.environ.get(SERVER_URL) or server}


def database(state: StateDirectory, ports: Ports) -> Database:
    """The caller's database if POSTGRES_URL names one, else one of the stack's own."""
    given = os.environ.get(POSTGRES_URL)
    if given:
        return Database(given)
    server = PostgresServer(state.path / "postgres", port=ports.give("postgres"))
    service = Service(
        name="postgres",
        argv=tuple(server.prepare()),
        # The migration makes the stack's database; this one is always there.
        health=HealthProbe("postgres", server.url_of("postgres")),
        address=shown(server.url),
        note="password: password",
        stop_signal=signal.SIGINT,  # a fast shutdown; SIGTERM would wait for every client
        user=server.account,
        cwd=server.data_dir,
    )
    return Database(server.url, service)


def shown(postgres_url: str) -> str:
    """A database's URL without its password."""
    parts = conninfo_to_dict(postgres_url)
    where = f"{parts.get('host', '')}:{parts.get('port', 5432)}"
    return f"postgresql://{parts.get('user', '')}@{where}/{parts.get('dbname', '')}"


def _prepare(env: dict[str, str]) -> Service:
    return Service(
        name="prepare",
        argv=(*HEADRACE, "stack", "prepare"),
        env=env,
        needs=("postgres", "server"),
        oneshot=True,
        note="brings schema and streams up to date",
    )


def _sync(state: StateDirectory, env: dict[str, str]) -> Service:
    """Both directions in one process: a second Java machine would double the time to start."""
    home = state.path / "pipelines"
    config = state.path / "pipelines.toml"
    config.write_text(SPARK_CONFIG, "utf-8")
    reports = tuple(home / name / "progress.json" for name in PIPELINES)
    return Service(
        name="sync",
        argv=(
            *(*HEADRACE, "pipeline", "run", *PIPELINES),
            *("--state", str(home), "--config", str(config)),
        ),
        env=env,
        needs=("prepare", "server"),
        health=HealthProbe("pipelines", os.pathsep.join(map(str, reports))),
        reports=reports,
        note="Spark: " + ", ".join(PIPELINES),
        stop_secs=PIPELINE_STOP_SECS,
    )


def _monitor(ports: Ports, env: dict[str, str]) -> Service:
    port = ports.give("monitor")
    return Service(
        name="monitor",
        argv=(*HEADRACE, "stack", "monitor", "--port", str(port)),
        env=env,
        needs=("prepare", "server"),
        health=HealthProbe("http", f"{url(port)}/healthz"),
        address=url(port),
        note="lag of the sync and its slots: /metrics",
    )


def _shapes(ports: Ports, env: dict[str, str]) -> Service:
    port = ports.give("shapes")
    return Service(
        name="shapes",
        argv=(*HEADRACE, "shapes", "--port", str(port)),
        env=env,
        needs=("prepare", "server"),
        health=HealthProbe("http", f"{url(port)}/v1/health"),
        address=url(port),
        note="Electric-compatible: /v1/shape",
    )


def _adminer(state: StateDirectory, ports: Ports, env: dict[str, str]) -> Service:
    port = ports.give("adminer")
    return Service(
        name="adminer",
        argv=(*HEADRACE, "stack", "database-page", "--port", str(port), "--state", str(state.path)),
        env=env,
        needs=("prepare",),
        health=HealthProbe("http", f"{url(port)}/"),
        address=url(port),
        note="Adminer, or a read-only page of the tables where there is no PHP",
    )
