"""Tells what a restore would bring back, from where, and what is lost; nothing is changed."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.mark.marked_objects import Stretch, read_stretches, stretches
from lakegc_assets.recovery.copy_verification import Proof
from lakegc_assets.recovery.restore.lost_objects import LOST, LostObjects, find_objects
from lakegc_assets.recovery.restore.restored_set import published
from lakegc_assets.recovery.restore.selection import Choice
from lakegc_assets.recovery.restore.task import BATCH
from lakegc_assets.recovery.undeletion import SOURCES, Forecast, forecast, present
from lakegc_assets.recovery.workspace import Workspace
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.sweep.lost_objects import as_lost, copies_of

#: Of what is lost so many are named.
_NAMED: Final = 100
#: Objects that one task looks at, and work for one, in seconds of one core.
_EACH: Final = 100_000
_LOOK_S: Final = 1e-4
_THREADS: Final = 4


@dataclass(frozen=True)
class Outlook:
    """The expected outcomes for some objects; those of several stretches add up.

    Attributes:
        objects: how many were chosen.
        bytes: of these.
        found: objects of those that are gone, by verdict.
        found_bytes: likewise, bytes.
        named: addresses and reasons of the first of each verdict that is no source.
    """

    objects: int = 0
    bytes: int = 0
    found: Counter[str] = field(default_factory=Counter)
    found_bytes: Counter[str] = field(default_factory=Counter)
    named: dict[str, list[dict[str, str]]] = field(default_factory=dict)

    def __add__(self, other: Outlook) -> Outlook:
        """The outlook of both."""
        names = {**self.named, **other.named}
        return Outlook(
            self.objects + other.objects,
            self.bytes + other.bytes,
            self.found + other.found,
            self.found_bytes + other.found_bytes,
            {
                name: [*self.named.get(name, ()), *other.named.get(name, ())][:_NAMED]
                for name in names
            },
        )

    def total(self, *verdicts: str) -> dict[str, int]:
        """Objects and bytes of some verdicts."""
        return {
            "objects": sum(self.found[name] for name in verdicts),
            "bytes": sum(self.found_bytes[name] for name in verdicts),
        }


def plan(ctx: RunContext, choice: Choice) -> dict[str, Any]:
    """Tell what a restore would do, as JSON values; it changes nothing, and needs no lease.

    Raises:
        RefusedError: a restore would be refused.
        StorageError: the store does not say what is there.
    """
    client, connections = ctx.connect()
    attempt, chain = published(ctx, connections)
    space = Workspace(ctx, connections, attempt, f"restore/{secrets.token_hex(8)}/")
    try:
        found = find_objects(client, space, chain, choice)
        outlook = _foreseen(space, found)
    finally:
        space.clear()
    gone = outlook.total(*outlook.found)
    return {
        "repository": ctx.repository,
        "run": ctx.run,
        "choice": choice.to_json(),
        "chosen": {"objects": outlook.objects, "bytes": outlook.bytes},
        "already_there": {
            "objects": outlook.objects - gone["objects"],
            "bytes": outlook.bytes - gone["bytes"],
        },
        "would_come_back": {
            **outlook.total(*SOURCES),
            "from": {source: outlook.found[source] for source in SOURCES},
        },
        **{
            name: {**outlook.total(name), "some": outlook.named.get(name, [])}
            for name in ("lost", "not_known")
        },
        "store": connections.store().recovery().notice,
        "warnings": list(found.problems),
    }


def _foreseen(space: Workspace, found: LostObjects) -> Outlook:
    """The outlook of all objects, by tasks."""
    backup_url = None if found.backup is None else found.backup.store.url
    task = partial(_outlook, space.connections, space.attempt.url, backup_url)
    pieces, seconds = stretches(found.parts, _EACH), found.chosen.rows * _LOOK_S
    what, tasks = "look what is there", space.ctx.tasks
    return sum(tasks.run_or_call(what, task, pieces, seconds, _THREADS), Outlook())


def _outlook(
    connections: Connections, url: str, backup_url: str | None, piece: Sequence[Stretch]
) -> Outlook:
    """The outlook of the objects of one piece (``LOST``)."""
    store = connections.store()
    proof = None if backup_url is None else Proof(connections.open(backup_url))
    rows = read_stretches(connections.open(url), piece, LOST.names)
    found: list[Forecast] = []
    for at in range(0, rows.num_rows, BATCH):
        batch = rows.slice(at, BATCH)
        there = present(store, batch["address"].to_pylist())
        absent = pa.array([key for key, one in there.items() if one is None], pa.string())
        gone = batch.filter(pc.is_in(batch["address"], absent))
        found += forecast(store, as_lost(gone), copies_of(gone, proof))
    sizes: Counter[str] = Counter()
    named: dict[str, list[dict[str, str]]] = {}
    for one in found:
        sizes[one.verdict] += one.one.size
        if one.verdict not in SOURCES:
            named.setdefault(one.verdict, []).append({"address": one.one.key, "why": one.why})
    return Outlook(
        rows.num_rows,
        pc.sum(rows["size"]).as_py() or 0,
        Counter(one.verdict for one in found),
        sizes,
        {name: some[:_NAMED] for name, some in named.items()},
    )
