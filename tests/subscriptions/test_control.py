"""The control surface: routes, methods, bodies, limits, and the shape of what is refused."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.conftest import Serve
from tests.subscriptions.api import ROOT, Api, code, fresh

HOOK = {"type": "webhook", "pattern": "nothing/*", "webhook": {"url": "https://w.example/hook"}}
PULL = {"type": "pull-wake", "pattern": "nothing/*", "wake_stream": "wake"}


@pytest.fixture(autouse=True)
def wake_stream(api: Api) -> None:
    """The one that PULL names."""
    api.create("wake")


def test_a_subscription_is_described_as_it_was_made(api: Api) -> None:
    id = fresh("sub")
    config = HOOK | {"lease_ttl_ms": 5000, "description": "a test"}
    made = api.put(id, **config)
    assert made.status_code == 201
    assert made.headers["content-type"] == "application/json"
    assert made.headers["cache-control"] == "no-store"
    described = made.json()
    assert described == api.get(id)
    assert described.pop("created_at").endswith("Z")
    assert described["webhook"].pop("signing")["alg"] == "ed25519"
    assert described == {
        "id": id,
        "subscription_id": id,
        "type": "webhook",
        "pattern": "nothing/*",
        "streams": [],
        "stream_count": 0,
        "webhook": {"url": "https://w.example/hook"},
        "wake_stream": None,
        "lease_ttl_ms": 5000,
        "generation": 0,
        "status": "active",
        "degraded": None,
        "description": "a test",
    }


@pytest.mark.parametrize("config", [HOOK, PULL], ids=["webhook", "pull-wake"])
def test_an_equal_put_confirms_and_another_conflicts(api: Api, config: dict[str, Any]) -> None:
    id = fresh("sub")
    assert api.put(id, **config).status_code == 201
    assert api.put(id, **config | {"streams": [], "lease_ttl_ms": 30_000}).status_code == 200
    refused = api.put(id, **config | {"lease_ttl_ms": 1000})
    assert code(refused) == (409, "SUBSCRIPTION_ALREADY_EXISTS")


def test_the_keys_are_public_and_cacheable(api: Api) -> None:
    response = api.http.get(f"{ROOT}/__ds/jwks.json")
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/jwk-set+json"
    assert response.headers["cache-control"] == "public, max-age=300"
    (key,) = response.json()["keys"]
    assert key.keys() == {"kty", "crv", "x", "kid", "use", "alg"}
    head = api.http.head(f"{ROOT}/__ds/jwks.json")
    assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize(
    "path",
    [
        "/__ds",
        "/__ds/",
        "/__ds/subscriptions/",
        "/__ds/subscriptions//claim",
        "/__ds/subscriptions/a/unknown",
        "/__ds/subscriptions/a/claim/more",
        "/__ds/subscriptions/a/",
        "/__ds/subscriptions/a/streams/",
        "/__ds/jwks.json/",
        "/__dsx",
        "/__ds/other",
    ],
)
def test_what_is_not_served_is_not_found(api: Api, path: str) -> None:
    for method in ("GET", "PUT", "POST", "DELETE"):
        response = api.http.request(method, ROOT + path, json={})
        assert code(response) == (404, "ROUTE_NOT_FOUND"), (method, path)


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("jwks.json", {"GET", "HEAD", "OPTIONS"}),
        ("subscriptions/a", {"GET", "HEAD", "PUT", "DELETE", "OPTIONS"}),
        ("subscriptions/a/streams", {"POST", "OPTIONS"}),
        ("subscriptions/a/streams/b/c", {"DELETE", "OPTIONS"}),
        ("subscriptions/a/callback", {"POST", "OPTIONS"}),
        ("subscriptions/a/claim", {"POST", "OPTIONS"}),
        ("subscriptions/a/ack", {"POST", "OPTIONS"}),
        ("subscriptions/a/release", {"POST", "OPTIONS"}),
    ],
)
def test_other_methods_are_told_which_are_answered(api: Api, path: str, methods: set[str]) -> None:
    for method in {"GET", "PUT", "POST", "DELETE", "PATCH"} - methods:
        response = api.http.request(method, f"{ROOT}/__ds/{path}")
        assert code(response) == (405, "METHOD_NOT_ALLOWED")
        assert set(response.headers["allow"].split(", ")) == methods


@pytest.mark.parametrize("id", ["a b", "größe", "a.b:c@d", "x" * 256, "ü" * 128, "%25", ".."])
def test_an_id_may_be_any_text(api: Api, id: str) -> None:
    quoted = "".join(f"%{byte:02X}" for byte in (id if id != "%25" else "%").encode())
    assert api.put(quoted, **HOOK).status_code == 201
    assert api.get(quoted)["id"] == (id if id != "%25" else "%")
    api.delete(quoted)


@pytest.mark.parametrize("id", ["x" * 257, "%C3%BC" * 129, "a%2Fb", "a%00b", "a%0Ab", "%FF", "%7F"])
def test_an_id_has_a_bound_and_no_slashes_or_control_characters(api: Api, id: str) -> None:
    assert code(api.put(id, **HOOK)) == (400, "INVALID_REQUEST")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff", b'{"type": NaN}'])
def test_a_body_must_be_a_json_object(api: Api, body: bytes) -> None:
    response = api.http.put(api.url(fresh("sub")), content=body)
    assert code(response) == (400, "INVALID_REQUEST")


def test_a_body_has_a_bound(api: Api) -> None:
    response = api.put(fresh("sub"), **HOOK, padding="x" * 1024 * 1024)
    assert code(response) == (413, "BODY_TOO_LARGE")


@pytest.mark.parametrize("action", ["callback", "ack", "release"])
def test_an_answer_needs_a_bearer_token(api: Api, action: str) -> None:
    id = fresh("sub")
    api.put(id, **(HOOK if action == "callback" else PULL))
    for header in ({}, {"Authorization": "Basic eDp5"}, {"Authorization": "Bearer"}):
        response = api.http.post(api.url(id, action), json={}, headers=header)
        assert code(response) == (401, "TOKEN_INVALID")
    answer = {"wake_id": "w_1", "generation": 1}
    assert code(api.post(id, action, "a.b.c", **answer)) == (401, "TOKEN_INVALID")


@pytest.mark.parametrize("action", ["callback", "ack", "release", "claim", "streams"])
def test_an_unknown_subscription_is_not_found(api: Api, action: str) -> None:
    answer = {"wake_id": "w_1", "generation": 1, "worker": "worker-1"}
    body: dict[str, Any] = {"streams": ["a"]} if action == "streams" else answer
    response = api.post(fresh("never"), action, "token", **body)
    assert code(response) == (404, "SUBSCRIPTION_NOT_FOUND")


def test_subscriptions_have_a_bound(serve: Serve) -> None:
    server = serve(DS_WEBHOOKS__MAX_SUBSCRIPTIONS="2")
    with httpx.Client(base_url=server.url) as http:
        api = Api(http)
        for id in ("one", "two"):
            assert api.put(id, **HOOK).status_code == 201
        refused = api.put("three", **HOOK)
        assert code(refused) == (503, "LIMIT_REACHED")
        assert int(refused.headers["retry-after"]) > 0
        assert api.put("one", **HOOK).status_code == 200
        api.delete("one")
        assert api.put("three", **HOOK).status_code == 201


def test_a_control_path_is_never_a_stream(api: Api) -> None:
    for path in ("%5F%5Fds/subscriptions/x", "__ds%2Fsubscriptions", "_%5Fds"):
        response = api.http.put(f"{ROOT}/{path}", content=b"x")
        assert response.status_code in (400, 404), path
