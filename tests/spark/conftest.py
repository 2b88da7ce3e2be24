"""One Spark session and one cluster for the whole run: starting costs more than most tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from headrace.spark.session import build_session
from tests.spark.cluster import Cluster
from tests.spark.helpers import stop_readers


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = build_session(
        "headrace-tests",
        master="local[2]",
        conf={"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"},
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(autouse=True)
def _stopped() -> Iterator[None]:
    """Readers that a test made hold connections."""
    yield
    stop_readers()
