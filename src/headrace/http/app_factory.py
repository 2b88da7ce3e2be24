"""Putting the parts together: one application from one configuration, for any transport."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from pathlib import Path

from headrace.clock import Clock
from headrace.config import Config
from headrace.engine.engine import Bounds, Engine
from headrace.engine.slices import Slices
from headrace.errors import HeadraceError, Overloaded
from headrace.http import openapi
from headrace.http.connections.send_windows import UnsentBudget
from headrace.http.cors import CorsPolicy
from headrace.http.forwarded import ForwardedOrigins
from headrace.http.handlers import browser
from headrace.http.handlers.buckets import BucketRoutes
from headrace.http.handlers.health import Health
from headrace.http.handlers.large_json import LargeJson
from headrace.http.handlers.live import LiveReads
from headrace.http.handlers.snapshots import SnapshotRoutes
from headrace.http.handlers.stream_metadata import StreamMetadata
from headrace.http.handlers.streamed_bodies import StreamedBodies
from headrace.http.handlers.streams import StreamRoutes
from headrace.http.handlers.subscription_routes import SubscriptionRoutes
from headrace.http.handlers.tails import TailRoutes
from headrace.http.handlers.trims import TrimRoutes
from headrace.http.host_metrics import HostMetrics
from headrace.http.metrics import Metrics
from headrace.http.openapi import ApiDescription
from headrace.http.ratelimit import RateLimiter
from headrace.http.routes import Application, Handler
from headrace.http.url_schemes import BaseUrls, BucketUrls
from headrace.http.watchdog import StallLog, Watchdog
from headrace.limits import Limits
from headrace.protocol.names import OWN_NAMES
from headrace.storage.acid.acid_storage import AcidStorage
from headrace.storage.base import Storage
from headrace.storage.disk import RealDisk
from headrace.storage.file.file_storage import FileStorage
from headrace.storage.file.journal import fitting_segment_bytes
from headrace.storage.memory import MemoryStorage
from headrace.storage.scrub import Scrub
from headrace.subscriptions.links import Quota
from headrace.subscriptions.manager import SubscriptionManager, SubscriptionSettings

logger = logging.getLogger(__name__)

FEED_SECS = 0.02  # how long a feed gathers changes while someone waits for them
MAINTENANCE_PAUSE_SECS = 0.002  # between two slices of long work
UNBOUNDED = 2**63  # payload on disk is bounded by the disk


@dataclass(slots=True)
class Assembly:
    """An application and what must be started and stopped with it."""

    application: Application
    origins: ForwardedOrigins
    subscriptions: SubscriptionManager
    storage: Storage
    scrub: Scrub
    unsent: UnsentBudget
    watchdog: Watchdog
    _maintainer: asyncio.Task[None] | None = field(default=None, init=False)
    _refusing: type[HeadraceError] | None = field(default=None, init=False)

    def start(self) -> None:
        self.subscriptions.start()
        self.watchdog.start()
        self._maintainer = asyncio.ensure_future(self._run_maintenance())

    async def failed(self) -> None:
        assert self._maintainer is not None, "it was started"
        await asyncio.gather(self.subscriptions.failed(), self.storage.failed(), self._maintainer)

    async def _run_maintenance(self) -> None:
        """What is too long for one turn of the loop, with room for requests in between."""
        maintenance, work = self.application.engine.maintenance, asyncio.Event()
        maintenance.wake = work.set
        while True:
            await work.wait()
            work.clear()
            while maintenance.run():
                await asyncio.sleep(MAINTENANCE_PAUSE_SECS)

    def tick(self) -> None:
        """Once a second: expired streams, storage's own work, stalled clients, the scrub."""
        self.application.engine.housekeeping.run()
        self._log_write_refusal()
        self.unsent.cut_slowest()
        self.scrub.tick()

    def _log_write_refusal(self) -> None:
        """Logged: it may be long until a request hits them, and operators read the log first."""
        refusal = self.application.engine.write_refusal
        reason = None if refusal is None or isinstance(refusal, Overloaded) else type(refusal)
        if reason is not self._refusing:
            self._refusing = reason
            if refusal is not None and reason is not None:
                logger.warning("writes are refused: %s", refusal.detail)
            else:
                logger.info("writes are accepted again")

    async def stop(self) -> None:
        self.watchdog.stop()
        self.scrub.stop()
        if self._maintainer is not None:
            self._maintainer.cancel()
        await self.subscriptions.stop()
        self.application.engine.close()


