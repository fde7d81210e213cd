"""The assets in the order of the graph, each with its contract in the docstring."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from typing import Final

import dagster as dg
from pydantic import Field

from lakegc_assets.attribution.attribution import CELLS, attribute
from lakegc_assets.attribution.usage import usage
from lakegc_assets.defs.automation_state import schedules_on
from lakegc_assets.defs.estate import ROWS, of_overview, overview
from lakegc_assets.defs.execution import Execution
from lakegc_assets.defs.failures import interrupts_shown
from lakegc_assets.defs.metadata import (
    CURVE,
    links,
    materialization,
    of_attribution,
    of_backup,
    of_forecast,
    of_leftovers,
    of_manifest,
    of_report,
    of_restore,
    of_rules,
    of_sweep,
    pages,
    shown_tables,
)
from lakegc_assets.defs.names import (
    REPOSITORY,
    WAITS_TAG,
    first_tags,
    is_unattended,
    location_of,
    tag_value,
)
from lakegc_assets.defs.stages import stage
from lakegc_assets.errors import LakegcError, RefusedError
from lakegc_assets.estate.tables import marks_over_time
from lakegc_assets.forecast.forecast import forecast
from lakegc_assets.lakefs.client import utc_now
from lakegc_assets.leftovers.report import find_leftovers
from lakegc_assets.leftovers.server import Server
from lakegc_assets.mark.candidates import find_candidates
from lakegc_assets.mark.commits import ACTIVE, find_active_commits
from lakegc_assets.mark.committed import read_committed_addresses
from lakegc_assets.mark.listing import list_store
from lakegc_assets.mark.reasons import CANDIDATES
from lakegc_assets.mark.report import BREAKDOWN, report
from lakegc_assets.mark.uncommitted import snapshot_uncommitted
from lakegc_assets.recovery.backups import OUTCOMES
from lakegc_assets.recovery.restore.restored_set import restore
from lakegc_assets.recovery.restore.selection import Choice
from lakegc_assets.recovery.restore_record import RESTORED
from lakegc_assets.run.artifacts import LISTING, UNCOMMITTED
from lakegc_assets.run.command_line import command_line
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import HASHES
from lakegc_assets.sweep.approval import approved, recorded_sweep, waits_for, when
from lakegc_assets.sweep.lease import back_up
from lakegc_assets.sweep.ledger import SWEPT
from lakegc_assets.sweep.status import recorded_try
from lakegc_assets.sweep.sweep import sweep


@stage(columns=LISTING)
def store_listing(execution: Execution) -> dg.MaterializeResult[None]:
    """Objects of the store. The first asset of a run: it fixes the one cutoff.

    Reads: the storage namespace of the repository, everything outside ``_lakefs/``; and what the
    last run listed of slices that nobody writes to any more. In the mode ``committed``: commits and
    ranges, and of the namespace only what ranges name that no active commit holds.
    Writes: address (relative to the namespace), size (bytes), last_modified (UTC), etag.
    Guarantees: starts a new attempt, unless the mark is frozen; the cutoff is recorded here and
    never computed again; whatever is written to the store later is not in it, so it cannot be a
    candidate.
    """
    return execution.made(list_store, "mode", "because", "listed", "carried", "bytes", "start")


@stage(columns=UNCOMMITTED, after=("store_listing",))
def uncommitted_snapshot(execution: Execution) -> dg.MaterializeResult[None]:
    """Addresses that are staged on any branch.

    Reads: lakeFS's ``prepare_uncommited``, all pages, and the parquet files that it writes.
    Writes: address (relative to the namespace), created (UTC).
    Guarantees: comes after the listing and before the commits, so an object that is committed in
    between is seen in at least one of them; a page without a location is believed only if nothing
    of the namespace is staged on what it covered; otherwise the run stops.
    """
    return execution.made(snapshot_uncommitted, "pages", "pages_without_location", "tries")


@stage(columns=ACTIVE, after=("uncommitted_snapshot",))
def active_commits(execution: Execution) -> dg.MaterializeResult[None]:
    """Commits whose objects must stay: lakeFS's list united with our own computation.

    Reads: retention rules, branches (hidden ones too), tags, logs, and lakeFS's
    ``prepare_commits``.
    Writes: commit_id, metarange_id, and why: branch, kind, counted_from, source. Beside it: expired
    commits, HEADs and tags.
    Guarantees: holds every HEAD read before and after, all that lakeFS lists, all that our own walk
    finds, and what the previous mark knew and its rule still covers. Without rules every commit is
    active.
    """
    with execution.run_context() as ctx:
        manifest = find_active_commits(ctx)
    found = ("only_server", "only_own", "only_previous_mark")
    facts = of_manifest(manifest, ("active", "expired", "retain", "branches", *found))
    rules = of_rules(manifest.facts["rules"])
    return materialization(ctx.root, manifest, {"rules": rules, **facts})


@stage(columns=HASHES, reads=("active_commits",))
def committed_addresses(execution: Execution) -> dg.MaterializeResult[None]:
    """Addresses that active commits hold, read range by range.

    Reads: metaranges and ranges below ``_lakefs/``, through the cache of decoded tables.
    Writes: hash (64 bits) of each address relative to the namespace, in every spelling that is
    meant. Beside it: the ranges read, what other repositories of the server name of this one's
    objects, and the ends of full addresses that nobody can resolve. Without retention rules, and in
    the mode ``uncommitted``, every range counts, whoever has it.
    Guarantees: a table that is missing, damaged, or not what its id says stops the run.
    """
    tables = ("ranges", "metaranges")
    facts = [f"{one}{source}" for one in tables for source in ("", "_from_cache", "_decoded")]
    return execution.made(read_committed_addresses, *facts, "entries")


@stage(
    columns=CANDIDATES,
    reads=("store_listing", "uncommitted_snapshot", "active_commits", "committed_addresses"),
)
def deletion_candidates(execution: Execution) -> dg.MaterializeResult[None]:
    """Objects older than the cutoff that nothing needs any more, with the reason.

    Reads: the four assets before it, each with its digest checked; and lakeFS, to see what it
    serves.
    Writes: address, size (bytes), last_modified (UTC), etag, reason (expired or unreferenced), and
    for expired ones the commit and branch that held them last. Beside it: what was spared, and why;
    where a mark of lakeFS's own collector is adopted, who holds what it names and ours keeps.
    Guarantees: strictly older than the cutoff, below ``data/`` or flat at the root, in no live set.
    The blocking checks stand here, before anything is published.
    """
    with execution.run_context() as ctx:
        manifest = find_candidates(ctx)
    listed = ("listed", "listed_bytes", "skipped_slices", "too_young", "outside_data")
    adopted = ("adopted",) if "adopted" in manifest.facts else ()
    facts = ("by_reason", "spared", *listed, *adopted)
    return materialization(ctx.root, manifest, of_manifest(manifest, facts))


@stage(columns=BREAKDOWN, reads=("deletion_candidates",))
def gc_report(execution: Execution) -> dg.MaterializeResult[None]:
    """The published mark, and why each object goes.

    Reads: the candidates, and the recorded results of their checks.
    Writes: objects and bytes by reason, branch rule, slice age and age; in the namespace the lists
    and the summary that lakeFS's own tools read.
    Guarantees: nothing is published unless every blocking check passed on exactly these candidates;
    the summary is written last, after the lists were read back; from then on the mark is frozen.
    """
    with execution.run_context() as ctx:
        manifest = report(ctx)
        marks = marks_over_time(ctx.root, ctx.repository, manifest.namespace)
    shown = {**of_report(manifest, marks), **links(ctx.lakefs, ctx.repository)}
    return materialization(ctx.root, manifest, shown)


@stage(columns=CELLS, reads=("gc_report",), skippable=True)
def storage_attribution(execution: Execution) -> Iterator[dg.MaterializeResult[None]]:
    """Listed bytes by class, and the live ones by branch and path.

    Reads: the assets before the report, the caches of ranges and metaranges that they have filled,
    and the listing of ``_lakefs/``; it decodes no range.
    Writes: objects and bytes by class, and of what commits hold by branch, path, oldest commit, age
    and size, as one table of totals; `lakegc usage` shows it.
    Guarantees: each listed object is in exactly one class; what is not known has a class of its
    own. Nothing depends on it: where it cannot be made, mark and sweep go on, and `lakegc usage`
    makes it later.
    """
    with execution.run_context() as ctx:
        if not ctx.settings.attribution:
            ctx.log.info("attribution is off: storage is not attributed")
            return
        try:
            manifest = attribute(ctx)
            branches, paths = (usage(ctx, by, 1).rows for by in ("branch", "path"))
        except LakegcError as error:
            ctx.log.warning(
                "storage is not attributed: %s. `%s` tries again",
                error,
                command_line("usage", ctx.repository, "--run", ctx.run),
            )
            return
    price = execution.resources.collector.policy(ctx.repository).price_per_tb_month
    yield materialization(ctx.root, manifest, of_attribution(manifest, branches, paths, price))


@stage(columns=OUTCOMES, reads=("gc_report",), skippable=True)
def backup(execution: Execution) -> Iterator[dg.MaterializeResult[None]]:
    """Verified copies of what the mark names, made before anything of it is deleted.

    Reads: the published mark, and the objects that it names.
    Writes: below ``backup_url``, one copy of each object, verified; what became of each (copied,
    changed, missing, failed); and a manifest, last. Nothing where ``backup_url`` is not set.
    Guarantees: a finished backup is never changed; a killed one goes on where it was; a sweep with
    ``backup_url`` deletes only what is verified in the backup of its own mark.
    """
    with execution.run_context() as ctx:
        record = back_up(ctx)
        url = ctx.settings.backup_url
        if record is None:
            execution.context.log.info("nothing is backed up: backup_url is not set")
            return
    yield dg.MaterializeResult(
        data_version=dg.DataVersion(sha256(record.to_bytes()).hexdigest()),
        metadata=of_backup(record, url),
    )


@stage(columns=SWEPT, reads=("gc_report", "backup"), skippable=True)
def swept_set(execution: Execution) -> Iterator[dg.MaterializeResult[None]]:
    """The outcome of each marked object: the mark is verified again, and what it names deleted.

    Reads: the published mark; and staged objects, rules, branches and commits once more.
    Writes: address, size (bytes), outcome (deleted, already_missing, spared, locked, put_back),
    error_code, detail (of what was deleted: space freed, or held until when), at (UTC), version (of
    what the store keeps of a deleted object).
    Guarantees: trusts no earlier check; evaluates every invariant again; what came back to life is
    spared, and what is not verified in the backup where ``backup_url`` is set; each batch is
    recorded before the next is sent; a killed sweep goes on where it was. A mark that was swept is
    left alone, and its record is shown. A run that nobody asked for (a schedule's, a sensor's, a
    backfill's) sweeps only where the repository's policy lets it, and else ends without.
    """
    context = execution.context
    with execution.run_context() as ctx, interrupts_shown(ctx):
        manifest = recorded_sweep(ctx)
        if manifest is not None:
            context.log.info("mark %s was %s: nothing is to be done", ctx.run, when(manifest))
        elif (waits := _waits(execution, ctx)) is not None:
            context.log.warning("%s", waits)
            context.instance.add_run_tags(context.run.run_id, {WAITS_TAG: tag_value(waits)})
            return
        else:
            manifest = sweep(approved(ctx), partial(_recorded_try, execution, ctx))
    shown = {"swept": when(manifest), **of_sweep(manifest), **links(ctx.lakefs, ctx.repository)}
    yield materialization(ctx.root, manifest, shown)


@contextmanager
def _recorded_try(execution: Execution, given: RunContext, ctx: RunContext) -> Iterator[None]:
    """As ``recorded_try``, under the lease: meanwhile an approval may be withdrawn or expired.

    ``given`` is the run without what was approved. Raises RefusedError: the approval does not hold.
    """
    waits, share = _waits(execution, given), approved(given).settings.max_candidate_share
    if waits is not None or share < ctx.settings.max_candidate_share:
        raise RefusedError(
            waits or "the approval of a larger share was withdrawn, or has ended: approve it again"
        )
    with recorded_try(ctx):
        yield


def _waits(execution: Execution, ctx: RunContext) -> str | None:
    """A sentence about what a run waits for that nobody asked for; None if it may sweep."""
    context = execution.context
    if not is_unattended(first_tags(context.instance, context.run)):
        return None
    policy = execution.resources.collector.policy(ctx.repository)
    return waits_for(ctx, policy.sweep, policy.auto.limits())


class RestoreConfig(dg.Config):
    """The objects to restore: all of the mark, some addresses, or those that a branch shows."""

    everything: bool = Field(default=False, description="all that the mark names")
    addresses: list[str] = Field(default=[], description="objects, by their addresses")
    branch: str | None = Field(default=None, description="branch, tag or commit: what it shows")
    path: str | None = Field(default=None, description="only what is at this path of it")
    prefix: str | None = Field(default=None, description="only what is below this prefix of it")

    def choice(self) -> Choice:
        """As the core takes it; refused where it contradicts itself."""
        return Choice(self.everything, tuple(self.addresses), self.branch, self.path, self.prefix)


# A backup is read, too, but it is no dependency: where none was made, Dagster would skip this step.
@stage(columns=RESTORED, reads=("swept_set",), config=RestoreConfig, skippable=True)
def restored_set(execution: Execution) -> Iterator[dg.MaterializeResult[None]]:
    """The outcome of each object of a mark that was to come back.

    Reads: the published mark; what the sweep recorded; and the backup, where ``backup_url`` is set.
    Writes: first a pin in the namespace; then address, size (bytes), outcome (restored,
    already_there, not_kept), source (store, backup), error_code, detail, at (UTC), below a folder
    for each restore. Nothing where it was chosen among others and not asked for ("Materialize
    all").
    Guarantees: nothing that is there is overwritten; one restore or sweep at a time; what was
    restored is left alone by marks until its pin ends; a killed restore goes on where it was.
    """
    asked, context = RestoreConfig(**(execution.step.op_config or {})), execution.context
    if asked == RestoreConfig() and len(context.run.asset_selection or ()) > 1:
        context.log.info("nothing is restored: the configuration of this run does not ask for it")
        return
    # What was swept comes back, also where nothing more is to be collected.
    with execution.run_context(excluded=True) as ctx:
        manifest = restore(ctx, asked.choice())
    yield materialization(ctx.root, manifest, of_restore(manifest))


@stage(columns=CURVE, reads=("gc_report",), skippable=True)
def policy_forecast(execution: Execution) -> Iterator[dg.MaterializeResult[None]]:
    """The garbage under other retention rules, by this mark.

    Reads: the mark, the ranges that marks have decoded, the rules in lakeFS, and the commits of the
    mark.
    Writes: nothing but what it shows: objects and bytes today and under the other rules, the same
    with each default from 1 to 365 days, and what today's rules free in time. Nothing where
    `forecast` is not set.
    Guarantees: no range is read that no mark has read; what is not known makes an amount a bound,
    which is said; nothing is deleted, and no rule is set.
    """
    # Nothing is collected here, so nothing is to be excluded from it.
    with execution.run_context(excluded=True) as ctx:
        policy = execution.resources.collector.policy(ctx.repository)
        thought_of = policy.forecast
        if thought_of is None:
            execution.context.log.info("nothing is forecast: the component names no other rules")
            return
        found = forecast(ctx, thought_of.change(), ctx.run)
    for note in found.notes:
        execution.context.log.info("%s", note)
    shown = of_forecast(found, policy.price_per_tb_month)
    yield shown_tables(shown, len(found.curve))


@stage(columns=ROWS, resources=("collector", "lakefs", "stores"), kinds=("lakefs",))
def estate(execution: Execution) -> dg.MaterializeResult[None]:
    """The state of each repository, by its artifacts and Dagster's schedules, in one table.

    Reads: the artifacts of all repositories, the repositories that Dagster knows as partitions,
    which schedules are on, and of each namespace the hold and the lease; not lakeFS.
    Writes: nothing but what it shows: for each repository size, garbage, bytes freed, last mark,
    last sweep, next run, state and why; and the bytes freed by repository and week.
    Guarantees: a repository that is known, or has left artifacts, has a row; one whose artifacts
    cannot be read has a row that says so.
    """
    context, names, resources = execution.context, execution.names, execution.resources
    known = context.instance.get_dynamic_partitions(names.of(REPOSITORY))
    location = location_of(context.run.remote_job_origin)
    found = overview(
        resources.root,
        known,
        resources.collector.all_policies(),
        schedules_on(context.instance, location),
        names,
        utc_now(),
    )
    for note in found.notes:
        context.log.warning("%s", note)
    server = resources.lakefs.config()
    links = {row.standing.repository: pages(server, row.standing.repository) for row in found.rows}
    return shown_tables(of_overview(found, links), len(found.rows))


@stage(resources=("collector", "lakefs", "stores"), kinds=("lakefs",))
def estate_leftovers(execution: Execution) -> dg.MaterializeResult[None]:
    """Leftovers of the server and its stores, which no collection of a repository finds.

    Reads: the repositories that lakeFS has, what lies below the roots of namespaces, uploads in
    parts (on Azure blocks that no blob has), versions and what else the stores hold of what was
    deleted, the tables below `_lakefs/` of each repository, and the dumps of all commits that
    lakeFS writes when it is asked.
    Writes: nothing but what it shows, and those dumps, which lakeFS writes below `_lakefs/` of each
    repository that has tables older than 30 days which neither logs nor earlier dumps name.
    Guarantees: it removes nothing; a place that cannot be looked at is named, and the others are
    looked at. `lakegc leftovers remove` removes what a person confirms.
    """
    context, resources = execution.context, execution.resources
    server = Server(
        resources.root,
        execution.repository_context,
        resources.lakefs.config().connect(),
        resources.collector.roots(),
    )
    if not server.namespace_roots:
        context.log.info("no namespace_roots are set: namespaces that nothing has are not found")
    found = find_leftovers(server)
    for problem in found.problems:
        context.log.warning("%s could not be looked at: %s", problem.where, problem.what)
    return shown_tables(of_leftovers(found))


#: The graph in its order.
STAGES: Final = (
    store_listing,
    uncommitted_snapshot,
    active_commits,
    committed_addresses,
    deletion_candidates,
    gc_report,
    storage_attribution,
    backup,
    swept_set,
    restored_set,
    policy_forecast,
    estate,
    estate_leftovers,
)
#: What a mark is made of, and what is said with it.
MARK: Final = STAGES[: STAGES.index(backup)]
#: What is made in one step: a sweep goes on where no backup was asked for.
SWEEP: Final = (backup, swept_set)
