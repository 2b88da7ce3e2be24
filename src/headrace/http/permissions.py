"""Who may do what with which stream, where the application around the server decides that.

A transport that knows its user puts a `Guard` on each request. The handlers ask it as soon as they
know a stream's name, before they look the stream up: what a user may not see is refused alike
whether it is there or not. Public are the health of the server, its description of the API, the
stream browser's own files and the keys that sign webhooks; what answers a wake checks the token
that came with it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final

from headrace.errors import Forbidden, NotAuthenticated


class Action(StrEnum):
    CREATE = "create"
    APPEND = "append"  # and close
    READ = "read"  # its metadata, too
    DELETE = "delete"
    SNAPSHOT = "snapshot"  # publish or delete one
    ADMIN = "admin"  # subscriptions, metrics, buckets and metadata, the last with a stream


BY_METHOD: Final = {
    b"PUT": Action.CREATE,
    b"POST": Action.APPEND,
    b"GET": Action.READ,
    b"HEAD": Action.READ,
    b"DELETE": Action.DELETE,
}

Guard = Callable[[Action, str], None]
"""Raises Forbidden or NotAuthenticated. A stream of a bucket is `/bucket/stream`, the bucket
itself `/bucket`."""


def permit_all(action: Action, stream: str) -> None:
    """The guard of a request that has none."""


Can = Callable[[Any, Action, str], bool]


def guard_of(can: Can, user: Any) -> Guard:
    """Asks `can(user, action, stream)`; `user` is None for a request that names none."""

    def guard(action: Action, stream: str) -> None:
        if can(user, action, stream) is not True:
            raise NotAuthenticated() if user is None else Forbidden(action, stream)

    return guard
