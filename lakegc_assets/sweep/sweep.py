"""Stage 7, ``swept_set``: verify again, delete, and record one outcome for each marked object.

The gate trusts no earlier check: lease and hold, chain, count and digest of the mark, its summary
in the namespace and every invariant are looked at again, and a delta mark takes out what came back
to life. A killed sweep is run again: what the ledger has is done, the rest passes the gate once
more.
"""

from __future__ import annotations

import dataclasses

from lakegc_assets.errors import IntegrityError, RefusedError
from lakegc_assets.run.artifacts import Manifest
from lakegc_assets.run.context import Connections, RunContext
from lakegc_assets.sweep import ledger
from lakegc_assets.sweep.alarm import raise_alarm_if_needed
from lakegc_assets.sweep.conditions import Condition, probe_conditions
from lakegc_assets.sweep.gate import published_mark
from lakegc_assets.sweep.hold import require_no_hold
from lakegc_assets.sweep.lease import Lease, owner_of, repository_lease
from lakegc_assets.sweep.ledger import ASSET
from lakegc_assets.sweep.rounds import Rounds


def sweep(ctx: RunContext) -> Manifest:
    """Delete what a published mark names, and write the ``swept_set`` asset.

    Raises:
        RefusedError: the mark is unknown, failed, not published or swept already; a check fails;
            another sweep holds the lease of the repository, or has taken it; or a hold stops all
            sweeps of it.
        IntegrityError: the mark is not what its manifests say; or, after the sweep, something is
            needed that is gone: then a hold is written.
        StorageError: the store refused deletes; what was done is in the ledger.
    """
    _, connections = ctx.connect()
    store = connections.store()
    owner = owner_of(repository=ctx.repository, run=ctx.run, started_by=ctx.started_by)
    with repository_lease(
        store,
        owner,
        duration=ctx.settings.lease_duration,
        wait=ctx.settings.lease_wait,
        log=ctx.log,
    ) as lease:
        require_no_hold(store)
        return _sweep(ctx, connections, lease)


def _sweep(ctx: RunContext, connections: Connections, lease: Lease) -> Manifest:
    started = ctx.clocks.now()
    attempt, chain = published_mark(ctx, connections)
    candidates = attempt.read_verified(ctx.spark, chain["deletion_candidates"])
    if chain["deletion_candidates"].settings["protect_tags"]:
        # What the mark protected stays protected, whoever sweeps it.
        ctx = dataclasses.replace(
            ctx, settings=dataclasses.replace(ctx.settings, protect_tags=True)
        )
    condition = _condition(ctx, connections)
    notice = connections.store().retention_notice()
    if notice is not None:
        ctx.log.warning("%s", notice)
    rounds = Rounds(ctx, connections, attempt, chain, candidates, lease, condition)
    try:
        number = rounds.run()
    except Exception:
        # Whatever went wrong, in a task too: what was deleted is looked at before it is told. What
        # failed may be gone as well: a store that did not answer may have done what it was asked.
        tried = "outcome in ('deleted', 'failed')"
        if not ledger.read(ctx.spark, attempt).where(tried).isEmpty():
            raise_alarm_if_needed(ctx, connections, attempt, chain, candidates, lease.sweep)
        raise

    # From here on no task deletes, and who has lost the lease writes nothing.
    lease.begin_round(number + 1)
    swept = ledger.read(ctx.spark, attempt)
    attempt.write(swept, ASSET)
    swept = attempt.read(ctx.spark, ASSET)
    unknown = swept.join(candidates, "address", "left_anti").count()
    if unknown or swept.count() != chain["deletion_candidates"].rows:
        raise IntegrityError(
            f"the ledger of mark {ctx.run!r} has {swept.count()} outcomes, {unknown} of them for "
            f"objects that were not marked, and the mark has {chain['deletion_candidates'].rows}: "
            "the ledger is damaged. Nothing more was deleted",
        )
    raise_alarm_if_needed(ctx, connections, attempt, chain, candidates, lease.sweep)
    counts = swept.groupBy("outcome").agg({"*": "count", "size": "sum"}).collect()
    facts: dict[str, object] = {
        "outcomes": {
            r["outcome"]: {"objects": r["count(1)"], "bytes": int(r["sum(size)"] or 0)}
            for r in counts
        },
        "rounds": number,
        "conditional_deletes": condition,
        "retention": notice,
    }
    return ctx.frame_manifest(ASSET, chain["gc_report"], started, facts)


def _condition(ctx: RunContext, connections: Connections) -> Condition:
    """Which deletes are conditional: bulk ones if the store honours that, single ones on demand.

    Raises:
        RefusedError: a condition is demanded, and the store honours none.
    """
    found = probe_conditions(connections.store())
    ctx.log.info("conditional deletes of %s: %s", connections.namespace_url, found)
    if found == "none" and ctx.settings.require_conditional_deletes:
        raise RefusedError(
            f"{connections.namespace_url} ignores the condition of conditional deletes: sweep "
            "without require_conditional_deletes, or keep the objects elsewhere",
        )
    if found == "single" and not ctx.settings.require_conditional_deletes:
        return "none"
    return found
