"""Configuration: every setting, what it may be, and which layer decides it.

Each setting is declared once, as a field of its section below; `SETTINGS` lists them for the
parser, `headrace config` and the documentation. A `Config` cannot hold a value that is not
allowed, however it was made. `load` puts the layers together; later ones win:

    built-in defaults
    config/default.toml, config/<profile>.toml, config/local.toml   in the working directory
    --config FILE
    DS_<SECTION>__<KEY>, and RUST_LOG for log.rust_log
    command-line flags

A key that does not exist or a value that is not allowed is refused, even where a later layer
would have hidden it.
"""
# ruff: noqa: RUF009  (a section's defaults are calls of `_setting`, which is `field`)

from __future__ import annotations

import difflib
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

from headrace.logs import FILTER_ALLOWED, parse_filter

T = TypeVar("T")

DEFAULT_SOURCE = "default"
LOOPBACK = "loopback"  # among trusted proxies: 127.0.0.0/8 and ::1
SECONDS_MAX = 86_400.0  # a day: nothing here should wait longer, and timers overflow at some point
INTEGER_MAX = 2**63 - 1  # TOML's own bound
VALUE_SHOWN_CHARS_MAX = 80


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


# --- kinds of value -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind(Generic[T]):
    """A set of values: in words, and as a function from TOML values and strings into it.

    `parse` raises ValueError or TypeError for anything else, and returns its own results unchanged.
    """

    allowed: str
    parse: Callable[[object], T]


def _text(raw: object) -> str:
    if not isinstance(raw, str):
        raise TypeError("not a string")
    return raw.strip()


def whole(low: int, high: int = INTEGER_MAX) -> Kind[int]:
    """Integers from low to high, written in decimal digits."""

    def parse(raw: object) -> int:
        if isinstance(raw, str) and re.fullmatch(r"[0-9]{1,19}", raw.strip()):
            raw = int(raw)
        if not isinstance(raw, int) or isinstance(raw, bool) or not low <= raw <= high:
            raise ValueError("out of range")
        return raw

    upper = f"from {low} to {high}" if high != INTEGER_MAX else f"of at least {low}"
    return Kind(f"a whole number {upper}", parse)


def seconds(*, zero: bool) -> Kind[float]:
    """A duration; fractions are fine."""

    def parse(raw: object) -> float:
        if isinstance(raw, str) and re.fullmatch(r"[0-9]+(\.[0-9]+)?|\.[0-9]+", raw.strip()):
            raw = float(raw)
        if not isinstance(raw, int | float) or isinstance(raw, bool) or not math.isfinite(raw):
            raise ValueError("not a number")
        if not 0 <= raw <= SECONDS_MAX or (raw == 0 and not zero):
            raise ValueError("out of range")
        return float(raw)

    lower = "from 0" if zero else "above 0 and"
    return Kind(f"a number of seconds {lower} up to {SECONDS_MAX:.0f}, fractions allowed", parse)


def words(*allowed: str, also: Mapping[str, str] | None = None) -> Kind[str]:
    """One of a few words; `also` maps other spellings to them."""
    spellings = {word: word for word in allowed} | dict(also or {})

    def parse(raw: object) -> str:
        if isinstance(raw, bool | int):
            raw = str(raw).lower()
        word = _text(raw).lower()
        if word not in spellings:
            raise ValueError("not one of the words")
        return spellings[word]

    return Kind(f"one of {', '.join(spellings)}", parse)


def _flag(raw: object) -> bool:
    word = str(raw).strip().lower() if isinstance(raw, str | int) else ""
    if word not in ("true", "false", "1", "0"):
        raise ValueError("not a boolean")
    return word in ("true", "1")


def optional(kind: Kind[T]) -> Kind[T | None]:
    """Also unset, which is written as the empty string."""

    def parse(raw: object) -> T | None:
        unset = raw is None or (isinstance(raw, str) and not raw.strip())
        return None if unset else kind.parse(raw)

    return Kind(f"{kind.allowed}, or empty for none", parse)


def _items(raw: object) -> list[object]:
    if isinstance(raw, str):
        return [item.strip() for item in raw.split(",") if item.strip()]
    if isinstance(raw, list | tuple):
        return list(raw)
    raise TypeError("not a list")


