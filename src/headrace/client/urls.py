"""Where a stream is: from what people write to a URL."""

from __future__ import annotations

from urllib.parse import quote, unquote, urlsplit

from headrace.client.settings import Settings
from headrace.protocol.names import CONTROL_PREFIX, check_name, encode_name

_SCHEMES = ("http://", "https://")


def locate(settings: Settings, name: str, *, path_only: bool = False) -> str:
    """The URL of a stream given by name (`a/b`), absolute path (`/bucket/a`) or URL.

    A name is encoded for the URL; a path or a URL is taken as it is.
    """
    if name.startswith(_SCHEMES):
        return urlsplit(name).path if path_only else name
    base = settings.url.rstrip("/")
    path = name if name.startswith("/") else f"{settings.stream_root}/{_encoded(name)}"
    return path if path_only else base + path


def bucket_url(settings: Settings, bucket_id: str) -> str:
    return f"{settings.url.rstrip('/')}/{quote(bucket_id, safe='')}"


def control_url(settings: Settings, *segments: str) -> str:
    """A resource of the server's own, such as the list of subscriptions."""
    root = f"{settings.url.rstrip('/')}{settings.stream_root}/{CONTROL_PREFIX}"
    return "/".join((root, *(quote(segment, safe="") for segment in segments)))


def control_place(settings: Settings, url: str, resource: str) -> tuple[str, str]:
    """Where `resource` of the stream's server is, and what the stream at `url` is called there."""
    base = urlsplit(settings.url)
    parts = urlsplit(url)
    mount = base.path.rstrip("/")
    mount = mount if parts.path.startswith(f"{mount}/") else ""
    path = parts.path.removeprefix(mount)
    name = unquote(path.removeprefix(f"{settings.stream_root}/"))
    origin = f"{parts.scheme}://{parts.netloc}{mount}"
    return f"{origin}{settings.stream_root}/{CONTROL_PREFIX}/{resource}", name


def _encoded(name: str) -> str:
    check_name(name)
    return encode_name(name)
