"""The profiles: their services in start order, and how each gets the addresses of the others."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass, field
from typing import Any

from headrace.stack import envoy
from headrace.stack.ports import LOOPBACK, Ports, url
from headrace.stack.services import HEADRACE, HealthProbe, Service
from headrace.stack.state_directory import StateDirectory
from headrace.stack.sync_services import database, dev_services, sync_services
from headrace.stack.tokens import AUDIENCE, ISSUER, TokenKeys

PROFILES = ("default", "sync", "dev")
CONFIG_TIMEOUT_SECS = 30
ADMIN_SOCKET = "admin.sock"


class BadSetup(ValueError):
    """The stack cannot be put together; the sentence says what to change."""


@dataclass
class Plan:
    """The services of one profile, and what to tell the person who starts it."""

    profile: str
    services: list[Service] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)


def plan(profile: str, state: StateDirectory, ports: Ports) -> Plan:
    """Everything that `profile` runs. Writes the files the services read, starts nothing."""
    if profile not in PROFILES:
        raise BadSetup(f"There is no profile {profile!r}: choose one of {', '.join(PROFILES)}.")
    state.create()
    made = Plan(profile)
    server = _server(state, ports)
    made.services += [server, _envoy(profile, state, ports, server)]
    if profile in ("sync", "dev"):
        base = database(state, ports)
        made.services += sync_services(state, base, ports, server.address)
        if profile == "dev":
            made.services += dev_services(state, base, ports, server.address)
    made.messages += ports.messages
    return made


def _server(state: StateDirectory, ports: Ports) -> Service:
    """The server, durable; any setting of the caller's environment but its address holds."""
    port = ports.give("server")
    defaults = {
        "DS_STORAGE__MODE": "file-durable",
        "DS_STORAGE__DATA_DIR": str(state.path / "streams"),
        # A table's stream grows with the table: at the 10 MiB of memory mode the sync would stop.
        "DS_LIMITS__MAX_STREAM_BYTES": "0",
        "DS_SERVER__TRUSTED_PROXIES": "loopback",
    }
    env = {name: os.environ.get(name, value) for name, value in defaults.items()}
    env |= {"DS_SERVER__HOST": LOOPBACK, "DS_SERVER__PORT": str(port)}
    return Service(
        name="server",
        argv=(*HEADRACE, "serve"),
        env=env,
        health=HealthProbe("http", f"{url(port)}/readyz"),
        address=url(port),
        note="no authentication",
    )


def _envoy(profile: str, state: StateDirectory, ports: Ports, server: Service) -> Service:
    # The admin socket is in a directory of its own, which no other account may enter.
    home = state.path / "envoy"
    home.mkdir(exist_ok=True, mode=0o700)
    home.chmod(0o700)
    settings = _server_settings(server)
    setup = envoy.Setup(
        listen_port=ports.give("envoy"),
        admin_socket=ADMIN_SOCKET,
        stats_port=ports.give("envoy-stats"),
        server_port=ports.give("server"),
        jwks=TokenKeys(state.path).jwks(),
        issuer=ISSUER,
        audience=AUDIENCE,
        stream_root=str(settings["server"]["stream_root"]["value"]),
        sse_rotation_secs=float(settings["server"]["sse_reconnect_interval_secs"]["value"]),
        ui_port=ports.give("ui") if profile == "dev" else None,
    )
    config = state.path / "envoy.json"
    envoy.write(setup, config)
    note = f"tokens; stats {url(setup.stats_port)}; admin {home / ADMIN_SOCKET}"
    page = "" if setup.ui_port is None else url(setup.ui_port)
    if page:
        note += f"; stream browser {page}"
    return Service(
        name="envoy",
        argv=envoy.command(config),
        health=HealthProbe("http", f"{url(setup.listen_port)}/healthz"),
        needs=("server",),
        address=url(setup.listen_port),
        page=page,
        note=note,
        cwd=home,
    )


def _server_settings(server: Service) -> dict[str, dict[str, dict[str, Any]]]:
    """What the server will use, from the server's own words; a bad setting is refused here."""
    asked = subprocess.run(
        [*HEADRACE, "config", "--json"],
        env={**os.environ, **server.env},
        capture_output=True,
        text=True,
        timeout=CONFIG_TIMEOUT_SECS,
        check=False,
    )
    if asked.returncode != 0:
        raise BadSetup(asked.stderr.strip().removeprefix("headrace: "))
    settings: dict[str, dict[str, dict[str, Any]]] = json.loads(asked.stdout)
    return settings
