"""Sweeps the lake of a folder, in a process of its own, so that it can be killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from lakegc_assets.engine import tasks
from lakegc_assets.engine.spark_session import LOCAL, REQUIRED, prepare_environment
from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets.mark import lookups
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.run.context import RunContext
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.sweep import rounds
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.lake import REPOSITORY, RUN, SETTINGS, SmallLake
from lakegc_assets_tests.sessions import SMALL

#: In place of Spark's master: the tasks run in processes, as where there is much to delete.
IN_PROCESSES: Final = "processes"


def start(lake: SmallLake, master: str = "", **settings: Any) -> subprocess.Popen[bytes]:
    """A sweep, as the leader of a session of its own; on Spark where a master is named."""
    command = [sys.executable, "-m", "lakegc_assets_tests.sweep.sweeper"]
    config = lake.server.store_config
    stores = {"local_root": config.local_root, "endpoint_url": config.endpoint_url}
    given = [str(lake.folder), lake.server.endpoint, master, *map(json.dumps, (stores, settings))]
    with log_of(lake).open("ab") as log:
        return subprocess.Popen([*command, *given], stdout=log, stderr=log, start_new_session=True)


def log_of(lake: SmallLake) -> Path:
    """The output of all sweeps."""
    return lake.folder / "sweeper.log"


def main(folder: Path, endpoint: str, master: str, stores: str, settings: str) -> None:
    prepare_environment()
    lookups.TASKS = 2  # type: ignore[misc]
    # What runs in the background of a shell ignores interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if master == IN_PROCESSES:
        master, tasks.PROCESS_SECONDS, rounds.BATCHES_PER_TASK = "", 0.0, 1  # type: ignore[misc]
    builder = SparkSession.builder
    for name, value in (LOCAL | REQUIRED | SMALL | {"spark.master": master}).items():
        builder = builder.config(name, value)
    sweep(
        RunContext(
            repository=REPOSITORY,
            run=RUN,
            settings=SETTINGS.changed(
                engine="spark" if master else "embedded", **json.loads(settings)
            ),
            lakefs=LakeFSConfig(endpoint=endpoint, credentials_file=str(folder / "lakectl.yaml")),
            root=ArtifactRoot(str(folder / "artifacts"), StoreConfig(**json.loads(stores))),
            session=builder.getOrCreate,
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
