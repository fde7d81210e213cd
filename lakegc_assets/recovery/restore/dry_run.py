"""Forecasts which objects a restore would bring back, from which source; changes nothing.

The embedded engine works on copies of artifacts in a local folder, so that it only reads. On Spark
all executors must reach the intermediate results, so these are in the artifacts.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from itertools import chain
from typing import Any, Final

import pyarrow as pa

from lakegc_assets.engine.datasets import Part, fetch_part, table_of
from lakegc_assets.engine.folders import SpillFolder
from lakegc_assets.engine.session import Dataset
from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.mark.marked_objects import Stretch, read_stretches, stretches
from lakegc_assets.recovery.journal import CopyVerifier
from lakegc_assets.recovery.restore.restored_set import added, examples, published, totals
from lakegc_assets.recovery.restore.selection import Choice, LostObjects, find_objects
from lakegc_assets.recovery.restore.task import BATCH
from lakegc_assets.recovery.restore_record import RESTORED
from lakegc_assets.recovery.undeletion import SOURCES
from lakegc_assets.recovery.workspace import Workspace
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.manifest import Manifest
from lakegc_assets.run.scratch import Folder
from lakegc_assets.storage.errors import ObjectNotFoundError, StorageError
from lakegc_assets.storage.values import ARCHIVED
from lakegc_assets.sweep.ledger import ASSET
from lakegc_assets.sweep.lost_objects import LOST, foresee
from lakegc_assets.wording import counted

#: Number of lost objects that are named.
_NAMED: Final = 100
#: Outcome of an object that is not missing.
_THERE: Final = "already_there"
_NONE: Final = {"objects": 0, "bytes": 0}
#: Objects of one task; seconds of one core for one object; threads of the task pool.
OBJECTS_PER_TASK: Final = 100_000
_LOOK_S: Final = 1e-4
_THREADS: Final = 4
#: Files that are copied in parallel.
_COPIED: Final = 8


def plan(ctx: RunContext, choice: Choice) -> dict[str, Any]:
    """Forecast a restore, as JSON values; changes nothing, and needs no lease.

    Raises:
        RefusedError: a restore would be refused.
        StorageError: the store did not answer; or, on Spark, nothing can be written to
            the artifacts.
    """
    ctx = ctx.connect()
    attempt, chain = published(ctx)
    with _workspace(ctx, attempt, chain) as space:
        found = find_objects(space, chain, choice)
        forecasts = _foreseen(space, found)
        total = totals(space, forecasts)
        some = {
            name: [
                {"address": row["address"], "why": row["detail"]}
                for row in examples(space, forecasts, name, most=_NAMED)
            ]
            for name in ("lost", "not_known")
        }
        unreadable = _unreadable(space, total, forecasts)
    by_end = added(total, "outcome")
    back = {source: by_end.get(source, _NONE) for source in SOURCES}
    return {
        "repository": ctx.repository,
        "run": ctx.run,
        "choice": choice.to_json(),
        "chosen": {name: sum(one[name] for one in total) for name in _NONE},
        "already_there": by_end.get(_THERE, _NONE),
        "would_come_back": {
            **{name: sum(one[name] for one in back.values()) for name in _NONE},
            "from": {source: one["objects"] for source, one in back.items()},
        },
        **{name: {**by_end.get(name, _NONE), "some": rows} for name, rows in some.items()},
        "store": ctx.connections.store().recovery().notice,
        "warnings": [*found.problems, *unreadable],
    }


def _unreadable(
    space: Workspace, total: Sequence[Mapping[str, Any]], forecasts: Dataset
) -> list[str]:
    """Return a warning about objects that would come back archived, and so unreadable."""
    noted = [one for one in total if one["noted"] and one["outcome"] in SOURCES]
    if not noted:
        return []
    first = examples(space, forecasts, noted[0]["outcome"], ARCHIVED, most=1)[0]
    objects = counted(sum(one["objects"] for one in noted), "object")
    what = f"{objects} would come back and could not be read then"
    return [f"{what}, for example {first['address']!r}: {first['detail']}"]


@contextmanager
def _workspace(
    ctx: RunContext, attempt: AttemptArtifacts, chain: Mapping[str, Manifest]
) -> Iterator[Workspace]:
    """Yield a workspace for intermediate results, which is removed at the end."""
    folder = f"restore/{secrets.token_hex(8)}/"
    if ctx.engine.kind == "embedded":
        spill = SpillFolder()
        try:
            here = replace(attempt, root=replace(attempt.root, url=str(spill.path)))
            _copy_artifacts(attempt, here, chain)
            yield Workspace(ctx, here, folder)
        finally:
            spill.remove()
        return
    space = Workspace(ctx, attempt, folder)
    _require_writable(space)
    with space:
        yield space


def _copy_artifacts(
    attempt: AttemptArtifacts, here: AttemptArtifacts, chain: Mapping[str, Manifest]
) -> None:
    """Copy the artifacts that a restore reads: the marked objects, and the records of the sweep."""
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
    """Fail before the first computation if its results cannot be written.

    Raises StorageError: nothing can be written to the artifacts.
    """
    try:
        space.attempt.store().put(f"{space.folder}begun", b"")
    except StorageError as error:
        raise type(error)(
            f"on Spark a dry run writes intermediate results to {space.attempt.url}/"
            f"{space.folder}, and removes them at the end. It cannot write there: {error}. Give it "
            "write permission, or run it with --engine embedded, which only reads"
        ) from error


def _foreseen(space: Workspace, found: LostObjects) -> Dataset:
    """Forecast the outcome of each object in tasks, in the form of a restore (``RESTORED``)."""
    backup_url = None if found.backup is None else found.backup.store.url
    task = partial(_foresee, space.below("foreseen"), backup_url, found.elsewhere)
    pieces, seconds = stretches(found.objects.parts, OBJECTS_PER_TASK), found.objects.rows * _LOOK_S
    what, tasks = "look what is there", space.ctx.tasks
    written = tasks.run_or_call(what, task, pieces, seconds, _THREADS)
    return space.dataset(chain(*written), RESTORED)


def _foresee(
    folder: Folder, backup_url: str | None, elsewhere: str, piece: Sequence[Stretch]
) -> list[Part]:
    """Forecast the outcomes of one piece of objects (``LOST``): ``_THERE``, or the verdict.

    If a backup could not be asked, as ``elsewhere`` tells, no object is known to be lost.
    """
    connections, now = folder.connections, datetime.now(timezone.utc)
    store = connections.store()
    proof = None if backup_url is None else CopyVerifier(connections.open(backup_url))
    rows = read_stretches(folder.store(), piece, LOST.names)

    def forecasts() -> Iterator[pa.Table]:
        for at in range(0, rows.num_rows, BATCH):
            batch = rows.slice(at, BATCH)
            addresses, sizes = batch["address"].to_pylist(), batch["size"].to_pylist()
            gone = {one.one.key: one for one in foresee(store, batch, addresses, proof)[1]}
            found = []
            for key, size in zip(addresses, sizes, strict=True):
                end = (gone[key].verdict, gone[key].why) if key in gone else (_THERE, None)
                if end[0] == "lost" and elsewhere:
                    end = ("not_known", elsewhere)
                found.append((key, size, end[0], None, None, end[1], now))
            yield table_of(found, RESTORED)

    return folder.write(RESTORED, forecasts())
