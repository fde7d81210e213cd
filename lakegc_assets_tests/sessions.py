"""The one Spark session of the test suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from lakegc_assets.mark.spark import LOCAL, REQUIRED, prepare_environment

# Data is tiny, so what a query costs is planning and compiling it: no code is generated, one
# shuffle partition, no adaptive plans, and the JVM stops at its quick compiler.
_SMALL = {
    "spark.master": "local[2]",
    "spark.driver.memory": "2g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
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
