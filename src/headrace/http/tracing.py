"""Request spans for OpenTelemetry, if `log.traces` is on; needs the extra `otel`.

A span is made when a request has been answered, from the time that the metrics measure anyway:
while a request is under way nothing is kept, and without `log.traces` nothing is imported and no
call is added. A `traceparent` header makes the span a child of the client's. The exporter and its
resource are configured by the OTEL_ variables; it sends from a thread of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from headrace import __version__
from headrace.clock import Clock
from headrace.http.exchange import Request

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider

Observe = Callable[[Request, int, int], float]

UNTRACED: Final = frozenset({"health"})  # probes, every second or so, say nothing
SERVER_FAULT_MIN: Final = 500
_NS_PER_MS: Final = 1_000_000
_NS_PER_SEC: Final = 1_000_000_000
_PROPAGATED: Final = ("traceparent", "tracestate")


def exporting_provider() -> TracerProvider:
    """A provider that sends spans by OTLP over HTTP; `shutdown` sends what is left."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES take precedence over our name.
    named = Resource({SERVICE_NAME: "headrace"}).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=named, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def traced(observe: Observe, clock: Clock, provider: TracerProvider | None = None) -> Observe:
    """`observe`, and a span for each request it counts.

    Without a provider the spans go to the one that the process has set up globally.
    """
    from opentelemetry import trace
    from opentelemetry.trace import SpanKind, Status, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    source = provider or trace.get_tracer_provider()
    tracer = source.get_tracer("headrace", __version__)
    propagator = TraceContextTextMapPropagator()

    def parent(request: Request) -> Context | None:
        if b"traceparent" not in request.headers:
            return None
        found = {name: request.headers.get(name.encode(), b"") for name in _PROPAGATED}
        return propagator.extract({name: value.decode("latin-1") for name, value in found.items()})

    def observed(request: Request, status: int, sent_bytes: int) -> float:
        elapsed_secs = observe(request, status, sent_bytes)
        if request.operation in UNTRACED:
            return elapsed_secs
        ended_ns = clock.now_ms() * _NS_PER_MS
        span = tracer.start_span(
            request.operation,
            context=parent(request),
            kind=SpanKind.SERVER,
            start_time=ended_ns - round(elapsed_secs * _NS_PER_SEC),
            attributes={
                "http.request.method": request.method.decode("latin-1"),
                "url.path": request.target.partition(b"?")[0].decode("latin-1"),
                "http.response.status_code": status,
                "http.request.body.size": request.body_bytes,
                "http.response.body.size": sent_bytes,
                "client.address": request.client.address,
            },
        )
        if status >= SERVER_FAULT_MIN:
            span.set_status(Status(StatusCode.ERROR))
        span.end(ended_ns)
        return elapsed_secs

    return observed
