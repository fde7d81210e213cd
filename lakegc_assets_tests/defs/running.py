"""Jobs that run in this process, and what they leave in their instance."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from shutil import copytree
from tempfile import TemporaryDirectory
from typing import Any, Final

import dagster as dg

from lakegc_assets.cli.jobs import kept_connections
from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.settings import Settings
from lakegc_assets_tests.lake import STAGES
from lakegc_assets_tests.sessions import Session
from lakegc_assets_tests.site import Site

#: What Dagster prints of a run is in its event log, too.
QUIET: Final = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


@contextmanager
def instance_of(site: Site) -> Iterator[dg.DagsterInstance]:
    """The instance that commands beside the server use."""
    (site.folder / "dagster").mkdir()
    (site.folder / "dagster/dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    with kept_connections(site.folder / "dagster"), dg.DagsterInstance.get() as found:
        yield found


@cache
def _without_runs() -> TemporaryDirectory[str]:
    """The folder of an instance that is new: to copy its databases is faster than to make them."""
    folder = TemporaryDirectory()
    with dg.instance_for_test(temp_dir=folder.name):
        return folder


@contextmanager
def own_instance() -> Iterator[dg.DagsterInstance]:
    """An instance in a folder of its own, which Dagster finds by DAGSTER_HOME."""
    with (
        TemporaryDirectory() as folder,
        kept_connections(Path(copytree(_without_runs().name, folder, dirs_exist_ok=True))),
        dg.instance_for_test(temp_dir=folder) as found,
    ):
        yield found


def mark_outside(
    site: Site, repository: str, run: str, spark: Session, **settings: object
) -> RunContext:
    """Make a mark that Dagster has not made: for tests of what follows, and faster."""
    made = Settings().changed(**settings)
    ctx = RunContext(repository, run, made, LakeFSConfig(), site.root, spark)
    for stage in STAGES:
        stage(ctx)
    return ctx


def run(
    definitions: dg.Definitions,
    job: str,
    instance: dg.DagsterInstance,
    key: str | None = None,
    *assets: str,
    raises: bool = True,
    tags: dict[str, str] | None = None,
    ops: dict[str, Any] | None = None,
    **collector: Any,
) -> dg.ExecuteInProcessResult:
    """Run a job on a partition, some of its assets or all, with settings of the collector."""
    given = {"resources": {"collector": {"config": collector}}} if collector else {}
    return definitions.resolve_job_def(job).execute_in_process(
        partition_key=key,
        instance=instance,
        asset_selection=[dg.AssetKey(asset) for asset in assets] or None,
        tags=tags,
        raise_on_error=raises,
        run_config={**QUIET, **given, **({"ops": ops} if ops else {})},
    )
