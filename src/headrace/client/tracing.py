"""The trace context of the caller as headers, for OpenTelemetry; needs the extra `otel`.

    client = Client(url, headers=trace_headers())

Each request then carries the span that is current where it is made, and the server's span becomes
its child. A producer sends from threads of its own, whose requests belong to no span.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.client.settings import Fields

_FIELDS = ("traceparent", "tracestate")


def trace_headers() -> Fields:
    """Headers for `Client(headers=...)`, read anew for every request; without a span, none."""
    return {name: _Current(name) for name in _FIELDS}


@dataclass(frozen=True, slots=True)
class _Current:
    """One header of the current context, or nothing. It pickles, as settings must."""

    name: str

    def __call__(self) -> str:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier)
        return carrier.get(self.name, "")
