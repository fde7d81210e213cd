"""Stage 7, ``swept_set``: verify again, delete, and record one outcome for each marked object.

The sweep trusts no earlier check. It verifies again: lease and hold, chain, count and digest of the
mark, its summary in the namespace, and every invariant. A delta mark removes objects that came back
to life. A killed sweep is run again: outcomes in the ledger are final, and all other objects are
verified again.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import datetime
from functools import partial
from typing import Final

from lakegc_assets.engine.datasets import Part
from lakegc_assets.errors import LakegcError, RefusedError
from lakegc_assets.mark.committed_addresses import READ_UNTIL
from lakegc_assets.mark.earlier_marks import later_marks
from lakegc_assets.mark.installation import require_one_server
from lakegc_assets.mark.marked_objects import marked_in_order
from lakegc_assets.recovery.backups import folder_url
from lakegc_assets.recovery.old_trash import prune_trash
from lakegc_assets.recovery.workspace import Workspace
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import KeyDigest
from lakegc_assets.run.manifest import Manifest, require_no_later_version
from lakegc_assets.run.settings import recorded_retain
from lakegc_assets.run.undo import recovery_facts, whether_undone, with_trash
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.probes import (
    Condition,
    probe_conditions,
    probe_deadlines,
    probe_recovery,
)
from lakegc_assets.storage.trash import trash_folder
from lakegc_assets.storage.values import DataProtection, Recovery
from lakegc_assets.sweep.alarm import raise_alarm_if_needed
from lakegc_assets.sweep.backup_guard import spare_what_is_not_backed_up
from lakegc_assets.sweep.delta import DeltaMarks
from lakegc_assets.sweep.expiry import backup_warnings, expiry_warnings
from lakegc_assets.sweep.hold import object_lines, require_no_hold
from lakegc_assets.sweep.lease import Lease, leased
from lakegc_assets.sweep.lease_record import PROBES
from lakegc_assets.sweep.ledger import ASSET, PUT_BACK
from lakegc_assets.sweep.ledger_state import LedgerState, Total
from lakegc_assets.sweep.rate_limit import in_flight, settle
from lakegc_assets.sweep.rounds import Rounds, StoreCapabilities
from lakegc_assets.sweep.status import OWNER, Ending, unswept_mark
from lakegc_assets.sweep.totals import space_facts
from lakegc_assets.wording import counted

#: Number of named objects among those that were put back.
_NAMED: Final = 100
#: Facts of the mark with totals of its listing, by their names in this asset.
_LISTED: Final = {"objects": "listed", "bytes": "listed_bytes"}


def sweep(
    ctx: RunContext,
    recorded: Callable[[RunContext], AbstractContextManager[object]] = nullcontext,
) -> Manifest:
    """Delete the candidates of a published mark, and write the ``swept_set`` asset.

    ``recorded``: entered once the lease is held, to record the progress of this try for people.

    Raises:
        RefusedError: the mark is unknown, failed, not published or swept already; it has no
            finished backup although backups are set; a check fails; another sweep holds the lease
            of the repository, or has taken it; a hold stops all sweeps of it; or another lakeFS
            server collects the namespace.
        IntegrityError: the mark differs from its manifests; or, after the sweep, a needed object is
            gone and could not be put back: then a hold is written.
        StorageError: the store refused deletes; finished deletes are in the ledger.
    """
    ctx = ctx.connect()
    store = ctx.connections.store()
    require_one_server(ctx.client, ctx.repository, store)
    with leased(ctx, store, run=ctx.run) as lease:
        require_no_hold(ctx, store)
        with recorded(ctx):
            return _sweep(ctx, lease)


def _sweep(ctx: RunContext, lease: Lease) -> Manifest:
    started = ctx.clocks.now()
    attempt, chain = unswept_mark(ctx)
    manifests: dict[str, Manifest] = {}
    ctx, marked = _with_settings_of_marks(ctx, chain, manifests), chain["deletion_candidates"]
    # Every readable mark of the repository is in this cache by now.
    here = (one for one in manifests.values() if one.namespace == marked.namespace)
    require_no_later_version(here, f"{ctx.root.url}/{ctx.repository}")
    space = Workspace(ctx, attempt, f"{ASSET}/{lease.sweep}/")
    candidates = marked_in_order(ctx, attempt, marked, f"{space.folder}marked/")
    recorded = LedgerState(space, candidates)
    backup = spare_what_is_not_backed_up(recorded, chain, lease.sweep)
    began = ctx.connections.store().server_time()
    means, recovery = _capabilities(recorded, lease, began)
    deltas = DeltaMarks(ctx, chain, attempt, space.folder, manifests)
    rounds = Rounds(recorded, deltas, lease, means, backup)
    look = partial(raise_alarm_if_needed, deltas, recorded)
    ending = Ending(ctx, attempt, recorded.gone, look)
    if candidates.rows:
        await_commits(ctx, chain["committed_addresses"], began)
    with ending.told():
        number = delete_in_rounds(rounds, ending)
        recorded.require_whole()
        ending.look()
        # Again, with the outcomes of objects that were put back.
        recorded.require_whole()
        parts = recorded.write()
        facts: dict[str, object] = {
            **_facts_of(recorded, parts, means, recovery, began),
            "rounds": number,
            "backup": backup.url,
            "not_in_backup": backup.gone,
            # A missing figure must not keep a sweep from being recorded.
            "listed": {n: marked.facts[key] for n, key in _LISTED.items() if key in marked.facts},
            OWNER: dict(lease.owner),
        }
        # The outcomes are of the same objects, so the digest is that of the mark.
        digest = KeyDigest.parse(marked.digest)
        manifest = ctx.finish(ASSET, chain["gc_report"], started, {"data": parts}, facts, digest)
    _prune_trash(ctx, lease, means.trash)
    return manifest


def _with_settings_of_marks(
    ctx: RunContext, chain: Mapping[str, Manifest], manifests: dict[str, Manifest]
) -> RunContext:
    """Return a run in the mode of the mark that protects all that it and later marks protected.

    A later mark may have got its rules by an option that this sweep does not have.

    ``manifests``: the cache of ``latest_marks``.
    """
    later = [one.settings for one in later_marks(ctx, chain["active_commits"], manifests)]
    marks = [chain["deletion_candidates"].settings, *later]
    tags = ctx.settings.protect_tags or any(one.get("protect_tags") for one in marks)
    recorded = [*(one.settings for one in chain.values()), *later]
    retained = ctx.settings.retained | recorded_retain(recorded)
    settings = ctx.settings.changed(
        protect_tags=tags,
        retain=retained.to_json(),
        mode=chain["store_listing"].mode,
        ignored_repositories=_ignored(ctx, chain["committed_addresses"]),
    )
    return dataclasses.replace(ctx, settings=settings)


def _ignored(ctx: RunContext, committed: Manifest) -> list[str]:
    """Return the repositories that both the settings of the run and the mark ignore."""
    asked = ctx.settings.ignored_repositories
    found = [name for name in asked if name in committed.settings.get("ignored_repositories", ())]
    if read := sorted(set(asked) - set(found)):
        ctx.log.warning(
            "the references of %s are read, although ignored_repositories names them: mark %r has "
            "read them. To ignore them, mark again under a new id",
            ", ".join(read),
            ctx.run,
        )
    return found


def _capabilities(
    recorded: LedgerState, lease: Lease, began: datetime
) -> tuple[StoreCapabilities, Recovery]:
    """Probe the capabilities of the store, and the recovery options of deleted objects."""
    ctx, connections = recorded.ctx, recorded.space.connections
    if not recorded.marked.rows:
        # A sweep without candidates must not probe deletes.
        recovery = Recovery("nothing", None, "the mark names no objects, so nothing is deleted")
        means = StoreCapabilities("none", False, recovery, None, DataProtection.of(recovery))
        return means, recovery
    store, trash, days = connections.store(), None, ctx.settings.trash_lifetime
    if days:
        trash = trash_folder(lease.sweep, began, days)
    condition = _condition(ctx)
    deadlines = probe_deadlines(store, f"{PROBES}{lease.token}/", conditional=condition != "none")
    recovery = recovery_options(ctx, store, lease, trash)
    protection, warnings = _protection(ctx, store, recovery), expiry_warnings(store)
    if url := ctx.settings.backup_url:
        backup = connections.open(folder_url(url, ctx.repository, ctx.run))
        warnings += backup_warnings(backup)
    for warning in warnings:
        ctx.log.warning("%s", warning)
    return StoreCapabilities(condition, deadlines, recovery, trash, protection, warnings), recovery


def _facts_of(
    recorded: LedgerState,
    parts: Sequence[Part],
    means: StoreCapabilities,
    recovery: Recovery,
    began: datetime,
) -> dict[str, object]:
    """Return facts about the outcomes of a sweep, and about recovery."""
    swept = recorded.totals_in(parts)
    in_trash = recovery.kind == "trash"
    deleted = [(t.space, t.objects, t.bytes) for t in swept if t.outcome == "deleted"]
    return {
        "outcomes": _outcomes(swept),
        "conditional_deletes": means.condition,
        "delete_deadlines": means.deadlines,
        # Objects that an earlier try deleted can be restored until an earlier time.
        "recovery": recovery_facts(recovery, min([began, *(t.first for t in swept)])),
        "space": {**space_facts(deleted), "notice": means.protection.notice},
        # Objects that earlier tries deleted without trash; local stores only.
        "not_kept": _deleted(swept, kept=False) if in_trash else 0,
        # Objects deleted by earlier tries that the store may or may not keep: its settings may
        # have been different then. It did keep an object if it returned the version.
        "perhaps_kept": 0
        if in_trash
        else _deleted(recorded.totals_of_others(), kept=recovery.kind == "nothing"),
        "put_back": _put_back(recorded, parts, swept),
        "warnings": [*means.warnings],
    }


def await_commits(ctx: RunContext, read: Manifest, began: datetime) -> None:
    """Wait for the end of a commit that was in progress when the mark read staged objects.

    A commit seals the staged objects, runs the pre-commit hooks, and commits the sealed objects. If
    a client overwrites or deletes such an object meanwhile, no list of lakeFS names it until it is
    at a HEAD, where the delta mark finds it.

    ``read``: the last stage of the mark that reads staged objects, here or in other repositories.
    ``began``: the store's time when the sweep began.
    """
    if ctx.settings.allow_unsafe_min_age or read.settings["allow_unsafe_min_age"]:
        return
    # The store's clock is used, since stages and sweep may run on machines with different clocks.
    until = datetime.fromisoformat(str(read.facts[READ_UNTIL]))
    ended = min(until, began) + ctx.settings.longest_commit
    seconds = (ended - began).total_seconds()
    if seconds > 0:
        ctx.log.info(
            "waiting until %s: until then, objects of a commit in progress may be in no list "
            "(longest_commit_seconds)",
            f"{ended:%H:%M:%S} UTC",
        )
        ctx.clocks.sleep(seconds)


def delete_in_rounds(rounds: Rounds, ending: Ending) -> int:
    """Delete in rounds until no task deletes any more; return the number of rounds."""
    try:
        return _delete_and_settle(rounds, ending)
    except BaseException as ended:
        if not isinstance(ended, Exception):
            _end_interrupted_round(rounds)
        raise


def _delete_and_settle(rounds: Rounds, ending: Ending) -> int:
    lease = rounds.lease
    try:
        number = rounds.run()
    except Exception:
        # After any error, also in a task, the deletes are checked before the error is reported.
        # Failed deletes are checked, too: a store may carry out a request that it did not answer.
        # Other tasks of the round must not send a batch after this check.
        try:
            lease.begin_round(lease.round + 1)
        except LakegcError:
            # Tasks may still send batches: the next owner of the lease waits for them.
            lease.abandon()
        settle(rounds.recorded.space.attempt.store(), lease.sweep, rounds.ctx.clocks)
        if _may_have_deleted(rounds):
            ending.look_if_possible()
        raise
    # From here on no task deletes, and a sweep that lost the lease writes nothing.
    lease.begin_round(number + 1)
    settle(rounds.recorded.space.attempt.store(), lease.sweep, rounds.ctx.clocks)
    return number


def _end_interrupted_round(rounds: Rounds) -> None:
    """End the round of an interrupted sweep; keep the lease if a task may still be deleting.

    Then the lease is not given back: its next owner waits until these deletes have ended.
    """
    lease, under_way = rounds.lease, True
    try:
        with suppress(LakegcError):
            lease.begin_round(lease.round + 1)
            under_way = in_flight(rounds.recorded.space.attempt.store(), lease.sweep)
    finally:
        # Also after a second interrupt.
        if under_way:
            lease.abandon()


def _may_have_deleted(rounds: Rounds) -> bool:
    """Return True if objects may be gone: recorded as deleted, or perhaps in flight."""
    try:
        if in_flight(rounds.recorded.space.attempt.store(), rounds.lease.sweep):
            return True
        totals = rounds.recorded.totals()
    except Exception:  # noqa: BLE001 - the answer is not known
        return True
    return any(total.outcome in {"deleted", "failed"} for total in totals)


def _deleted(totals: Sequence[Total], *, kept: bool) -> int:
    return sum(t.objects for t in totals if t.outcome == "deleted" and t.kept is kept)


def _put_back(
    recorded: LedgerState, parts: Sequence[Part], swept: Sequence[Total]
) -> list[dict[str, str]]:
    """Return the first objects that were put back (address, reason), and log them."""
    count = sum(total.objects for total in swept if total.outcome == PUT_BACK)
    if not count:
        return []
    ctx, named = recorded.ctx, recorded.put_back(parts, _NAMED)
    lines = object_lines([{**row, "why": row["detail"]} for row in named], count)
    ctx.log.warning(
        "%s back to life while %r was swept, and put back:\n%s",
        counted(count, "object came", "objects came"),
        ctx.run,
        "\n".join(lines),
    )
    return named


def recovery_options(
    ctx: RunContext, store: ObjectStore, lease: Lease, trash: str | None
) -> Recovery:
    """Probe the recovery options for deleted objects."""
    if trash is None and (settings := store.recovery()).kind == "trash":
        # A probe would only show that nothing comes back.
        found = with_trash(settings, ctx.settings.trash_lifetime)
    else:
        found = probe_recovery(store, f"{PROBES}{lease.token}/", trash)
        found = with_trash(found, ctx.settings.trash_lifetime)
    backup_url = ctx.settings.backup_url
    doubtful = found.kind == "unknown" or (found.kind == "nothing" and not backup_url)
    ctx.log.log(logging.WARNING if doubtful else logging.INFO, whether_undone(found, backup_url))
    return found


def _protection(ctx: RunContext, store: ObjectStore, recovery: Recovery) -> DataProtection:
    """Return the store's data protection: kept versions, and objects that it may lock."""
    found = store.data_protection()
    if recovery.kind == "trash":
        # The first sweep after that time removes the trash.
        found = found._replace(days=recovery.days, at_least=True)
    elif not ctx.settings.trash_lifetime and store.recovery().kind == "trash":
        # The notice of the store is about its trash, which these deletes do not use.
        found = found._replace(notice=recovery.notice)
    ctx.log.info("the space of deleted objects: %s", found.notice)
    return found


