"""An error of the client as a sentence at a command line: what is wrong, and what to type next."""

from __future__ import annotations

from shlex import quote
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from headrace.errors import BucketNotFound, HeadraceError, StreamNotFound


def sentence(error: HeadraceError) -> str:
    # Imported here: `headrace serve` need not pay for the client.
    from headrace.client import ConnectFailed

    if isinstance(error, StreamNotFound):
        make = f"headrace create {quote(error.stream)}"
        return f"There is no stream {error.stream!r}. Make it with: {make}"
    if isinstance(error, BucketNotFound):
        make = f"headrace bucket create {quote(error.bucket)}"
        return f"There is no bucket {error.bucket!r}. Make it with: {make}"
    if isinstance(error, ConnectFailed):
        return f"{error.detail}. {_way_out(error.url, error.reason)}"
    return error.detail


def _way_out(url: str, reason: str) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        return "To trust its certificate, name a file that holds it in SSL_CERT_FILE."
    if "SSL" in reason:
        return "Does the server speak TLS there? If not, its URL begins with http://."
    proxy = _proxy_for(url)
    if proxy is not None:
        return (
            f"It was asked for through the proxy {proxy}, as the environment says; hosts in "
            "NO_PROXY are asked directly."
        )
    return "Is a server there? `headrace serve` starts one; --url or HEADRACE_URL names another."


def _proxy_for(url: str) -> str | None:
    parts = urlsplit(url)
    if proxy_bypass(parts.hostname or ""):
        return None
    proxies = getproxies()
    return proxies.get(parts.scheme) or proxies.get("all")
