"""The list of subscriptions: which there are, page by page, for whoever runs the server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from headrace.testing.server_process import ServerProcess
from tests.http.helpers import client_of
from tests.subscriptions.api import ROOT, Api, code

PATH = f"{ROOT}/__ds/subscriptions"
HOOK = {"type": "webhook", "webhook": {"url": "https://w.example/hook"}}


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with ServerProcess() as server, client_of(server) as http:
        api = Api(http)
        for id in ("b-1", "a-2", "a-1", "ü"):
            assert api.put(id, **HOOK, pattern="orders/*", description=f"of {id}").is_success
        yield api


def listed(api: Api, **query: object) -> Any:
    answer = api.http.get(PATH, params={key: str(value) for key, value in query.items()})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-store"
    return answer.json()


def ids(page: Any) -> list[str]:
    return [subscription["id"] for subscription in page["subscriptions"]]


def test_it_is_sorted_by_the_bytes_of_the_ids(api: Api) -> None:
    page = listed(api)
    assert ids(page) == ["a-1", "a-2", "b-1", "ü"]
    assert (page["subscription_count"], page["next_cursor"]) == (4, None)
    assert page["has_more"] is False


def test_each_is_described_without_its_streams(api: Api) -> None:
    api.create("orders/1", {"n": 1})
    described = api.get("a-1")
    assert len(described.pop("streams")) == described["stream_count"] == 1
    assert listed(api, prefix="a-1")["subscriptions"] == [described]


def test_it_comes_in_pages(api: Api) -> None:
    first = listed(api, limit=3)
    assert (ids(first), first["has_more"]) == (["a-1", "a-2", "b-1"], True)
    last = listed(api, limit=3, after=first["next_cursor"])
    assert (ids(last), last["has_more"]) == (["ü"], False)
    assert ids(listed(api, prefix="a-", after="a-1")) == ["a-2"]


def test_a_subscription_that_is_deleted_is_listed_no_more(api: Api) -> None:
    assert api.put("c", **HOOK, pattern="c/*").is_success
    assert ids(listed(api, prefix="c")) == ["c"]
    api.delete("c")
    assert ids(listed(api, prefix="c")) == []


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=x", "limit=1&limit=2"])
def test_what_is_wrong_is_named(api: Api, query: str) -> None:
    refused = api.http.get(f"{PATH}?{query}")
    assert code(refused) == (400, "INVALID_REQUEST")
    assert "limit" in refused.json()["detail"]


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE"])
def test_it_is_read_only(api: Api, method: str) -> None:
    refused = api.http.request(method, PATH)
    assert code(refused) == (405, "METHOD_NOT_ALLOWED")
    assert refused.headers["allow"] == "GET, HEAD, OPTIONS"


def test_head_has_no_body(api: Api) -> None:
    answer = api.http.head(PATH)
    assert (answer.status_code, answer.content) == (200, b"")


def test_pages_of_strangers_do_not_see_it(api: Api) -> None:
    refused = api.http.get(PATH, headers={"Host": "rebound.example"})
    assert refused.status_code == 421
    assert "subscriptions" not in refused.json()
    assert "access-control-allow-origin" not in foreign(api.http).headers


def foreign(http: httpx.Client) -> httpx.Response:
    return http.get(PATH, headers={"Origin": "https://elsewhere.example"})
