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
from headrace.protocol.stream import StreamConfig

EVERY_NAME = "*"
T = TypeVar("T")


@dataclass(frozen=True)
class CreationDefaults:
    ttl_secs: Mapping[str, int] = field(default_factory=dict)
    content_types: Mapping[str, str] = field(default_factory=dict)

    def fill(self, name: str, command: Create, existing: StreamConfig | None) -> Create:
        """`command` with what it leaves open.

        For a name with a default, a PUT of a stream that exists is not compared in what it leaves
        open: the stream may be older than the default.
        """
        if command.fork is not None:
            return command
        if command.lifetime == FOREVER:
            ttl_secs = _of(self.ttl_secs, name)
            if ttl_secs is not None:
                default = Lifetime(ttl_secs=ttl_secs)
                command = replace(command, lifetime=existing.lifetime if existing else default)
        if command.content_type is None:
            content_type = _of(self.content_types, name)
            if content_type is not None and existing is not None:
                content_type = existing.content_type
            command = replace(command, content_type=content_type)
        return command


def _of(defaults: Mapping[str, T], name: str) -> T | None:
    fitting = [prefix for prefix in defaults if name.startswith(prefix)]
    return defaults[max(fitting, key=len)] if fitting else defaults.get(EVERY_NAME)
