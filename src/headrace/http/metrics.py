"""Metrics: plain counters on the hot path, Prometheus text when asked.

Counting is integer arithmetic on dictionaries; metric families exist only during a scrape. METRICS
has the name and help of each; a gauge's or counter's value is registered in `app_factory`, from the
object that has it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from headrace.clock import monotonic
from headrace.http.exchange import Exchange, Request
from headrace.protocol.responses import OK, Response

METRICS: dict[str, str] = {
    "headrace_requests_total": "Requests answered, by operation and status.",
    "headrace_request_seconds": "Time from a complete request to its answer, by operation.",
    "headrace_received_bytes_total": "Request body bytes received.",
    "headrace_sent_bytes_total": "Response body bytes sent.",
    "headrace_streams": "Streams that exist, soft-deleted ones included.",
    "headrace_streams_set_aside": "Streams that the start could not recover.",
    "headrace_buckets": "Buckets that exist.",
    "headrace_stored_bytes": "Payload bytes held.",
    "headrace_scrubbed_bytes_total": "Stored bytes that were read again to find damage.",
    "headrace_damage_found_total": "Damaged places that the scrub has found.",
    "headrace_commit_batches_total": "Batches made durable since the start; 0 in memory mode.",
    "headrace_commit_changes_total": "Changes in those batches.",
    "headrace_commit_seconds_total": "Seconds spent writing and syncing them.",
    "headrace_commit_batches": "Deprecated: use headrace_commit_batches_total.",
    "headrace_commit_changes": "Deprecated: use headrace_commit_changes_total.",
    "headrace_commit_seconds": "Deprecated: use headrace_commit_seconds_total.",
    "headrace_live_readers": "Live reads waiting, by mode.",
    "headrace_polled_tails": "Streams that polls of many tails wait on, counted once per poll.",
    "headrace_connections": "Open connections.",
    "headrace_connections_refused_total": "Connections refused at the limit.",
    "headrace_unsent_bytes": "Bytes of large answers that clients have not taken yet.",
    "headrace_clients_cut_total": "Clients cut off past that limit for taking too little.",
    "headrace_event_loop_lag_seconds": "How late the event loop runs its timers.",
    "headrace_event_loop_stall_seconds": "Stalls of the event loop, by what held it.",
    "headrace_event_loop_stall_cpu_seconds": "Processor time of the loop's thread in those stalls.",
    "headrace_event_loop_stall_held_seconds": "Those stalls without waiting for a processor.",
    "headrace_event_loop_longest_stall_cpu_seconds": "The longest of them, and what held the loop.",
    "headrace_subscriptions": "Subscriptions that exist.",
    "headrace_subscriptions_degraded": "Subscriptions that miss streams, or that an error stopped.",
    "headrace_subscription_faults_total": "Internal errors that stopped a subscription.",
    "headrace_subscription_links": "Streams linked to subscriptions.",
    "headrace_subscription_bytes": "What subscriptions and their links take of their budget.",
    "headrace_webhook_deliveries_total": "Webhook deliveries, by result.",
}

# Live reads wait on purpose; their time to answer says nothing about the server.
LATENCY_BUCKETS_SECS: tuple[float, ...] = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
)  # fmt: skip


class OperationStats:
    """What is counted of one kind of request."""

    __slots__ = ("buckets", "received_bytes", "seconds", "sent_bytes", "statuses")

    def __init__(self) -> None:
        self.statuses: defaultdict[int, int] = defaultdict(int)
        self.buckets = [0] * (len(LATENCY_BUCKETS_SECS) + 1)
        self.seconds = 0.0
        self.received_bytes = 0
        self.sent_bytes = 0


class Metrics:
    def __init__(self) -> None:
        self.operations: defaultdict[str, OperationStats] = defaultdict(OperationStats)
        self.sent_event_bytes = 0
        self.connections_refused = 0
        self.event_loop_lag_secs = 0.0
        self._gauges: dict[str, Callable[[], float]] = {}
        self._counters: dict[str, Callable[[], float]] = {}
        self._live: dict[str, Callable[[], float]] = {}
        self._families: list[Callable[[], Iterable[Metric]]] = []
        self._deliveries: Callable[[], Mapping[str, int]] = dict
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def observe(self, request: Request, status: int, sent_bytes: int) -> float:
        """Count an answer; the seconds it took."""
        stats = self.operations[request.operation]
        elapsed_secs = monotonic() - request.started
        stats.statuses[status] += 1
        stats.buckets[bisect_left(LATENCY_BUCKETS_SECS, elapsed_secs)] += 1
        stats.seconds += elapsed_secs
        stats.received_bytes += request.body_bytes
        stats.sent_bytes += sent_bytes
        return elapsed_secs

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        """Take the value of gauge `name` from `read` at every scrape."""
        assert name in METRICS, name
        self._gauges[name] = read

    def counter(self, name: str, read: Callable[[], float]) -> None:
        """Take the value of counter `name`, which never falls, from `read` at every scrape."""
        assert name in METRICS, name
        self._counters[name] = read

    def families(self, read: Callable[[], Iterable[Metric]]) -> None:
        """Take whole metric families from `read` at every scrape."""
        self._families.append(read)

    def live_readers(self, mode: str, read: Callable[[], float]) -> None:
        self._live[mode] = read

    def webhook_deliveries(self, read: Callable[[], Mapping[str, int]]) -> None:
        self._deliveries = read

    def scrape(self, request: Request, exchange: Exchange) -> None:
        request.operation = "metrics"
        text = generate_latest(self._registry)
        headers = b"Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
        exchange.respond(Response(OK, headers + b"Cache-Control: no-store\r\n", text))

    def collect(self) -> Iterator[Metric]:
        """The registry calls this for every scrape."""
        operations = self.operations.items()
        yield self._labelled(
            "headrace_requests_total",
            ("operation", "status"),
            {(name, s): n for name, stats in operations for s, n in stats.statuses.items()},
        )
        yield self._latency_family()
        sent_bytes = sum(stats.sent_bytes for _, stats in operations) + self.sent_event_bytes
        for name, value in (
            ("headrace_received_bytes_total", sum(s.received_bytes for _, s in operations)),
            ("headrace_sent_bytes_total", sent_bytes),
            ("headrace_connections_refused_total", self.connections_refused),
        ):
            yield CounterMetricFamily(name, METRICS[name], value=value)
        yield self._labelled(
            "headrace_webhook_deliveries_total",
            ("result",),
            {(result,): count for result, count in self._deliveries().items()},
        )
        yield self._live_family()
        for name, count in self._counters.items():
            yield CounterMetricFamily(name, METRICS[name], value=count())
        for name, read in self._gauges.items():
            yield GaugeMetricFamily(name, METRICS[name], value=read())
        for families in self._families:
            yield from families()

    def _labelled(self, name: str, labels: tuple[str, ...], counts: Mapping[Any, int]) -> Metric:
        family = CounterMetricFamily(name, METRICS[name], labels=labels)
        for values, count in sorted(counts.items()):
            family.add_metric([str(value) for value in values], count)
        return family

    def _latency_family(self) -> Metric:
        name = "headrace_request_seconds"
        family = HistogramMetricFamily(name, METRICS[name], labels=("operation",))
        bounds = [*map(str, LATENCY_BUCKETS_SECS), "+Inf"]
        for operation, stats in sorted(self.operations.items()):
            cumulative = zip(bounds, accumulate(stats.buckets), strict=True)
            family.add_metric([operation], list(cumulative), stats.seconds)
        return family

    def _live_family(self) -> Metric:
        name = "headrace_live_readers"
        family = GaugeMetricFamily(name, METRICS[name], labels=("mode",))
        for mode, read in self._live.items():
            family.add_metric([mode], read())
        return family
