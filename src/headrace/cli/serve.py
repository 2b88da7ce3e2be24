"""`headrace serve`: start the server, say what was started, and say why when it cannot start."""

from __future__ import annotations

import errno
import logging
import os
import ssl
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

import typer

from headrace import __version__, logs
from headrace.build_info import is_compiled
from headrace.cli.options import (
    EXIT_FAILED,
    EXIT_REFUSED,
    ConfigFileOption,
    DataDirOption,
    HostOption,
    ModeOption,
    PortOption,
    ProfileOption,
    fail,
    load_or_exit,
)
from headrace.cli.version import version_line
from headrace.config import DEFAULT_SOURCE, Config, Loaded
from headrace.errors import HeadraceError

LOSES = {
    "memory": "everything is lost when the process stops",
    "file-fast": "a power cut loses what the kernel had not written yet",
    "file-durable": "nothing that was acknowledged is lost",
    "acid": "nothing that was acknowledged is lost",
}


class ServeFunction(Protocol):
    """`headrace.http.server.run`: serves until a signal stops it; returns the exit code."""

    def __call__(self, config: Config, *, on_ready: Callable[[str], None]) -> int: ...


def serve(
    host: HostOption = None,
    port: PortOption = None,
    mode: ModeOption = None,
    data_dir: DataDirOption = None,
    profile: ProfileOption = None,
    config_file: ConfigFileOption = None,
) -> None:
    """Run the server until SIGTERM or SIGINT."""
    flags = {
        "server.host": host,
        "server.port": port,
        "storage.mode": mode,
        "storage.data_dir": data_dir,
    }
    loaded = load_or_exit(flags, profile, config_file)
    if loaded.config.log.traces and not _can_trace():
        fail(
            "log.traces needs OpenTelemetry: pip install '.[otel]' in a clone of Headrace.",
            EXIT_REFUSED,
        )
    # Imported here: `headrace config` need not pay for the whole server.
    from headrace.http.server import run

    raise typer.Exit(start(loaded, run))


def _can_trace() -> bool:
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False


def start(loaded: Loaded, run: ServeFunction) -> int:
    """Set up logging and run; a server that cannot start ends with one sentence."""
    config = loaded.config
    logs.setup(config.log)
    urls: list[str] = []

    def on_ready(url: str) -> None:
        urls.append(url)
        print(announcement(loaded, url), file=sys.stderr, flush=True)

    try:
        return run(config, on_ready=on_ready)
    except HeadraceError as error:
        if urls:
            raise
        fail(error.detail, EXIT_FAILED)
    except OSError as error:
        if urls:  # it was up: not a failure to start, so the traceback is shown
            raise
        fail(_cannot_start(config, error), EXIT_FAILED)


def _cannot_start(config: Config, error: OSError) -> str:
    host, port = config.server.host, config.server.port
    if isinstance(error, ssl.SSLError):  # an OSError whose errno is a code of OpenSSL's own
        cert, key = config.tls.cert_path, config.tls.key_path
        reason = error.reason or "not a PEM certificate and its key"
        return f"The TLS certificate {cert} and key {key} cannot be used: {reason}."
    if error.filename is not None:
        directory = config.storage.data_dir
        if isinstance(error, FileNotFoundError):
            return (
                f"{error.filename} is missing from the data directory. `headrace verify "
                f"{directory}` names all that is; restore the directory from a backup."
            )
        place = "" if Path(error.filename) == Path(directory) else f"{error.filename}: "
        return f"The data directory {directory} cannot be used: {place}{_reason(error)}."
    if error.errno == errno.EADDRINUSE:
        return (
            f"Port {port} of {host} is in use by another process: stop that, or choose another "
            "with --port (0 takes any free one)."
        )
    return f"The server cannot listen on port {port} of {host}: {_reason(error)}."


def _reason(error: OSError) -> str:
    # asyncio wraps the reason in a text of its own; the number gives the plain one. Failures of
    # name resolution have negative numbers and a plain text.
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return (error.strerror or str(error)).rstrip(".")


def announcement(loaded: Loaded, url: str) -> str:
    """What is said once at start: a readable block, or one JSON line among JSON logs."""
    if loaded.config.log.format != "json":
        return startup_block(loaded.config, url, layers(loaded))
    storage = loaded.config.storage.mode
    record = logging.makeLogRecord(
        {
            "name": "headrace",
            "levelno": logging.INFO,
            "msg": "listening",
            "version": __version__,
            "compiled": is_compiled(),
            "url": url,
            "storage": storage,
            "storage_loses": LOSES[storage],
            "config": layers(loaded),
        }
    )
    return logs.JsonLines().format(record)


def layers(loaded: Loaded) -> tuple[str, ...]:
    """The files that were read, then the variables and flags that decided something."""
    known = {DEFAULT_SOURCE, *loaded.files}
    others = dict.fromkeys(s for s in loaded.sources.values() if s not in known)
    return (*loaded.files, *others)


def startup_block(config: Config, url: str, layers: tuple[str, ...] = ()) -> str:
    """Where it listens, what storage it uses, and what that storage loses."""
    mode, limits = config.storage.mode, config.limits
    api = f"{url}{config.server.stream_root}"
    where = "" if mode == "memory" else f" in {config.storage.data_dir}"
    lines = [
        version_line(),
        f"  listening  {url}",
        f"  api        {api}",
        *([f"  browser    {url}/ui"] if config.server.ui else []),
        f"  storage    {mode}{where}: {LOSES[mode]}",
        *(["  to keep    headrace serve --mode file-durable --data-dir data"] * (mode == "memory")),
        f"  limits     {_retained(config)}, {_size(limits.max_body_bytes)} per body",
        f"  config     {', '.join(('built-in defaults', *layers))}",
        f"  try        {_first_request(api)}",
    ]
    if not config.server.is_loopback:
        lines.append("  access     no authentication: anyone who can connect can read and write")
    return "\n".join(lines)


def _first_request(api: str) -> str:
    """A command line to paste: creates a stream with one message, and reads it."""
    insecure = " -k" if api.startswith("https:") else ""  # its certificate may be self-signed
    stream = f"{api}/hello"
    return (
        f"curl{insecure} -X PUT -H 'Content-Type: text/plain' -d 'hello, world' {stream} "
        f"&& curl{insecure} {stream}"
    )


def _retained(config: Config) -> str:
    """What streams may hold, all together and each."""
    each = config.max_stream_bytes
    if config.storage.mode != "memory":
        return f"{_size(each)} per stream" if each else "streams may fill the disk"
    total = f"{_size(config.limits.max_memory_bytes)} in memory"
    return f"{total}, {_size(each)} per stream" if each else total


def _size(count: int) -> str:
    """Exact: a unit is used only where it divides."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count % unit == 0:
            return f"{count // unit} {name}"
    return f"{count} bytes"
