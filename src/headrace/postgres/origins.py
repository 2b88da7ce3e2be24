"""Names of replication origins: which of them mark rows that Headrace wrote.

Postgres keeps with every transaction the origin that its session had. The sink sets one, so that
a feed of the same table leaves its rows out and nothing goes in circles. Logical subscriptions set
theirs (`pg_16400`), and those rows belong in the feed. So the prefix of a name decides.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

Origin = Literal["others", "any", "none"]
ORIGINS: Final[tuple[Origin, ...]] = get_args(Origin)
"""What a feed gives: all rows but those our sink wrote; all rows; rows without any origin."""

_PREFIX: Final = "headrace"


def origin_name(given: str, partition: int) -> str:
    """The origin of one writer's partition: a session holds it alone."""
    prefix = "" if given == _PREFIX or given.startswith(f"{_PREFIX}_") else f"{_PREFIX}_"
    return f"{prefix}{given}_{partition}"


def is_own(name: str) -> bool:
    """Whether the sink set this origin."""
    return name.startswith(f"{_PREFIX}_")