def assemble(config: Config, clock: Clock, loop: asyncio.AbstractEventLoop) -> Assembly:
    """The application; where its data cannot be served, the directory is free again."""
    storage = _storage(config, loop)
    try:
        return _assemble(config, clock, loop, storage)
    except BaseException:
        storage.abandon()
        raise


def _assemble(
    config: Config, clock: Clock, loop: asyncio.AbstractEventLoop, storage: Storage
) -> Assembly:
    engine = Engine(storage, clock, _limits(config), _bounds(config))
    engine.fan_out.slices = Slices(loop)
    engine.feeds.prompt = lambda: loop.call_later(FEED_SECS, engine.feeds.flush)
    metrics = Metrics()
    unsent = UnsentBudget(loop, config.limits.max_unsent_bytes)
    origins = ForwardedOrigins(config.server.public_url, config.server.trusted_proxies)
    live = LiveReads(
        engine,
        loop,
        unsent,
        config.server.long_poll_timeout_secs,
        config.server.sse_reconnect_interval_secs,
    )
    slices = Slices(loop)
    large = LargeJson(engine, slices)
    subscriptions = SubscriptionManager(engine, _subscription_settings(config), loop)
    aliases = [alias.rstrip("/") for alias in config.server.stream_root_aliases]
    roots = (config.server.stream_root, *sorted(aliases, key=len, reverse=True))

    defaults = config.streams.creation_defaults

    own = (f"/{name}" for name in OWN_NAMES)
    taken = (*roots, config.server.bucket_root.rstrip("/"), *own)

    def streams_at(root: str) -> StreamRoutes:
        urls = BaseUrls(origins, root, roots, taken)
        return StreamRoutes(engine, live, urls, large, defaults)

    application = Application(
        engine=engine,
        streams=streams_at(config.server.stream_root),
        buckets=_buckets(
            config,
            engine,
            live,
            origins,
            StreamedBodies(loop, unsent, config.http.body_timeout_secs),
            large,
        ),
        tails=TailRoutes(engine, live, slices),
        trims=TrimRoutes(engine),
        control=SubscriptionRoutes(subscriptions, origins, config.server.stream_root, Slices(loop)),
        stream_metadata=StreamMetadata(engine, config.server.stream_root),
        cors=CorsPolicy(config.http.cors_origins),
        origins=origins,
        limiter=_limiter(config, clock),
        metrics=metrics,
        health=Health(lambda: engine.write_refusal, lambda: len(engine.aside)),
        stream_root=config.server.stream_root,
        aliases={alias: streams_at(alias) for alias in aliases},
        pages=_pages(config),
    )
    _wire_metrics(metrics, engine, live, subscriptions)
    scrub = Scrub(storage, engine.snapshots.checks, config.storage.scrub_bytes_per_sec, clock)
    metrics.counter("headrace_scrubbed_bytes_total", lambda: scrub.scrubbed_bytes)
    metrics.counter("headrace_damage_found_total", lambda: scrub.damage_found)
    metrics.gauge("headrace_unsent_bytes", lambda: unsent.used_bytes)
    metrics.counter("headrace_clients_cut_total", lambda: unsent.cut_count)
    stalls = StallLog(config.log.stall_secs)
    metrics.families(stalls.collect)
    mode, data_dir = config.storage.mode, Path(config.storage.data_dir)
    metrics.families(HostMetrics(None if mode == "memory" else data_dir).collect)
    watchdog = Watchdog(application, loop, stalls)
    return Assembly(application, origins, subscriptions, storage, scrub, unsent, watchdog)


def _pages(config: Config) -> dict[bytes, Handler]:
    """What is answered from memory: the description of the API, and the stream browser."""
    server = config.server
    description = ApiDescription(server.stream_root, server.bucket_root, browser=server.ui)
    pages = browser.routes(server.stream_root, server.bucket_root) if server.ui else {}
    return {openapi.PATH.encode(): description.serve, **pages}


def _buckets(
    config: Config,
    engine: Engine,
    live: LiveReads,
    origins: ForwardedOrigins,
    bodies: StreamedBodies,
    large: LargeJson,
) -> BucketRoutes:
    root = config.server.bucket_root.rstrip("/")
    urls = BucketUrls(engine.buckets, origins, root)
    roots = (config.server.stream_root, *config.server.stream_root_aliases)
    own = frozenset({*OWN_NAMES, *(path.split("/")[1] for path in roots)})
    streams = StreamRoutes(engine, live, urls, large, config.streams.creation_defaults)
    snapshots = SnapshotRoutes(engine, bodies, urls)
    return BucketRoutes(engine, streams, snapshots, urls, root, own)


