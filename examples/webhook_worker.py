"""A webhook worker: handles each message of the streams it subscribes to.

    DS_WEBHOOKS__ALLOW_LOOPBACK=true headrace serve
    python examples/webhook_worker.py --pattern 'orders/*'
    curl -X PUT http://localhost:4437/v1/stream/orders/7 -H 'Content-Type: application/json' \
         -d '{"sku": "a"}'

The server posts a wake when streams have something new: which streams, from which offset to which.
The worker checks the signature, reads those messages and answers {"done": true}, which acknowledges
them. If it fails, or answers anything else, the server wakes it again from the same offsets: every
message is handled at least once, so `handle` should do no harm if it is called twice.
"""

from __future__ import annotations

import argparse
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

from headrace.client import BadSignature, Client, verify_webhook
from headrace.errors import HeadraceError

SUBSCRIPTION = "order-worker"


def handle(stream: str, message: Any) -> None:
    """Your work."""
    print(f"{stream}: {json.dumps(message)}", flush=True)


class Worker:
    """Answers wakes; the subscription names the keys that sign them."""

    def __init__(self, client: Client, pattern: str, webhook_url: str) -> None:
        self._client = client
        created = client.subscription(SUBSCRIPTION).create(
            type="webhook", pattern=pattern, webhook={"url": webhook_url}
        )
        self._jwks_url = created["webhook"]["signing"]["jwks_url"]
        self._jwks = httpx.get(self._jwks_url).raise_for_status().json()

    def wake(self, body: bytes, signature: str) -> None:
        wake = self._verified(body, signature)
        for stream in wake["streams"]:
            if stream["has_pending"]:
                self._read(stream["path"], stream["acked_offset"], stream["tail_offset"])

    def _verified(self, body: bytes, signature: str) -> dict[str, Any]:
        try:
            return verify_webhook(body, signature, self._jwks)
        except BadSignature:
            # The server may have a new key.
            self._jwks = httpx.get(self._jwks_url).raise_for_status().json()
            return verify_webhook(body, signature, self._jwks)

    def _read(self, stream: str, start: str, end: str) -> None:
        """Up to the tail of the wake, which is what {"done": true} acknowledges."""
        for event in self._client.stream(stream).read(start).events():
            handle(stream, event.value)
            if event.next_offset == end:
                return


def handler_of(worker: Worker) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            try:
                worker.wake(body, self.headers.get("Webhook-Signature", ""))
            except BadSignature as refusal:
                self._answer(401, {"error": refusal.detail})
            except (HeadraceError, httpx.HTTPError) as failure:
                self._answer(503, {"error": str(failure)})  # the server tries again later
            else:
                self._answer(200, {"done": True})

        def _answer(self, status: int, document: dict[str, Any]) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="http://localhost:4437", help="the Headrace server")
    parser.add_argument("--pattern", default="orders/*", help="which streams, as a glob")
    parser.add_argument("--port", type=int, default=8090, help="where this worker listens")
    options = parser.parse_args()
    with Client(options.url) as client, listening(options.port) as server:
        worker = subscribed(client, options.pattern, f"http://127.0.0.1:{options.port}/wake")
        server.RequestHandlerClass = handler_of(worker)
        print(f"waiting for messages of {options.pattern}", flush=True)
        server.serve_forever()


def listening(port: int) -> ThreadingHTTPServer:
    """Before the subscription, so that no wake goes to whoever else has the port."""
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), BaseHTTPRequestHandler)
    except OSError as error:
        sys.exit(f"Port {port} cannot be used ({error.strerror}): choose another with --port.")


def subscribed(client: Client, pattern: str, webhook_url: str) -> Worker:
    try:
        return Worker(client, pattern, webhook_url)
    except HeadraceError as error:
        sys.exit(
            f"{error}\nTo subscribe with another --pattern or --port, delete the subscription "
            f"first: headrace subscribe delete {SUBSCRIPTION}"
        )


if __name__ == "__main__":
    main()
