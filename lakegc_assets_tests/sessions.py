"""The one Spark session of the test suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from lakegc_assets.mark.spark import LOCAL, REQUIRED, prepare_environment

# Small data: one shuffle partition and no adaptive plans make each query several times faster.
_SMALL = {
    "spark.master": "local[2]",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.default.parallelism": "2",
}


@pytest.fixture(scope="session")
def spark(s3_server: str) -> Iterator[SparkSession]:  # noqa: ARG001 - its variables must be set before the workers start
    prepare_environment()
    builder = SparkSession.builder
    for name, value in (LOCAL | REQUIRED | _SMALL).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    yield session
    session.stop()
