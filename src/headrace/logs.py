"""Logging: which records are written, and as what lines.

Owns the filter format (Rust tracing's: `info`, or `warn,headrace.http=debug`), the text and JSON
line formats, and the set-up of the standard `logging` package. Knows nothing of where the settings
came from. Everything goes to stderr; standard output belongs to the commands.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol, TextIO

ACCESS_LOGGER = "headrace.access"

OFF = logging.CRITICAL + 10
LEVELS: Mapping[str, int] = {
    "off": OFF,
    "error": logging.ERROR,
    "warn": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
    "trace": logging.DEBUG,  # the standard library has nothing below debug
}
FILTER_ALLOWED = (
    "a level (off, error, warn, info, debug, trace), directives such as headrace.http=debug, "
    "or several of these separated by commas"
)

_LEVEL_WORDS = {
    logging.DEBUG: "debug",
    logging.INFO: "info",
    logging.WARNING: "warn",
    logging.ERROR: "error",
    logging.CRITICAL: "error",
}
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
# The reference server's crate names: people bring their RUST_LOG along.
_REFERENCE_CRATES = ("durable_streams_server", "durable_streams")
_RECORD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class LogSettings(Protocol):
    """What `setup` needs to know; `headrace.config.Log` is one."""

    @property
    def rust_log(self) -> str: ...
    @property
    def format(self) -> str: ...
    @property
    def access(self) -> bool: ...


@dataclass(frozen=True)
class Filter:
    """Minimum levels: one for everything, others for named loggers and what is below them."""

    # tracing silences targets without a directive; we keep their errors.
    level: int = logging.ERROR
    modules: Mapping[str, int] = field(default_factory=dict)


def parse_filter(text: str) -> Filter:
    """Read a filter in tracing's format; ValueError if it is not one.

    As in tracing the most specific module wins, whatever the order. Span filters (`[span]=debug`)
    are refused: there are no spans here.
    """
    level: int | None = None
    modules: dict[str, int] = {}
    for directive in filter(None, (part.strip() for part in text.split(","))):
        module, equals, word = (part.strip() for part in directive.partition("="))
        if equals:
            modules[_logger_name(module)] = _level(word)
        elif module.lower() in LEVELS:
            level = _level(module)
        else:
            modules[_own_logger_name(module)] = LEVELS["trace"]
    if level is None and not modules:
        raise ValueError("the filter is empty")
    return Filter(logging.ERROR if level is None else level, modules)


def _level(word: str) -> int:
    try:
        return LEVELS[word.lower()]
    except KeyError:
        raise ValueError(f"{word!r} is not a level") from None


def _logger_name(module: str) -> str:
    name = module.replace("::", ".")
    if not _MODULE.fullmatch(name):
        raise ValueError(f"{module!r} is not a module")
    head, dot, rest = name.partition(".")
    return f"headrace{dot}{rest}" if head in _REFERENCE_CRATES else name


def _own_logger_name(module: str) -> str:
    """A module without a level means all of it, but only ours: `debgu` is a slip, not a module."""
    name = _logger_name(module)
    if name.partition(".")[0] != "headrace":
        raise ValueError(f"{module!r} is neither a level nor a module of ours")
    return name


def setup(log: LogSettings, stream: TextIO | None = None) -> None:
    """Make the standard `logging` package follow these settings; a second call replaces the first.

    An access log that was asked for is written at any level, unless a directive names it.
    """
    levels = dict(parse_filter(log.rust_log).modules)
    levels[ACCESS_LOGGER] = levels.get(ACCESS_LOGGER, logging.INFO) if log.access else OFF
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if isinstance(handler, _Lines)]:
        old.uninstall(root)
    root.setLevel(parse_filter(log.rust_log).level)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    root.addHandler(_Lines(stream or sys.stderr, formatter(log.format), frozenset(levels)))


class _Lines(logging.StreamHandler[TextIO]):
    """Our handler on the root logger, which remembers the loggers whose level it changed."""

    def __init__(self, stream: TextIO, lines: logging.Formatter, levelled: frozenset[str]) -> None:
        super().__init__(stream)
        self.setFormatter(lines)
        self._levelled = levelled

    def uninstall(self, root: logging.Logger) -> None:
        root.removeHandler(self)
        for name in self._levelled:
            logging.getLogger(name).setLevel(logging.NOTSET)


def formatter(name: str) -> logging.Formatter:
    """The formatter for a `log.format`: `text` or `json`."""
    return JsonLines() if name == "json" else TextLines()


class TextLines(logging.Formatter):
    """`2026-11-15T08:09:10.123Z info headrace.http: message key=value`, then any traceback."""

    def format(self, record: logging.LogRecord) -> str:
        words = [_timestamp(record), _word(record), f"{record.name}:", record.getMessage()]
        words += [f"{name}={value}" for name, value in _extras(record).items()]
        # A client's path may hold a line break; it must not be able to forge a record.
        lines = [_escape_controls(" ".join(words)), _trace(self, record)]
        return "\n".join(filter(None, lines))


class JsonLines(logging.Formatter):
    """One JSON object per line: ts, level, logger, message, the extra fields, any traceback."""

    def format(self, record: logging.LogRecord) -> str:
        core: dict[str, object] = {
            "ts": _timestamp(record),
            "level": _word(record),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if trace := _trace(self, record):
            core["exception"] = trace
        extras = {f"{k}_" if k in core else k: v for k, v in _extras(record).items()}
        try:
            return json.dumps(core | extras, default=str, allow_nan=False)
        except (TypeError, ValueError):  # NaN, a cycle, a key that is not a string: log it anyway
            return json.dumps(core | {name: str(value) for name, value in extras.items()})


def _timestamp(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _word(record: logging.LogRecord) -> str:
    return _LEVEL_WORDS.get(record.levelno, record.levelname.lower())


def _extras(record: logging.LogRecord) -> dict[str, object]:
    return {k: v for k, v in vars(record).items() if k not in _RECORD_FIELDS}


def _trace(lines: logging.Formatter, record: logging.LogRecord) -> str:
    parts = [lines.formatException(record.exc_info) if record.exc_info else record.exc_text or ""]
    parts.append(lines.formatStack(record.stack_info) if record.stack_info else "")
    return "\n".join(filter(None, parts))


def _escape_controls(line: str) -> str:
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
