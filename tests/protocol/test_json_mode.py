"""What one body means as messages, and that their text is kept as sent."""

from __future__ import annotations

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import BodyTooLarge, InvalidJson, Refused, TooManyMessages
from headrace.limits import JSON_DEPTH_MAX
from headrace.protocol import json_mode, json_structure
from headrace.protocol.json_mode import (
    Logged,
    log_form,
    response_body,
    split_messages,
    wire_bytes,
)
from tests.protocol.strategies import JSON_TEXTS, JSON_WHITESPACE

BYTES_MAX = 1_000_000


def split(body: bytes) -> list[bytes]:
    """The messages, by either way: one at a time, and in place."""
    messages = split_messages(body, BYTES_MAX)
    lengths = tuple(len(message) + 1 for message in messages)
    expected = (wire_bytes(messages) if messages else b"", lengths)
    assert logged(body) == expected
    assert in_steps(body) == expected
    return messages


def in_steps(body: bytes, window_bytes: int = 3, messages_max: int = 10_000) -> Logged:
    """As a large body is looked at, with windows that cut everything in two."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_structure, "WINDOW_BYTES", window_bytes)
        patch.setattr(json_mode, "LARGE_BYTES_MIN", 0)
        return log_form(body, BYTES_MAX, messages_max)


def logged(body: bytes) -> tuple[bytes, tuple[int, ...]]:
    """With every body looked at twice, however short."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_mode, "SCANNED_BYTES_MIN", 0)
        return log_form(body, BYTES_MAX)


@given(st.lists(st.tuples(JSON_WHITESPACE, JSON_TEXTS, JSON_WHITESPACE)), JSON_WHITESPACE)
def test_each_element_of_an_array_is_a_message_with_its_text_as_sent(
    elements: list[tuple[bytes, bytes, bytes]], space: bytes
) -> None:
    body = space + b"[" + b",".join(b"".join(element) for element in elements) + b"]" + space
    assert split(body) == [text for _, text, _ in elements]


@given(JSON_TEXTS.filter(lambda text: not text.startswith(b"[")), JSON_WHITESPACE)
def test_anything_but_an_array_is_one_message(text: bytes, space: bytes) -> None:
    assert split(space + text + space) == [text]


@given(st.lists(JSON_TEXTS))
def test_a_range_of_messages_is_read_back_as_one_array(texts: list[bytes]) -> None:
    body = response_body(wire_bytes(texts)) if texts else response_body(b"")
    assert json.loads(body) == [json.loads(text) for text in texts]


@given(
    st.binary(max_size=60) | st.text('[]{}",:0123456789.eE+-tfn \\u', max_size=30).map(str.encode)
)
def test_any_bytes_are_messages_or_refused(body: bytes) -> None:
    try:
        messages = split(body)
    except Refused:
        for look in (logged, in_steps):
            with pytest.raises(Refused):
                look(body)
        return
    value = json.loads(body)
    assert [json.loads(message) for message in messages] == (
        value if isinstance(value, list) else [value]
    )


@pytest.mark.parametrize(
    "body",
    [b"", b" ", b"NaN", b"[NaN]", b"Infinity", b"[-Infinity]", b"nan", b"'a'", b"{a:1}", b"[1,]",
     b"[1", b"1 2", b"[1][2]", b"[1]x", b"01", b"1.", b".5", b"+1", b"0x1", b"tru", b"// c\n1",
     b'"\\ud800"', b'["\\udc00\\ud800"]', b'"\\ud800\\u0041"', b'"\xed\xa0\x80"', b'["\xff"]',
     b'"\xc0\x80"', b'"\xf4\x90\x80\x80"', b"\xef\xbb\xbf[1]", b'"\x00"', b'"a\nb"', b"\x001",
     b"1\x00", b"\x0c1", b"\xa01", b'{"a":1,}', b'"\\x41"', b"\xff\xfe1\x00"],
)  # fmt: skip
def test_what_is_not_json_is_refused(body: bytes) -> None:
    for look in (split, logged, in_steps):
        with pytest.raises(InvalidJson):
            look(body)


@pytest.mark.parametrize(
    "text",
    [b'{"a":1,"a":2}', b'{ "b" : [ 1 ,\t2 ] ,\r\n "a":null}', b"-0", b"1E+2", b"1.10", b"1e-999",
     b"12345678901234567890123456789012345678901234567890", b"0.1000000000000000055511151231",
     b'"\\u00e9\\/\\ud83d\\ude00"', '"é\u2028\u2029😀"'.encode(), b'"\\u0000"', b'""', b"{}"],
)  # fmt: skip
def test_spellings_survive(text: bytes) -> None:
    assert split(text) == [text]
    assert split(b"[" + text + b", " + text + b"]") == [text, text]


