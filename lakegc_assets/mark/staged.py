"""What branches have staged according to their diffs: a second witness beside lakeFS's own list.

``prepare_uncommited`` can lose rows without a word: the scan of a branch ends early, or a branch is
deleted meanwhile. A diff names paths and no addresses, so lakeFS is asked what it serves at those
where a candidate could lie.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from lakegc_assets.errors import IntegrityError
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.lakefs.errors import NotFoundError
from lakegc_assets.mark.ranges import spread
from lakegc_assets.run.context import Connections

_CHANGES = "branch string, path string, size long"
_ROWS = 10_000


def staged_paths(
    connections: Connections,
    repository: str,
    branches: DataFrame,
    suspects: DataFrame,
    partitions: int,
) -> DataFrame:
    """Where branches have staged what may be one of the suspects: columns ``branch`` and ``path``.

    Args:
        connections: how tasks reach lakeFS.
        repository: lakeFS repository.
        branches: column ``branch``.
        suspects: column ``size``, in bytes.
        partitions: tasks that ask.
    """
    changes = spread(branches.select("branch").distinct(), partitions).mapInArrow(
        partial(_changes, connections, repository), _CHANGES
    )
    sizes = suspects.select("size", F.lit(True).alias("of_suspect")).distinct()
    # The size of what replaces something may be that of either, so it is null and does not count.
    return (
        changes.join(sizes, "size", "left")
        .where("size is null or of_suspect")
        .select("branch", "path")
    )


def _changes(
    connections: Connections, repository: str, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    client = connections.lakefs.connect()
    for batch in batches:
        for branch in batch["branch"].to_pylist():
            rows: list[tuple[str, int | None]] = []
            for change in _diff(client, repository, branch):
                rows.append(change)
                if len(rows) == _ROWS:
                    yield _batch(branch, rows)
                    rows = []
            yield _batch(branch, rows)


def _diff(client: LakeFSClient, repository: str, branch: str) -> Iterator[tuple[str, int | None]]:
    """The paths that a branch has staged, with the size of what is new there."""
    try:
        for change in client.diff_branch(repository, branch):
            if change.type != "removed":
                yield change.path, change.size_bytes if change.type == "added" else None
    except NotFoundError as error:
        if branch in {found.id for found in client.branches(repository)}:
            raise IntegrityError(
                f"branch {branch!r} of {repository!r} exists, but its diff says not found "
                f"({error}): run again",
            ) from error


def _batch(branch: str, rows: list[tuple[str, int | None]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array([branch] * len(rows), pa.string()),
            pa.array([path for path, _ in rows], pa.string()),
            pa.array([size for _, size in rows], pa.int64()),
        ],
        names=["branch", "path", "size"],
    )
