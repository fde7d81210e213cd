"""Figures of sweeps: the state of the space of deleted objects, and totals of pruned runs.

``<repository>/_totals.json`` of the artifacts is written before a prune removes a run, so that a
total over all sweeps never decreases. It names the attempts that it includes, for as long as a
reader may still have found their own records.
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
#: Outcomes of objects that a sweep has deleted, including those that it put back afterwards.
DELETED: Final = ("deleted", PUT_BACK)
#: Most time that a reader needs for a repository.
_READING: Final = timedelta(days=2)


def space_facts(deleted: Iterable[tuple[str | None, int, int]]) -> dict[str, Any]:
    """Sum deleted objects by the state of their space.

    Args:
        deleted: state of the space of some objects in a ledger (``DataProtection.space_of``; None
            in ledgers of old sweeps), number of these objects, and their bytes.

    Returns:
        ``freed``, ``held`` and ``not_known``, each with objects and bytes; and ``until``: the time
        at which the last held object is freed (``2026-12-26``, ``2026-12-26 at least``), None if it
        is unknown or if no object is held.
    """
    found = {name: {"objects": 0, "bytes": 0} for name in ("freed", "held", "not_known")}
    held_spaces = set()
    for space, objects, size in deleted:
        held = space is not None and space.startswith((_UNTIL, _NOT_KNOWN))
        total = found["freed" if space == FREED else "held" if held else "not_known"]
        total["objects"] += objects
        total["bytes"] += size
        if held:
            held_spaces.add(space)
    endless = any(space_text and space_text.startswith(_NOT_KNOWN) for space_text in held_spaces)
    until = None if endless or not held_spaces else max(map(str, held_spaces)).removeprefix(_UNTIL)
    return {**found, "until": until}


def space_in(outcomes: pa.Table) -> dict[str, Any]:
    """Sum outcomes (``SWEPT``) as ``space_facts`` does."""
    deleted = outcomes.filter(pc.equal(outcomes["outcome"], "deleted"))
    totals = deleted.group_by("detail").aggregate([("size", "count"), ("size", "sum")])
    rows = totals.to_pylist()
    return space_facts((row["detail"], row["size_count"], row["size_sum"]) for row in rows)


def space_lines(space: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    """Return the nonempty states of the space, in words, with objects and bytes."""
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
    """Return ``space_lines`` in one sentence, without bytes."""
    parts = [f"{words}: {counted(objects, 'object')}" for words, objects, _ in space_lines(space)]
    return "; ".join(parts) or "nothing was deleted"


@dataclass(frozen=True)
class PrunedTotals(
    JsonRecord,
    damaged="it counts the objects that sweeps of pruned runs deleted. Restore it from a copy, or "
    "remove it: then the metrics of this repository start again without pruned runs",
):
    """Totals of the sweeps of runs that were pruned, or are about to be.

    Attributes:
        counted: time at which each attempt was added, by ``<run>/<attempt>``; attempts that were
            removed long ago are not named any more.
    """

    objects: int = 0
    bytes: int = 0
    counted: Mapping[str, Moment] = field(default_factory=dict)

    def counts(self, run: str, attempt: str | None) -> bool:
        """Return True if an attempt is included, so that its own record must not be added."""
        return f"{run}/{attempt}" in self.counted


def read_totals(root: ArtifactRoot, repository: str) -> PrunedTotals:
    """Read the totals of a repository. A caller that adds those of its runs reads the runs first.

    Raises:
        IntegrityError: the totals are damaged.
        StorageError: the store of the artifacts did not answer.
    """
    store = root.open(repository)
    try:
        return PrunedTotals.from_bytes(store.get(_KEY), f"{store.url}/{_KEY}")
    except ObjectNotFoundError:
        return PrunedTotals()


def count_pruned(
    root: ArtifactRoot, repository: str, attempts: Collection[AttemptArtifacts], now: datetime
) -> None:
    """Add the deletes of finished sweeps of runs to the totals, before the runs are removed.

    The caller holds the lease of the repository. An attempt is added once, even after several
    calls.

    Raises:
        IntegrityError: the totals, or the record of a sweep, are damaged.
        StorageError: the store of the artifacts did not answer.
    """
    before = read_totals(root, repository)
    there = set(root.runs(repository))
    objects, size = before.objects, before.bytes
    counted = {
        name: at
        for name, at in before.counted.items()
        if now - at < _READING or name.partition("/")[0] in there
    }
    for attempt in attempts:
        if before.counts(attempt.run, attempt.attempt):
            continue
        counted[f"{attempt.run}/{attempt.attempt}"] = now
        if attempt.has(ASSET):
            more_objects, more_size = deleted_in(attempt.recorded(ASSET).facts["outcomes"])
            objects, size = objects + more_objects, size + more_size
    root.open(repository).put(_KEY, PrunedTotals(objects, size, counted).to_bytes())


def deleted_in(outcomes: Mapping[str, Mapping[str, int]]) -> tuple[int, int]:
    """Return objects and bytes that a sweep has deleted, from the outcomes of its manifest."""
    found = [outcomes[name] for name in DELETED if name in outcomes]
    return sum(total["objects"] for total in found), sum(total["bytes"] for total in found)
