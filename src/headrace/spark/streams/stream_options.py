"""The options of the data source `headrace`, spelled as Kafka users know them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.client import Retry, Settings
from headrace.errors import InvalidOffset
from headrace.protocol.offsets import BEGINNING, parse_token
from headrace.spark.driver_notes import STREAMS_FILE, DriverNote, given_note, query_note
from headrace.spark.options import OptionError, Options
from headrace.spark.streams.row_checks import name_refusal

SOURCE: Final = "headrace"
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_SELECTORS: Final = ("subscribe", "subscribePattern", "bucket")
READ_OPTIONS: Final = frozenset(
    {
        "url", "token", *_SELECTORS, "prefix", "exclude", "startingOffsets", "endingOffsets",
        "failOnDataLoss", "fromSnapshot", "maxMessagesPerTrigger", "maxOffsetsPerTrigger",
        "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions",
        "maxPartitions", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs",
    }
)  # fmt: skip
# What Kafka's source takes and this one does not, lower-cased, with what to do instead.
_NO_TIMES: Final = (
    "a message has no time of its own here. Give startingOffsets or endingOffsets as earliest, "
    "latest or JSON of offsets, and filter by a time that the messages hold."
)
_OF_KAFKA: Final = {
    "startingtimestamp": _NO_TIMES,
    "endingtimestamp": _NO_TIMES,
    "startingoffsetsbytimestamp": _NO_TIMES,
    "endingoffsetsbytimestamp": _NO_TIMES,
    "kafka.bootstrap.servers": "give the server's URL as url.",
    "assign": "streams have no partitions to choose. Give subscribe, with the streams' names.",
    "topic": "give the stream's name as stream.",
    "includeheaders": "messages have no headers.",
}
WRITE_OPTIONS: Final = frozenset(
    {
        "url", "token", "stream", "producerId", "chunkRows", "chunkBytes", "createStreams",
        "contentType", "exactlyOnce", "batch", "committed", "failOnDataLoss",
        "fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "quarantineUrl",
        "quarantineStream", "quarantineToken",
    }
)  # fmt: skip


def _options(given: Mapping[str, str], known: frozenset[str]) -> Options:
    for name in given:
        if advice := _OF_KAFKA.get(name.lower()):
            raise OptionError(f"The data source {SOURCE} has no option {name!r}: {advice}")
    return Options(SOURCE, given, known)


def _messages_max(options: Options) -> int | None:
    """By our name or by Kafka's."""
    names = ("maxMessagesPerTrigger", "maxOffsetsPerTrigger")
    ours, of_kafka = (_bound(options, name) for name in names)
    if None not in (ours, of_kafka) and ours != of_kafka:
        raise OptionError(f"The options {' and '.join(names)} mean the same: give one of them.")
    return ours or of_kafka


def _bound(options: Options, name: str) -> int | None:
    """A number that may be left out."""
    return options.number(name, 1) if options.text(name) else None


def _settings(options: Options) -> Settings:
    usual = Retry()
    interval_ms = options.number("fetchOffset.retryIntervalMs", int(usual.delay_ms))
    retries_max = options.number("fetchOffset.numRetries", usual.retries_max or 0, least=0)
    retry = Retry(
        retries_max=retries_max,
        first_connect_retries_max=retries_max,  # each task is a new client of a known server
        delay_ms=interval_ms,
        delay_max_ms=max(usual.delay_max_ms, interval_ms),
    )
    url = options.required("url", "http://localhost:4437").rstrip("/")
    return Settings(url=url, token=options.text("token") or None, retry=retry)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    settings: Settings
    subscribe: tuple[str, ...]
    pattern: str | None
    bucket: str | None
    prefix: str
    exclude: frozenset[str]
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
    batch: int | None = None  # of a batch write that says which it is
    note: DriverNote | None = None  # where the driver keeps what was written
    fail_on_data_loss: bool = True
    quarantine_stream: str = ""  # for rows that the server refuses
    quarantine_settings: Settings = field(default_factory=Settings)

    @property
    def quarantines_rows(self) -> bool:
        return bool(self.quarantine_stream)


