"""Figures of sweeps: what became of the space of deleted objects, and totals of pruned runs.

``<repository>/_totals.json`` of the artifacts is written before a prune removes a run, so that a
total over all sweeps never decreases. It names the attempts that it counts, for as long as a reader
may still have found their own record.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.run.artifacts import ArtifactRoot, AttemptArtifacts
from lakegc_assets.run.json_record import JsonRecord, Moment
from lakegc_assets.storage.errors import ObjectNotFoundError
from lakegc_assets.storage.values import FREED, HELD
from lakegc_assets.sweep.ledger import ASSET, PUT_BACK
from lakegc_assets.wording import counted

_UNTIL: Final = f"{HELD} until "
_NOT_KNOWN: Final = f"{HELD}, "

_KEY: Final = "_totals.json"
#: What a sweep has deleted, whether it was put back afterwards or not.
DELETED: Final = ("deleted", PUT_BACK)
#: Nobody reads a repository for as long.
_READING: Final = timedelta(days=2)


def space_facts(deleted: Iterable[tuple[str | None, int, int]]) -> dict[str, Any]:
    """Add up what was deleted, by what became of its space.

    Args:
        deleted: what a ledger says of the space of some objects (``DataProtection.space_of``; None
            in ledgers of old sweeps), how many these are, and their bytes.

    Returns:
        ``freed``, ``held`` and ``not_known``, each with objects and bytes; and ``until``: when the
        last of what is held is free (``2026-12-26``, ``2026-12-26 at least``), None where that is
        not known or nothing is held.
    """
    found = {name: {"objects": 0, "bytes": 0} for name in ("freed", "held", "not_known")}
    said = set()
    for space, objects, size in deleted:
        held = space is not None and space.startswith((_UNTIL, _NOT_KNOWN))
        total = found["freed" if space == FREED else "held" if held else "not_known"]
        total["objects"] += objects
        total["bytes"] += size
        if held:
            said.add(space)
    endless = any(one and one.startswith(_NOT_KNOWN) for one in said)
    until = None if endless or not said else max(map(str, said)).removeprefix(_UNTIL)
    return {**found, "until": until}


def space_in(outcomes: pa.Table) -> dict[str, Any]:
    """As ``space_facts``, of outcomes (``SWEPT``)."""
    deleted = outcomes.filter(pc.equal(outcomes["outcome"], "deleted"))
    totals = deleted.group_by("detail").aggregate([("size", "count"), ("size", "sum")])
    rows = totals.to_pylist()
    return space_facts((one["detail"], one["size_count"], one["size_sum"]) for one in rows)


def space_lines(space: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    """The nonempty states of the space, in words, with objects and bytes."""
    until = f"until {space['until']}" if space["until"] else "until when is not known"
    named = {
        "freed": "space freed",
        "held": f"space held, {until}",
        "not_known": "space freed or held, which is not known",
    }
    return [
        (words, space[name]["objects"], space[name]["bytes"])
        for name, words in named.items()
        if space[name]["objects"]
    ]


def space_sentence(space: Mapping[str, Any]) -> str:
    """As ``space_lines``, in one sentence and without bytes."""
    parts = [f"{words}: {counted(objects, 'object')}" for words, objects, _ in space_lines(space)]
    return "; ".join(parts) or "nothing was deleted"


@dataclass(frozen=True)
class PrunedTotals(
    JsonRecord,
    damaged="it has what the sweeps of pruned runs had deleted. Remove it if the metrics of this "
    "repository may begin anew",
):
    """Totals of the sweeps of runs that were pruned, or are about to be.

    Attributes:
        objects: how many.
        bytes: of them.
        counted: when each attempt was counted, by ``<run>/<attempt>``; older ones are gone, and
            are not named any more.
    """

    objects: int = 0
    bytes: int = 0
    counted: Mapping[str, Moment] = field(default_factory=dict)

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
        return PrunedTotals.from_bytes(store.get(_KEY), f"{store.url}/{_KEY}")
    except ObjectNotFoundError:
        return PrunedTotals()


def count_pruned(
    root: ArtifactRoot, repository: str, attempts: Collection[AttemptArtifacts], now: datetime
) -> None:
    """Add what the finished sweeps of runs have deleted, before these are removed.

    Whoever calls it holds the lease of the repository. An attempt is added once, however often it
    is asked for.

    Raises:
        IntegrityError: the totals are damaged, or the record of a sweep is.
        StorageError: the store of the artifacts does not answer.
    """
    before = read_totals(root, repository)
    there = set(root.runs(repository))
    objects, size = before.objects, before.bytes
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
    root.open(repository).put(_KEY, PrunedTotals(objects, size, counted).to_bytes())


def deleted_in(outcomes: Mapping[str, Mapping[str, int]]) -> tuple[int, int]:
    """Objects and bytes that a sweep has deleted, by the outcomes of its manifest."""
    found = [outcomes[name] for name in DELETED if name in outcomes]
    return sum(one["objects"] for one in found), sum(one["bytes"] for one in found)
