"""The client: streams over HTTP, blocking and awaited, from one logic.

    with Client("http://localhost:4437") as client:
        stream = client.stream("logs/today")
        stream.create("application/json")
        stream.append_json({"n": 1})
        for event in stream.read(live="auto").events():
            print(event.value)

Imports no server code; meets the server in `protocol`. Errors are those of `headrace.errors` and
`headrace.client.errors`.
"""

from headrace.client.async_admin import AsyncBucket, AsyncSubscription
from headrace.client.async_client import AsyncClient, AsyncReader, AsyncStream
from headrace.client.async_producer import AsyncProducer
from headrace.client.async_state_view import AsyncStateView
from headrace.client.bootstrap import Bootstrap, Part
from headrace.client.bucket_ops import BucketInfo, RegisteredStream, Snapshot, StreamEntry
from headrace.client.chunk_views import Batch, Event
from headrace.client.errors import (
    BadAnswer,
    ConnectFailed,
    ConnectionLost,
    Forbidden,
    ServerBusy,
    ServerFault,
    SubscriptionRefused,
    Unauthorized,
    UnexpectedAnswer,
    status_of,
)
from headrace.client.range_reads import Tail
from headrace.client.requests import Appended, Created, ProducerStamp, StreamInfo
from headrace.client.send_queue import ProducerBroken, ProducerOptions, ProducerOverlap
from headrace.client.settings import Retry, Settings, Timeouts
from headrace.client.state import STATE_MEDIA_TYPE, Change, Collection, State
from headrace.client.state_following import Update
from headrace.client.stream_reading import Chunk, Live
from headrace.client.subscriptions import (
    BadSignature,
    SubscriptionEntry,
    Wake,
    WakeStream,
    verify_webhook,
)
from headrace.client.sync_admin import Bucket, Subscription
from headrace.client.sync_client import Client, Reader, Stream
from headrace.client.sync_producer import Producer
from headrace.client.sync_state_view import StateView
from headrace.protocol.offsets import BEGINNING, NOW

__all__ = [
    "BEGINNING",
    "NOW",
    "STATE_MEDIA_TYPE",
    "Appended",
    "AsyncBucket",
    "AsyncClient",
    "AsyncProducer",
    "AsyncReader",
    "AsyncStateView",
    "AsyncStream",
    "AsyncSubscription",
    "BadAnswer",
    "BadSignature",
    "Batch",
    "Bootstrap",
    "Bucket",
    "BucketInfo",
    "Change",
    "Chunk",
    "Client",
    "Collection",
    "ConnectFailed",
    "ConnectionLost",
    "Created",
    "Event",
    "Forbidden",
    "Live",
    "Part",
    "Producer",
    "ProducerBroken",
    "ProducerOptions",
    "ProducerOverlap",
    "ProducerStamp",
    "Reader",
    "RegisteredStream",
    "Retry",
    "ServerBusy",
    "ServerFault",
    "Settings",
    "Snapshot",
    "State",
    "StateView",
    "Stream",
    "StreamEntry",
    "StreamInfo",
    "Subscription",
    "SubscriptionEntry",
    "SubscriptionRefused",
    "Tail",
    "Timeouts",
    "Unauthorized",
    "UnexpectedAnswer",
    "Update",
    "Wake",
    "WakeStream",
    "status_of",
    "verify_webhook",
]
