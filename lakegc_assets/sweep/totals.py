"""Totals of the sweeps of pruned runs, so that a total over all sweeps never decreases.

``<repository>/_totals.json`` of the artifacts is written before a prune removes a run. It names the
attempts that it counts, for as long as a reader may still have found their own record.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from lakegc_assets.errors import IntegrityError
from lakegc_assets.run.artifacts import ArtifactRoot, AttemptArtifacts
from lakegc_assets.storage.errors import ObjectNotFoundError
from lakegc_assets.sweep.ledger import ASSET, PUT_BACK

_KEY: Final = "_totals.json"
#: What a sweep has deleted, whether it was put back afterwards or not.
DELETED: Final = ("deleted", PUT_BACK)
#: Nobody reads a repository for as long.
_READING: Final = timedelta(days=2)


@dataclass(frozen=True)
class PrunedTotals:
    """Totals of the sweeps of runs that were pruned, or are about to be.

    Attributes:
        objects: how many.
        size: of them, in bytes.
        counted: when each attempt was counted, by ``<run>/<attempt>``; older ones are gone, and
            are not named any more.
    """

    objects: int = 0
    size: int = 0
    counted: Mapping[str, datetime] = field(default_factory=dict)

    def counts(self, run: str, attempt: str | None) -> bool:
        """Return whether an attempt is included, so that its own record must not be added."""
        return f"{run}/{attempt}" in self.counted


def read_totals(root: ArtifactRoot, repository: str) -> PrunedTotals:
    """The totals of a repository. Who adds those of its runs reads the runs before.

    Raises:
        IntegrityError: they are damaged.
        StorageError: the store of the artifacts does not answer.
    """
    store = root.open(repository)
    try:
        told = store.get(_KEY)
    except ObjectNotFoundError:
        return PrunedTotals()
    try:
        values = json.loads(told)
        counted = {str(name): datetime.fromisoformat(at) for name, at in values["counted"].items()}
        return PrunedTotals(int(values["objects"]), int(values["bytes"]), counted)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise IntegrityError(
            f"{store.url}/{_KEY} is damaged ({error}): it has what the sweeps of pruned runs had "
            "deleted. Remove it if the metrics of this repository may begin anew"
        ) from error


def count_pruned(
    root: ArtifactRoot, repository: str, attempts: Collection[AttemptArtifacts], now: datetime
) -> None:
    """Add what the finished sweeps of runs have deleted, before these are removed.

    Whoever calls it holds the lease of the repository. An attempt is added once, however often it
    is asked for.

    Args:
        root: of the artifacts.
        repository: lakeFS repository.
        attempts: that are about to be removed.
        now: the time, UTC.

    Raises:
        IntegrityError: the totals are damaged, or the record of a sweep is.
        StorageError: the store of the artifacts does not answer.
    """
    before = read_totals(root, repository)
    there = set(root.runs(repository))
    objects, size = before.objects, before.size
    counted = {
        name: at
        for name, at in before.counted.items()
        if now - at < _READING or name.partition("/")[0] in there
    }
    for one in attempts:
        if before.counts(one.run, one.attempt):
            continue
        counted[f"{one.run}/{one.attempt}"] = now
        if one.has(ASSET):
            more_objects, more_size = deleted_in(one.recorded(ASSET).facts["outcomes"])
            objects, size = objects + more_objects, size + more_size
    values = {
        "objects": objects,
        "bytes": size,
        "counted": {name: at.isoformat() for name, at in counted.items()},
    }
    root.open(repository).put(_KEY, json.dumps(values, indent=1, sort_keys=True).encode())


def deleted_in(outcomes: Mapping[str, Mapping[str, int]]) -> tuple[int, int]:
    """Objects and bytes that a sweep has deleted, by the outcomes of its manifest."""
    found = [outcomes[name] for name in DELETED if name in outcomes]
    return sum(one["objects"] for one in found), sum(one["bytes"] for one in found)
