"""Envoy: its configuration for this stack, and its command.

Every request needs a token but those that `OPEN_*` names and CORS preflights. What is said about
identity comes from the token alone: such headers are removed from what clients send.

The admin interface can end Envoy and change it, without authentication. It is a unix socket
that Envoy's own account may open; of it a port of this machine shows `STATS_PATHS` and no more.

The server is called by its own address, so that it can refuse every other Host; what the client
called comes as X-Forwarded-Host.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from headrace.stack.ports import LOOPBACK

API = "type.googleapis.com/envoy"
EARLY = f"{API}.extensions.http.early_header_mutation"
FILTERS = f"{API}.extensions.filters"
TLS = f"{API}.extensions.transport_sockets.tls.v3"
CA_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
# The server ends an idle connection after 75 s (http.keep_alive_secs); Envoy lets go before, so
# that it never sends a request into a connection that is being closed.
UPSTREAM_IDLE = "60s"
IDLE_SECS_MIN = 120
VERIFIED_TOKENS_CACHED = 1000
OPEN_PATHS = ("/healthz",)
OPEN_PREFIXES = ("/ui",)  # the page's own files; what it asks for needs the page's token
IDENTITY_HEADERS = ("x-jwt-sub", "x-forwarded-host")
STATS_PATHS = ("/stats/prometheus", "/ready")
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
OWNER_ONLY = 0o600


@dataclass(frozen=True)
class Setup:
    """What the configuration depends on."""

    listen_port: int
    admin_socket: str  # relative to where Envoy runs: a socket's path has 107 bytes
    stats_port: int
    server_port: int
    jwks: str | None  # public keys as a JSON Web Key Set
    issuer: str
    audience: str
    stream_root: str = "/v1/stream"
    sse_rotation_secs: float = 60
    ui_port: int | None = None
    address: str = LOOPBACK
    stats_address: str = LOOPBACK
    server_host: str = LOOPBACK
    jwks_uri: str | None = None  # an identity provider's keys, instead of the file
    tls: tuple[Path, Path] | None = None  # certificate chain and key, PEM


def executable() -> Path:
    package = find_spec("envoy")
    assert package is not None, "checked when the command began"
    assert package.origin is not None, "a package of files"
    return Path(package.origin).parent / "_bin" / "envoy"


def command(config: Path) -> tuple[str, ...]:
    # Hot restart shares memory between all Envoys of a machine; several stacks must not meet.
    return (
        str(executable()),
        "--config-path",
        str(config),
        "--disable-hot-restart",
        "--concurrency",
        "1",
        "--log-level",
        "warning",
    )


def write(setup: Setup, path: Path) -> None:
    path.write_text(json.dumps(bootstrap(setup), indent=1), "utf-8")


def bootstrap(setup: Setup) -> dict[str, Any]:
    listeners = [_public(setup), _stats(setup)]
    if setup.ui_port is not None:
        listeners.append(_ui(setup, setup.ui_port))
    return {
        "admin": {"address": {"pipe": {"path": setup.admin_socket, "mode": OWNER_ONLY}}},
        "static_resources": {"listeners": listeners, "clusters": _clusters(setup)},
    }


def _public(setup: Setup) -> dict[str, Any]:
    manager = _manager(
        "public",
        setup,
        _virtual_host("public", _server_host(setup)),
        filters=[_jwt(setup)],
    )
    return _listener("public", _socket(setup.address, setup.listen_port), manager, setup.tls)


def _ui(setup: Setup, port: int) -> dict[str, Any]:
    """Without tokens: the server sees the client's own Host, and refuses those it must."""
    manager = _manager("ui", setup, _virtual_host("ui", None))
    return _listener("ui", _socket(setup.address, port), manager, setup.tls)


def _stats(setup: Setup) -> dict[str, Any]:
    """What Prometheus reads, which cannot read a unix socket."""
    get = {"name": ":method", "string_match": {"exact": "GET"}}
    routes = [
        {"match": {"path": path, "headers": [get]}, "route": {"cluster": "admin"}}
        for path in STATS_PATHS
    ]
    domains = LOOPBACK_HOSTS if _is_loopback(setup.stats_address) else ("*",)
    host = {"name": "stats", "domains": list(domains), "routes": routes}
    manager = _manager("stats", setup, host)
    return _listener("stats", _socket(setup.stats_address, setup.stats_port), manager, None)


