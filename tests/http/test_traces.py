"""`log.traces`: a span of each request, for OpenTelemetry; nothing of it where it is off."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider

from headrace.client import Client
from headrace.client.tracing import trace_headers
from headrace.testing.server_process import ServerProcess
from headrace.testing.waiting import DEADLINE_SECS, eventually
from tests.conftest import Serve
from tests.shapes.test_extra import REFUSE

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = {"traceparent": f"00-{TRACE}-{SPAN}-01"}


class Collector:
    """What an OpenTelemetry collector receives by OTLP over HTTP."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.services: set[str] = set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def take(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            values = {a.key: a.value.string_value for a in resource.resource.attributes}
            self.services.add(values["service.name"])
            for scope in resource.scope_spans:
                self.spans += scope.spans

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


@pytest.fixture
def traced(serve: Serve, collector: Collector) -> ServerProcess:
    return serve(
        DS_LOG__TRACES="true",
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
        OTEL_BSP_SCHEDULE_DELAY="50",
        OTEL_RESOURCE_ATTRIBUTES="deployment.environment=test",
    )


def attributes(span: Any) -> dict[str, Any]:
    values = ((a.key, a.value) for a in span.attributes)
    return {key: getattr(value, value.WhichOneof("value")) for key, value in values}


def test_each_request_has_a_span_below_that_of_its_client(
    traced: ServerProcess, collector: Collector
) -> None:
    url = f"{traced.url}/v1/stream/a"
    httpx.get(f"{traced.url}/healthz")
    httpx.put(url, headers={"Content-Type": "text/plain"})
    httpx.post(url, headers={"Content-Type": "text/plain"} | PARENT, content="hello")
    httpx.get(f"{traced.url}/v1/stream/none")
    eventually(lambda: len(collector.spans) == 3, "three spans have arrived")
    assert collector.services == {"headrace"}
    (append,) = collector.named("append")
    assert (append.trace_id.hex(), append.parent_span_id.hex()) == (TRACE, SPAN)
    assert append.start_time_unix_nano <= append.end_time_unix_nano
    found = attributes(append)
    assert found.pop("client.address") == "127.0.0.1"
    assert found == {
        "http.request.method": "POST",
        "url.path": "/v1/stream/a",
        "http.response.status_code": 204,
        "http.request.body.size": 5,
        "http.response.body.size": 0,
    }
    (read,) = collector.named("read")
    assert read.parent_span_id == b""
    assert attributes(read)["http.response.status_code"] == 404


def test_the_client_sends_its_current_span_and_nothing_without_one(
    traced: ServerProcess, collector: Collector
) -> None:
    tracer = TracerProvider().get_tracer("test")
    with Client(traced.url, headers=trace_headers()) as client:
        stream = client.stream("traced")
        stream.create("text/plain")
        with tracer.start_as_current_span("work") as span:
            stream.append("hello")
        own = span.get_span_context()
    eventually(lambda: len(collector.spans) == 2, "two spans have arrived")
    (append,), (create,) = collector.named("append"), collector.named("create")
    assert append.trace_id.hex() == f"{own.trace_id:032x}"
    assert append.parent_span_id.hex() == f"{own.span_id:016x}"
    assert create.parent_span_id == b""


def test_a_stop_sends_what_is_left(serve: Serve, collector: Collector) -> None:
    server = serve(
        DS_LOG__TRACES="true",
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
        OTEL_BSP_SCHEDULE_DELAY="600000",
    )
    httpx.get(f"{server.url}/v1/stream/none")
    assert server.stop() == 0
    assert [span.name for span in collector.spans] == ["read"]


def test_without_the_extra_the_server_serves_and_says_what_traces_need(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(REFUSE.format(names={"opentelemetry"}))
    env = {"PYTHONPATH": str(tmp_path)}
    with ServerProcess(env) as server:
        assert httpx.get(f"{server.url}/healthz").text == "ok"
    refused = subprocess.run(
        [sys.executable, "-m", "headrace.cli", "serve", "--port", "0"],
        env={**os.environ, **env, "DS_LOG__TRACES": "true"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECS,
        check=False,
    )
    assert refused.returncode == 2
    assert "pip install '.[otel]'" in refused.stderr


MOUNTED = """
import asyncio
from dataclasses import replace

import httpx
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headrace.config import Config
from headrace.http.asgi import create_app

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)


async def main():
    config = Config()
    app = create_app(replace(config, log=replace(config.log, traces=True)))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://a") as http:
        await http.put("/v1/stream/a")
    await app.aclose()
    print([span.name for span in exporter.get_finished_spans()])


asyncio.run(main())
"""


def test_inside_an_application_the_spans_go_to_its_own_provider(tmp_path: Path) -> None:
    # A process of its own: a process sets its provider once and for all.
    printed = subprocess.run(
        [sys.executable, "-c", MOUNTED], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert printed.stdout == "['create']\n"
