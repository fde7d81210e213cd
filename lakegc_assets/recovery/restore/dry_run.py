"""Foresees what a restore would bring back, from where, and what is lost; nothing is changed.

The embedded engine works on copies of some artifacts, in a folder of this machine, so that it only
reads. On Spark what is found on the way must lie where all executors reach it: in the artifacts.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import pyarrow.compute as pc

from lakegc_assets.engine.datasets import Part, fetch_part
from lakegc_assets.engine.spill import SpillFolder
from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.mark.marked_objects import Stretch, read_stretches, stretches
from lakegc_assets.recovery.copy_verification import Proof
from lakegc_assets.recovery.restore.restored_set import published
from lakegc_assets.recovery.restore.selection import Choice, LostObjects, find_objects
from lakegc_assets.recovery.restore.task import BATCH
from lakegc_assets.recovery.undeletion import SOURCES, Forecast
from lakegc_assets.recovery.workspace import Workspace
from lakegc_assets.run.artifacts import AttemptArtifacts, Manifest
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.storage.errors import ObjectNotFoundError, StorageError
from lakegc_assets.sweep.ledger import ASSET
from lakegc_assets.sweep.lost_objects import LOST, foresee

#: Of what is lost so many are named.
_NAMED: Final = 100
#: Objects of one task, and work for one, in seconds of one core.
_EACH: Final = 100_000
_LOOK_S: Final = 1e-4
_THREADS: Final = 4
#: Files that are copied at a time.
_COPIED: Final = 8


@dataclass(frozen=True)
class Outlook:
    """The expected outcomes for some objects; those of several stretches add up."""

    objects: int = 0
    bytes: int = 0
    #: Objects, and bytes, of those that are gone, by verdict.
    found: Counter[str] = field(default_factory=Counter)
    found_bytes: Counter[str] = field(default_factory=Counter)
    #: First addresses and reasons of each verdict that is no source.
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
    """Foresee what a restore would do, as JSON values; it changes nothing, and needs no lease.

    Raises:
        RefusedError: a restore would be refused.
        StorageError: the store does not say what is there; or, on Spark, nothing can be written to
            the artifacts.
    """
    client, connections = ctx.connect()
    attempt, chain = published(ctx, connections)
    with _workspace(ctx, connections, attempt, chain) as space:
        found = find_objects(client, space, chain, choice)
        outlook = _foreseen(space, found)
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


@contextmanager
def _workspace(
    ctx: RunContext,
    connections: Connections,
    attempt: AttemptArtifacts,
    chain: Mapping[str, Manifest],
) -> Iterator[Workspace]:
    """A place for what is found on the way, which is removed at the end."""
    folder = f"restore/{secrets.token_hex(8)}/"
    if ctx.engine.kind == "embedded":
        spill = SpillFolder()
        try:
            here = replace(attempt, root=replace(attempt.root, url=str(spill.path)))
            _copy_artifacts(attempt, here, chain)
            yield Workspace(ctx, connections, here, folder)
        finally:
            spill.remove()
        return
    space = Workspace(ctx, connections, attempt, folder)
    _require_writable(space)
    try:
        yield space
    finally:
        space.clear()


def _copy_artifacts(
    attempt: AttemptArtifacts, here: AttemptArtifacts, chain: Mapping[str, Manifest]
) -> None:
    """Copy what a restore reads of the artifacts: what is marked, and what a sweep has recorded."""
    store, target = attempt.store(), here.store()

    def copy_part(part: Part) -> None:
        target.put(part.key, fetch_part(store, part))

    def copy(key: str) -> None:
        with suppress(ObjectNotFoundError):
            target.put(key, store.get(key))

    recorded = [info.key for info in store.infos_to_the_end(f"{ASSET}/ledger/")]
    thread_map(copy_part, chain["deletion_candidates"].parts["data"], _COPIED)
    thread_map(copy, [*recorded, f"{ASSET}/manifest.json"], _COPIED)


def _require_writable(space: Workspace) -> None:
    """Refuse early what would be refused on the way.

    Raises:
        StorageError: nothing can be written to the artifacts.
    """
    try:
        space.attempt.store().put(f"{space.folder}begun", b"")
    except StorageError as error:
        raise type(error)(
            f"on Spark a dry run writes what it finds on the way to {space.attempt.url}/"
            f"{space.folder}, and removes it at the end; it cannot: {error}. Let it write there, "
            "or run it with --engine embedded, which only reads"
        ) from error


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
        found += foresee(store, batch, batch["address"].to_pylist(), proof)[1]
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