def read_options(given: Mapping[str, str]) -> ReadOptions:
    options = _options(given, READ_OPTIONS)
    chosen = [name for name in _SELECTORS if options.text(name)]
    if len(chosen) != 1:
        raise OptionError(f"Give exactly one of {', '.join(_SELECTORS)}; there are {len(chosen)}.")
    partitions_min = options.number("minPartitions", 1)
    partitions_max = options.number("maxPartitions", max(partitions_min, 2, os.cpu_count() or 1))
    if partitions_max < partitions_min:
        raise OptionError("maxPartitions must not be less than minPartitions.")
    return ReadOptions(
        settings=_settings(options),
        subscribe=tuple(sorted(set(options.names("subscribe")))),
        pattern=_pattern(options.text("subscribePattern")),
        bucket=options.text("bucket") or None,
        prefix=options.text("prefix"),
        exclude=frozenset(options.names("exclude")),
        starting=parse_offsets("startingOffsets", options.text("startingOffsets", EARLIEST)),
        ending=_ending(options.text("endingOffsets", LATEST)),
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        from_snapshot=options.flag("fromSnapshot", False),
        messages_max=_messages_max(options),
        bytes_max=_bound(options, "maxBytesPerTrigger"),
        messages_min=_bound(options, "minOffsetsPerTrigger"),
        delay_max_secs=_duration_secs(options.text("maxTriggerDelay", "15m")),
        partitions_min=partitions_min,
        partitions_max=partitions_max,
    )


def write_options(given: Mapping[str, str], *, is_query: bool = False) -> WriteOptions:
    options = _options(given, WRITE_OPTIONS)
    batch = options.number("batch", 0, least=0) if options.text("batch") else None
    if batch is not None and not options.text("producerId"):
        raise OptionError("The option batch needs the option producerId, whose batches it counts.")
    if batch is not None and is_query:
        raise OptionError("The option batch is for batch writes: a query counts its own.")
    stream, quarantine = options.text("stream"), options.text("quarantineStream")
    for option, name in (("stream", stream), ("quarantineStream", quarantine)):
        if quarantine and name and (reason := name_refusal(name)):
            raise OptionError(f"The option {option} cannot be a stream's name, {name!r}: {reason}")
    exactly_once = options.flag("exactlyOnce", True)
    note = None
    if exactly_once:
        note = query_note(options, STREAMS_FILE) if is_query else given_note(options)
    return WriteOptions(
        settings=_settings(options),
        stream=stream or None,
        producer_id=options.text("producerId") or None,
        chunk_rows=options.number("chunkRows", 5000),
        chunk_bytes=options.number("chunkBytes", 4 * 1024 * 1024),
        create=options.flag("createStreams", False),
        content_type=options.text("contentType", "application/json"),
        exactly_once=exactly_once,
        batch=batch,
        note=note,
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        quarantine_stream=quarantine,
        quarantine_settings=_quarantine_settings(options),
    )


def _quarantine_settings(options: Options) -> Settings:
    """Of the quarantine's server: by default the one that is written to."""
    usual, url = _settings(options), options.text("quarantineUrl").rstrip("/")
    # A token is for the server it was given for, and no other.
    token = options.text("quarantineToken") or (usual.token if url in ("", usual.url) else None)
    return Settings(url=url or usual.url, token=token)


def _pattern(value: str) -> str | None:
    try:
        re.compile(value)
    except re.error as error:
        raise OptionError(f"subscribePattern is not a regular expression: {error}.") from None
    return value or None


def parse_offsets(name: str, value: str) -> str | dict[str, str]:
    if value in (EARLIEST, LATEST):
        return value
    try:
        given: Any = json.loads(value)
    except ValueError:
        given = None
    if not isinstance(given, dict) or not all(isinstance(v, str) for v in given.values()):
        raise OptionError(f'{name} is earliest, latest, or JSON such as {{"stream": "offset"}}.')
    return {stream: _offset(name, offset) for stream, offset in given.items()}


def _ending(value: str) -> str | dict[str, str]:
    if value == EARLIEST:
        raise OptionError("endingOffsets=earliest would read nothing: give latest, or offsets.")
    return parse_offsets("endingOffsets", value)


def _offset(name: str, value: str) -> str:
    if value in (EARLIEST, BEGINNING):
        return BEGINNING
    if value != LATEST:
        try:
            parse_token(value)
        except InvalidOffset as error:
            raise OptionError(f"{name}: {error}") from None
    return value


def _duration_secs(value: str) -> float:
    found = re.fullmatch(r"(\d+)\s*(ms|s|m|h)", value)
    if found is None:
        raise OptionError(f"maxTriggerDelay is a duration such as 30s or 15m, not {value!r}.")
    return int(found[1]) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[found[2]]
