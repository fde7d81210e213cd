"""Backs the lake of a folder up in a process of its own, which may kill itself at any line."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from lakegc_assets.engine.spark_session import start_session
from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets.recovery import backup_creation, backup_task, backups, copies, journal
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.run.context import RunContext
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets_tests.kills import Lines
from lakegc_assets_tests.lake import REPOSITORY, RUN, SETTINGS


def main(at: int, folder: Path, endpoint: str, local_root: str, url: str) -> None:
    """Print how many lines a backup took, or die at one of them."""
    count = 0

    def step() -> None:
        nonlocal count
        count += 1
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)

    modules = (backup_creation, backup_task, journal, copies, backups)
    lines = Lines(*(module.__file__ for module in modules), die=step)
    ctx = RunContext(
        repository=REPOSITORY,
        run=RUN,
        settings=SETTINGS.changed(backup_url=url),
        lakefs=LakeFSConfig(endpoint=endpoint, credentials_file=str(folder / "lakectl.yaml")),
        root=ArtifactRoot(str(folder / "artifacts"), StoreConfig(local_root=local_root)),
        session=start_session,
    )
    with lines.watch():
        # From the first line on.
        lines.dead = True
        backup_creation.make_backup(ctx)
    sys.stdout.write(str(count))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
