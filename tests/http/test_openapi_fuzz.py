"""Schemathesis sends what the description allows, and what it forbids; answers are as described."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from headrace.testing.server_process import ServerProcess
from tests.conftest import stop_cleanly
from tests.http.api_description import described, operations

pytestmark = pytest.mark.slow

EXAMPLES = 6  # for each of 61 operations, in each mode
CHECKS = [
    schemathesis.checks.not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


@cache
def schema() -> schemathesis.BaseSchema:
    return schemathesis.openapi.from_dict(described())


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server whose live reads end at once, with a stream to read."""
    waits = {
        "DS_SERVER__LONG_POLL_TIMEOUT_SECS": "0.02",
        "DS_SERVER__SSE_RECONNECT_INTERVAL_SECS": "0.02",
    }
    process = ServerProcess(waits, cwd=str(tmp_path_factory.mktemp("server")))
    process.start()
    yield process.url
    stop_cleanly(process)


@pytest.mark.parametrize("mode", list(GenerationMode), ids=str)
@pytest.mark.parametrize("id", list(operations()))
def test_no_request_gets_an_answer_that_is_not_described(
    id: str, mode: GenerationMode, fuzzed: str
) -> None:
    path, method, _ = operations()[id]
    operation = schema()[path][method.upper()]

    @hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def answered_as_described(case: schemathesis.Case[Any]) -> None:
        case.call_and_validate(base_url=fuzzed, checks=CHECKS)

    try:
        answered_as_described()
    except hypothesis.errors.Unsatisfiable:
        assert mode is GenerationMode.NEGATIVE, "there is a request that is allowed"
