"""Columns of values become JSON as `values` makes it of each, for most types all at once."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.postgres.values import (
    NOT_NUMBERS,
    Encoder,
    as_printed,
    boolean,
    number,
    quoted_text,
)

_ESCAPED: Final = r'["\\\x00-\x1f]'  # a text without these needs quotes only


def encode_column(encode: Encoder, texts: pa.Array) -> pa.Array:
    """`encode` of every text; null where there is none."""
    if encode is as_printed:
        return texts
    if encode is boolean:
        return pc.if_else(pc.equal(texts, "t"), "true", "false")
    if encode is number:
        is_named = pc.is_in(texts, pa.array(NOT_NUMBERS))
        return pc.if_else(is_named, _quoted(texts), texts)
    if encode is quoted_text:
        is_escaped = pc.match_substring_regex(texts, _ESCAPED)
        return _with_each(encode, texts, is_escaped, _quoted(texts))
    return _one_by_one(encode, texts)


def _with_each(encode: Encoder, texts: pa.Array, mask: pa.Array, others: pa.Array) -> pa.Array:
    if not pc.any(mask).as_py():
        return others
    return pc.replace_with_mask(others, mask, _one_by_one(encode, texts.filter(mask)))


def _one_by_one(encode: Encoder, texts: pa.Array) -> pa.Array:
    found = [None if text is None else encode(text) for text in texts.to_pylist()]
    return pa.array(found, pa.string())


def _quoted(texts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', texts, '"', "")
