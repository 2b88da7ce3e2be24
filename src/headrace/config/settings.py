"""The settings: each declared once, as a field of its section.

`SETTINGS` lists them for the layers, `headrace config` and the documentation. A `Config` cannot
hold a value that is not allowed, however it was made.
"""
# ruff: noqa: RUF009  (a section's defaults are calls of `_setting`, which is `field`)

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from headrace.config.kinds import (
    ALLOWED_HOSTS,
    AUTO,
    BUCKET_ROOT,
    CONTENT_TYPES_BY_PREFIX,
    COUNT,
    COUNT_OR_OFF,
    FILE_PATH,
    FLAG,
    HOST,
    LOG_FILTER,
    NETWORKS,
    ORIGINS,
    PATH_ROOT,
    PATH_ROOTS,
    POWER_OF_TWO,
    PUBLIC_URL,
    SECONDS,
    SECONDS_OR_OFF,
    STORAGE_MODE,
    TTLS_BY_PREFIX,
    ValueKind,
    optional,
    or_auto,
    whole,
    words,
)
from headrace.protocol.access import is_loopback
from headrace.protocol.creation_defaults import CreationDefaults
from headrace.protocol.names import CONTROL_PREFIX, OWN_NAMES

T = TypeVar("T")

VALUE_SHOWN_CHARS_MAX = 80
MEMORY_MODE_STREAM_BYTES_MAX = 10_485_760  # the reference server's default


class ConfigError(ValueError):
    """A configuration that is refused, in one sentence, with the facts as fields."""

    def __init__(
        self,
        sentence: str,
        *,
        key: str | None = None,
        source: str | None = None,
        allowed: str | None = None,
        suggestion: str | None = None,
    ) -> None:
        super().__init__(sentence)
        self.key = key
        self.source = source
        self.allowed = allowed
        self.suggestion = suggestion


def _setting(default: object, kind: ValueKind[T], help: str) -> T:
    """A section's field. Typed as its value, which is how dataclasses present `field` too."""
    metadata = {"kind": kind, "help": help}
    return field(default=kind.parse(default), metadata=metadata)


@dataclass(frozen=True)
class Section:
    """A group of settings; its name is the class's in lower case."""

    def __post_init__(self) -> None:
        for setting in settings_of(type(self)):
            value = setting.parse(getattr(self, setting.name), source=None)
            object.__setattr__(self, setting.name, value)
        self.check()

    def check(self) -> None:
        """Refuse values that are each allowed but not together."""


@dataclass(frozen=True)
class Server(Section):
    host: str = _setting("127.0.0.1", HOST, "Address to listen on.")
    port: int = _setting(4437, whole(0, 65535), "TCP port to listen on; 0 takes any free one.")
    long_poll_timeout_secs: float = _setting(
        30, SECONDS, "How long a long-poll waits for data before it is answered 204."
    )
    sse_reconnect_interval_secs: float = _setting(
        60,
        SECONDS_OR_OFF,
        "How long an SSE response lasts before it ends so that its reader reconnects; 0 never "
        "ends it.",
    )
    public_url: str | None = _setting(
        None,
        optional(PUBLIC_URL),
        "The URL by which clients reach this server, for Location, JWKS and callback URLs; "
        "unset, they follow the request.",
    )
    allowed_hosts: tuple[str, ...] = _setting(
        AUTO,
        ALLOWED_HOSTS,
        "Host names that are accepted in addition to loopback names and the host of "
        "server.public_url; * accepts any, auto accepts no others while the server listens on "
        "loopback and any otherwise.",
    )
    trusted_proxies: tuple[str, ...] = _setting(
        (),
        NETWORKS,
        "Proxies whose X-Forwarded-* and X-JWT-Sub headers are trusted: addresses, CIDRs, or "
        "the word loopback.",
    )
    stream_root: str = _setting("/v1/stream", PATH_ROOT, "Where the base protocol is mounted.")
    stream_root_aliases: tuple[str, ...] = _setting(
        (),
        PATH_ROOTS,
        "More paths where the same streams are served, for clients that have a path of their own "
        "built in; / serves them at every path that nothing else uses.",
    )
    ui: bool = _setting(True, FLAG, "Whether the stream browser is served at /ui.")
    bucket_root: str = _setting(
        "/", BUCKET_ROOT, "Where buckets are mounted: /{bucket} and /{bucket}/{stream}."
    )
    drain_secs: float = _setting(
        10, SECONDS_OR_OFF, "How long requests in flight may take to finish after SIGTERM."
    )

    def check(self) -> None:
        for alias in self.stream_root_aliases:
            if alias == self.bucket_root:
                raise ConfigError(
                    f"server.stream_root_aliases and server.bucket_root are both {alias}: give "
                    "buckets a path of their own, such as /buckets.",
                    key="server.stream_root_aliases",
                    allowed="paths other than server.bucket_root",
                )
            segments = alias.split("/")
            if segments[1] in OWN_NAMES or any(s.startswith(CONTROL_PREFIX) for s in segments):
                raise ConfigError(
                    f"The alias {alias} would hide what the server serves there itself.",
                    key="server.stream_root_aliases",
                    allowed=f"paths that begin with none of {', '.join(OWN_NAMES)} or __ds",
                )
            if f"{alias}/".startswith(f"{self.stream_root}/"):
                raise ConfigError(
                    f"The alias {alias} is at or below server.stream_root, {self.stream_root}, "
                    "which comes first: it would never be used.",
                    key="server.stream_root_aliases",
                    allowed="paths outside server.stream_root",
                )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return is_loopback(self.host)


