"""The options of the data source `headrace`, spelled as Kafka users know them.

Options arrive as text, in any case. Every mistake is found here, on the driver, and says which
option it is about.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from headrace.client import Retry, Settings
from headrace.protocol.offsets import BEGINNING, parse_token

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_SELECTORS: Final = ("subscribe", "subscribePattern", "bucket")
READ_OPTIONS: Final = frozenset(
    {
        "url", "token", *_SELECTORS, "prefix", "startingOffsets", "endingOffsets",
        "failOnDataLoss", "fromSnapshot", "maxMessagesPerTrigger", "maxBytesPerTrigger",
        "minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions", "maxPartitions",
        "fetchOffset.numRetries", "fetchOffset.retryIntervalMs",
    }
)  # fmt: skip
WRITE_OPTIONS: Final = frozenset(
    {
        "url", "token", "stream", "producerId", "chunkRows", "chunkBytes", "createStreams",
        "contentType", "exactlyOnce", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs",
    }
)  # fmt: skip
# Spark adds these itself: the path of load() and save(), and the place of a query's state.
_SPARK_OPTIONS: Final = frozenset({"path", "checkpointlocation", "queryname"})


class OptionError(ValueError):
    """An option that is missing, unknown or makes no sense."""


class Options:
    """Typed access to options, whatever case they were given in."""

    def __init__(self, given: Mapping[str, str], known: frozenset[str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        names = {name.lower() for name in known} | _SPARK_OPTIONS
        unknown = sorted(self._given.keys() - names)
        if unknown:
            raise OptionError(
                f"The data source headrace has no option {unknown[0]!r} here; it knows "
                f"{', '.join(sorted(known))}."
            )

    def text(self, name: str, default: str | None = None) -> str | None:
        value = self._given.get(name.lower(), default)
        return None if value is None else str(value)

    def required(self, name: str, example: str) -> str:
        value = self.text(name)
        if not value:
            raise OptionError(f"The option {name} is missing, such as {example}.")
        return value

    def number(self, name: str, least: int = 1) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not (value.isascii() and value.isdigit() and int(value) >= least):
            raise OptionError(f"The option {name} must be a whole number from {least}: {value!r}.")
        return int(value)

    def flag(self, name: str, default: bool) -> bool:
        value = (self.text(name) or str(default)).lower()
        if value not in ("true", "false"):
            raise OptionError(f"The option {name} must be true or false, not {value!r}.")
        return value == "true"

    def settings(self) -> Settings:
        retries = self.number("fetchOffset.numRetries", 0)
        interval_ms = self.number("fetchOffset.retryIntervalMs")
        usual = Retry()
        retry = Retry(
            retries_max=usual.retries_max if retries is None else retries,
            delay_ms=usual.delay_ms if interval_ms is None else interval_ms,
            delay_max_ms=max(usual.delay_max_ms, interval_ms or 0),
        )
        url = self.required("url", "http://localhost:4437").rstrip("/")
        return Settings(url=url, token=self.text("token"), retry=retry)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    settings: Settings
    subscribe: tuple[str, ...]
    pattern: str | None
    bucket: str | None
    prefix: str
    starting: str | dict[str, str]
    ending: str | dict[str, str]
    fail_on_data_loss: bool
    from_snapshot: bool
    messages_max: int | None
    bytes_max: int | None
    messages_min: int | None
    delay_max_secs: float
    partitions_min: int
    partitions_max: int


@dataclass(frozen=True, slots=True)
class WriteOptions:
    settings: Settings
    stream: str | None
    producer_id: str | None
    chunk_rows: int
    chunk_bytes: int
    create: bool
    content_type: str
    exactly_once: bool


def read_options(given: Mapping[str, str]) -> ReadOptions:
    options = Options(given, READ_OPTIONS)
    chosen = [name for name in _SELECTORS if options.text(name)]
    if len(chosen) != 1:
        raise OptionError(f"Give exactly one of {', '.join(_SELECTORS)}; there are {len(chosen)}.")
    partitions_min = options.number("minPartitions") or 1
    partitions_max = options.number("maxPartitions") or max(2, os.cpu_count() or 1)
    if options.number("maxPartitions") and partitions_max < partitions_min:
        raise OptionError("maxPartitions must not be less than minPartitions.")
    return ReadOptions(
        settings=options.settings(),
        subscribe=_names(options.text("subscribe")),
        pattern=_pattern(options.text("subscribePattern")),
        bucket=options.text("bucket"),
        prefix=options.text("prefix") or "",
        starting=_offsets("startingOffsets", options.text("startingOffsets", EARLIEST)),
        ending=_offsets("endingOffsets", options.text("endingOffsets", LATEST)),
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        from_snapshot=options.flag("fromSnapshot", False),
        messages_max=options.number("maxMessagesPerTrigger"),
        bytes_max=options.number("maxBytesPerTrigger"),
        messages_min=options.number("minOffsetsPerTrigger"),
        delay_max_secs=_duration_secs(options.text("maxTriggerDelay", "15m")),
        partitions_min=partitions_min,
        partitions_max=max(partitions_min, partitions_max),
    )


def write_options(given: Mapping[str, str]) -> WriteOptions:
    options = Options(given, WRITE_OPTIONS)
    return WriteOptions(
        settings=options.settings(),
        stream=options.text("stream"),
        producer_id=options.text("producerId"),
        chunk_rows=options.number("chunkRows") or 5000,
        chunk_bytes=options.number("chunkBytes") or 4 * 1024 * 1024,
        create=options.flag("createStreams", False),
        content_type=options.text("contentType") or "application/json",
        exactly_once=options.flag("exactlyOnce", True),
    )


def _names(value: str | None) -> tuple[str, ...]:
    names = [name.strip() for name in (value or "").split(",")]
    return tuple(sorted({name for name in names if name}))


def _pattern(value: str | None) -> str | None:
    if value is not None:
        try:
            re.compile(value)
        except re.error as error:
            raise OptionError(f"subscribePattern is not a regular expression: {error}.") from None
    return value


def _offsets(name: str, value: str | None) -> str | dict[str, str]:
    if value in (EARLIEST, LATEST):
        return str(value)
    try:
        given: Any = json.loads(str(value))
    except ValueError:
        given = None
    if not isinstance(given, dict) or not all(isinstance(v, str) for v in given.values()):
        raise OptionError(f'{name} is earliest, latest, or JSON such as {{"stream": "offset"}}.')
    return {stream: _offset(name, offset) for stream, offset in given.items()}


def _offset(name: str, value: str) -> str:
    if value in (EARLIEST, BEGINNING):
        return BEGINNING
    if value != LATEST:
        try:
            parse_token(value)
        except ValueError:
            raise
        except Exception as error:
            raise OptionError(f"{name}: {error}") from None
    return value


def _duration_secs(value: str | None) -> float:
    found = re.fullmatch(r"(\d+)\s*(ms|s|m|h)", str(value))
    if found is None:
        raise OptionError(f"maxTriggerDelay is a duration such as 30s or 15m, not {value!r}.")
    return int(found[1]) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[found[2]]
