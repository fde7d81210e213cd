"""Sweeps a lake whose objects are on S3, with two tasks, in a process of its own."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

from pyspark.sql import SparkSession

from lakegc_assets.engine.spark_session import LOCAL, REQUIRED, prepare_environment
from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets.mark import lookups
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.run.context import RunContext
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.lake import REPOSITORY, RUN, SETTINGS
from lakegc_assets_tests.sessions import SMALL

#: A request lasts long enough for a kill to come in the middle of it.
BATCH = 20
LEASE_DURATION = timedelta(minutes=2)
#: The task of a worker that dies is run again.
MASTER = "local[2,4]"


def main(folder: Path, endpoint: str, store_endpoint: str) -> None:
    prepare_environment()
    lookups._TASKS = 2  # type: ignore[misc]
    builder = SparkSession.builder
    for name, value in (LOCAL | REQUIRED | SMALL | {"spark.master": MASTER}).items():
        builder = builder.config(name, value)
    settings = SETTINGS.changed(
        sweep_batch=BATCH,
        sweep_num_partitions=2,
        lease_duration_seconds=LEASE_DURATION.total_seconds(),
        engine="spark",
    )
    stores = StoreConfig(endpoint_url=store_endpoint)
    sweep(
        RunContext(
            repository=REPOSITORY,
            run=RUN,
            settings=settings,
            lakefs=LakeFSConfig(endpoint=endpoint, credentials_file=str(folder / "lakectl.yaml")),
            root=ArtifactRoot(str(folder / "artifacts"), stores),
            session=builder.getOrCreate,
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
