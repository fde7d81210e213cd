"""The one Spark session of the test suite, started where a test has work for it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakegc_assets.engine.spark_session import prepare_environment, session_settings, start_session

#: The environment of tasks is that of the JVM, which is older than most tests: this file stands for
#: what they would find there about lakeFS.
LAKECTL_OF_TASKS = Path(tempfile.gettempdir()) / f"lakegc-tests-{os.getpid()}-lakectl.yaml"

# Data is tiny, so what a query costs is planning and compiling it: no code is generated, one
# shuffle partition, no adaptive plans.
SMALL = {
    "spark.master": "local[2]",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.default.parallelism": "2",
}


#: Gives the session, which is started when it is first asked for.
Session = Callable[[], SparkSession]


@pytest.fixture(scope="session")
def spark(s3_server: str) -> Iterator[Session]:  # noqa: ARG001 - its variables must be set before the workers start
    """The session, for tests whose tasks run on Spark; most have too little work for it."""
    started: list[SparkSession] = []

    def session() -> SparkSession:
        if not started:
            started.append(_start())
        return started[0]

    LAKECTL_OF_TASKS.touch()
    yield session
    for one in started:
        one.stop()
    LAKECTL_OF_TASKS.unlink(missing_ok=True)


def _start() -> SparkSession:
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("LAKECTL_", "LAKEGC_"))]:
            patch.delenv(name)
        patch.setenv("LAKECTL_CONFIG_FILE", str(LAKECTL_OF_TASKS))
        prepare_environment()
        return start_session(session_settings() | SMALL)