def _socket(address: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": address, "port_value": port}}


def idle_timeout(sse_rotation_secs: float) -> str:
    """Above the server's own rotation of SSE connections; none where the server has none."""
    if sse_rotation_secs == 0:
        return "0s"
    return f"{max(IDLE_SECS_MIN, int(2 * sse_rotation_secs))}s"


def _manager(
    name: str, setup: Setup, host: dict[str, Any], filters: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    return {
        "@type": f"{FILTERS}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": name,
        "codec_type": "AUTO",  # HTTP/1.1 and HTTP/2, each by what the client says first
        "stream_idle_timeout": idle_timeout(setup.sse_rotation_secs),
        "use_remote_address": True,
        "normalize_path": True,
        # A rule that matches `/healthz` must not be met by `/healthz/../v1/...` or an escaped
        # slash. Adjacent slashes are left alone: they are part of a stream's name.
        "path_with_escaped_slashes_action": "KEEP_UNCHANGED",
        "early_header_mutation_extensions": [_early_removal()],
        "local_reply_config": _problem_documents(),
        "route_config": {"virtual_hosts": [host], "ignore_port_in_host_matching": True},
        "http_filters": [*filters, _router()],
    }


def _listener(
    name: str,
    address: dict[str, Any],
    manager: dict[str, Any],
    tls: tuple[Path, Path] | None,
) -> dict[str, Any]:
    chain: dict[str, Any] = {
        "filters": [
            {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
        ]
    }
    if tls is not None:
        chain["transport_socket"] = _server_tls(*tls)
    return {"name": name, "address": address, "filter_chains": [chain]}


def _server_tls(certificate: Path, key: Path) -> dict[str, Any]:
    pair = {
        "certificate_chain": {"filename": str(certificate)},
        "private_key": {"filename": str(key)},
    }
    common = {"alpn_protocols": ["h2", "http/1.1"], "tls_certificates": [pair]}
    return {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": f"{TLS}.DownstreamTlsContext",
            "common_tls_context": common,
        },
    }


def _early_removal() -> dict[str, Any]:
    """Before any filter, and on open paths too, where the token filter does nothing."""
    return {
        "name": "envoy.http.early_header_mutation.header_mutation",
        "typed_config": {
            "@type": f"{EARLY}.header_mutation.v3.HeaderMutation",
            "mutations": [{"remove": header} for header in IDENTITY_HEADERS],
        },
    }


def _virtual_host(name: str, server_host: str | None) -> dict[str, Any]:
    """Everything goes to the server, which is called `server_host`, or as the client called us."""
    route: dict[str, Any] = {
        "cluster": "server",
        "timeout": "0s",  # SSE goes on for as long as the server likes
        # Only what certainly did not reach the server is sent again.
        "retry_policy": {"retry_on": "connect-failure,refused-stream", "num_retries": 2},
    }
    if server_host is not None:
        route |= {"host_rewrite_literal": server_host, "append_x_forwarded_host": True}
    everything = {"match": {"prefix": "/"}, "route": route}
    home = {"match": {"path": "/"}, "redirect": {"path_redirect": "/ui/"}}
    return {"name": name, "domains": ["*"], "routes": [home, everything]}


def _jwt(setup: Setup) -> dict[str, Any]:
    provider = {
        "issuer": setup.issuer,
        "audiences": [setup.audience],
        **_jwks_source(setup),
        # The server does not read the token, but keeps answers to such requests out of shared
        # caches, also when the token names no subject.
        "forward": True,
        "claim_to_headers": [{"header_name": "x-jwt-sub", "claim_name": "sub"}],
        "jwt_cache_config": {"jwt_cache_size": VERIFIED_TOKENS_CACHED},
    }
    jwks = f"{setup.stream_root}/__ds/jwks.json"
    return {
        "name": "envoy.filters.http.jwt_authn",
        "typed_config": {
            "@type": f"{FILTERS}.http.jwt_authn.v3.JwtAuthentication",
            "providers": {"stack": provider},
            "bypass_cors_preflight": True,
            "rules": [
                *({"match": {"path": path}} for path in (*OPEN_PATHS, jwks, "/")),
                *({"match": {"path_separated_prefix": prefix}} for prefix in OPEN_PREFIXES),
                {"match": {"prefix": "/"}, "requires": {"provider_name": "stack"}},
            ],
        },
    }


def _jwks_source(setup: Setup) -> dict[str, Any]:
    if setup.jwks_uri is None:
        return {"local_jwks": {"inline_string": setup.jwks}}
    return {
        "remote_jwks": {
            "http_uri": {"uri": setup.jwks_uri, "cluster": "jwks", "timeout": "5s"},
            "cache_duration": "300s",
            # Fetched before the first request needs it, and fetched again when that fails.
            "async_fetch": {"fast_listener": False},
            "retry_policy": {"num_retries": 3},
        }
    }


def _router() -> dict[str, Any]:
    return {
        "name": "envoy.filters.http.router",
        "typed_config": {"@type": f"{FILTERS}.http.router.v3.Router"},
    }


def _problem_documents() -> dict[str, Any]:
    """What Envoy itself refuses looks like what the server refuses, also to a browser."""
    document = {
        "type": "about:blank",
        "status": "%RESPONSE_CODE%",
        "detail": "%LOCAL_REPLY_BODY%",
    }
    return {
        "mappers": [
            {
                "filter": {
                    "status_code_filter": {
                        "comparison": {
                            "op": "GE",
                            "value": {"default_value": 400, "runtime_key": "local_reply_from"},
                        }
                    }
                },
                "headers_to_add": [
                    {"header": {"key": "access-control-allow-origin", "value": "*"}},
                    {"header": {"key": "cache-control", "value": "no-store"}},
                ],
                "body_format_override": {
                    "json_format": document,
                    "content_type": "application/problem+json",
                },
            }
        ]
    }


def _clusters(setup: Setup) -> list[dict[str, Any]]:
    clusters = [_server_cluster(setup), _admin_cluster(setup)]
    if setup.jwks_uri is not None:
        clusters.append(_jwks_cluster(setup.jwks_uri))
    return clusters


def _endpoints(name: str, host: str, port: int) -> dict[str, Any]:
    """An address, or a name that is looked up again and again."""
    kind = "STATIC" if _is_address(host) else "STRICT_DNS"
    return {"type": kind, **_assignment(name, _socket(host, port))}


def _assignment(name: str, address: dict[str, Any]) -> dict[str, Any]:
    endpoints = [{"lb_endpoints": [{"endpoint": {"address": address}}]}]
    return {"name": name, "load_assignment": {"cluster_name": name, "endpoints": endpoints}}


def _admin_cluster(setup: Setup) -> dict[str, Any]:
    address = {"pipe": {"path": setup.admin_socket}}
    return {"type": "STATIC", "connect_timeout": "1s", **_assignment("admin", address)}


def _server_host(setup: Setup) -> str:
    host = f"[{setup.server_host}]" if ":" in setup.server_host else setup.server_host
    return f"{host}:{setup.server_port}"


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return _is_address(host) and ip_address(host).is_loopback


def _jwks_cluster(uri: str) -> dict[str, Any]:
    parts = urlsplit(uri)
    assert parts.hostname is not None, "checked when it was given"
    is_tls = parts.scheme == "https"
    cluster = {
        **_endpoints("jwks", parts.hostname, parts.port or (443 if is_tls else 80)),
        "connect_timeout": "5s",
    }
    if is_tls:
        trusted = {"trusted_ca": {"filename": CA_BUNDLE}}
        cluster["transport_socket"] = {
            "name": "envoy.transport_sockets.tls",
            "typed_config": {
                "@type": f"{TLS}.UpstreamTlsContext",
                "sni": parts.hostname,
                "common_tls_context": {"validation_context": trusted},
            },
        }
    return cluster


def _server_cluster(setup: Setup) -> dict[str, Any]:
    options = {
        "@type": f"{API}.extensions.upstreams.http.v3.HttpProtocolOptions",
        "common_http_protocol_options": {"idle_timeout": UPSTREAM_IDLE},
        "explicit_http_config": {"http_protocol_options": {}},
    }
    unlimited = {
        "max_connections": 100_000,
        "max_pending_requests": 100_000,
        "max_requests": 100_000,
    }
    return {
        **_endpoints("server", setup.server_host, setup.server_port),
        "connect_timeout": "1s",
        # Each live reader holds a connection; Envoy's own limit is 1,024.
        "circuit_breakers": {"thresholds": [unlimited]},
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options
        },
    }
