"""Generators that several tests of the protocol share."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

JSON_WHITESPACE = st.text(" \t\r\n", max_size=3).map(str.encode)

_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)
_VALUES = st.recursive(
    _SCALARS,
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text("ab", max_size=2), children)
    ),
    max_leaves=6,
)


def _write(value: Any, ascii_only: bool, indent: int | None) -> bytes:
    return json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()


JSON_TEXTS = st.builds(_write, _VALUES, st.booleans(), st.sampled_from([None, 0, 2]))
"""One JSON value each, in one of several spellings."""

# Everything that could break a line-based framing, often.
_AWKWARD = st.sampled_from(["\r", "\n", "\r\n", " ", ":", "\0", "\u2028", "\u2029", "\ufeff",
                            "\x85", "data:", "event: control", "\n\n", "é", "😀"])  # fmt: skip
AWKWARD_TEXTS = st.lists(_AWKWARD | st.characters(codec="utf-8"), max_size=12).map("".join)
