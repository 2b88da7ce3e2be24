"""The entries of the API description for subscriptions, and for the server's own paths."""

from __future__ import annotations

from typing import Final

from headrace.http.openapi.components import ref
from headrace.http.openapi.operation import (
    ANY,
    TEXT,
    Operation,
    Success,
    body_of,
    document_of,
    json_of,
    with_head,
)

_SUBSCRIPTIONS: Final = "{root}/__ds/subscriptions"
_ONE: Final = f"{_SUBSCRIPTIONS}/{{subscription}}"
_ID: Final = ("subscription",)
_INVALID: Final = "subscription-invalid-request"
_NOT_FOUND: Final = "subscription-not-found"
_FULL: Final = "subscription-limit-reached"


def _action(name: str, id: str, summary: str, schema: str, **more: object) -> Operation:
    """A POST below a subscription."""
    fields: dict[str, object] = {"parameters": _ID, **more}
    return Operation(
        "post",
        f"{_ONE}/{name}",
        id,
        summary,
        "subscriptions",
        body=body_of(json_of(schema)),
        **fields,  # type: ignore[arg-type]
    )


def _answering(name: str, id: str, summary: str) -> Operation:
    """What a worker says about its wake, with the wake's token."""
    return _action(
        name,
        id,
        summary,
        "Acknowledgement",
        answers={200: Success("It is recorded.", (), json_of("Acknowledged"))},
        problems=(
            *(_INVALID, "subscription-token-invalid", "subscription-token-expired", _NOT_FOUND),
            *("subscription-fenced", "subscription-invalid-offset"),
        ),
        with_token=True,
    )


_CONTROL: Final = (
    *with_head(
        document_of(
            _SUBSCRIPTIONS,
            "listSubscriptions",
            "List the subscriptions",
            "subscriptions",
            "Subscriptions",
            problems=(_INVALID,),
            parameters=("prefix", "after", "limit"),
        )
    ),
    Operation(
        "put",
        _ONE,
        "createSubscription",
        "Create a subscription, or confirm an equal one",
        "subscriptions",
        {
            200: Success("An equal one exists.", (), json_of("Subscription")),
            201: Success("It was created.", (), json_of("Subscription")),
        },
        (
            *(_INVALID, "subscription-webhook-url-rejected", "subscription-already-exists"),
            *("subscription-body-too-large", _FULL),
        ),
        _ID,
        body_of(json_of("SubscriptionConfig")),
    ),
    *with_head(
        document_of(
            _ONE,
            "describeSubscription",
            "Describe a subscription",
            "subscriptions",
            "Subscription",
            problems=(_INVALID, _NOT_FOUND),
            parameters=_ID,
        )
    ),
    Operation(
        "delete",
        _ONE,
        "deleteSubscription",
        "Delete a subscription; repeating it is not an error",
        "subscriptions",
        {204: Success("It is gone.")},
        (_INVALID,),
        _ID,
    ),
    _action(
        "streams",
        "addStreams",
        "Follow more streams by name",
        "StreamNames",
        answers={204: Success("They are followed.")},
        problems=(_INVALID, _NOT_FOUND, "subscription-body-too-large", _FULL),
    ),
    Operation(
        "delete",
        f"{_ONE}/streams/{{name}}",
        "removeStream",
        "Follow a stream no longer by name",
        "subscriptions",
        {204: Success("It is no longer followed by name.")},
        (_INVALID, _NOT_FOUND),
        (*_ID, "name"),
    ),
    _action(
        "claim",
        "claimWork",
        "Take the pending work of a pull-wake subscription",
        "Worker",
        answers={200: Success("The work, and the token to answer with.", (), json_of("Wake"))},
        problems=(
            *(_INVALID, _NOT_FOUND, "subscription-already-claimed"),
            "subscription-no-pending-work",
        ),
    ),
    _answering("ack", "acknowledge", "Acknowledge claimed work, extend or release it"),
    _answering("callback", "callBack", "Acknowledge the work of a webhook, extend or finish it"),
    _action(
        "release",
        "releaseWork",
        "Release claimed work",
        "Acknowledgement",
        answers={204: Success("It is released.")},
        problems=(
            *(_INVALID, "subscription-token-invalid", "subscription-token-expired", _NOT_FOUND),
            "subscription-fenced",
        ),
        with_token=True,
    ),
    *with_head(
        Operation(
            "get",
            "{root}/__ds/jwks.json",
            "listKeys",
            "The public keys that sign webhooks",
            "subscriptions",
            {
                200: Success(
                    "A key set.",
                    ("Cache-Control",),
                    {"application/jwk-set+json": {"schema": ref("Keys")}},
                )
            },
        )
    ),
)

_SERVER: Final = (
    *with_head(
        Operation(
            "get",
            "/healthz",
            "isAlive",
            "Whether the process answers",
            "server",
            {200: Success("It does.", (), TEXT)},
        )
    ),
    *with_head(
        Operation(
            "get",
            "/readyz",
            "isReady",
            "Whether the server should get traffic",
            "server",
            {200: Success("It should.", (), TEXT)},
            ("draining", "storage-failed", "storage-read-only", "insufficient-storage"),
        )
    ),
    *with_head(
        Operation(
            "get",
            "/metrics",
            "readMetrics",
            "Metrics in the format of Prometheus",
            "server",
            {200: Success("The metrics.", (), TEXT)},
        )
    ),
    *with_head(
        Operation(
            "get",
            "/openapi.json",
            "describeApi",
            "This description",
            "server",
            {
                200: Success("It.", ("ETag",), {"application/json": {}}),
                304: Success("The client has it.", ("ETag",)),
            },
            (),
            ("If-None-Match",),
        )
    ),
)

# Not there if the server runs without the stream browser.
BROWSER_OPERATIONS: Final = (
    *with_head(
        Operation(
            "get",
            "/",
            "leadToBrowser",
            "The stream browser, for a request that accepts text/html",
            "server",
            {307: Success("At ui/.", ("Location",))},
            ("not-found",),
        )
    ),
    *with_head(
        Operation(
            "get",
            "/ui",
            "findBrowser",
            "Where the stream browser is",
            "server",
            {308: Success("At /ui/.", ("Location",))},
        )
    ),
    *with_head(
        Operation(
            "get",
            "/ui/{file}",
            "readBrowser",
            "A file of the stream browser",
            "server",
            {
                200: Success("The file.", ("ETag", "Cache-Control"), ANY),
                304: Success("The client has it.", ("ETag",)),
            },
            (),
            ("file", "If-None-Match"),
        )
    ),
)

CONTROL_OPERATIONS: Final[tuple[Operation, ...]] = (*_CONTROL, *_SERVER)
