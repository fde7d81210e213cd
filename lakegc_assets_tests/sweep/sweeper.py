"""Sweeps the lake of a folder in a process of its own, so that it can be killed."""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from lakegc_assets.engine.spark_session import LOCAL, REQUIRED, prepare_environment
from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.run.context import RunContext
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.lake import REPOSITORY, RUN, SETTINGS
from lakegc_assets_tests.sessions import SMALL

BATCH = 4


def main(folder: Path, endpoint: str, local_root: str, master: str) -> None:
    prepare_environment()
    builder = SparkSession.builder
    for name, value in (LOCAL | REQUIRED | SMALL | {"spark.master": master}).items():
        builder = builder.config(name, value)
    sweep(
        RunContext(
            repository=REPOSITORY,
            run=RUN,
            settings=SETTINGS.changed(sweep_batch=BATCH, engine="spark"),
            lakefs=LakeFSConfig(endpoint=endpoint, credentials_file=str(folder / "lakectl.yaml")),
            root=ArtifactRoot(str(folder / "artifacts"), StoreConfig(local_root=local_root)),
            session=builder.getOrCreate,
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
