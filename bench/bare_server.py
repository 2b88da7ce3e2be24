"""The machine's limit: uvloop and httptools answering every request 204, and nothing else.

No stream server in Python on one core can be faster than this; the distance to it is what the
protocol costs. Usage: python -m bench.bare_server PORT
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import httptools
import uvloop

# As many header bytes as a real append answer carries.
RESPONSE = (
    b"HTTP/1.1 204 No Content\r\n"
    b"X-Content-Type-Options: nosniff\r\n"
    b"Cross-Origin-Resource-Policy: cross-origin\r\n"
    b"Cache-Control: no-store\r\n"
    b"Access-Control-Allow-Origin: *\r\n"
    b"Access-Control-Expose-Headers: Stream-Next-Offset, Stream-Cursor, Stream-Up-To-Date, "
    b"Stream-Closed, ETag, Location, Producer-Epoch, Producer-Seq, Producer-Expected-Seq, "
    b"Producer-Received-Seq\r\n"
    b"Stream-Next-Offset: 0000000000000000_0000000000000000\r\n\r\n"
)


class Bare(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not registered as asyncio.Transport: cast, do not check.
        self._write = cast(asyncio.Transport, transport).write
        self._feed = httptools.HttpRequestParser(self).feed_data

    def data_received(self, data: bytes) -> None:
        self._feed(data)

    def on_message_complete(self) -> None:
        self._write(RESPONSE)


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Bare, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
