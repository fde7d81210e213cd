"""The Spark settings that the mark and the sweep rely on, whatever else a session sets."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

_LOG = Path(__file__).parents[1] / "log4j2.properties"

#: Times are UTC on every machine, and a batch for Python is no larger than a page of a listing.
REQUIRED: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.caseSensitive": "true",
    # A file that is missing or damaged stops the run, whatever the cluster's default is.
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
}
#: For a session on this machine, where nothing else is configured.
LOCAL: Final = {
    "spark.master": "local[*]",
    "spark.app.name": "lakegc",
    "spark.driver.memory": "4g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG.as_uri()}",
    "spark.sql.shuffle.partitions": "64",
}


def prepare_environment() -> None:
    """Let Spark run with this interpreter and on this machine, unless the environment says more."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
