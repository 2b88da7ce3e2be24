"""`headrace head`: what a stream is."""

from __future__ import annotations

from headrace.cli import printing
from headrace.cli.remote import JsonOption, StreamArgument, TokenOption, UrlOption, connected


def head(
    stream: StreamArgument,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Show what a stream holds, where its tail is and whether it is closed."""
    with connected(url, token) as client:
        info = client.stream(stream).head()
    found = {
        "stream": stream,
        "content_type": info.content_type,
        "next_offset": info.next_offset,
        "closed": info.closed,
        "ttl_secs": info.ttl_secs,
        "expires_at": info.expires_at,
        "snapshot_offset": info.headers.get("stream-snapshot-offset"),
    }
    printing.facts(found, as_json=as_json)
