"""Reverts a sweep, in whole or in part: the asset ``restored_set``.

A restore holds the lease of the repository. It also runs during a hold, which asks for restores.
All chosen objects are pinned before the first one comes back. The records of a sweep only make it
faster: a restore asks the store for every chosen object, and leaves existing objects unchanged. So
a restore that was killed at any point is run again, and continues.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

import pyarrow as pa

from lakegc_assets.engine.datasets import write_part
from lakegc_assets.engine.session import Dataset
from lakegc_assets.errors import IntegrityError, RefusedError
from lakegc_assets.mark.marked_objects import Stretch, read_stretches, stretches
from lakegc_assets.recovery import relations
from lakegc_assets.recovery import restore_record as record
from lakegc_assets.recovery.portions import TASK_S, costs_of, cut_portions
from lakegc_assets.recovery.restore.sample import Sample, choose_sample, read_sample
from lakegc_assets.recovery.restore.selection import Choice, LostObjects, find_objects
from lakegc_assets.recovery.restore.task import (
    COST,
    Orders,
    any_absent,
    restore_portion,
)
from lakegc_assets.recovery.restore_record import RESTORED, RestoreRequest, folder
from lakegc_assets.recovery.undeletion import ANOTHER
from lakegc_assets.recovery.workspace import LACKING, Workspace
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.command_line import command_line
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.manifest import Manifest
from lakegc_assets.run.pins import Pin, write_pin
from lakegc_assets.storage.errors import StorageError
from lakegc_assets.storage.values import ARCHIVED
from lakegc_assets.sweep.expiry import expiry_warnings
from lakegc_assets.sweep.hold import hold_command, read_hold
from lakegc_assets.sweep.lease import Lease, leased
from lakegc_assets.sweep.lost_objects import LOST
from lakegc_assets.wording import counted

#: Seconds of one core to look up an object.
_LOOK_S: Final = 1e-5
#: Tasks that run in this process in parallel.
_THREADS: Final = 4
#: Longest time since its begin after which a restore is continued.
PATIENCE: Final = timedelta(days=1)
_NONE: Final = timedelta(-1)
_SHOWN: Final = 3
#: Objects that one task looks up, and that one pin names.
OBJECTS_PER_TASK: Final = 100_000
OBJECTS_PER_PIN: Final = 1_000_000
_TOTALS: Final = pa.schema(
    [
        ("outcome", pa.string()),
        ("source", pa.string()),
        ("noted", pa.bool_()),
        ("objects", pa.int64()),
        ("bytes", pa.int64()),
    ]
)


def restore(ctx: RunContext, choice: Choice) -> Manifest:
    """Restore the missing objects of a mark, and write the ``restored_set`` asset.

    Raises:
        RefusedError: the mark is unknown or was never published, it names none of the chosen
            objects, the repository is at another namespace now, or another process has the lease.
        IntegrityError: the mark differs from its manifests.
        StorageError: some objects could not be restored; all others are in the ledger, and pinned.
    """
    ctx = ctx.connect()
    # Refuse before waiting for the lease.
    published(ctx)
    with leased(ctx, ctx.connections.store(), doing="restore", run=ctx.run) as lease:
        return _restore(ctx, choice, lease)


def published(ctx: RunContext) -> tuple[AttemptArtifacts, Mapping[str, Manifest]]:
    """Return the published mark of a run, for the namespace of the repository now.

    Its summary in the namespace is not needed: whoever removed it, the objects can come back.

    Raises:
        RefusedError: it is unknown, did not finish, or is of another namespace.
        IntegrityError: it differs from its manifests.
    """
    attempt = ctx.root.attempt(ctx.repository, ctx.run)
    if not attempt.has("gc_report"):
        raise RefusedError(
            f"mark {ctx.run!r} of {ctx.repository!r} did not finish, so nothing of it was deleted, "
            f"and there is nothing to restore. `{command_line('repositories')}` lists the runs"
        )
    namespace = attempt.recorded("gc_report").namespace
    if namespace != ctx.connections.namespace_url:
        raise RefusedError(
            f"mark {ctx.run!r} is of {namespace}, and {ctx.repository!r} is at "
            f"{ctx.connections.namespace_url} now: it was made anew, and nothing in it needs these "
            "objects. Nothing was restored. If you want them, copy them from the backup of the run "
            "with other tools"
        )
    return attempt, attempt.chain("gc_report", namespace)


def _restore(ctx: RunContext, choice: Choice, lease: Lease) -> Manifest:
    started = ctx.clocks.now()
    attempt, chain = published(ctx)
    # Credentials may have been renewed during the wait for the lease.
    ctx = ctx.at(ctx.lakefs.connect(), ctx.connections)
    store = ctx.connections.store()
    space = Workspace(ctx, attempt, f"restore/{lease.sweep}/")
    found = find_objects(space, chain, choice)
    for problem in found.problems:
        ctx.log.warning("%s", problem)

    now, lasting = store.server_time(), ctx.settings.pin_lifetime
    begun = RestoreRequest(choice.to_json(), str(found.digest), now)
    name = lease.sweep[:8]
    restore_id = record.begin(attempt, begun, name, min(PATIENCE, lasting / 2))
    if _undone(space, _settled(space, _outcomes(space, restore_id))):
        restore_id = record.begin(attempt, begun, name, _NONE)
    sample = choose_sample(space, chain["deletion_candidates"], found.chosen)
    # A clock that is behind must not end the pins early.
    latest = max(ctx.clocks.readings(ctx.client, store))
    until = pin_chosen(space, restore_id, found.chosen, latest + lasting)
    lease.require()
    early = _bring_back(space, restore_id, found, lease)
    lease.require()

    outcomes = _outcomes(space, restore_id, f"{folder(restore_id)}/data/")
    total = require_all(space, found.chosen, outcomes, early)
    read = read_sample(space, sample, outcomes)
    facts: dict[str, object] = {
        "restore": restore_id,
        "choice": choice.to_json(),
        "outcomes": added(total, "outcome"),
        "sources": added([one for one in total if one["outcome"] == "restored"], "source"),
        "pinned_until": until.isoformat() if until else None,
        "sample": read,
        "warnings": _warnings(space, total, outcomes, read, found.problems),
    }
    for warning in facts["warnings"]:  # type: ignore[attr-defined] # they are texts
        ctx.log.warning("%s", warning)
    parts = outcomes.parts or [
        write_part(attempt.store(), f"{folder(restore_id)}/data/", RESTORED.empty_table())
    ]
    previous = chain["gc_report"]
    return ctx.finish(folder(restore_id), previous, started, {"data": parts}, facts, found.digest)


def _outcomes(space: Workspace, restore_id: str, to: str | None = None) -> Dataset:
    """Return one outcome for each recorded object (``RESTORED``), ordered by address.

    ``to``: folder for the files, below the attempt; None for a folder of this try.
    """
    url = space.attempt.url
    # A damaged file counts as absent: its objects are tried again.
    recorded = space.gather("ledger", url, record.ledger(restore_id), RESTORED)
    if not recorded.rows:
        return recorded
    to = to or f"{space.folder}outcomes/"
    with space.frames() as frames:
        found = relations.restored(frames.read(recorded))
        parts = frames.write(found, url, to, RESTORED, "find what is restored")
        return space.dataset(parts, RESTORED)


def _settled(space: Workspace, outcomes: Dataset) -> Dataset:
    """Return the final outcomes of an earlier try of this restore."""
    if not outcomes.rows:
        return outcomes
    return space.derive("settled", RESTORED, "find what is done", relations.settled, outcomes)


def _undone(space: Workspace, settled: Dataset) -> bool:
    """Return True if an object that an earlier try restored is missing again."""
    pieces = stretches(settled.parts, OBJECTS_PER_TASK)
    task = partial(any_absent, space.connections, space.attempt.url)
    what, seconds = "look whether it is there still", settled.rows * _LOOK_S
    return any(space.ctx.tasks.run_or_call(what, task, pieces, seconds, _THREADS))


def pin_chosen(
    space: Workspace, restore_id: str, chosen: Dataset, until: datetime
) -> datetime | None:
    """Pin the chosen objects, many of them by several pins; None if pins have no lifetime."""
    ctx = space.ctx
    if not ctx.settings.pin_lifetime:
        return None
    inputs = [
        (f"{restore_id}-{number:05d}" if number else restore_id, piece)
        for number, piece in enumerate(stretches(chosen.parts, OBJECTS_PER_PIN))
    ]
    pin = Pin(restore_id, until, ctx.run, f"restored from run {ctx.run!r}", 0)
    task = partial(_pin_some, space.connections, space.attempt.url, pin)
    ctx.tasks.run_or_call("pin objects", task, inputs, chosen.rows * _LOOK_S, _THREADS)
    return until


def _pin_some(
    connections: Connections, url: str, pin: Pin, some: tuple[str, Sequence[Stretch]]
) -> None:
    name, piece = some
    rows = read_stretches(connections.open(url), piece, ["address"])
    write_pin(connections.store(), replace(pin, id=name), rows["address"])


def _bring_back(
    space: Workspace, restore_id: str, found: LostObjects, lease: Lease
) -> Sequence[str]:
    """Restore the objects that no earlier try did; return the reasons why tasks ended early."""
    ctx, done = space.ctx, _settled(space, _outcomes(space, restore_id))
    left, what = found.objects, "find what is left to restore"
    if done.rows:
        left = space.derive("left", LOST, what, relations.without, left, done)
    costs = costs_of(space, left, COST)
    total = sum(costs)
    count = min(total / TASK_S, ctx.settings.sweep_num_partitions)
    portions = cut_portions(space, left, COST, costs, count)
    orders = Orders(
        space.connections,
        space.attempt.url,
        record.ledger(restore_id),
        None if found.backup is None else found.backup.store.url,
        lease.token,
    )
    task = partial(restore_portion, orders)
    reasons = ctx.tasks.run("restore objects", task, portions, total, _THREADS)
    return sorted({reason for reason in reasons if reason})


def require_all(
    space: Workspace, chosen: Dataset, outcomes: Dataset, early: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the totals; refuse to end if an object failed, or has no outcome.

    Raises:
        StorageError: an object failed or has no outcome; with advice.
        IntegrityError: the ledger has objects that were not chosen.
    """
    with space.frames() as frames:
        asked = frames.read(chosen.select("address"))
        others = relations.lacking(frames.read(outcomes), asked)
        (strangers,) = frames.collect_rows(others, LACKING, "compare with what was asked")
    total = totals(space, outcomes)
    if strangers["objects"]:
        raise IntegrityError(
            f"the ledger of the restore has {counted(strangers['objects'], 'object')} that "
            f"this restore did not choose, for example {strangers['first']!r}: it is damaged. No "
            "existing object was changed. Restore a smaller or larger selection: that begins a "
            "new restore"
        )
    failed, untried = _count(total, "failed"), chosen.rows - _count(total)
    if not failed and not untried:
        return total
    shown = examples(space, outcomes, "failed")
    texts = [f"{row['address']}: {row['error_code']}: {row['detail']}" for row in shown]
    raise StorageError(
        f"{counted(failed, 'object')} could not be restored and {untried} were not tried: "
        f"{'; '.join(texts or early)}. All others are done and recorded, and all are pinned. "
        f"Correct the cause, then restore {space.ctx.run!r} again with the same selection: it "
        "continues"
    )


