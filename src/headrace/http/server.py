"""The server process: listen, serve, reload, drain, stop."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import signal
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import uvloop

from headrace.clock import SystemClock
from headrace.config import Config
from headrace.engine.slices import Slices
from headrace.http import process_memory
from headrace.http.access import access_of
from headrace.http.app_factory import Assembly, assemble
from headrace.http.connections.acceptor import (
    Acceptor,
    connections_max,
    listen,
    raise_descriptor_limit,
)
from headrace.http.connections.connection import Connection, Shared, WriterLimits
from headrace.http.connections.reader import BodyBudget, ReaderLimits
from headrace.http.connections.request_turns import Turns
from headrace.http.connections.response_head import ResponseHead
from headrace.http.forwarded import ForwardedOrigins
from headrace.http.lifespan import Lifespan, grace_secs

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

logger = logging.getLogger(__name__)

# Connections checked in one step: most cost a microsecond, one that is closed or answered costs
# fifty, and thousands that came together may be overdue together.
CONNECTIONS_PER_STEP: Final = 20
TRACES_SECS_MAX: Final = 3.0  # at a stop


def run(config: Config, on_ready: Callable[[str], None] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; the process's exit code."""
    # LMDB maps its file: where a page cannot be read, or leads LMDB astray, there is a signal and
    # no exception. The stack on stderr then shows what was being read.
    faulthandler.enable()
    return uvloop.run(_serve(config, on_ready))


async def _serve(config: Config, on_ready: Callable[[str], None] | None) -> int:
    server = Server(config)
    await server.start()
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    loop.add_signal_handler(signal.SIGHUP, server.reload_tls)
    if on_ready is not None:
        on_ready(server.url)
    process_memory.tune_gc()
    failure = asyncio.ensure_future(server.failed())
    stopped = asyncio.ensure_future(stopping.wait())
    await asyncio.wait((failure, stopped), return_when=asyncio.FIRST_COMPLETED)
    if failure.done():
        # Readers are served a little longer: /readyz is red, and they find another server.
        await asyncio.wait((stopped,), timeout=grace_secs(config))
    await server.stop()
    stopped.cancel()
    if failure.done() and not failure.cancelled():
        logger.critical("a background task died", exc_info=failure.exception())
        return 1
    failure.cancel()
    return 0