def _storage(config: Config, loop: asyncio.AbstractEventLoop) -> Storage:
    mode = config.storage.mode
    if mode == "memory":
        return MemoryStorage()
    directory = Path(config.storage.data_dir)
    if mode == "acid":
        return AcidStorage(directory, config.storage.acid_shard_count, loop)
    disk = RealDisk(directory)
    try:
        return FileStorage(
            disk,
            _limits(config),
            loop,
            sync=mode == "file-durable",
            segment_bytes=fitting_segment_bytes(
                config.storage.journal_segment_bytes, disk.total_bytes()
            ),
        )
    except BaseException:
        disk.close()
        raise


def _limits(config: Config) -> Limits:
    limits = config.limits
    return Limits(
        stream_bytes_max=config.max_stream_bytes or UNBOUNDED,
        json_body_bytes_max=limits.max_json_body_bytes,
        append_messages_max=limits.max_append_messages,
        producers_max=limits.max_producers_per_stream,
        producer_receipts_max=limits.producer_receipts,
        read_chunk_bytes=limits.read_chunk_bytes,
        snapshot_bytes_max=limits.max_snapshot_bytes,
        fork_depth_max=limits.max_fork_depth,
        accept_offset_plus_one=config.streams.accept_offset_plus_one,
    )


def _bounds(config: Config) -> Bounds:
    limits = config.limits
    return Bounds(
        memory_bytes_max=(
            limits.max_memory_bytes if config.storage.mode == "memory" else UNBOUNDED
        ),
        streams_max=limits.max_streams,
        readers_per_stream_max=limits.max_live_readers_per_stream,
        polled_tails_max=limits.max_polled_tails,
    )


def _subscription_settings(config: Config) -> SubscriptionSettings:
    webhooks = config.webhooks
    return SubscriptionSettings(
        allow_loopback=webhooks.allow_loopback,
        allow_private=webhooks.allow_private,
        timeout_secs=webhooks.timeout_secs,
        max_subscriptions=webhooks.max_subscriptions,
        quota=Quota(webhooks.max_memory_bytes, webhooks.max_links_per_subscription),
        stream_root=config.server.stream_root,
        base_url_is_configured=config.server.public_url is not None,
    )


def _limiter(config: Config, clock: Clock) -> RateLimiter | None:
    per_sec = config.limits.rate_limit_requests_per_sec
    return RateLimiter(clock, per_sec, config.limits.rate_limit_burst) if per_sec else None


def _wire_metrics(
    metrics: Metrics, engine: Engine, live: LiveReads, subscriptions: SubscriptionManager
) -> None:
    metrics.gauge("headrace_streams", lambda: len(engine.streams) - len(engine.buckets))
    metrics.gauge("headrace_streams_set_aside", lambda: len(engine.aside))
    metrics.gauge("headrace_buckets", lambda: len(engine.buckets))
    metrics.gauge("headrace_stored_bytes", lambda: engine.stored.total)
    for what in ("batches", "changes", "seconds"):
        _commit_counter(metrics, engine.storage, what)
    metrics.gauge("headrace_event_loop_lag_seconds", lambda: metrics.event_loop_lag_secs)
    metrics.gauge("headrace_subscriptions", lambda: len(subscriptions))
    metrics.gauge("headrace_subscriptions_degraded", lambda: subscriptions.degraded_count)
    metrics.counter("headrace_subscription_faults_total", lambda: subscriptions.fault_count)
    metrics.gauge("headrace_subscription_links", lambda: subscriptions.link_count)
    metrics.gauge("headrace_subscription_bytes", lambda: subscriptions.used_bytes)
    metrics.webhook_deliveries(lambda: subscriptions.deliveries)
    metrics.live_readers("long-poll", lambda: live.long_poll_count)
    metrics.live_readers("sse", lambda: live.sse_count)
    metrics.gauge("headrace_polled_tails", lambda: live.polled_tails)


def _commit_counter(metrics: Metrics, storage: Storage, what: str) -> None:
    def read() -> float:
        return float(getattr(storage.commits(), what))

    metrics.counter(f"headrace_commit_{what}_total", read)
    metrics.gauge(f"headrace_commit_{what}", read)  # its name in earlier versions
