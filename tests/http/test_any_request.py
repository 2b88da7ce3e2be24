"""Whatever stands in a well-formed request, it is never answered 500."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.testing.raw_http import EndOfConnection, RawConnection, request_bytes
from headrace.testing.server_process import ServerProcess

ROOT = "/v1/stream/fuzz"
# What may stand in a header value or, percent-encoded, in a path.
TEXTS = st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_categories=["Cc"]))
NUMBERS = st.integers(-1, 2**64).map(str)
OFFSETS = st.sampled_from([
    "-1", "now", "0000000000000000_0000000000000000", "0000000000000001_0000000000000003",
    "9999999999999999_9999999999999999", "0000000000000000_9999999999999999",
])  # fmt: skip
TIMES = st.builds(
    "{:04d}-{:02d}-{:02d}T{:02d}:{:02d}:{:02d}{}{}".format,
    st.sampled_from([0, 1, 999, 1970, 2030, 9999]), st.integers(0, 13), st.integers(0, 32),
    st.integers(0, 24), st.integers(0, 60), st.integers(0, 61),
    st.sampled_from(["", ".", ".0", ".999999", ".123456789123"]),
    st.sampled_from(["Z", "z", "+00:00", "-23:59", "+23:59", "+24:00", ""]),
)  # fmt: skip
TYPES = st.sampled_from(
    ["application/json", "Application/JSON; charset=utf-8", "text/plain", "image/png", "x"]
)
SOURCES = st.sampled_from([
    ROOT, f"{ROOT}/a", "http://[", "http://[::1/v1/stream/a", "//x", "https://\u00bd/v1/stream/a",
    f"http://localhost{ROOT}/a", "/v1/stream/__registry__", "/v1/stream/%", "/v1/stream/a%00",
])  # fmt: skip
HEADERS: dict[str, st.SearchStrategy[str]] = {
    "Content-Type": TYPES | TEXTS,
    "Stream-Closed": st.sampled_from(["true", "TRUE", "false", "1"]),
    "Stream-TTL": NUMBERS | TEXTS,
    "Stream-Expires-At": TIMES,
    "Stream-Seq": TEXTS,
    "Stream-Forked-From": SOURCES | TEXTS,
    "Stream-Fork-Offset": OFFSETS | TEXTS,
    "Stream-Fork-Sub-Offset": NUMBERS,
    "Producer-Id": TEXTS,
    "Producer-Epoch": NUMBERS,
    "Producer-Seq": NUMBERS,
    "If-None-Match": TEXTS,
    "Origin": TEXTS,
    "X-Forwarded-Proto": TEXTS,
    "X-Forwarded-Host": TEXTS,
    "X-JWT-Sub": TEXTS,
    "Expect": TEXTS,
}
# Mostly one header that is out of the ordinary: two would often be refused for the first.
HEADER_SETS = st.lists(st.sampled_from([*HEADERS]), max_size=2, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: HEADERS[name] for name in names})
)
METHODS = st.sampled_from(["PUT", "PUT", "POST", "GET", "HEAD", "DELETE"])
PATHS = st.sampled_from(["", "/a", "/b"]) | st.text(max_size=5).map(lambda text: f"/{quote(text)}")
QUERIES = (
    st.just("")
    | st.builds("?offset={}&cursor={}".format, OFFSETS, TEXTS.map(quote))
    | (st.text("&=%;+?#0aF-_", max_size=8).map(lambda text: f"?{text}"))
)
BODIES = st.sampled_from([b"", b"x", b"[]", b"[1,{}]", b'"\\ud800"', b"\xff", b"[" * 2000, b"null"])


@pytest.fixture(scope="module")
def connections(server: ServerProcess) -> Iterator[list[RawConnection]]:
    """One connection, replaced when the server has closed it."""
    held = [RawConnection(server.port)]
    yield held
    held[0].close()


@settings(max_examples=600)
@given(method=METHODS, path=PATHS, query=QUERIES, headers=HEADER_SETS, body=BODIES)
def test_no_request_is_answered_500(
    server: ServerProcess,
    connections: list[RawConnection],
    method: str,
    path: str,
    query: str,
    headers: dict[str, str],
    body: bytes,
) -> None:
    fields = {name.replace("-", "_"): value.strip() for name, value in headers.items()}
    sent = request_bytes(method, f"{ROOT}{path}{query}", body, **fields)
    try:
        connections[0].send(sent)
        answer = connections[0].response(head_only=method == "HEAD")
    except (EndOfConnection, ConnectionError):
        connections[0].close()
        connections[0] = RawConnection(server.port)
        connections[0].send(sent)
        answer = connections[0].response(head_only=method == "HEAD")
    assert answer.status < 500 or answer.status in (501, 503), answer