@dataclass(frozen=True)
class Http(Section):
    cors_origins: tuple[str, ...] = _setting(
        "",
        ORIGINS,
        "Origins whose pages may read and write, or * for all; unset, only the server's own.",
    )
    keep_alive_secs: float = _setting(
        75, SECONDS, "How long an idle connection is kept between requests."
    )
    header_timeout_secs: float = _setting(
        10, SECONDS, "How long a request's headers may take to arrive."
    )
    body_timeout_secs: float = _setting(
        30, SECONDS, "How long a request's body may take to arrive."
    )
    answer_timeout_secs: float = _setting(
        60,
        SECONDS,
        "How long a request may wait for its response before it gets 504; for a long-poll, in "
        "addition to its own timeout.",
    )


@dataclass(frozen=True)
class Log(Section):
    rust_log: str = _setting(
        "info",
        LOG_FILTER,
        "Level, or per-module directives such as info,headrace.http=debug; "
        "RUST_LOG takes precedence.",
    )
    format: str = _setting(
        "text", words("text", "json"), "Log format: text or json, one object per line."
    )
    access: bool = _setting(False, FLAG, "Whether to log each request.")
    traces: bool = _setting(
        False,
        FLAG,
        "Whether to export a span of each request by OpenTelemetry (extra otel); the OTEL_ "
        "variables say where to.",
    )
    stall_secs: float = _setting(
        0.25,
        SECONDS_OR_OFF,
        "How long the event loop may be blocked before a log line names the operation; 0 never "
        "logs it.",
    )


@dataclass(frozen=True)
class Tls(Section):
    cert_path: Path | None = _setting(
        None, optional(FILE_PATH), "PEM certificate chain for direct TLS; needs tls.key_path."
    )
    key_path: Path | None = _setting(
        None, optional(FILE_PATH), "PEM private key for direct TLS; needs tls.cert_path."
    )

    def check(self) -> None:
        if (self.cert_path is None) != (self.key_path is None):
            present, absent = "cert_path", "key_path"
            if self.cert_path is None:
                present, absent = absent, present
            raise ConfigError(
                f"tls.{present} is set but tls.{absent} is not: set both or neither.",
                key=f"tls.{present}",
                allowed="both or neither",
            )


