"""Takes a sweep back, as a whole or in part: the asset ``restored_set``.

It holds the repository's lease, and works while a hold is there, which asks for it. All that is
chosen is pinned before the first object comes back. It relies on nothing that a sweep recorded but
to find things sooner: every chosen object is asked for, and what is there is left alone. So one
that was killed at any point is run again, and goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.datasets import Part, write_part
from lakegc_assets.errors import IntegrityError, RefusedError
from lakegc_assets.mark.published import read_marked
from lakegc_assets.recovery import restore_record as record
from lakegc_assets.recovery.backups import Backup
from lakegc_assets.recovery.restore.sample import Sample, choose_sample, read_sample
from lakegc_assets.recovery.restore.selection import Choice, chosen
from lakegc_assets.recovery.restore.task import BATCH, Orders, restore_portion
from lakegc_assets.recovery.restore_record import RESTORED, Begun, folder
from lakegc_assets.recovery.undeletion import ANOTHER, present
from lakegc_assets.run import strings
from lakegc_assets.run.artifacts import AttemptArtifacts, Manifest
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import key_digest
from lakegc_assets.run.pins import Pin, write_pin
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import StorageError
from lakegc_assets.sweep.hold import hold_command, read_hold
from lakegc_assets.sweep.lease import Lease
from lakegc_assets.sweep.leased import leased
from lakegc_assets.sweep.lost_objects import lost_objects, other_backup, usable_backup
from lakegc_assets.wording import counted

#: Work on one core, in seconds: to bring an object back, to copy it, and a byte of it.
_ROW_S: Final = 0.0005
_COPY_S: Final = 0.0005
_BYTE_S: Final = 1e-8
_TASK_S: Final = 2.0
#: Tasks that run in this process at a time.
_THREADS: Final = 4
#: How long after it was begun a restore is gone on with, at most.
_PATIENCE: Final = timedelta(days=1)
_NONE: Final = timedelta(-1)
_SHOWN: Final = 3


def restore(ctx: RunContext, choice: Choice) -> Manifest:
    """Bring back what a mark names and is gone, and write the ``restored_set`` asset.

    Raises:
        RefusedError: the mark is unknown or was never published, it names nothing of what is asked
            for, the repository is at another namespace now, or somebody else holds its lease.
        IntegrityError: the mark is not what its manifests say.
        StorageError: something could not be brought back; what was is in the ledger, and pinned.
    """
    _, connections = ctx.connect()
    # Before the lease is waited for.
    published(ctx, connections)
    with leased(ctx, connections.store(), doing="restore", run=ctx.run) as lease:
        return _restore(ctx, connections, choice, lease)


def usable(
    ctx: RunContext, attempt: AttemptArtifacts, chain: Mapping[str, Manifest]
) -> tuple[Backup | None, list[str]]:
    """The backup that can be used, and what is wrong with it, or with where it is looked for."""
    backup, problem = usable_backup(ctx, chain)
    # One that was moved is as good where it is now.
    elsewhere = "" if backup else other_backup(ctx, attempt)
    return backup, [told for told in (problem, elsewhere) if told]


def published(
    ctx: RunContext, connections: Connections
) -> tuple[AttemptArtifacts, Mapping[str, Manifest]]:
    """The mark of a run, which is to be of this very namespace; who looks for it here is in need.

    Its summary in the namespace is not asked for: whoever removed it, the objects can come back.

    Raises:
        RefusedError: it is unknown, did not finish, or is of another namespace.
        IntegrityError: it is not what its manifests say.
    """
    attempt = ctx.root.attempt(ctx.repository, ctx.run)
    if not attempt.has("gc_report"):
        raise RefusedError(
            f"mark {ctx.run!r} of {ctx.repository!r} did not finish, so nothing of it was deleted"
        )
    namespace = attempt.recorded("gc_report").namespace
    if namespace != connections.namespace_url:
        raise RefusedError(
            f"mark {ctx.run!r} is of {namespace}, and {ctx.repository!r} is at "
            f"{connections.namespace_url} now: it was made anew, and nothing in it needs these "
            "objects. Nothing was restored. If they are wanted, copy them from the backup with "
            "other tools, to where they are wanted"
        )
    return attempt, attempt.chain("gc_report", namespace)


def _restore(ctx: RunContext, connections: Connections, choice: Choice, lease: Lease) -> Manifest:
    started = ctx.clocks.now()
    attempt, chain = published(ctx, connections)
    store, client = connections.store(), ctx.lakefs.connect()
    marked = read_marked(attempt, chain["deletion_candidates"])
    rows = chosen(client, ctx.repository, connections.namespace(), marked, choice)
    backup, problems = usable(ctx, attempt, chain)
    for problem in problems:
        ctx.log.warning("%s", problem)
    wanted = lost_objects(attempt, rows, backup)

    now, lasting = store.server_time(), ctx.settings.pin_days
    begun = Begun(choice.to_json(), str(key_digest(rows["address"])), now)
    name = lease.sweep[:8]
    restore_id = record.begin(attempt, begun, name, min(_PATIENCE, lasting / 2))
    if _undone(store, record.outcomes(attempt, restore_id)):
        restore_id = record.begin(attempt, begun, name, _NONE)
    sample = choose_sample(ctx, connections, client, attempt, rows)
    until = _pin(ctx, connections, restore_id, rows, now + lasting)
    lease.require()
    early = _bring_back(ctx, connections, attempt, restore_id, wanted, backup, lease)
    lease.require()

    found = record.outcomes(attempt, restore_id)
    _require_all(ctx, found, rows, early)
    writer = attempt.writer(folder(restore_id), RESTORED)
    writer.add(found)
    parts = {"data": writer.finish()}
    read = read_sample(client, ctx.repository, sample, found)
    facts: dict[str, object] = {
        "restore": restore_id,
        "choice": choice.to_json(),
        "outcomes": _totals(found, "outcome"),
        "sources": _totals(found.filter(pc.equal(found["outcome"], "restored")), "source"),
        "pinned_until": until.isoformat() if until else None,
        "sample": read,
        "warnings": _warnings(ctx, connections, found, read, problems),
    }
    for warning in facts["warnings"]:  # type: ignore[attr-defined] # they are texts
        ctx.log.warning("%s", warning)
    digest = key_digest(found["address"])
    return ctx.finish(folder(restore_id), chain["gc_report"], started, parts, facts, digest)


def _undone(store: ObjectStore, done: pa.Table) -> bool:
    """Whether something that an earlier try brought back is gone again, whoever deleted it."""
    addresses = _settled(done)["address"]
    return any(
        there is None
        for at in range(0, len(addresses), BATCH)
        for there in present(store, addresses.slice(at, BATCH).to_pylist()).values()
    )


def _settled(done: pa.Table) -> pa.Table:
    """Of outcomes those that nobody asks for again: another object may have been moved away."""
    return done.filter(pc.or_(pc.equal(done["outcome"], "restored"), record.same(done)))


def _pin(
    ctx: RunContext, connections: Connections, restore_id: str, rows: pa.Table, until: datetime
) -> datetime | None:
    """Pin all that is chosen; None where pins are of no time."""
    if not ctx.settings.pin_days:
        return None
    why = f"restored from run {ctx.run!r}"
    pin = Pin(restore_id, until, ctx.run, why, rows.num_rows)
    write_pin(connections.store(), pin, rows["address"])
    return until


def _bring_back(
    ctx: RunContext,
    connections: Connections,
    attempt: AttemptArtifacts,
    restore_id: str,
    wanted: pa.Table,
    backup: Backup | None,
    lease: Lease,
) -> Sequence[str]:
    """Bring back what no earlier try has; why tasks ended early."""
    done = record.outcomes(attempt, restore_id)
    known = strings.among(wanted["address"], _settled(done)["address"])
    left = wanted.filter(pc.invert(known))
    portions, cost = _portions(ctx, attempt, restore_id, left)
    orders = Orders(
        connections,
        attempt.url,
        f"{folder(restore_id)}/ledger/",
        None if backup is None else backup.store.url,
        lease.token,
    )
    task = partial(restore_portion, orders)
    told = ctx.tasks.run("restore objects", task, portions, cost, _THREADS)
    return sorted({reason for reason in told if reason})


def _portions(
    ctx: RunContext, attempt: AttemptArtifacts, restore_id: str, left: pa.Table
) -> tuple[list[tuple[int, Part]], float]:
    """Portions of equal work, each a stretch of keys, so that the store can list it."""
    copied = np.asarray(pc.is_valid(left["copy_etag"]), dtype=np.float64)
    sizes = np.asarray(left["size"], dtype=np.float64)
    ends = np.cumsum(_ROW_S + copied * (_COPY_S + sizes * _BYTE_S))
    total = float(ends[-1]) if len(ends) else 0.0
    count = max(1, min(ctx.settings.sweep_num_partitions, int(total / _TASK_S)))
    limits = np.searchsorted(ends, np.linspace(0, total, count + 1)[1:-1], side="right")
    bounds = [0, *map(int, limits), left.num_rows]
    asked = f"{folder(restore_id)}/asked/"
    slices = [left.slice(low, high - low) for low, high in pairwise(bounds)]
    parts = [write_part(attempt.store(), asked, rows) for rows in slices if rows.num_rows]
    return list(enumerate(parts)), total


def _require_all(ctx: RunContext, found: pa.Table, rows: pa.Table, early: Sequence[str]) -> None:
    """Refuse to end where something failed, or has no outcome.

    Raises:
        StorageError: so it is; what to do.
        IntegrityError: the ledger has other objects than those that were asked for.
    """
    known = pc.sum(strings.among(found["address"], rows["address"])).as_py() or 0
    if known != found.num_rows:
        raise IntegrityError(
            f"the ledger of the restore has {counted(found.num_rows - known, 'object')} that "
            "nobody has asked for: it is damaged. What is there was left alone; ask for less, or "
            "for more, and a new restore begins"
        )
    failed = found.filter(pc.equal(found["outcome"], "failed"))
    untried = rows.num_rows - found.num_rows
    if not failed.num_rows and not untried:
        return
    shown = [
        f"{row['address']}: {row['error_code']}: {row['detail']}"
        for row in failed.slice(0, _SHOWN).to_pylist()
    ]
    raise StorageError(
        f"{counted(failed.num_rows, 'object')} could not be restored and {untried} were not tried: "
        f"{'; '.join(shown or early)}. All others are done and recorded, and all are pinned. Mend "
        f"what is wrong, then restore {ctx.run!r} again in the same way: it goes on"
    )


def _totals(found: pa.Table, column: str) -> dict[str, dict[str, int]]:
    totals = found.group_by(column).aggregate([("size", "count"), ("size", "sum")]).to_pylist()
    return {r[column]: {"objects": r["size_count"], "bytes": r["size_sum"]} for r in totals}


def _warnings(
    ctx: RunContext,
    connections: Connections,
    found: pa.Table,
    read: Sequence[Mapping[str, Any]],
    problems: Sequence[str],
) -> list[str]:
    """What a person must know of a restore that ended."""
    warnings = [*problems]
    lost = found.filter(pc.equal(found["outcome"], "not_kept"))
    if lost.num_rows:
        some = lost["address"].slice(0, _SHOWN).to_pylist()
        told = {d for d in pc.unique(lost["detail"]).to_pylist()[:_SHOWN] if d}
        why = f" ({'; '.join(sorted(told))})" if told else ""
        warnings.append(
            f"{counted(lost.num_rows, 'object is', 'objects are')} neither kept by "
            f"{connections.namespace_url} nor in a "
            f"backup{why}, and did not come back: {some}"
        )
    other = found.filter(pc.equal(found["outcome"], "already_there"))
    other = other.filter(pc.fill_null(pc.starts_with(other["detail"], ANOTHER), False))
    if other.num_rows:
        first = other.slice(0, 1).to_pylist()[0]
        warnings.append(
            f"{counted(other.num_rows, 'object')} did not come back, since something else is at "
            f"{'its key' if other.num_rows == 1 else 'their keys'}: "
            f"{first['address']!r}: {first['detail']}. It was left alone: somebody wrote it, or a "
            "copy went wrong. Look at it; if nothing needs it, move it away and restore again"
        )
    if unread := [one for one in read if one["after"] != Sample.READS]:
        warnings.append(f"{len(unread)} restored objects do not read through lakeFS: {unread}")
    if read_hold(connections.store()) is not None:
        warnings.append(
            f"{ctx.repository!r} is on hold: `{hold_command(ctx)}` says what is "
            "lost still, and how sweeps start again"
        )
    return warnings