def _prune_trash(ctx: RunContext, lease: Lease, own: str | None) -> None:
    """Remove expired trash of earlier sweeps; errors are logged, and the next sweep tries again.

    ``own``: the folder of this sweep in the trash; None without trash.
    """
    try:
        # A sweep that lost its lease could remove objects that a restore needs.
        pruned = prune_trash(ctx, ctx.connections.namespace_url, lease.require_held, own)
    except Exception as error:  # noqa: BLE001 - whatever it is, the sweep is done
        ctx.log.warning("old trash stays until the next sweep: %s", error)
        return
    if pruned.kept:
        ctx.log.warning("%s", pruned.kept)
    if pruned.removed:
        ctx.log.info(
            "%s removed from the trash, older than trash_days",
            counted(pruned.removed, "object was", "objects were"),
        )


def _outcomes(swept: Sequence[Total]) -> dict[str, dict[str, int]]:
    totals: dict[str, dict[str, int]] = {}
    for one in swept:
        total = totals.setdefault(one.outcome, {"objects": 0, "bytes": 0})
        total["objects"] += one.objects
        total["bytes"] += one.bytes
    return totals


def _condition(ctx: RunContext) -> Condition:
    """Return the conditional deletes that the store honours: bulk, single, or none.

    Raises:
        RefusedError: conditional deletes are required, and the store honours none.
    """
    found = probe_conditions(ctx.connections.store(), PROBES)
    ctx.log.info("conditional deletes of %s: %s", ctx.connections.namespace_url, found)
    if found == "none" and ctx.settings.require_conditional_deletes:
        raise RefusedError(
            f"{ctx.connections.namespace_url} ignores the condition of conditional deletes: sweep "
            "without require_conditional_deletes, or use a store that honours them",
        )
    if found == "single" and not ctx.settings.require_conditional_deletes:
        return "none"
    return found
