"""Asking a part whether it is well, as `Health` says, and answering in one word or sentence."""

from __future__ import annotations

import socket

import httpx

from headrace.stack.parts import HEALTH_TIMEOUT_SECS, Health

OK = "ok"


def check(health: Health, timeout_secs: float = HEALTH_TIMEOUT_SECS) -> str:
    """`ok`, or what is wrong."""
    if health.kind == "process":
        return OK
    if health.kind == "http":
        return _http(health.target, timeout_secs)
    if health.kind == "tcp":
        return _tcp(health.target, timeout_secs)
    assert health.kind == "postgres", health.kind
    return _postgres(health.target, timeout_secs)


def _http(url: str, timeout_secs: float) -> str:
    try:
        answer = httpx.get(url, timeout=timeout_secs, trust_env=False)
    except httpx.HTTPError as error:
        return f"does not answer: {type(error).__name__}"
    return OK if answer.status_code == 200 else f"answers {answer.status_code}"


def _tcp(target: str, timeout_secs: float) -> str:
    host, _, port = target.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout_secs).close()
    except OSError as error:
        return f"does not answer: {error.strerror or error}"
    return OK


def _postgres(url: str, timeout_secs: float) -> str:
    import psycopg

    try:
        with psycopg.connect(url, connect_timeout=max(1, int(timeout_secs))) as connection:
            connection.execute("SELECT 1")
    except psycopg.Error as error:
        return f"does not answer: {str(error).splitlines()[0] if str(error) else error!r}"
    return OK
