"""The subscription interface as tests use it: short names, checked answers."""

from __future__ import annotations

from itertools import count
from typing import Any

import httpx

from headrace.testing.waiting import eventually

ROOT = "/v1/stream"
ZERO = "0000000000000000_0000000000000000"
JSON = "application/json"
_numbers = count()


def fresh(prefix: str) -> str:
    """A name that no other test uses."""
    return f"{prefix}-{next(_numbers)}"


class Api:
    def __init__(self, http: httpx.Client) -> None:
        self.http = http

    # -- streams -----------------------------------------------------------------------------

    def create(self, name: str, body: object = None, content_type: str = JSON) -> str:
        """Create a stream; its tail."""
        content = {} if body is None else {"json": body}
        headers = {"Content-Type": content_type}
        return _tail(self.http.put(f"{ROOT}/{name}", headers=headers, **content))  # type: ignore[arg-type]

    def append(self, name: str, body: object) -> str:
        """Append one message; the new tail."""
        return _tail(self.http.post(f"{ROOT}/{name}", json=body))

    def read(self, name: str) -> Any:
        return _ok(self.http.get(f"{ROOT}/{name}")).json()

    # -- subscriptions -----------------------------------------------------------------------

    def url(self, id: str, *rest: str) -> str:
        return "/".join([f"{ROOT}/__ds/subscriptions/{id}", *rest])

    def put(self, id: str, **config: Any) -> httpx.Response:
        return self.http.put(self.url(id), json=config)

    def webhook(self, url: str, **config: Any) -> str:
        """A new webhook subscription; its id."""
        id = fresh("sub")
        response = self.put(id, type="webhook", webhook={"url": url}, **config)
        assert response.status_code == 201, response.text
        return id

    def pull_wake(self, wake_stream: str, **config: Any) -> str:
        """A new pull-wake subscription; its id."""
        id = fresh("pull")
        response = self.put(id, type="pull-wake", wake_stream=wake_stream, **config)
        assert response.status_code == 201, response.text
        return id

    def get(self, id: str) -> Any:
        return _ok(self.http.get(self.url(id))).json()

    def delete(self, id: str) -> None:
        assert self.http.delete(self.url(id)).status_code == 204

    def acked(self, id: str) -> dict[str, str]:
        """The acknowledged offset of each stream."""
        return {stream["path"]: stream["acked_offset"] for stream in self.get(id)["streams"]}

    def await_acked(self, id: str, **offsets: str) -> None:
        eventually(lambda: self.acked(id) == offsets, f"{id} acknowledges {offsets}")

    # -- answers -----------------------------------------------------------------------------

    def post(self, id: str, action: str, token: str | None = None, **body: Any) -> httpx.Response:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return self.http.post(self.url(id, action), json=body, headers=headers)

    def claim(self, id: str, worker: str = "worker-1") -> Any:
        return _ok(self.post(id, "claim", worker=worker)).json()

    def ack(self, id: str, claimed: Any, **body: Any) -> httpx.Response:
        return self.post(id, "ack", claimed["token"], **names(claimed), **body)

    def callback(self, wake: Any, **body: Any) -> httpx.Response:
        id = wake["subscription_id"]
        return self.post(id, "callback", wake["callback_token"], **names(wake), **body)


def names(wake: Any) -> dict[str, Any]:
    return {"wake_id": wake["wake_id"], "generation": wake["generation"]}


def acks(wake: Any) -> list[dict[str, str]]:
    """Everything that a wake or claim lists."""
    return [{"stream": s["path"], "offset": s["tail_offset"]} for s in wake["streams"]]


def code(response: httpx.Response) -> tuple[int, str]:
    """Status and upstream's code of a refusal, which must also be a complete problem document."""
    document = response.json()
    error = document["error"]
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["cache-control"] == "no-store"
    kebab = error["code"].lower().removeprefix("subscription_").replace("_", "-")
    assert document["type"] == f"urn:headrace:problem:subscription-{kebab}"
    assert document["status"] == response.status_code
    assert document["title"]
    assert document["detail"] == error["message"]
    return response.status_code, error["code"]


def _ok(response: httpx.Response) -> httpx.Response:
    assert response.status_code == 200, response.text
    return response


def _tail(response: httpx.Response) -> str:
    assert response.is_success, response.text
    return response.headers["stream-next-offset"]
