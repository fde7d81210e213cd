"""``gc_metrics``: keeps a file of metrics for Prometheus, read from the artifacts."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final

import dagster as dg
from pydantic import Field

from lakegc_assets.defs.collection import Collection
from lakegc_assets.defs.fields import filled_in
from lakegc_assets.defs.names import REPOSITORY, Names
from lakegc_assets.defs.policy import Policies
from lakegc_assets.errors import ConfigurationError
from lakegc_assets.estate.metrics import EstateMetrics, estate_metrics, text_of
from lakegc_assets.estate.repository_state import OldRuns
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.run.bounds import Bounds
from lakegc_assets.storage.files import write_file
from lakegc_assets.wording import counted

#: Ending of the files that node_exporter reads; it ignores all others.
_ENDING: Final = ".prom"
_DAY_S: Final = 86_400


def metrics_file(text: str | Path) -> Path:
    """The path of a file that node_exporter reads; a ``ConfigurationError`` for other names."""
    path = Path(text)
    if path.suffix != _ENDING:
        raise ConfigurationError(
            f"{path} would not be read by node_exporter: its name must end in {_ENDING}"
        )
    return path


class MetricsSection(dg.Model, dg.Resolvable):
    """The file of metrics that Prometheus's node_exporter reads."""

    textfile: Annotated[str, filled_in(metrics_file)] = Field(
        description="path of the file, in the folder of the textfile collector; ends in .prom"
    )
    every_seconds: Annotated[int, Bounds(30, 86_400)] = Field(
        default=300, description="the interval between writes of the file; at least 30"
    )


def metrics_of(
    root: ArtifactRoot,
    repositories: AbstractSet[str] | Sequence[str],
    policies: Policies,
    names: Names,
    now: datetime,
    known: OldRuns,
) -> EstateMetrics:
    """The metrics of all repositories, always including the given ones.

    ``known``: old runs that earlier calls have read, and that are not read again.
    """

    def max_age_s(name: str) -> float | None:
        return policies.of(name).stale_after_days * _DAY_S if policies.collects(name) else None

    def mode_of(name: str) -> str:
        return policies.of(name).sweep

    return estate_metrics(root, repositories, mode_of, max_age_s, now, names.name, known=known)


def metrics_sensor(collection: Collection, section: MetricsSection) -> dg.SensorDefinition:
    """``gc_metrics``, which writes the file and starts nothing."""
    path, names, old = metrics_file(section.textfile), collection.names, OldRuns()

    @collection.sensor(
        "gc_metrics",
        section.every_seconds,
        f"Writes the metrics of all repositories, read from their artifacts, to {path}.",
        *("stores", "collector"),
        running=True,
    )
    def metrics(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        root, now = collection.of(context).root, collection.now()
        known = context.instance.get_dynamic_partitions(names.of(REPOSITORY))
        found = metrics_of(root, known, collection.policies, names, now, old)
        for problem in found.problems:
            context.log.warning("%s", problem)
        write_file(path, text_of(found))
        return dg.SkipReason(f"{path}: {counted(len(known), 'repository', 'repositories')}")

    return metrics
