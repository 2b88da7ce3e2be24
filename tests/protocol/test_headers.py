"""Header values are read strictly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InvalidRequest
from headrace.limits import CONTENT_TYPE_BYTES_MAX, INTEGER_MAX, TTL_SECS_MAX
from headrace.protocol.headers import (
    format_time,
    is_true,
    media_type,
    parse_content_type,
    parse_expires_at,
    parse_integer,
    parse_ttl,
)

YEAR_10000_MS = 253_402_300_800_000


@given(st.integers(0, INTEGER_MAX))
def test_plain_decimal_integers_are_read(number: int) -> None:
    assert parse_integer("X", b"%d" % number) == number


@pytest.mark.parametrize(
    "value",
    [b"", b"-1", b"+1", b"01", b"00", b"1.0", b"1e3", b"0x10", b" 1", b"1 ", b"1_000", b"1,1",
     b"abc", b"\xb2", b"\xd9\xa0", b"%d" % (INTEGER_MAX + 1), b"9" * 16, b"9" * 5000],
)  # fmt: skip
def test_other_spellings_of_integers_are_refused(value: bytes) -> None:
    with pytest.raises(InvalidRequest, match=r"^X must"):
        parse_integer("X", value)


def test_a_ttl_is_at_most_what_stays_exact_in_milliseconds() -> None:
    assert parse_ttl(b"%d" % TTL_SECS_MAX) == TTL_SECS_MAX
    with pytest.raises(InvalidRequest, match="Stream-TTL must not exceed"):
        parse_ttl(b"%d" % (TTL_SECS_MAX + 1))


@pytest.mark.parametrize(
    ("text", "moment_ms"),
    [("1970-01-01T00:00:00Z", 0), ("1970-01-01t00:00:01z", 1000),
     ("1970-01-01T01:00:00+01:00", 0), ("1969-12-31T23:59:59-00:01", 59_000),
     ("1970-01-01T00:00:00.5Z", 500), ("1970-01-01T00:00:00.123456789Z", 123),
     ("2024-02-29T00:00:00Z", 1_709_164_800_000), ("9999-12-31T23:59:59Z", YEAR_10000_MS - 1000)],
)  # fmt: skip
def test_an_rfc_3339_time_is_read(text: str, moment_ms: int) -> None:
    assert parse_expires_at(text.encode()) == moment_ms


@pytest.mark.parametrize(
    "text",
    ["", "now", "2030", "2030-01-01", "2030-01-01T00:00:00", "2030-01-01 00:00:00Z",
     "2030-01-01T00:00Z", "2030-13-01T00:00:00Z", "2030-02-30T00:00:00Z", "2030-01-01T25:00:00Z",
     "2030-01-01T00:00:00.Z", "2030-01-01T00:00:00+0100", "2030-01-01T00:00:00+25:00",
     "0000-01-01T00:00:00Z", "+2030-01-01T00:00:00Z", "2030-01-01T00:00:00Z ", "1893456000",
     "２０３０-01-01T00:00:00Z"],
)  # fmt: skip
def test_what_is_no_rfc_3339_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="Stream-Expires-At"):
        parse_expires_at(text.encode())


@given(st.integers(0, YEAR_10000_MS - 1))
def test_a_time_is_written_as_it_is_read(moment_ms: int) -> None:
    assert parse_expires_at(format_time(moment_ms).encode()) == moment_ms


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59-01:00", "9999-12-31T23:59:59.999-23:59"])
def test_a_time_past_the_year_9999_is_refused_or_can_be_written(text: str) -> None:
    try:
        moment_ms = parse_expires_at(text.encode())
    except InvalidRequest:
        return
    assert format_time(moment_ms)


@pytest.mark.parametrize(
    "value",
    [b"text/plain", b"Application/JSON; charset=utf-8", b"a/b;c=\"d;e\"", b" text/plain ",
     b"application/vnd.x+json", b"text/" + b"x" * (CONTENT_TYPE_BYTES_MAX - 5)],
)  # fmt: skip
def test_a_content_type_is_kept_as_sent(value: bytes) -> None:
    assert parse_content_type(value) == value.decode().strip()


@pytest.mark.parametrize(
    "value",
    [b"", b"text", b"/plain", b"text/", b"text/plain/x", b"te xt/plain", b"text/pl\xe4in",
     b"text/plain; n=\xff", b"text/plain, text/html", b'"text"/plain',
     b"text/" + b"x" * (CONTENT_TYPE_BYTES_MAX - 4)],
)  # fmt: skip
def test_what_is_no_content_type_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidRequest, match="Content-Type"):
        parse_content_type(value)


def test_content_types_are_compared_without_case_and_parameters() -> None:
    assert media_type("Text/Plain ; charset=UTF-8") == media_type("text/plain") == "text/plain"


@pytest.mark.parametrize("value", [b"true", b"TRUE", b"True"])
def test_a_flag_is_true_in_any_case(value: bytes) -> None:
    assert is_true(value)


@pytest.mark.parametrize("value", [None, b"", b"false", b"1", b"yes", b" true", b"true, true"])
def test_any_other_flag_is_absent(value: bytes | None) -> None:
    assert not is_true(value)
