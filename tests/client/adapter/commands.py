"""What each command of the harness does with a client, and how its outcome is told."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from typing import Any

from headrace import errors
from headrace.client import (
    BadAnswer,
    Client,
    ConnectFailed,
    ConnectionLost,
    Producer,
    ProducerStamp,
    Reader,
    Retry,
    Stream,
    status_of,
)
from tests.client.adapter.dynamic import Dynamic
from tests.client.adapter.reads import collect

Command = dict[str, Any]
Result = dict[str, Any]

# The names the harness knows our options by.
RETRY_OPTIONS = {
    "maxRetries": "retries_max",
    "initialDelayMs": "delay_ms",
    "maxDelayMs": "delay_max_ms",
    "multiplier": "multiplier",
}
PRODUCER_OPTIONS = {
    "epoch": "epoch",
    "maxBatchBytes": "batch_bytes_max",
    "maxBatchItems": "batch_items_max",
}
CODES: list[tuple[type[Exception], str]] = [
    (errors.StreamClosed, "STREAM_CLOSED"),
    (errors.StreamNotFound, "NOT_FOUND"),
    (errors.SequenceRegression, "SEQUENCE_CONFLICT"),
    (errors.ProducerGap, "SEQUENCE_CONFLICT"),
    (errors.InvalidOffset, "INVALID_OFFSET"),
    (errors.ConfigurationMismatch, "CONFLICT"),
    (errors.ContentTypeMismatch, "CONFLICT"),
    (BadAnswer, "PARSE_ERROR"),
    (ConnectFailed, "NETWORK_ERROR"),
    (ConnectionLost, "NETWORK_ERROR"),
    (TimeoutError, "TIMEOUT"),
    (ValueError, "INVALID_ARGUMENT"),
    (errors.HeadraceError, "UNEXPECTED_STATUS"),
]


class Adapter:
    def __init__(self, connect: Callable[..., Client], name: str) -> None:
        self._connect = connect
        self._name = name
        self._dynamic = Dynamic()
        self._types: dict[str, str] = {}
        self._producers: dict[tuple[str, str, int], Producer] = {}

    def answer(self, command: Command) -> Result:
        name = "head" if command["type"] == "connect" else command["type"]
        handler = getattr(self, "_" + name.replace("-", "_"))
        try:
            return {"type": command["type"], "success": True, **(handler(command) or {})}
        except (errors.HeadraceError, ValueError, TimeoutError) as error:
            return _failure(command["type"], error)

    def _stream(self, command: Command) -> Stream:
        path = command["path"]
        headers = {**self._dynamic.headers(), **(command.get("headers") or {})}
        return self._client.stream(
            path,
            content_type=self._types.get(path),
            headers=headers,
            params=self._dynamic.params(),
        )

    # -- life ---------------------------------------------------------------------------------

    def _init(self, command: Command) -> Result:
        self._client = self._connect(command["serverUrl"])
        features = dict.fromkeys(
            (
                "batching",
                "sse",
                "longPoll",
                "auto",
                "streaming",
                "dynamicHeaders",
                "retryOptions",
                "batchItems",
                "strictZeroValidation",
            ),
            True,
        )
        name = f"headrace-{self._name}"
        return {"clientName": name, "clientVersion": "0.1.0", "features": features}

    def _shutdown(self, command: Command) -> None:
        self._client.__exit__(None, None, None)

    def _create(self, command: Command) -> Result:
        content_type = command.get("contentType") or "application/octet-stream"
        created = self._stream(command).create(
            content_type,
            ttl_secs=command.get("ttlSeconds"),
            expires_at=command.get("expiresAt"),
            closed=bool(command.get("closed")),
            data=command.get("data"),
        )
        self._types[command["path"]] = content_type
        return {"status": 201 if created.created else 200, "offset": created.next_offset}

    def _head(self, command: Command) -> Result:
        info = self._stream(command).head()
        self._types[command["path"]] = info.content_type
        found = {
            "status": 200,
            "offset": info.next_offset,
            "contentType": info.content_type,
            "ttlSeconds": info.ttl_secs,
            "expiresAt": info.expires_at,
            "streamClosed": info.closed,
        }
        return {name: value for name, value in found.items() if value is not None}

    def _delete(self, command: Command) -> Result:
        self._stream(command).delete()
        self._types.pop(command["path"], None)
        return {"status": 200}

    def _close(self, command: Command) -> Result:
        path, content_type = command["path"], command.get("contentType")
        stream = self._stream(command)
        if content_type is not None:
            stream = self._client.stream(path, content_type=content_type)
        return {"finalOffset": stream.close(command.get("data")).next_offset}

    # -- writing ------------------------------------------------------------------------------

    def _append(self, command: Command) -> Result:
        data = command["data"]
        seq = command.get("seq")
        stamp = None
        if "producerId" in command:
            stamp = ProducerStamp(
                command["producerId"], command["producerEpoch"], command["producerSeq"]
            )
        appended = self._stream(command).append(
            b64decode(data) if command.get("binary") else data,
            seq=None if seq is None else str(seq),
            producer=stamp,
            repeat_in_doubt=True,
        )
        return {
            "status": 200,
            "offset": appended.next_offset,
            "duplicate": appended.duplicate,
            **self._dynamic.sent(),
        }

    def _idempotent_append(self, command: Command) -> Result:
        producer = self._producer(command)
        producer.append(command["data"])
        producer.flush()
        return {"status": 200}

    def _idempotent_append_batch(self, command: Command) -> Result:
        several = (command.get("maxInFlight") or 1) > 1
        producer = self._stream(command).producer(
            command["producerId"],
            epoch=command["epoch"],
            auto_claim=command["autoClaim"],
            in_flight_max=command.get("maxInFlight") or 1,
            linger_ms=0 if several else 1000,
            batch_bytes_max=1 if several else 1024 * 1024,
        )
        with producer:
            for item in command["items"]:
                producer.append(item)
        return {"status": 200}

    def _idempotent_close(self, command: Command) -> Result:
        closed = self._producer(command).close(command.get("data"))
        return {"status": 200, "finalOffset": closed.next_offset}

    def _idempotent_detach(self, command: Command) -> Result:
        self._producer(command).detach()
        self._producers.pop(_producer_key(command), None)
        return {"status": 200}

    def _producer(self, command: Command) -> Producer:
        key = _producer_key(command)
        if key not in self._producers:
            self._producers[key] = self._stream(command).producer(
                command["producerId"],
                epoch=command["epoch"],
                auto_claim=bool(command.get("autoClaim")),
            )
        return self._producers[key]

    # -- reading ------------------------------------------------------------------------------

    def _read(self, command: Command) -> Result:
        live: Any = "auto" if command.get("live") is True else command.get("live") or False
        reader: Reader = self._stream(command).read(command.get("offset") or "-1", live=live)
        as_json = "json" in self._types.get(command["path"], "")
        found = collect(reader, command, as_json=as_json)
        return {
            "status": reader.status or 200,
            "chunks": found.chunks,
            "offset": reader.offset,
            "upToDate": reader.up_to_date or found.timed_out,
            "streamClosed": reader.closed,
            "cursor": reader.cursor,
            **self._dynamic.sent(),
        }

    # -- dynamic headers, validation, benchmarks ------------------------------------------------

    def _set_dynamic_header(self, command: Command) -> None:
        self._dynamic.set_header(command["name"], command["valueType"], command.get("initialValue"))

    def _set_dynamic_param(self, command: Command) -> None:
        self._dynamic.set_param(command["name"], command["valueType"])

    def _clear_dynamic(self, command: Command) -> None:
        self._dynamic.clear()

    def _validate(self, command: Command) -> None:
        target = command["target"]
        known = RETRY_OPTIONS if target["target"] == "retry-options" else PRODUCER_OPTIONS
        options = {ours: target[theirs] for theirs, ours in known.items() if theirs in target}
        try:
            if known is RETRY_OPTIONS:
                Retry(**options)
            else:
                self._client.stream("/never-asked").producer(
                    target.get("producerId", "test-producer"), **options
                )
        except ValueError as error:
            message = str(error)
            for theirs, ours in known.items():
                message = message.replace(ours, f"{theirs} ({ours})")
            raise ValueError(message) from None


def _producer_key(command: Command) -> tuple[str, str, int]:
    return command["path"], command["producerId"], command["epoch"]


def _failure(command_type: str, error: Exception) -> Result:
    code = next(code for kind, code in CODES if isinstance(error, kind))
    result: Result = {
        "type": "error",
        "success": False,
        "commandType": command_type,
        "errorCode": code,
        "message": str(error),
    }
    status = status_of(error) if isinstance(error, errors.HeadraceError) else None
    return result if status is None else result | {"status": status}
