"""Runs one `HealthProbe` against a service; the answer is `ok` or what is wrong."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Sequence
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from headrace.stack.services import HEALTH_TIMEOUT_SECS, HealthProbe

OK = "ok"
PROGRESS_SECS_MAX = 60.0  # a pipeline reports once a second; a long batch may hold that up


def check(health: HealthProbe, timeout_secs: float = HEALTH_TIMEOUT_SECS) -> str:
    """`ok`, or what is wrong."""
    if health.kind == "process":
        return OK
    if health.kind == "http":
        return _http(health.target, timeout_secs)
    if health.kind == "tcp":
        return _tcp(health.target, timeout_secs)
    if health.kind == "pipelines":
        return _pipelines([Path(report) for report in health.target.split(os.pathsep)])
    assert health.kind == "postgres", health.kind
    return _postgres(health.target, timeout_secs)


def _http(url: str, timeout_secs: float) -> str:
    """By the standard library: a client of httpx costs 35 ms of CPU to make, and this is asked of
    every service ten times a second while it starts."""
    parts = urlsplit(url)
    connection = HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_secs)
    try:
        connection.request("GET", parts.path or "/")
        status = connection.getresponse().status
    except (OSError, HTTPException) as error:
        return f"does not answer: {type(error).__name__}"
    finally:
        connection.close()
    return OK if status == HTTPStatus.OK else f"answers {status}"


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


def _pipelines(reports: Sequence[Path]) -> str:
    answers = ((report.parent.name, _pipeline(report)) for report in reports)
    return "; ".join(f"{name} {answer}" for name, answer in answers if answer != OK) or OK


def _pipeline(progress: Path) -> str:
    try:
        report = json.loads(progress.read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        return "has not reported yet"
    if report["state"] != "running":
        return (
            f"is {report['state']}: {report['last_error']}"
            if report["last_error"]
            else report["state"]
        )
    age = time.time() - report["updated_at"]
    return OK if age < PROGRESS_SECS_MAX else f"has not reported for {age:.0f} s"
