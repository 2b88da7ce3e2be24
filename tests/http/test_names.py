"""Stream names in URLs, and content types: kept as they were meant, refused where unsafe."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.testing.raw_http import RawConnection
from headrace.testing.server_process import ServerProcess

ROOT = "/v1/stream"
TEXT = "text/plain"


@pytest.fixture
def raw(server: ServerProcess) -> Iterator[RawConnection]:
    """A client that sends URLs as they are written."""
    with RawConnection(server.port) as connection:
        yield connection


# -- names -------------------------------------------------------------------------------------

SPELLINGS = {
    "percent-encoded letters": ("{p}/%61bc", "{p}/abc"),
    "an encoded slash": ("{p}/a%2Fb", "{p}/a/b"),
    "lower-case hex": ("{p}/a%2fb", "{p}/a%2Fb"),
    "UTF-8 in either case": ("{p}/caf%C3%A9", "{p}/%63af%c3%a9"),
    "an emoji in either case": ("{p}/%F0%9F%98%80", "{p}/%f0%9f%98%80"),
    "a query after the name": ("{p}/q?x=1", "{p}/q"),
}


@pytest.mark.parametrize(("one", "other"), SPELLINGS.values(), ids=SPELLINGS.keys())
def test_two_spellings_of_one_name_are_one_stream(
    raw: RawConnection, stream: str, one: str, other: str
) -> None:
    one, other = one.format(p=stream), other.format(p=stream)
    assert raw.request("PUT", one, b"x", Content_Type=TEXT).status == 201
    assert raw.request("PUT", other, Content_Type=TEXT).status == 200
    assert raw.request("GET", other).body == b"x"
    assert raw.request("DELETE", one).status == 204
    assert raw.request("GET", other).status == 404


def test_bytes_beyond_ascii_must_be_encoded(raw: RawConnection, stream: str) -> None:
    as_utf_8 = "café".encode().decode("latin-1")
    answer = raw.request("PUT", f"{stream}/{as_utf_8}", Content_Type=TEXT)
    assert (answer.status, answer.json()["type"]) == (400, "urn:headrace:problem:malformed-http")


DIFFERENT = {
    "case": ("a", "A"),
    "composed or not": ("caf%C3%A9", "cafe%CC%81"),
    "an encoded percent sign": ("100%25", "100%2525"),
    "a plus is no space": ("a+b", "a%20b"),
    "an encoded question mark": ("a%3Fb", "a"),
    "dots that are no segment": ("a..b", "a.b"),
}


@pytest.mark.parametrize(("one", "other"), DIFFERENT.values(), ids=DIFFERENT.keys())
def test_names_that_only_look_alike_are_two_streams(
    raw: RawConnection, stream: str, one: str, other: str
) -> None:
    for name in (one, other):
        path = f"{stream}/{name}"
        assert raw.request("PUT", path, name.encode(), Content_Type=TEXT).status == 201
    for name in (one, other):
        assert raw.request("GET", f"{stream}/{name}").body == name.encode()


@pytest.mark.parametrize(
    "name",
    ["plain", "a/b/c", "caf%C3%A9", "a%20b", "100%25", "a%3Fb%23c", "%22%3C%3E%5C%5E%60%7B%7C%7D"],
)
def test_the_location_leads_back_to_the_stream(raw: RawConnection, stream: str, name: str) -> None:
    created = raw.request("PUT", f"{stream}/{name}", b"x", Content_Type=TEXT)
    location = created.headers["location"]
    assert location == f"http://localhost{stream}/{name}"
    assert raw.request("GET", location.removeprefix("http://localhost")).body == b"x"


UNSAFE = {
    "no name": "",
    "dot": ".",
    "dot dot": "..",
    "up and out": "../../etc/passwd",
    "up in the middle": "a/../b",
    "encoded dots": "a/%2e%2e/b",
    "encoded slashes": "..%2f..%2fetc",
    "dots in another segment": "a/%2E/b",
    "an empty segment": "a//b",
    "a slash at the end": "a/",
    "a slash in front": "/a",
    "NUL": "a%00b",
    "a line feed": "a%0Ab",
    "a carriage return": "a%0D%0ASet-Cookie:x",
    "DEL": "a%7Fb",
    "a C1 control": "a%C2%85b",
    "not UTF-8": "a%FF",
    "overlong UTF-8": "%C0%AE%C0%AE/a",
    "a surrogate": "%ED%A0%80",
    "too long": "x" * 4097,
}


@pytest.mark.parametrize("name", UNSAFE.values(), ids=UNSAFE.keys())
def test_an_unsafe_name_cannot_be_created(raw: RawConnection, name: str) -> None:
    answer = raw.request("PUT", f"{ROOT}/{name}", Content_Type=TEXT)
    assert answer.status == 400
    assert answer.json()["type"] == "urn:headrace:problem:invalid-name"


@pytest.mark.parametrize("name", UNSAFE.values(), ids=UNSAFE.keys())
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_an_unsafe_name_finds_nothing(raw: RawConnection, name: str, method: str) -> None:
    body = b"x" if method == "POST" else b""
    answer = raw.request(method, f"{ROOT}/{name}", body, Content_Type=TEXT)
    assert answer.status in (400, 404)
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    "name", ["x" * 4096, "%C3%A9" * 1300, "a%25", "...", ".hidden", "~", "*", "-1", "now"]
)
def test_an_unusual_name_is_a_name(raw: RawConnection, name: str) -> None:
    assert raw.request("PUT", f"{ROOT}/{name}", b"x", Content_Type=TEXT).status == 201
    assert raw.request("GET", f"{ROOT}/{name}").body == b"x"
    assert raw.request("DELETE", f"{ROOT}/{name}").status == 204


@pytest.mark.parametrize("name", ["__ds", "__ds/x", "__dsx", "__ds-future/a", "%5F%5Fds/x"])
@pytest.mark.parametrize("method", ["PUT", "GET", "DELETE", "POST"])
def test_a_reserved_name_is_no_stream(raw: RawConnection, name: str, method: str) -> None:
    answer = raw.request(method, f"{ROOT}/{name}", b"", Content_Type=TEXT)
    assert 400 <= answer.status < 500
    assert raw.request("HEAD", f"{ROOT}/{name}").status >= 400


@pytest.mark.parametrize("name", ["a/__ds", "x__ds", "_ds", "__d"])
def test_only_the_beginning_of_a_name_is_reserved(raw: RawConnection, name: str) -> None:
    assert raw.request("PUT", f"{ROOT}/{name}", Content_Type=TEXT).status == 201
    assert raw.request("DELETE", f"{ROOT}/{name}").status == 204


@pytest.mark.parametrize(
    "path",
    ["/v1", "/v1/stream", "/v1/streams/x", "//v1/stream/x", "/healthz/", "/ui/x"],
)
def test_nothing_else_is_served_below_names_of_the_server(raw: RawConnection, path: str) -> None:
    answer = raw.request("PUT", path, Content_Type=TEXT)
    assert (answer.status, answer.json()["type"]) == (404, "urn:headrace:problem:not-found")


# -- content types -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content_type",
    [
        "text/plain; charset=utf-8",
        "Text/PLAIN;Charset=UTF-8",
        'application/x-a; note="a, b; c=\\"d\\""',
        "application/vnd.acme+json",
        "a!#$&-^_.+b/x!#$&-^_.+y",
        "application/json;profile=urn:x",
        "multipart/mixed; boundary=----=_Part_0",
        "text/plain ;charset=utf-8",
        "x/" + "y" * 253,
    ],
)
def test_a_content_type_is_kept_as_sent(raw: RawConnection, stream: str, content_type: str) -> None:
    created = raw.request("PUT", stream, Content_Type=content_type)
    answers = [created, raw.request("HEAD", stream), raw.request("GET", stream)]
    assert [answer.headers["content-type"] for answer in answers] == [content_type] * 3


@pytest.mark.parametrize(
    "content_type",
    ["", "text", "text/", "/plain", "text/pl ain", "text/plain, text/html", "t\xe9xt/plain",
     "text/plain; x=\xe9", "text//plain", "(x)/y", "x/" + "y" * 254],
)  # fmt: skip
def test_what_is_no_media_type_is_400(raw: RawConnection, stream: str, content_type: str) -> None:
    assert raw.request("PUT", stream, Content_Type=content_type).status == 400
    assert raw.request("HEAD", stream).status == 404


@pytest.mark.parametrize(
    ("created", "appended", "status"),
    [
        ("text/plain", "text/plain; charset=utf-8", 204),
        ("text/plain;a=b", "TEXT/Plain", 204),
        ("text/plain", "text/html", 409),
        ("application/json", "application/vnd.acme+json", 409),
        ("text/plain", "text/plain-er", 409),
    ],
)
def test_an_append_matches_by_type_and_subtype_only(
    raw: RawConnection, stream: str, created: str, appended: str, status: int
) -> None:
    raw.request("PUT", stream, Content_Type=created)
    assert raw.request("POST", stream, b"1", Content_Type=appended).status == status
    assert raw.request("HEAD", stream).headers["content-type"] == created