@dataclass(frozen=True)
class Limits(Section):
    max_memory_bytes: int = _setting(
        104_857_600, COUNT, "Maximum bytes held for all streams in memory mode (100 MiB)."
    )
    max_stream_bytes: int | Literal["auto"] = _setting(
        AUTO,
        or_auto(COUNT_OR_OFF),
        "Maximum bytes one stream retains; 0 means no limit but the disk. auto is 10485760 (10 "
        "MiB) in memory mode and 0 in the modes that write to disk.",
    )
    # 16 MiB: the official TypeScript client batches up to 14 MiB into one POST.
    max_body_bytes: int = _setting(16_777_216, COUNT, "Maximum bytes of one request body (16 MiB).")
    max_json_body_bytes: int = _setting(
        16_777_216,
        COUNT,
        "Maximum bytes of one JSON request body (16 MiB); limits.max_body_bytes applies too.",
    )
    max_append_messages: int = _setting(
        200_000, COUNT, "Maximum messages in one append: elements of a JSON array."
    )
    # 16 KiB: h11 and node.
    max_header_bytes: int = _setting(
        16_384, COUNT, "Maximum bytes of all headers of a request together."
    )
    max_header_count: int = _setting(100, COUNT, "Maximum number of headers in a request.")
    max_url_bytes: int = _setting(8_192, COUNT, "Maximum bytes of a request's URL.")
    max_connections: int = _setting(
        0,
        COUNT_OR_OFF,
        "Maximum open connections; 0 is as many as the file descriptor limit allows, less a "
        "reserve.",
    )
    max_inflight_body_bytes: int = _setting(
        67_108_864,
        COUNT,
        "Maximum bytes of all request bodies being received at one time (64 MiB); at least "
        "limits.max_body_bytes.",
    )
    max_unsent_bytes: int = _setting(
        268_435_456,
        COUNT,
        "Maximum bytes of large responses that clients have not yet received, all together (256"
        " MiB).",
    )
    read_chunk_bytes: int = _setting(
        1_048_576, COUNT, "Maximum bytes of one catch-up response; the reader requests the rest."
    )
    max_snapshot_bytes: int = _setting(
        16_777_216,
        COUNT,
        "Maximum bytes of one snapshot (16 MiB); limits.max_body_bytes applies too.",
    )
    max_streams: int = _setting(1_000_000, COUNT, "Maximum number of streams.")
    max_live_readers_per_stream: int = _setting(
        100_000, COUNT, "Maximum long-poll and SSE readers waiting on one stream."
    )
    max_polled_tails: int = _setting(
        250_000,
        whole(10_000),
        "Maximum streams that all polls of many tails wait on; a stream counts once per poll.",
    )
    max_producers_per_stream: int = _setting(
        10_000, COUNT, "Maximum idempotent producers remembered per stream."
    )
    producer_receipts: int = _setting(
        64, whole(1, 256), "Appends per producer whose offsets are kept to answer late duplicates."
    )
    max_fork_depth: int = _setting(
        64,
        COUNT,
        "Maximum depth of a chain of forks (a fork of a fork and so on).",
    )
    rate_limit_requests_per_sec: int = _setting(
        0, COUNT_OR_OFF, "Maximum requests per second of one subject or address; 0 means no limit."
    )
    rate_limit_burst: int = _setting(
        0,
        COUNT_OR_OFF,
        "Requests allowed at once before the rate applies; 0 is the same as the rate.",
    )
    # A reader that never reads costs 4.3 MB of kernel buffer by default, 290 KB with 64 KiB here.
    sse_buffer_bytes: int = _setting(
        65_536, whole(4_096, 2**30), "Kernel send buffer (SO_SNDBUF) of a live reader's socket."
    )

    def check(self) -> None:
        if self.max_inflight_body_bytes < self.max_body_bytes:
            allowed = f"at least limits.max_body_bytes ({self.max_body_bytes})"
            raise ConfigError(
                f"limits.max_inflight_body_bytes ({self.max_inflight_body_bytes}) must be "
                f"{allowed}, or the largest body allowed could never be received.",
                key="limits.max_inflight_body_bytes",
                allowed=allowed,
            )


@dataclass(frozen=True)
class Storage(Section):
    mode: str = _setting(
        "memory", STORAGE_MODE, "memory, file-fast, file-durable, or acid (alias redb)."
    )
    data_dir: Path = _setting(
        "./data/streams", FILE_PATH, "Data directory of the modes that write to disk."
    )
    acid_shard_count: int = _setting(
        16, POWER_OF_TWO, "Number of shards in acid mode: a power of two from 1 to 256."
    )
    journal_segment_bytes: int = _setting(
        67_108_864,
        whole(65_536),
        "Size of a journal segment in the file modes; a full segment is written into stream files.",
    )
    scrub_bytes_per_sec: int = _setting(
        4_194_304,
        whole(0),
        "Rate at which stored bytes are read again to find damage; 0 turns the scrub off.",
    )


@dataclass(frozen=True)
class Streams(Section):
    default_ttl_secs: tuple[str, ...] = _setting(
        (),
        TTLS_BY_PREFIX,
        "TTL of streams that are created without a lifetime, by the beginning of their name; a "
        "bucket is /bucket/, and * is every name.",
    )
    default_content_type: tuple[str, ...] = _setting(
        (),
        CONTENT_TYPES_BY_PREFIX,
        "Content type of streams that are created without one, by the beginning of their name.",
    )
    accept_offset_plus_one: bool = _setting(
        False,
        FLAG,
        "Whether a read may give an offset of the server plus one and then starts at that offset, "
        "as y-durable-streams does; otherwise it gets 400.",
    )

    def check(self) -> None:
        for key in ("default_ttl_secs", "default_content_type"):
            prefixes = [_split(item)[0] for item in getattr(self, key)]
            twice = [prefix for prefix in prefixes if prefixes.count(prefix) > 1]
            if twice:
                raise ConfigError(
                    f"streams.{key} has two values for {twice[0]!r}.",
                    key=f"streams.{key}",
                    allowed="one value for each prefix",
                )

    @property
    def creation_defaults(self) -> CreationDefaults:
        ttls = dict(_split(item) for item in self.default_ttl_secs)
        return CreationDefaults(
            {prefix: int(secs) for prefix, secs in ttls.items()},
            dict(_split(item) for item in self.default_content_type),
        )


