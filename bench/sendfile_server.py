"""The limit of a replay: one file, sent with sendfile(2), and nothing else.

It takes what a stream server takes (PUT, POST, GET with an offset) so that the same row can fill
and read it. Usage: python -m bench.sendfile_server PORT, with BENCH_DATA_DIR set.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from pathlib import Path

from bench.sockets import LOOPBACK

RECV_BYTES = 1 << 20
EMPTY = b"HTTP/1.1 %d x\r\nContent-Length: 0\r\n\r\n"
FILE = b"HTTP/1.1 200 x\r\nContent-Length: %d\r\nStream-Up-To-Date: true\r\n\r\n"


def serve(connection: socket.socket, fd: int) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    received = b""
    while True:
        while b"\r\n\r\n" not in received:
            more = connection.recv(RECV_BYTES)
            if not more:
                return
            received += more
        head, _, received = received.partition(b"\r\n\r\n")
        size = _content_length(head)
        while len(received) < size:
            received += connection.recv(RECV_BYTES)
        body, received = received[:size], received[size:]
        if head.startswith(b"GET"):
            _send_file(connection, fd)
        else:
            os.write(fd, body)
            connection.sendall(EMPTY % (201 if head.startswith(b"PUT") else 204))


def _content_length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0


def _send_file(connection: socket.socket, fd: int) -> None:
    size = os.fstat(fd).st_size
    connection.sendall(FILE % size)
    offset = 0
    while offset < size:
        offset += os.sendfile(connection.fileno(), fd, offset, size - offset)


def main(port: int) -> None:
    path = Path(os.environ["BENCH_DATA_DIR"]) / "replay"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    with socket.create_server((LOOPBACK, port)) as listener:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=serve, args=(connection, fd), daemon=True).start()


if __name__ == "__main__":
    main(int(sys.argv[1]))
