"""A record that was set aside, with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Rejected:
    row: dict[str, Any]
    reason: str
