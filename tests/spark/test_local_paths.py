"""Places are paths, file URLs or on S3; what is neither is refused by name, and leaves nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StructField, StructType
from typer.testing import CliRunner

from headrace.cli.pipeline import app
from headrace.spark.lake.archives import find_archive
from headrace.spark.local_paths import PlaceError, local_path
from headrace.spark.pipelines import archive, pipeline, replay
from headrace.spark.pipelines.base import ConfigError, Run
from headrace.spark.sources.lake import LakeSink

ELSEWHERE = [
    "gs://b/c",
    "hdfs:///data",
    "abfss://c@a/d",
    "s3:/b",
]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("place", ELSEWHERE)
def test_a_scheme_that_is_not_supported_is_refused_by_name(place: str) -> None:
    scheme = place.partition(":")[0]
    told = f"has the scheme {scheme}, which is not supported"
    for name in ("archive", "replay"):
        with pytest.raises(ConfigError, match=rf"\[{name}\] table: .*{told}"):
            pipeline(name).configure({"table": place})
    rows = StructType([StructField("n", LongType())])
    for options in ({"path": place}, {"path": "a", "catalog": place, "tableFormat": "iceberg"}):
        with pytest.raises(PlaceError, match=told):
            LakeSink(options).writer(rows, overwrite=False)
    for command in (["run", "archive"], ["status"]):
        result = CliRunner().invoke(app, [*command, "--state", place])
        assert (result.exit_code, told in result.output) == (2, True), result.output
    with pytest.raises(PlaceError, match=told):
        Run(True, Path(place))
    assert os.listdir() == []


def test_a_file_is_not_on_s3() -> None:
    rows = StructType([StructField("n", LongType())])
    options = {"path": "a", "catalog": "s3://bucket/lake", "tableFormat": "iceberg"}
    with pytest.raises(PlaceError, match=r"catalog: .* has the scheme s3, which is not supported"):
        LakeSink(options).writer(rows, overwrite=False)
    with pytest.raises(PlaceError, match="has the scheme s3, which is not supported"):
        Run(True, Path("s3://bucket/state"))  # a path has lost a slash of it
    assert os.listdir() == []


def test_a_file_url_is_its_path(tmp_path: Path) -> None:
    for url in (f"file://{tmp_path}/a b%20c", f"file:{tmp_path}/a b%20c"):
        assert local_path("table", url) == tmp_path / "a b%20c"
    assert local_path("table", f"FILE://localhost{tmp_path}") == tmp_path
    assert Run(True, Path(f"file://{tmp_path}")).state_dir == tmp_path
    assert local_path("table", "a:b/c") == Path("a:b/c")
    with pytest.raises(PlaceError, match="is on elsewhere"):
        local_path("table", "file://elsewhere/a")


def test_a_lake_table_is_found_by_its_url(tmp_path: Path) -> None:
    rows = StructType([StructField("n", LongType())])
    url = f"file://{tmp_path}/lake"
    for kind in ("delta", "iceberg"):
        LakeSink({"path": url, "tableFormat": kind}).writer(rows, overwrite=False)
    assert find_archive(url) is None
    assert archive.Config(table=url).table == replay.Config(table=url).table == url
    assert os.listdir() == []
