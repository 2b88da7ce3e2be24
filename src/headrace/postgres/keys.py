"""Which columns identify a row of a table under REPLICA IDENTITY FULL.

Its log calls every column a key, and the catalog knows only the names of now: a change that was
written before a rename has the names of then. So what the key was is kept with the position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Names = frozenset[str]


@dataclass(frozen=True)
class Keys:
    """The primary key of each table: as it is `now`, and as it `was` at the position read from."""

    now: Mapping[str, Names] = field(default_factory=dict)
    was: Mapping[str, Names] = field(default_factory=dict)

    def among(
        self, table: str, columns: Sequence[str], previous: tuple[int, tuple[int, ...]] | None
    ) -> Names:
        """The key of `table` when it had `columns`; all of them where it has none.

        `previous` says how many columns the log described before, and which were the key: a
        column that was renamed more than once has a name of its own in between.
        """
        for names in (self.now.get(table), self.was.get(table)):
            if names and names <= set(columns):
                return names
        if previous is not None and self.now.get(table):
            count, indices = previous
            if count == len(columns):
                return frozenset(columns[index] for index in indices)
        return frozenset(columns)