def _count(total: Sequence[Mapping[str, Any]], outcome: str | None = None) -> int:
    """Count the objects of an outcome; of all outcomes if it is None."""
    return sum(one["objects"] for one in total if outcome in {None, one["outcome"]})


def totals(space: Workspace, outcomes: Dataset) -> list[dict[str, Any]]:
    """Add up objects and bytes of outcomes (``RESTORED``, one for each object), as ``_TOTALS``."""
    with space.frames() as frames:
        summed = relations.totals(frames.read(outcomes), ANOTHER, ARCHIVED)
        return frames.collect_rows(summed, _TOTALS, "add it up")


def added(total: Sequence[Mapping[str, Any]], column: str) -> dict[str, dict[str, int]]:
    """Add up objects and bytes by the values of a column."""
    added: dict[str, dict[str, int]] = {}
    for one in total:
        known = added.setdefault(one[column], {"objects": 0, "bytes": 0})
        for name in known:
            known[name] += one[name]
    return added


def _warnings(
    space: Workspace,
    total: Sequence[Mapping[str, Any]],
    outcomes: Dataset,
    read: Sequence[Mapping[str, Any]],
    problems: Sequence[str],
) -> list[str]:
    """Return the warnings of a finished restore."""
    warnings = [*problems, *expiry_warnings(space.connections.store())]
    if lost := _count(total, "not_kept"):
        some = examples(space, outcomes, "not_kept")
        details = sorted({row["detail"] for row in some if row["detail"]})
        why = f" ({'; '.join(details)})" if details else ""
        warnings.append(
            f"{counted(lost, 'object is', 'objects are')} neither kept by "
            f"{space.connections.namespace_url} nor in a "
            f"backup{why}, and did not come back: {[row['address'] for row in some]}"
        )
    if archived := _count([one for one in total if one["noted"]], "restored"):
        first = examples(space, outcomes, "restored", ARCHIVED)[0]
        warnings.append(
            f"{counted(archived, 'object')} came back and cannot be read yet, for example "
            f"{first['address']!r}: {first['detail']}"
        )
    if other := _count([one for one in total if one["noted"]], "already_there"):
        first = examples(space, outcomes, "already_there", ANOTHER)[0]
        warnings.append(
            f"{counted(other, 'object')} did not come back, since something else is at "
            f"{'its key' if other == 1 else 'their keys'}: "
            f"{first['address']!r}: {first['detail']}. It was left alone: somebody wrote it, or a "
            "copy went wrong. Look at it; if nothing needs it, move it away and restore again"
        )
    if unread := [one for one in read if one["after"] != Sample.READS]:
        objects = counted(len(unread), "restored object")
        warnings.append(f"{objects} cannot be read through lakeFS, for the reasons here: {unread}")
    if read_hold(space.connections.store()) is not None:
        warnings.append(
            f"{space.ctx.repository!r} is on hold: `{hold_command(space.ctx)}` shows what is "
            "still lost, and how sweeps start again"
        )
    return warnings


def examples(
    space: Workspace, outcomes: Dataset, outcome: str, begin: str = "", most: int = _SHOWN
) -> list[dict[str, Any]]:
    """Return the first rows (``RESTORED``) of one outcome with a given prefix of the detail."""
    with space.frames() as frames:
        some = relations.examples(frames.read(outcomes), outcome, begin, most)
        return frames.collect_rows(some, RESTORED, "name some")
