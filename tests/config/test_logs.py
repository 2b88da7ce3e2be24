"""Which records are written, and as what lines."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator

import pytest

from headrace import logs
from headrace.config import Log
from headrace.logs import OFF, Filter, JsonLines, TextLines, parse_filter

Output = Callable[[], list[str]]


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    logs.setup(Log(rust_log="off"))  # resets the levels of named loggers
    root.setLevel(level)
    root.handlers[:] = handlers
    logging.getLogger(logs.ACCESS_LOGGER).setLevel(logging.NOTSET)


def written(log: Log, *names: str) -> list[str]:
    """`logger level` of every record that gets through when each logger says all it can."""
    output = io.StringIO()
    logs.setup(Log(rust_log=log.rust_log, format="json", access=log.access), output)
    for name in names:
        for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
            logging.getLogger(name).log(level, "x")
    lines = [json.loads(line) for line in output.getvalue().splitlines()]
    return [f"{line['logger']} {line['level']}" for line in lines]


def record(message: str = "hello", **fields: object) -> logging.LogRecord:
    return logging.makeLogRecord({
        "name": "headrace.http", "levelno": logging.WARNING, "levelname": "WARNING",
        "msg": message, "created": 0.5, **fields,
    })  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("info", Filter(logging.INFO)),
        ("TRACE", Filter(logging.DEBUG)),
        ("off", Filter(OFF)),
        ("warn, headrace.http=debug", Filter(logging.WARNING, {"headrace.http": logging.DEBUG})),
        ("durable_streams=debug", Filter(logging.ERROR, {"headrace": logging.DEBUG})),
        ("durable_streams_server::http=warn",
         Filter(logging.ERROR, {"headrace.http": logging.WARNING})),
        ("headrace", Filter(logging.ERROR, {"headrace": logging.DEBUG})),
        ("info,hyper::client=off", Filter(logging.INFO, {"hyper.client": OFF})),
        ("info,", Filter(logging.INFO)),
    ],
)  # fmt: skip
def test_a_filter_is_read_as_tracing_reads_it(text: str, expected: Filter) -> None:
    assert parse_filter(text) == expected


@pytest.mark.parametrize(
    "text", ["", ",", "debgu", "headrace=loud", "=debug", "headrace=", "[span]=debug", "a b=info"]
)
def test_what_is_no_filter_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_filter(text)


def test_records_below_the_level_are_not_written() -> None:
    assert written(Log(rust_log="warn"), "headrace.http") == [
        "headrace.http warn", "headrace.http error",
    ]  # fmt: skip


def test_the_most_specific_module_wins_in_any_order() -> None:
    log = Log(rust_log="headrace.http=error,off,headrace=warn")
    assert written(log, "headrace.http.handlers.live", "headrace.engine", "asyncio") == [
        "headrace.http.handlers.live error", "headrace.engine warn", "headrace.engine error",
    ]  # fmt: skip


def test_modules_that_no_directive_names_still_log_errors() -> None:
    assert written(Log(rust_log="headrace.http=off"), "asyncio") == ["asyncio error"]


def test_a_module_is_not_a_prefix_of_a_name() -> None:
    assert written(Log(rust_log="off,headrace.ht=debug"), "headrace.http") == []


def test_the_access_log_is_off_unless_asked_for() -> None:
    assert written(Log(rust_log="debug"), "headrace.access") == []


def test_an_access_log_that_was_asked_for_is_written_at_any_level() -> None:
    log = Log(rust_log="off", access=True)
    assert "headrace.access info" in written(log, "headrace.access", "headrace.http")


def test_a_directive_for_the_access_log_is_obeyed() -> None:
    log = Log(rust_log="info,headrace.access=error", access=True)
    assert written(log, "headrace.access") == ["headrace.access error"]


def test_a_second_setup_replaces_the_first() -> None:
    written(Log(rust_log="off,headrace.http=debug"), "headrace.http")
    assert written(Log(rust_log="error"), "headrace.http") == ["headrace.http error"]


def test_a_json_line_has_time_level_logger_message_and_extra_fields() -> None:
    assert json.loads(JsonLines().format(record(stream="a/b", bytes=3))) == {
        "ts": "1970-01-01T00:00:00.500Z", "level": "warn", "logger": "headrace.http",
        "message": "hello", "stream": "a/b", "bytes": 3,
    }  # fmt: skip


def test_an_extra_field_does_not_replace_one_of_ours() -> None:
    line = json.loads(JsonLines().format(record(level="high", ts=1)))
    assert (line["level"], line["level_"], line["ts_"]) == ("warn", "high", 1)


@pytest.mark.parametrize("value", [float("nan"), object(), {(1, 2): 3}, b"\xff", "\u2028\n"])
def test_any_extra_value_makes_one_line_of_json(value: object) -> None:
    line = JsonLines().format(record(value=value))
    assert "value" in json.loads(line, parse_constant=pytest.fail)
    assert len(line.splitlines()) == 1


def test_a_json_line_holds_the_whole_traceback() -> None:
    try:
        raise KeyError("gone")
    except KeyError as error:
        failed = record(exc_info=(KeyError, error, error.__traceback__))
    line = JsonLines().format(failed)
    assert "KeyError: 'gone'" in json.loads(line)["exception"]
    assert len(line.splitlines()) == 1


def test_a_text_line_has_the_same_facts() -> None:
    line = TextLines().format(record(stream="a/b"))
    assert line == "1970-01-01T00:00:00.500Z warn headrace.http: hello stream=a/b"


def test_a_line_break_in_a_message_cannot_forge_a_record() -> None:
    line = TextLines().format(record("path /a\r\n1970 info forged: \x1b[2J", stream="x\ny"))
    assert len(line.splitlines()) == 1
    assert "\x1b" not in line


def test_message_arguments_are_filled_in() -> None:
    assert "took 3 ms" in TextLines().format(record("took %d ms", args=(3,)))
