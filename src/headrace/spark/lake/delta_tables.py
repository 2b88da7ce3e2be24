"""Delta tables by their place: a directory, or a URL with the options that the library needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.spark.object_store import store_options
from headrace.spark.places import Place

if TYPE_CHECKING:
    from deltalake import DeltaTable


def is_delta(place: Place) -> bool:
    from deltalake import DeltaTable

    return bool(DeltaTable.is_deltatable(str(place), store_options(str(place))))


def delta_table(place: Place | str, version: int | None = None) -> DeltaTable:
    from deltalake import DeltaTable

    return DeltaTable(str(place), version=version, storage_options=store_options(str(place)))


def created(place: Place, schema: pa.Schema, partition_by: Sequence[str]) -> DeltaTable:
    """The table that is there, or a new one."""
    from deltalake import DeltaTable
    from deltalake.exceptions import CommitFailedError

    try:
        return DeltaTable.create(
            str(place),
            schema,
            mode="ignore",
            partition_by=list(partition_by),
            storage_options=store_options(str(place)),
        )
    except CommitFailedError:
        # Another has created it meanwhile; or this request, whose answer was lost and which the
        # library repeated.
        return delta_table(place)