@pytest.mark.parametrize(
    "text",
    [b"1e999", b"-1e999", b"1E999", b"1e+999", b"1e309", b"1e0309", b"9" * 400, b"9" * 210 + b"e99",
     b"9" * 250 + b"E+99", b"1" + b"0" * 308 + b"e1"],
)  # fmt: skip
def test_a_number_beyond_a_double_is_refused(text: bytes) -> None:
    for body in (text, b"[1," + text + b"]", b'[{"a":' + text + b"},1]"):
        for look in (split, logged, in_steps):
            with pytest.raises(InvalidJson):
                look(body)


@pytest.mark.parametrize("separator", [b",", b", ", b"\n,\t"])
@pytest.mark.parametrize(
    "text",
    ['{"text":"é","n":12}', '{"id":"1c10e123-77e1-4210-9e001000e1234567"}', "1e12", "-0.5E+7"],
)
def test_no_values_are_made_of_many_small_messages(
    text: str, separator: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_mode, "split_messages", lambda body, bytes_max: pytest.fail("made"))
    texts = [text.encode()] * 1000
    lengths = tuple(len(one) + 1 for one in texts)
    assert log_form(b"[%b]" % separator.join(texts), BYTES_MAX) == (wire_bytes(texts), lengths)


def test_how_deep_a_message_may_nest_does_not_depend_on_python() -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        with pytest.raises(InvalidJson):
            logged(b"[1,%b%b]" % (b"[" * 3000, b"]" * 3000))
    finally:
        sys.setrecursionlimit(limit)


@pytest.mark.parametrize("body", [b"[]", b" [ ] "])
def test_an_empty_array_holds_no_message(body: bytes) -> None:
    assert split(body) == []


def test_only_one_level_is_flattened() -> None:
    assert split(b"[[1,2],[[3]],[]]") == [b"[1,2]", b"[[3]]", b"[]"]


@pytest.mark.parametrize("depth", [900, 990, 1000, JSON_DEPTH_MAX])
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_json_as_deep_as_the_limit_is_taken(depth: int, opening: bytes, closing: bytes) -> None:
    body = opening * depth + b"1" + closing * depth
    assert split(body) == [body[1:-1] if opening == b"[" else body]


@pytest.mark.parametrize("depth", [JSON_DEPTH_MAX + 1, 100_000])
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_deeper_json_is_refused_by_naming_the_limit(
    depth: int, opening: bytes, closing: bytes
) -> None:
    body = opening * depth + b"1" + closing * depth
    with pytest.raises(InvalidJson, match=f"deeper than {JSON_DEPTH_MAX}"):
        split(body)
    for look in (logged, in_steps):
        with pytest.raises(InvalidJson, match=f"deeper than {JSON_DEPTH_MAX}"):
            look(b"[1,%b]" % body)


def test_a_body_over_the_limit_is_refused_before_it_is_parsed() -> None:
    for body in (b"{" * 11, b"[%b1]" % (b"1," * 5000)):
        with pytest.raises(BodyTooLarge):
            log_form(body, 10)


@pytest.mark.parametrize("element", [b"1", b'"a,b"', b"[1,1]", b'{"a":[",",{"b":1}]}', b' "\\\\" '])
def test_messages_are_counted_before_anything_is_made_of_them(element: bytes) -> None:
    body = b"[%b]" % b",".join([element] * 7)
    for look in (in_steps, lambda body, _, most: log_form(body, BYTES_MAX, most)):
        assert len(look(body, 3, 7).lengths) == 7
        with pytest.raises(TooManyMessages):
            look(body, 3, 6)


def test_elements_of_elements_are_not_counted() -> None:
    one = b"[[%b]]" % b",".join([b"1"] * 500)
    assert len(in_steps(one, 64, 10).lengths) == 1
    assert (
        len(in_steps(one[1:-1].replace(b"[", b'{"a":[').replace(b"]", b"]}"), 64, 10).lengths) == 1
    )


def test_numbers_and_escapes_are_whole_wherever_a_window_ends() -> None:
    body = b'["1e999, \\" 1e999 ]","\\\\",1e300,-1.5e-999,"' + "é😀".encode() + b'\\u00e9",[[{}]]]'
    expected = log_form(body, BYTES_MAX)
    for window_bytes in range(1, len(body) + 1):
        assert in_steps(body, window_bytes) == expected


@given(st.lists(JSON_TEXTS, min_size=1), st.integers(1, 40))
def test_a_body_is_the_same_in_steps_of_any_size(texts: list[bytes], window_bytes: int) -> None:
    body = b"[%b]" % b" ,".join(texts)
    assert in_steps(body, window_bytes) == log_form(body, BYTES_MAX)