def _host(raw: object) -> str:
    host = _text(raw)
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if ":" in bare or re.fullmatch(r"[0-9.]+", bare):
        return str(ip_address(bare))
    if not re.fullmatch(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?", bare):
        raise ValueError("not a host name")
    return bare


def _public_url(raw: object) -> str:
    url = _text(raw).rstrip("/")
    parts = urlsplit(url)
    port_is_fine = parts.port is None or parts.port > 0  # .port raises ValueError above 65535
    plain = re.fullmatch(r"[!-~]+", url) and not re.search(r"[?#@\\\"<>]", url)
    if parts.scheme not in ("http", "https") or not parts.hostname or not plain or not port_is_fine:
        raise ValueError("not an absolute URL")
    return url


def _path_root(raw: object) -> str:
    root = _text(raw)
    segment = r"/[A-Za-z0-9_~-][A-Za-z0-9._~-]*"  # a leading dot is refused: no `.` and no `..`
    if not re.fullmatch(f"({segment})+", root):
        raise ValueError("not a plain path")
    return root


def _origins(raw: object) -> tuple[str, ...]:
    origins = tuple(_origin(item) for item in _items(raw))
    if not origins or ("*" in origins and len(origins) > 1):
        raise ValueError("* stands alone, and an empty list is none")
    return origins


def _origin(raw: object) -> str:
    origin = _text(raw).lower()
    if origin == "*":
        return origin
    if not re.fullmatch(r"[a-z][a-z0-9+.-]*://[a-z0-9._\[\]:-]+", origin):
        raise ValueError("not an origin")
    _ = urlsplit(origin).port  # raises ValueError for a port that cannot be
    # Browsers leave the scheme's own port out of Origin; an entry that names it would never match.
    return re.sub(r"^(http://.+):80$|^(https://.+):443$", r"\1\2", origin)


def _networks(raw: object) -> tuple[str, ...]:
    texts = [_text(item).lower() for item in _items(raw)]
    return tuple(t if t == LOOPBACK else str(ip_network(t)) for t in texts)


def _file_path(raw: object) -> Path:
    text = str(raw) if isinstance(raw, Path) else _text(raw)
    if not text or "\0" in text:
        raise ValueError("not a path")
    return Path(text)


def _log_filter(raw: object) -> str:
    text = _text(raw)
    parse_filter(text)
    return text


def _power_of_two(raw: object) -> int:
    number = whole(1, 256).parse(raw)
    if number.bit_count() != 1:
        raise ValueError("not a power of two")
    return number


COUNT = whole(1)
COUNT_OR_OFF = whole(0)
SECONDS = seconds(zero=False)
SECONDS_OR_OFF = seconds(zero=True)
FLAG = Kind("true or false (or 1 or 0)", _flag)
HOST = Kind("a host name or an IP address", _host)
PUBLIC_URL = Kind("an absolute http or https URL without a query", _public_url)
PATH_ROOT = Kind("an absolute path such as /v1/stream, without a slash at the end", _path_root)
FILE_PATH = Kind("a path", _file_path)
LOG_FILTER = Kind(FILTER_ALLOWED, _log_filter)
POWER_OF_TWO = Kind("a power of two from 1 to 256", _power_of_two)
ORIGINS = Kind("* alone, or a list of origins such as https://app.example.com, no path", _origins)
NETWORKS = Kind("a list of IP addresses, CIDRs such as 10.0.0.0/8, or loopback", _networks)
YES_NO_AUTO = words("auto", "true", "false", also={"1": "true", "0": "false"})
STORAGE_MODE = words("memory", "file-fast", "file-durable", "acid", also={"redb": "acid"})


# --- the settings -------------------------------------------------------------------------------


def _setting(default: object, kind: Kind[T], help: str) -> T:
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
        "After how long an SSE response ends so that its reader reconnects; 0 never ends it.",
    )
    public_url: str | None = _setting(
        None,
        optional(PUBLIC_URL),
        "The URL clients reach this server by, for Location, JWKS and "
        "callback URLs; unset, they follow the request.",
    )
    trusted_proxies: tuple[str, ...] = _setting(
        (),
        NETWORKS,
        "Whose X-Forwarded-* and X-JWT-Sub headers are believed: addresses, CIDRs, "
        "or the word loopback.",
    )
    stream_root: str = _setting("/v1/stream", PATH_ROOT, "Where the base protocol is mounted.")
    drain_secs: float = _setting(
        10, SECONDS_OR_OFF, "How long requests in flight may take to finish after SIGTERM."
    )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        if self.host.lower().rstrip(".") == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False


