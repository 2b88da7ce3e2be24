"""The options that precede the verb and apply to all: `headrace --url URL ls`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class BeforeVerb:
    url: str | None = None
    token: str | None = None
    profile: str | None = None

    def clear(self) -> None:
        self.url = self.token = self.profile = None


before_verb = BeforeVerb()
