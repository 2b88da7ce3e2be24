"""What a URL path may name, and how a name is written back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InvalidName
from headrace.limits import STREAM_NAME_BYTES_MAX
from headrace.protocol.names import check_name, decode_name, encode_name, is_reserved

SEGMENT = st.text(
    st.characters(codec="utf-8", exclude_characters="/", exclude_categories=["Cc"]),
    min_size=1,
    max_size=8,
).filter(lambda segment: segment not in (".", ".."))
NAMES = st.lists(SEGMENT, min_size=1, max_size=4).map("/".join)


@given(NAMES)
def test_a_name_survives_the_url(name: str) -> None:
    assert decode_name(encode_name(name)) == name


@given(NAMES)
def test_an_encoded_name_is_printable_ascii_without_url_syntax(name: str) -> None:
    encoded = encode_name(name)
    assert all("!" <= character <= "~" for character in encoded)
    assert not set(encoded) & set('?#[]"<>\\^`{|}')


@pytest.mark.parametrize(
    ("raw", "name"),
    [("a%2Fb", "a/b"), ("a/b", "a/b"), ("%61", "a"), ("%C3%A9", "é"), ("a%20b", "a b"),
     ("a+b", "a+b"), ("%2e%2e%2e", "..."), ("a%25b", "a%b"), ("a%", "a%"), ("%zz", "%zz")],
)  # fmt: skip
def test_percent_encoding_is_undone_once(raw: str, name: str) -> None:
    assert decode_name(raw) == name


@pytest.mark.parametrize(
    "raw",
    ["", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "../a", "a/..", "%2e%2e/a", "a%2F..%2Fb",
     "a%2F", "%00", "a%00b", "a%0Ab", "a%0D%0Ab", "a%7Fb", "a\tb", "a%C2%85b", "%FF", "%ED%A0%80",
     "a" * (STREAM_NAME_BYTES_MAX + 1), "é" * (STREAM_NAME_BYTES_MAX // 2 + 1)],
)  # fmt: skip
def test_what_is_no_name_is_refused(raw: str) -> None:
    with pytest.raises(InvalidName):
        decode_name(raw)


def test_the_longest_name_is_a_name() -> None:
    check_name("a" * STREAM_NAME_BYTES_MAX)


@pytest.mark.parametrize("name", ["__ds", "__ds/jwks.json", "__dsx/y"])
def test_the_control_prefix_is_reserved(name: str) -> None:
    assert is_reserved(name)


@pytest.mark.parametrize("name", ["a/__ds", "_ds", "__registry__"])
def test_other_names_are_not_reserved(name: str) -> None:
    assert not is_reserved(name)