@dataclass(frozen=True)
class Http(Section):
    cors_origins: tuple[str, ...] = _setting(
        "*", ORIGINS, "Origins that browsers may call from, or * for all."
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


@dataclass(frozen=True)
class Log(Section):
    rust_log: str = _setting(
        "info",
        LOG_FILTER,
        "Level, or per-module directives such as info,headrace.http=debug; "
        "RUST_LOG takes precedence.",
    )
    format: str = _setting("text", words("text", "json"), "Lines of text or of JSON.")
    access: bool = _setting(False, FLAG, "Whether each request is logged.")


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
        104_857_600, COUNT, "Bytes held in memory for all streams (100 MiB)."
    )
    max_stream_bytes: int = _setting(10_485_760, COUNT, "Bytes one stream retains (10 MiB).")
    # 16 MiB: the official TypeScript client batches up to 14 MiB into one POST.
    max_body_bytes: int = _setting(16_777_216, COUNT, "Bytes of one request body (16 MiB).")
    max_json_body_bytes: int = _setting(
        16_777_216,
        COUNT,
        "Bytes of one JSON request body (16 MiB); limits.max_body_bytes binds it too.",
    )
    # 16 KiB: h11 and node.
    max_header_bytes: int = _setting(16_384, COUNT, "Bytes of all request headers together.")
    max_header_count: int = _setting(100, COUNT, "Headers in one request.")
    max_url_bytes: int = _setting(8_192, COUNT, "Bytes of a request's URL.")
    max_connections: int = _setting(
        0,
        COUNT_OR_OFF,
        "Open connections; 0 is as many as the descriptor limit allows, less a reserve.",
    )
    max_inflight_body_bytes: int = _setting(
        67_108_864,
        COUNT,
        "Bytes of all request bodies being received at one time (64 MiB); at "
        "least limits.max_body_bytes.",
    )
    read_chunk_bytes: int = _setting(
        1_048_576, COUNT, "Bytes of one catch-up response, beyond which the reader asks again."
    )
    max_streams: int = _setting(1_000_000, COUNT, "Streams that exist at one time.")
    max_live_readers_per_stream: int = _setting(
        100_000, COUNT, "Long-poll and SSE readers waiting on one stream."
    )
    max_producers_per_stream: int = _setting(
        10_000, COUNT, "Idempotent producers remembered per stream."
    )
    producer_receipts: int = _setting(
        64, COUNT, "Appends per producer whose offsets are remembered for late duplicates."
    )
    rate_limit_requests_per_sec: int = _setting(
        0, COUNT_OR_OFF, "Requests per second of one subject or address; 0 is no limit."
    )
    rate_limit_burst: int = _setting(
        0, COUNT_OR_OFF, "Requests at once before the rate binds; 0 is the same as the rate."
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
        "./data/streams", FILE_PATH, "Directory of the modes that write to disk."
    )
    acid_shard_count: int = _setting(
        16, POWER_OF_TWO, "Shards in acid mode: a power of two from 1 to 256."
    )


@dataclass(frozen=True)
class Webhooks(Section):
    allow_loopback: str = _setting(
        "auto",
        YES_NO_AUTO,
        "Whether callbacks may go to this machine; auto is while the server "
        "itself is bound to loopback.",
    )
    allow_private: bool = _setting(
        False, FLAG, "Whether callbacks may go to private network addresses."
    )
    timeout_secs: float = _setting(10, SECONDS, "How long one callback may take.")
    max_subscriptions: int = _setting(10_000, COUNT, "Subscriptions that exist at one time.")


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

    @property
    def loopback_callbacks_allowed(self) -> bool:
        """What webhooks.allow_loopback comes to for this server."""
        if self.webhooks.allow_loopback == "auto":
            return self.server.is_loopback
        return self.webhooks.allow_loopback == "true"

    def value(self, key: str) -> object:
        """The value of a setting by its key, such as `server.port`."""
        section, _, name = key.partition(".")
        return getattr(getattr(self, section), name)


