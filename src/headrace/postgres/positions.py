"""A position in a change feed, as it survives a restart; `changes` says what it means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.postgres.pgoutput import Relation, lsn_number, lsn_text


@dataclass(frozen=True)
class FeedPosition:
    generation: int
    row: int
    lsn: int
    skip: int = 0
    shapes: dict[str, str] = field(default_factory=dict)
    owner: str = ""  # none before the first batch, nor in checkpoints of earlier versions
    system: str = ""  # the same
    mark: int = 0  # noted in Postgres with the batch before, and still there if not restored
    keys: dict[str, list[str]] = field(default_factory=dict)  # the names that each key had
    copy: int = 0  # the last copy of a table that was begun between changes
    copy_row: int = 0  # and how many rows of it are behind

    @classmethod
    def of(cls, offset: dict[str, Any]) -> FeedPosition:
        return cls(
            offset["generation"],
            offset["row"],
            lsn_number(offset["lsn"]),
            offset["skip"],
            offset["shapes"],
            offset.get("owner", ""),
            offset.get("system", ""),
            lsn_number(offset.get("mark", "0/0")),
            offset.get("keys", {}),
            offset.get("copy", 0),
            offset.get("copy_row", 0),
        )

    def offset(self) -> dict[str, Any]:
        """As JSON, keys in order: Spark compares offsets as text."""
        offset = {
            "copy": self.copy or "",
            "copy_row": self.copy_row or "",
            "generation": self.generation,
            "keys": dict(sorted(self.keys.items())) or "",
            "lsn": lsn_text(self.lsn),
            "mark": lsn_text(self.mark) if self.mark else "",
            "owner": self.owner,
            "row": self.row,
            "shapes": dict(sorted(self.shapes.items())),
            "skip": self.skip,
            "system": self.system,
        }
        return {name: value for name, value in offset.items() if value != ""}


def with_shape(
    position: FeedPosition, table: str, fingerprint: str, key_names: Sequence[str]
) -> FeedPosition:
    keys = {name: names for name, names in position.keys.items() if name != table}
    if key_names:
        keys[table] = list(key_names)
    return replace(position, shapes=position.shapes | {table: fingerprint}, keys=keys)


def with_relation(position: FeedPosition, relation: Relation) -> FeedPosition:
    return with_shape(position, relation.table, relation.fingerprint, relation.key_names)