def _split(item: str) -> tuple[str, str]:
    prefix, _, value = item.partition("=")
    return prefix, value


@dataclass(frozen=True)
class Webhooks(Section):
    allow_loopback: bool = _setting(
        False,
        FLAG,
        "Whether webhooks may go to loopback addresses, and so to any service on this machine.",
    )
    allow_private: bool = _setting(
        False, FLAG, "Whether webhooks may go to private network addresses."
    )
    timeout_secs: float = _setting(10, SECONDS, "How long one webhook delivery may take.")
    max_subscriptions: int = _setting(10_000, COUNT, "Maximum number of subscriptions.")
    # A link is 400 bytes and the name of its stream: one `**` over a million streams.
    max_memory_bytes: int = _setting(
        536_870_912, COUNT, "Maximum bytes of memory for subscriptions and their links (512 MiB)."
    )
    max_links_per_subscription: int = _setting(
        250_000, COUNT, "Maximum streams that one subscription follows."
    )


@dataclass(frozen=True)
class Config:
    """The whole configuration. `Config()` is the defaults."""

    server: Server = field(default_factory=Server)
    http: Http = field(default_factory=Http)
    log: Log = field(default_factory=Log)
    tls: Tls = field(default_factory=Tls)
    limits: Limits = field(default_factory=Limits)
    storage: Storage = field(default_factory=Storage)
    webhooks: Webhooks = field(default_factory=Webhooks)
    streams: Streams = field(default_factory=Streams)

    @property
    def max_stream_bytes(self) -> int:
        """`limits.max_stream_bytes` in force; 0 means no limit."""
        given = self.limits.max_stream_bytes
        if isinstance(given, int):
            return given
        return MEMORY_MODE_STREAM_BYTES_MAX if self.storage.mode == "memory" else 0

    def value(self, key: str) -> object:
        """The value of a setting by its key, such as `server.port`, as it was given."""
        section, _, name = key.partition(".")
        return getattr(getattr(self, section), name)

    def in_force(self, key: str) -> object:
        """The value that a setting comes to, where it follows the storage mode."""
        return self.max_stream_bytes if key == "limits.max_stream_bytes" else self.value(key)


SECTIONS: Mapping[str, type[Section]] = {
    cls.__name__.lower(): cls
    for cls in (Server, Http, Log, Tls, Limits, Storage, Webhooks, Streams)
}


@dataclass(frozen=True)
class Setting:
    """One setting: its names, its allowed values and its default."""

    key: str
    kind: ValueKind[Any]
    default: object
    help: str

    @property
    def section(self) -> str:
        return self.key.partition(".")[0]

    @property
    def name(self) -> str:
        return self.key.partition(".")[2]

    @property
    def env(self) -> str:
        return "DS_" + self.key.upper().replace(".", "__")

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    def parse(self, raw: object, source: str | None) -> object:
        """The parsed value of `raw`; raises ConfigError that names `source`."""
        try:
            value: object = self.kind.parse(raw)
        except (ValueError, TypeError):
            raise bad_value(self, raw, source) from None
        return value


def settings_of(section: type[Section]) -> Iterator[Setting]:
    """The settings that a section's fields declare."""
    for f in fields(section):
        key = f"{section.__name__.lower()}.{f.name}"
        yield Setting(key, f.metadata["kind"], f.default, f.metadata["help"])


SETTINGS: tuple[Setting, ...] = tuple(s for cls in SECTIONS.values() for s in settings_of(cls))
BY_KEY: Mapping[str, Setting] = {setting.key: setting for setting in SETTINGS}
BY_ENV: Mapping[str, Setting] = {setting.env: setting for setting in SETTINGS}


def plain(value: object) -> object:
    """A setting's value as JSON has it."""
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if value is None or isinstance(value, str | int | float) else str(value)


def as_text(value: object) -> str:
    """A setting's value as an environment variable would have it."""
    if isinstance(value, tuple):
        return ",".join(as_text(item) for item in value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(plain(value))


def shown(raw: object) -> str:
    text = f'"{raw}"' if isinstance(raw, str | Path) else str(plain(raw))
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text if len(text) <= VALUE_SHOWN_CHARS_MAX else text[:VALUE_SHOWN_CHARS_MAX] + "..."


def bad_value(setting: Setting, raw: object, source: str | None) -> ConfigError:
    allowed = setting.kind.allowed
    origin = f" (from {source})" if source else ""
    return ConfigError(
        f"{setting.key} = {shown(raw)}{origin} is not allowed: it must be {allowed}.",
        key=setting.key,
        source=source,
        allowed=allowed,
    )
