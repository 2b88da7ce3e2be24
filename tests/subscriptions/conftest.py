"""The subscription interface of the shared server."""

from __future__ import annotations

import httpx
import pytest

from tests.subscriptions.api import Api


@pytest.fixture
def api(http: httpx.Client) -> Api:
    return Api(http)
