"""Stage 7, ``swept_set``: verify again, delete, and record one outcome for each marked object.

The gate trusts no earlier check: lease and hold, chain, count and digest of the mark, its summary
in the namespace and every invariant are looked at again, and a delta mark takes out what came back
to life. A killed sweep is run again: what the ledger has is done, the rest passes the gate once
more.
"""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.errors import IntegrityError, LakegcError, RefusedError
from lakegc_assets.run.artifacts import AttemptArtifacts, Manifest
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import key_digest
from lakegc_assets.storage.deadlines import probe_deadlines
from lakegc_assets.sweep import ledger
from lakegc_assets.sweep.alarm import raise_alarm_if_needed
from lakegc_assets.sweep.conditions import Condition, probe_conditions
from lakegc_assets.sweep.delta import Candidates, Deltas
from lakegc_assets.sweep.gate import published_mark
from lakegc_assets.sweep.hold import require_no_hold
from lakegc_assets.sweep.lease import PROBES, Lease, owner_of, repository_lease
from lakegc_assets.sweep.ledger import ASSET, SWEPT
from lakegc_assets.sweep.rounds import Means, Rounds
from lakegc_assets.sweep.settling import settle

_COLUMNS: Final = ("address", "size", "last_modified", "etag")


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
    marked = chain["deletion_candidates"]
    candidates = _candidates(attempt, marked)
    if marked.settings["protect_tags"]:
        # What the mark protected stays protected, whoever sweeps it.
        ctx = dataclasses.replace(
            ctx, settings=dataclasses.replace(ctx.settings, protect_tags=True)
        )
    store = connections.store()
    condition = _condition(ctx, connections)
    deadlines = probe_deadlines(store, f"{PROBES}{lease.token}/", conditional=condition != "none")
    means = Means(condition, deadlines)
    notice = store.retention_notice()
    if notice is not None:
        ctx.log.warning("%s", notice)
    deltas = Deltas(ctx, chain, attempt, f"{ASSET}/{lease.sweep}/")
    rounds = Rounds(ctx, connections, attempt, deltas, candidates, lease, means)
    try:
        number = rounds.run()
    except Exception:
        # Whatever went wrong, in a task too: what was deleted is looked at before it is told. What
        # failed may be gone as well: a store that did not answer may have done what it was asked.
        # Other tasks of the round must send no batch behind this look.
        with suppress(LakegcError):
            lease.begin_round(lease.round + 1)
        settle(attempt.store(), lease.sweep)
        tried = pc.is_in(ledger.read(attempt)["outcome"], pa.array(["deleted", "failed"]))
        if pc.any(tried).as_py():
            raise_alarm_if_needed(ctx, connections, deltas, candidates)
        raise

    # From here on no task deletes, and who has lost the lease writes nothing.
    lease.begin_round(number + 1)
    settle(attempt.store(), lease.sweep)
    swept = ledger.read(attempt)
    _require_whole(ctx, swept, candidates)
    writer = attempt.writer(ASSET, SWEPT)
    writer.add(swept.sort_by("address"))
    parts = {"data": writer.finish()}
    raise_alarm_if_needed(ctx, connections, deltas, candidates)
    facts: dict[str, object] = {
        "outcomes": _totals(swept),
        "rounds": number,
        "conditional_deletes": means.condition,
        "delete_deadlines": means.deadlines,
        "retention": notice,
    }
    digest = key_digest(swept["address"])
    return ctx.finish(ASSET, chain["gc_report"], started, parts, facts, digest)


def _candidates(attempt: AttemptArtifacts, marked: Manifest) -> Candidates:
    """What the mark names, as its manifest says.

    Raises:
        IntegrityError: it is something else.
    """
    rows = attempt.read(marked.asset, columns=list(_COLUMNS))
    if str(key_digest(rows["address"])) != marked.digest or rows.num_rows != marked.rows:
        raise IntegrityError(
            f"{attempt.data_url(marked.asset)} holds {key_digest(rows['address'])}, but its "
            f"manifest says {marked.digest}: something changed it. Mark again under a new id",
        )
    return Candidates(rows, marked.parts["data"])


def _require_whole(ctx: RunContext, swept: pa.Table, candidates: Candidates) -> None:
    """Compare the outcomes with what was marked.

    Raises:
        IntegrityError: they are not of the same objects.
    """
    marked = candidates.rows["address"].combine_chunks()
    known = pc.sum(pc.is_in(swept["address"], marked)).as_py() or 0
    if known != swept.num_rows or swept.num_rows != len(marked):
        raise IntegrityError(
            f"the ledger of mark {ctx.run!r} has {swept.num_rows} outcomes, "
            f"{swept.num_rows - known} of them for objects that were not marked, and the mark has "
            f"{len(marked)}: the ledger is damaged. Nothing more was deleted",
        )


def _totals(swept: pa.Table) -> dict[str, dict[str, int]]:
    totals = {}
    for outcome in pc.unique(swept["outcome"]).to_pylist():
        sizes = swept.filter(pc.equal(swept["outcome"], outcome))["size"]
        totals[outcome] = {"objects": len(sizes), "bytes": pc.sum(sizes).as_py()}
    return totals


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