class Server:
    """A listening socket in front of an assembled application."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._clock = SystemClock()
        self._tls: ssl.SSLContext | None = None
        self._traces: TracerProvider | None = None

    async def start(self) -> None:
        config = self._config
        loop = asyncio.get_running_loop()
        raise_descriptor_limit()  # a directory may take more to open than the soft limit allows
        self._assembly: Assembly = assemble(config, self._clock, loop)
        self._tls = _tls_context(config)
        self._slices = Slices(loop)
        self._is_checking = False
        self._shared = Shared(
            application=self._assembly.application,
            response_head=ResponseHead(self._clock, self._assembly.application.cors),
            reading=_reader_limits(config, self._assembly.origins),
            writing=_writer_limits(config),
            bodies=BodyBudget(config.limits.max_inflight_body_bytes),
            turns=Turns(loop),
            unsent=self._assembly.unsent,
            scheme="https" if self._tls else "http",
            log_access=config.log.access,
        )
        if config.log.traces:
            # Imported here: it needs the extra, and most servers do without.
            from headrace.http.tracing import exporting_provider, traced

            self._traces = exporting_provider()
            self._shared.observe = traced(self._shared.observe, self._clock, self._traces)
        self._acceptor = Acceptor(
            self._shared,
            loop,
            listen(config.server.host, config.server.port),
            connections_max(config.limits.max_connections),
            self._tls,
            config.http.header_timeout_secs,
        )
        self._assembly.application.metrics.gauge(
            "headrace_connections", lambda: self._acceptor.open_count
        )
        self._acceptor.start()
        self._lifespan = Lifespan(self._assembly, self._tick)
        self._lifespan.start()

    @property
    def url(self) -> str:
        address = self._acceptor.sockets[0].getsockname()
        host = f"[{address[0]}]" if ":" in address[0] else address[0]
        return f"{self._shared.scheme}://{host}:{address[1]}"

    async def failed(self) -> None:
        """Returns never, or raises what a background task died of."""
        await self._lifespan.failed()

    def _tick(self) -> None:
        """Once a second: the date, deadlines of connections."""
        shared = self._shared
        shared.response_head.tick()
        shared.bodies.choose_slowest(shared.response_head.now)
        if not self._is_checking:
            self._is_checking = True
            self._slices.run(self._check_all(), self._check_failed)

    def _check_all(self) -> Iterator[None]:
        head = self._shared.response_head
        yield from self._each_connection(lambda connection: _check(connection, head.now))
        self._is_checking = False

    def _check_failed(self, error: Exception) -> None:
        self._is_checking = False
        logger.error("looking at connections failed", exc_info=error)

    def _each_connection(self, do: Callable[[Connection], None]) -> Iterator[None]:
        """`do` for all connections of now that are still open when their turn comes."""
        connections = self._shared.connections
        for number, connection in enumerate(tuple(connections)):
            if connection in connections:
                do(connection)
            if number % CONNECTIONS_PER_STEP == 0:
                yield

    def reload_tls(self) -> None:
        """New handshakes use the certificate that is on disk now."""
        if self._tls is None:
            return
        try:
            _load_certificate(self._tls, self._config)
            logger.info("certificate reloaded")
        except (OSError, ssl.SSLError) as error:
            logger.error("certificate not reloaded, the old one stays: %s", error)

    async def stop(self) -> None:
        """Stop listening, let requests finish, tell live readers to reconnect."""
        shared = self._shared
        shared.draining = self._assembly.application.health.draining = True
        self._acceptor.close()
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._config.server.drain_secs
        await self._finish(Connection.drain)
        while shared.connections and loop.time() < give_up:
            await asyncio.sleep(0.02)
        await self._finish(Connection.abort)
        await self._lifespan.stop()
        await self._send_traces()

    async def _send_traces(self) -> None:
        """What is left of them; a collector that does not answer holds no stop up."""
        if self._traces is None:
            return
        sending = threading.Thread(target=self._traces.shutdown, daemon=True)
        sending.start()
        loop = asyncio.get_running_loop()
        give_up = loop.time() + TRACES_SECS_MAX
        while sending.is_alive() and loop.time() < give_up:
            await asyncio.sleep(0.02)

    async def _finish(self, how: Callable[[Connection], None]) -> None:
        """With all connections, a few at a time: some are in the middle of something."""
        for _ in self._each_connection(how):
            await asyncio.sleep(0)


def _check(connection: Connection, now: float) -> None:
    """One connection that cannot be judged must not keep the others from it."""
    try:
        connection.check_deadline(now)
    except Exception:
        connection.fail("a deadline")


def _tls_context(config: Config) -> ssl.SSLContext | None:
    if config.tls.cert_path is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    _load_certificate(context, config)
    return context


def _load_certificate(context: ssl.SSLContext, config: Config) -> None:
    assert config.tls.cert_path is not None, "TLS is configured"
    context.load_cert_chain(config.tls.cert_path, config.tls.key_path)


def _reader_limits(config: Config, origins: ForwardedOrigins) -> ReaderLimits:
    limits, http = config.limits, config.http
    return ReaderLimits(
        header_bytes_max=limits.max_header_bytes,
        header_count_max=limits.max_header_count,
        url_bytes_max=limits.max_url_bytes,
        body_bytes_max=limits.max_body_bytes,
        header_timeout_secs=http.header_timeout_secs,
        body_timeout_secs=http.body_timeout_secs,
        access=access_of(config, origins, listens=True),
    )


def _writer_limits(config: Config) -> WriterLimits:
    return WriterLimits(
        keep_alive_secs=config.http.keep_alive_secs,
        stalled_secs=config.http.body_timeout_secs,
        live_send_buffer_bytes=config.limits.sse_buffer_bytes,
        answer_secs=config.http.answer_timeout_secs,
        long_poll_secs=config.server.long_poll_timeout_secs,
    )
