"""One Spark session for the whole run: starting it costs more than most tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from headrace.spark.session import build_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = build_session(
        "headrace-tests",
        master="local[2]",
        conf={"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"},
    )
    yield session
    session.stop()
