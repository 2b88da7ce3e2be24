"""`replay`, a task at a time: how much of a stream it holds, and that this changes no append."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from headrace.client import Settings
from headrace.spark.lake.archives import (
    Archive,
    ArchivedRange,
    DeltaArchive,
    IcebergArchive,
    find_archive,
)
from headrace.spark.lake.parquet_files import write_files
from headrace.spark.lake.table_commits import DeltaLake, Iceberg
from headrace.spark.pipelines import replay
from tests.spark.helpers import stored

OFFSETS = [f"{n:016}_{5 * n:016}" for n in range(1, 41)]


def archived(kind: str, path: Path) -> tuple[Archive, tuple[str, ...]]:
    """A table of 40 messages in three files, in no order and with another stream between them."""
    lake = DeltaLake(path, ()) if kind == "delta" else Iceberg.at(path)
    rows: list[dict[str, Any]] = [
        {"stream": name, "offset": offset, "content_type": "application/json", "value": f"[{n}]"}
        for name in ("a", "b")
        for n, offset in enumerate(OFFSETS)
    ]
    random.Random(7).shuffle(rows)
    for batch in range(3):
        part = pa.RecordBatch.from_pylist(rows[batch::3])
        files = write_files(lake.data_dir, f"p{batch}", [part], (), keep_partition_columns=True)
        lake.commit(part.schema, "query", batch, files)
    archive = find_archive(str(path))
    assert archive is not None
    return archive, archive.streams(archive.version())["a"]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_task_holds_a_few_messages_at_a_time_and_makes_the_same_appends(
    kind: str, http: httpx.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, files = archived(kind, tmp_path / "table")
    held: list[int] = []
    for one in (DeltaArchive, IcebergArchive):
        whole = one.messages

        def noted(self: Any, *asked: Any, whole: Any = whole) -> pa.Table:
            read = whole(self, *asked)
            held.append(read.num_rows)
            return read

        monkeypatch.setattr(one, "messages", noted)
    target = f"spark/replay/{kind}"
    settings = Settings(url=str(http.base_url))
    write = replay._Write(settings, "replay", archive, archive.version())
    assert write(replay.Replayed("a", target, files)) == 40
    monkeypatch.setattr(replay, "ROWS_HELD", 7)
    assert write(replay.Replayed("a", target, files)) == 40
    assert held == [40, 7, 7, 7, 7, 7, 5]
    assert stored(http, target) == [[n] for n in range(40)], "the second time is recognised"


def test_ranges_are_cut_by_bytes_where_offsets_tell_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "BYTES_HELD", 12)
    ranges = list(replay.cut(OFFSETS))
    assert len(ranges) == 20
    assert all(left.until == right.after for left, right in pairwise(ranges))
    assert (ranges[0].after, ranges[-1].until) == ("", OFFSETS[-1])
    assert list(replay.cut(["a", "b", "c"])) == [ArchivedRange("", "c")]


def test_messages_of_one_offset_stay_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "ROWS_HELD", 2)
    assert list(replay.cut(["a", "b", "b", "b", "c"])) == [
        ArchivedRange("", "b"),
        ArchivedRange("b", "c"),
    ]
