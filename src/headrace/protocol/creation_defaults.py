"""What a new stream gets where its PUT does not say: a TTL and a content type, by name.

Each default is for names that begin with a prefix; the longest prefix that fits counts, and `*`
is for all names. The name of a stream in a bucket begins with `/bucket/`. A fork has its source's
content type and lifetime, so nothing here is for forks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from headrace.protocol.expiry import FOREVER, Lifetime
from headrace.protocol.requests import Create

EVERY_NAME = "*"
T = TypeVar("T")


@dataclass(frozen=True)
class CreationDefaults:
    ttl_secs: Mapping[str, int] = field(default_factory=dict)
    content_types: Mapping[str, str] = field(default_factory=dict)

    def fill(self, name: str, command: Create) -> Create:
        """`command` with what it leaves open.

        It is filled before it is compared with a stream that exists, so a repeated PUT is equal
        to the first one.
        """
        if command.fork is not None:
            return command
        if command.lifetime == FOREVER:
            ttl_secs = _of(self.ttl_secs, name)
            if ttl_secs is not None:
                command = replace(command, lifetime=Lifetime(ttl_secs=ttl_secs))
        if command.content_type is None:
            content_type = _of(self.content_types, name)
            command = replace(command, content_type=content_type)
        return command


def _of(defaults: Mapping[str, T], name: str) -> T | None:
    fitting = [prefix for prefix in defaults if name.startswith(prefix)]
    return defaults[max(fitting, key=len)] if fitting else defaults.get(EVERY_NAME)