SECTIONS: Mapping[str, type[Section]] = {
    cls.__name__.lower(): cls for cls in (Server, Http, Log, Tls, Limits, Storage, Webhooks)
}


@dataclass(frozen=True)
class Setting:
    """One setting: its names, what it may be, what it is unless told otherwise."""

    key: str
    kind: Kind[Any]
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
        """The value that `raw` stands for, or ConfigError naming `source`."""
        try:
            value: object = self.kind.parse(raw)
        except (ValueError, TypeError):
            raise _bad_value(self, raw, source) from None
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


# --- the layers ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Loaded:
    """A configuration, and where each of its values came from."""

    config: Config
    sources: Mapping[str, str]  # by key: "default", "config/dev.toml", "DS_SERVER__PORT", "--port"
    files: tuple[str, ...]  # the files that were read, in order


@dataclass(frozen=True)
class _Entry:
    """One value that one layer gives."""

    setting: Setting
    value: object
    source: str


def load(
    profile: str | None = None,
    config_file: str | Path | None = None,
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Loaded:
    """Put the layers together. `flags` is by key; a flag that is None was not given."""
    cwd = cwd or Path.cwd()
    files: list[str] = []
    entries: list[_Entry] = []
    for name, required in _file_names(profile, config_file):
        if (table := _read_toml(cwd / name, name, required)) is not None:
            files.append(name)
            entries += _from_table(table, name)
    entries += _from_environ(os.environ if environ is None else environ)
    entries += _from_flags(flags or {})
    loaded = _combine(entries, tuple(files))
    _check_tls_files(loaded, cwd)
    return loaded


def _file_names(profile: str | None, config_file: str | Path | None) -> Iterator[tuple[str, bool]]:
    """The files to read in order, each with whether it must exist."""
    yield "config/default.toml", False
    if profile is not None:
        if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", profile):
            raise ConfigError(
                f"--profile {_shown(profile)} is not a profile: it must be a name, such as dev for "
                "config/dev.toml.",
                source="--profile",
                allowed="a name",
            )
        yield f"config/{profile}.toml", True
    yield "config/local.toml", False
    if config_file is not None:
        yield str(config_file), True


def _read_toml(path: Path, name: str, required: bool) -> dict[str, object] | None:
    try:
        return tomllib.loads(path.read_bytes().decode())
    except FileNotFoundError:
        if not required:
            return None
        raise ConfigError(
            f"The configuration file {name} does not exist: looked for {path.absolute()}.",
            source=name,
        ) from None
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
    except UnicodeDecodeError as error:
        problem = f"is not UTF-8 (at byte {error.start})"
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        problem = f"is not valid TOML ({str(error).rstrip('.')})"
    raise ConfigError(f"The configuration file {name} {problem}.", source=name)


def _from_table(table: Mapping[str, object], source: str) -> Iterator[_Entry]:
    for section, body in table.items():
        if section not in SECTIONS:
            raise _unknown(_first_key(section, body), source)
        if not isinstance(body, dict):
            raise ConfigError(
                f"{section} in {source} must be a table: write [{section}] and its keys below it.",
                key=section,
                source=source,
                allowed="a table",
            )
        for name, raw in body.items():
            if (setting := BY_KEY.get(f"{section}.{name}")) is None:
                raise _unknown(f"{section}.{name}", source)
            yield _Entry(setting, setting.parse(raw, source), source)


def _first_key(section: str, body: object) -> str:
    return f"{section}.{next(iter(body))}" if isinstance(body, dict) and body else section


def _from_environ(environ: Mapping[str, str]) -> Iterator[_Entry]:
    # A name without `__` is somebody else's: DS_SERVER_URL belongs to the sync service.
    for name in sorted(n for n in environ if n.startswith("DS_") and "__" in n):
        if (setting := BY_ENV.get(name)) is None:
            raise _unknown(name, None)
        yield _Entry(setting, setting.parse(environ[name], name), name)
    # Compose files pass RUST_LOG on whether or not it is set; empty is unset.
    if (rust_log := environ.get("RUST_LOG", "")).strip():
        setting = BY_KEY["log.rust_log"]
        yield _Entry(setting, setting.parse(rust_log, "RUST_LOG"), "RUST_LOG")


def _from_flags(flags: Mapping[str, object]) -> Iterator[_Entry]:
    for key, raw in flags.items():
        setting = BY_KEY[key]
        if raw is not None:
            yield _Entry(setting, setting.parse(raw, setting.flag), setting.flag)


def _combine(entries: list[_Entry], files: tuple[str, ...]) -> Loaded:
    sources = dict.fromkeys(BY_KEY, DEFAULT_SOURCE)
    values: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for entry in entries:
        sources[entry.setting.key] = entry.source
        values[entry.setting.section][entry.setting.name] = entry.value
    try:
        sections: dict[str, Any] = {name: SECTIONS[name](**values[name]) for name in SECTIONS}
    except ConfigError as error:
        raise _with_source(error, sources) from None
    return Loaded(Config(**sections), sources, files)


def _with_source(error: ConfigError, sources: Mapping[str, str]) -> ConfigError:
    """The same refusal of values that do not go together, naming where they came from."""
    given = {k: s for k, s in sources.items() if k in str(error) and s != DEFAULT_SOURCE}
    origin = ", ".join(f"{key} is from {source}" for key, source in given.items())
    sentence = f"{str(error).rstrip('.')} ({origin})."
    source = sources.get(error.key or "")
    return ConfigError(sentence, key=error.key, source=source, allowed=error.allowed)


def _check_tls_files(loaded: Loaded, cwd: Path) -> None:
    for key in ("tls.cert_path", "tls.key_path"):
        path = loaded.config.value(key)
        if not isinstance(path, Path):
            continue
        try:
            with (cwd / path).open("rb"):
                pass
        except OSError as error:
            source = loaded.sources[key]
            raise ConfigError(
                f"{key} = {_shown(path)} (from {source}) must be a file that can be read: "
                f"{error.strerror}.",
                key=key,
                source=source,
                allowed="a file that can be read",
            ) from None


# --- the sentences ------------------------------------------------------------------------------


def _shown(raw: object) -> str:
    text = f'"{raw}"' if isinstance(raw, str | Path) else str(plain(raw))
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text if len(text) <= VALUE_SHOWN_CHARS_MAX else text[:VALUE_SHOWN_CHARS_MAX] + "..."


def _bad_value(setting: Setting, raw: object, source: str | None) -> ConfigError:
    allowed = setting.kind.allowed
    origin = f" (from {source})" if source else ""
    return ConfigError(
        f"{setting.key} = {_shown(raw)}{origin} is not allowed: it must be {allowed}.",
        key=setting.key,
        source=source,
        allowed=allowed,
    )


def _unknown(name: str, file: str | None) -> ConfigError:
    """The refusal of a key in a file, or (without one) of an environment variable."""
    key = name if file else name.removeprefix("DS_").lower().replace("__", ".", 1)
    nearest = _nearest(key)
    suggestion = None
    if nearest:
        suggestion = nearest.key if file else nearest.env
    section = key.partition(".")[0]
    if section in SECTIONS:
        allowed = f"[{section}] has {', '.join(s.name for s in settings_of(SECTIONS[section]))}"
    else:
        allowed = f"the sections are {', '.join(SECTIONS)}"
    hint = f" (did you mean {suggestion}?)" if suggestion else ""
    where = f"{_bare(name)} in {file}" if file else f"The environment variable {_bare(name)}"
    return ConfigError(
        f"{where} is not a setting{hint}; {allowed}.",
        key=key,
        source=file or name,
        allowed=allowed,
        suggestion=suggestion,
    )


def _bare(name: str) -> str:
    return _shown(name)[1:-1] if len(name) <= VALUE_SHOWN_CHARS_MAX else _shown(name)[1:]


def _nearest(key: str) -> Setting | None:
    """The right name in another section, else the closest spelling."""
    same_name = [s for s in SETTINGS if s.name == key.rpartition(".")[2]]
    if len(same_name) == 1:
        return same_name[0]
    close = difflib.get_close_matches(key, BY_KEY, n=1)
    return BY_KEY[close[0]] if close else None
