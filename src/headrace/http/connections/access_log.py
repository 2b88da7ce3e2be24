"""The access log: one line for each answer, if `log.access` is set."""

from __future__ import annotations

import logging

from headrace.http.exchange import Request
from headrace.logs import ACCESS_LOGGER

access_log = logging.getLogger(ACCESS_LOGGER)


def log_access(request: Request, status: int, sent_bytes: int, elapsed_secs: float) -> None:
    access_log.info(
        "%s %s %d",
        request.method.decode("latin-1"),
        request.target.decode("latin-1"),
        status,
        extra={
            "peer": request.client.address,
            "operation": request.operation,
            "status": status,
            "received_bytes": request.body_bytes,
            "sent_bytes": sent_bytes,
            "elapsed_ms": round(elapsed_secs * 1000, 3),
        },
    )
