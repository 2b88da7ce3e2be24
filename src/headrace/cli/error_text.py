"""What the command line prints for an error: what is wrong, and what to type next."""

from __future__ import annotations

from shlex import quote
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from headrace.errors import BucketNotFound, HeadraceError, StreamNotFound


def error_text(error: HeadraceError) -> str:
    # Imported here: `headrace serve` need not pay for the client.
    from headrace.client import ConnectFailed, Unauthorized

    if isinstance(error, StreamNotFound):
        return f"{_missing(error)}. Create it with: headrace create {quote(error.stream)}"
    if isinstance(error, BucketNotFound):
        return f"{_missing(error)}. Create it with: headrace bucket create {quote(error.bucket)}"
    if isinstance(error, ConnectFailed):
        return f"{error.detail}. {_advice(error.url, error.reason)}"
    if isinstance(error, Unauthorized):
        return f"{error.detail.rstrip('.')}. Give one with --token or HEADRACE_TOKEN."
    return error.detail


def nothing_deleted(error: StreamNotFound | BucketNotFound) -> str:
    """The same for a command that deletes: creating what is missing does not help there."""
    return f"{_missing(error)}: nothing was deleted."


def _missing(error: StreamNotFound | BucketNotFound) -> str:
    if isinstance(error, StreamNotFound):
        return f"There is no stream {error.stream!r}"
    return f"There is no bucket {error.bucket!r}"


def _advice(url: str, reason: str) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        return "To trust its certificate, set SSL_CERT_FILE to a file that holds it."
    if "SSL" in reason:
        return "Does the server speak TLS there? If not, its URL begins with http://."
    proxy = _proxy_for(url)
    if proxy is not None:
        return (
            f"The request went through the proxy {proxy}, which the environment sets; to connect "
            "directly, add the host to NO_PROXY."
        )
    return "Start a server with `headrace serve`, or choose another with --url or HEADRACE_URL."


def _proxy_for(url: str) -> str | None:
    parts = urlsplit(url)
    if proxy_bypass(parts.hostname or ""):
        return None
    proxies = getproxies()
    return proxies.get(parts.scheme) or proxies.get("all")
