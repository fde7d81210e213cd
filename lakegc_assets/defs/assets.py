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
    EXCEEDS_TAG,
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
from lakegc_assets.mark.committed_addresses import read_committed_addresses
from lakegc_assets.mark.listing import list_store
from lakegc_assets.mark.reasons import CANDIDATES
from lakegc_assets.mark.report import BREAKDOWN, report
from lakegc_assets.mark.uncommitted_snapshot import snapshot_uncommitted
from lakegc_assets.recovery.backups import OUTCOMES
from lakegc_assets.recovery.restore.restored_set import restore
from lakegc_assets.recovery.restore.selection import Choice
from lakegc_assets.recovery.restore_record import RESTORED
from lakegc_assets.run.artifacts import LISTING, UNCOMMITTED
from lakegc_assets.run.command_line import command_line
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import HASHES
from lakegc_assets.sweep.approval import Wait, approved, recorded_sweep, waits_for, when
from lakegc_assets.sweep.lease import back_up
from lakegc_assets.sweep.ledger import SWEPT
from lakegc_assets.sweep.status import recorded_try
from lakegc_assets.sweep.sweep import sweep


@stage(columns=LISTING)
def store_listing(execution: Execution) -> dg.MaterializeResult[None]:
    """Objects of the store, and the one cutoff of the run; the first asset of a run.

    Reads: the storage namespace of the repository, except ``_lakefs/``. Slices that nobody writes
    to any more are taken from an earlier run's listing. In the mode ``committed``: commits and
    ranges, and only those objects of the namespace that ranges name and no active commit holds.
    Writes: address (relative to the namespace), size (bytes), last_modified (UTC), etag.
    Guarantees: starts a new attempt, unless the mark is frozen. The cutoff is recorded here and
    never computed again. An object that is written to the store later is not listed, so it cannot
    be a candidate.
    """
    return execution.made(list_store, "mode", "because", "listed", "carried", "bytes", "start")


@stage(columns=UNCOMMITTED, after=("store_listing",))
def uncommitted_snapshot(execution: Execution) -> dg.MaterializeResult[None]:
    """Addresses that are staged on any branch.

    Reads: all pages of lakeFS's ``prepare_uncommited``, and the Parquet files that it writes.
    Writes: address (relative to the namespace), created (UTC).
    Guarantees: is made after the listing and before the commits, so an object that is committed
    during the mark is seen as staged, as committed, or both. A page without a location is accepted
    only if the branches that it covers have nothing of the namespace staged; otherwise the run
    stops.
    """
    return execution.made(snapshot_uncommitted, "pages", "pages_without_location", "tries")


@stage(columns=ACTIVE, after=("uncommitted_snapshot",))
def active_commits(execution: Execution) -> dg.MaterializeResult[None]:
    """Commits whose objects must stay: the union of lakeFS's list and our own computation.

    Reads: retention rules, branches (also hidden ones), tags, logs, and lakeFS's
    ``prepare_commits``.
    Writes: commit_id, metarange_id, and the reason: branch, kind, counted_from, source. Further
    parts: expired commits, HEADs and tags.
    Guarantees: includes every HEAD that is read before and after lakeFS's list, all commits of that
    list, all that our own walk finds, and those that the previous mark knew and that are still
    inside their retention. Without rules every commit is active.
    """
    with execution.run_context(marking=True) as ctx:
        manifest = find_active_commits(ctx)
    found = ("only_server", "only_own", "only_previous_mark")
    facts = of_manifest(manifest, ("active", "expired", "retain", "branches", *found))
    rules = of_rules(manifest.facts["rules"])
    return materialization(ctx.root, manifest, {"rules": rules, **facts})


@stage(columns=HASHES, reads=("active_commits",))
def committed_addresses(execution: Execution) -> dg.MaterializeResult[None]:
    """Addresses that active commits hold, read range by range.

    Reads: metaranges and ranges below ``_lakefs/``, through the cache of decoded tables.
    Writes: hash (64 bits) of each address relative to the namespace, in every spelling that an
    entry may mean. Further parts: the ranges read, the objects of this repository that other
    repositories of the server name, and the ends of full addresses that cannot be resolved. Without
    retention rules, and in the mode ``uncommitted``, every range counts, with or without a commit.
    Guarantees: a table that is missing, damaged, or different from its id stops the run.
    """
    tables = ("ranges", "metaranges")
    facts = [f"{one}{source}" for one in tables for source in ("", "_from_cache", "_decoded")]
    return execution.made(read_committed_addresses, *facts, "entries")


@stage(
    columns=CANDIDATES,
    reads=("store_listing", "uncommitted_snapshot", "active_commits", "committed_addresses"),
)
def deletion_candidates(execution: Execution) -> dg.MaterializeResult[None]:
    """Objects older than the cutoff that nothing needs any more, each with the reason.

    Reads: the four assets before it, after their digests are verified; and lakeFS, for the
    addresses that it serves.
    Writes: address, size (bytes), last_modified (UTC), etag, reason (expired or unreferenced), and
    for expired objects the last commit and branch that held them. Further parts: the spared objects
    with the reasons; in a run that adopts a mark of lakeFS's collector, the holders of the objects
    that this mark names and ours keeps.
    Guarantees: each candidate is older than the cutoff, below ``data/`` or directly at the root,
    and in no live set. The blocking checks run on this asset, before anything is published.
    """
    listed = ("listed", "listed_bytes", "skipped_slices", "too_young", "outside_data")
    return execution.made(find_candidates, "by_reason", "spared", *listed, "adopted")


@stage(columns=BREAKDOWN, reads=("deletion_candidates",))
def gc_report(execution: Execution) -> dg.MaterializeResult[None]:
    """The published mark, with the reason for each object.

    Reads: the candidates, and the recorded results of their checks.
    Writes: objects and bytes by reason, branch rule, slice age and age. In the namespace: the lists
    and the summary that lakeFS's own tools read.
    Guarantees: nothing is published unless every blocking check passed on exactly these candidates.
    The lists are read back before the summary is written, as the last file. From then on the mark
    is frozen.
    """
    # A write that waited could replace the lists of a process that has published meanwhile.
    with execution.run_context() as ctx:
        manifest = report(ctx)
        marks = marks_over_time(ctx.root, ctx.repository, manifest.namespace)
    shown = {**of_report(manifest, marks), **links(ctx.lakefs, ctx.repository)}
    return materialization(ctx.root, manifest, shown)


@stage(columns=CELLS, reads=("gc_report",), skippable=True)
def storage_attribution(execution: Execution) -> Iterator[dg.MaterializeResult[None]]:
    """Listed bytes by class, and live bytes by branch and path.

    Reads: the assets before the report, the caches of ranges and metaranges that these have filled,
    and the listing of ``_lakefs/``. It decodes no range.
    Writes: one table of totals: objects and bytes by class, and for committed objects also by
    branch, path, oldest commit, age and size. `lakegc usage` shows it.
    Guarantees: each listed object is in exactly one class; unknown ones have their own class.
    Nothing depends on this asset: if it cannot be made, mark and sweep continue, and `lakegc usage`
    makes it later.
    """
    with execution.run_context(marking=True) as ctx:
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
    """Verified copies of the marked objects, made before any of them is deleted.

    Reads: the published mark, and the objects that it names.
    Writes: below ``backup_url``, one verified copy of each object, its outcome (copied, changed,
    missing, failed), and at last a manifest. Nothing if ``backup_url`` is not set.
    Guarantees: a finished backup is never changed. A killed backup continues where it stopped. With
    ``backup_url``, a sweep deletes only objects that are verified in the backup of its own mark.
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
    """The outcome of each marked object: verifies the mark again, and deletes its objects.

    Reads: the published mark; and once more staged objects, rules, branches and commits.
    Writes: address, size (bytes), outcome (deleted, already_missing, spared, locked, put_back),
    error_code, detail (of a deleted object: space freed, or held until a time), at (UTC), version
    (that the store keeps of a deleted object).
    Guarantees: trusts no earlier check, and evaluates every invariant again. Objects that came back
    to life are spared; with ``backup_url``, also objects that are not verified in the backup. Each
    batch is recorded before the next one is sent. A killed sweep continues where it stopped. A mark
    that was swept is not swept again; its record is shown. A run that no person started (a
    schedule, a sensor or a backfill did) sweeps only if the policy of the repository allows it, and
    otherwise ends without a sweep.
    """
    context = execution.context
    with execution.run_context() as ctx, interrupts_shown(ctx):
        manifest = recorded_sweep(ctx)
        if manifest is not None:
            context.log.info("mark %s was %s: nothing is to be done", ctx.run, when(manifest))
        elif (waits := _waits(execution, ctx)) is not None:
            context.log.warning("%s", waits.sentence)
            tags = {WAITS_TAG: waits.sentence, EXCEEDS_TAG: waits.limits}
            tags = {name: tag_value(said) for name, said in tags.items() if said}
            context.instance.add_run_tags(context.run.run_id, tags)
            return
        else:
            manifest = sweep(approved(ctx), partial(_recorded_try, execution, ctx))
    shown = {"swept": when(manifest), **of_sweep(manifest), **links(ctx.lakefs, ctx.repository)}
    yield materialization(ctx.root, manifest, shown)


@contextmanager
def _recorded_try(execution: Execution, given: RunContext, ctx: RunContext) -> Iterator[None]:
    """Record a try of a sweep as ``recorded_try`` does, if its approval still holds.

    Runs under the lease: an approval may be withdrawn, or expire, while the sweep waits for it.

    Args:
        execution: of the asset.
        given: the run without its approved share.
        ctx: the run with it.

    Raises:
        RefusedError: the approval does not hold any more.
    """
    waits, share = _waits(execution, given), approved(given).settings.max_candidate_share
    if waits is not None or share < ctx.settings.max_candidate_share:
        raise RefusedError(
            waits.sentence
            if waits is not None
            else "the approval of a larger share was withdrawn, or has ended: approve the mark "
            "again, with max_candidate_share"
        )
    with recorded_try(ctx):
        yield


def _waits(execution: Execution, ctx: RunContext) -> Wait | None:
    """The reason why a run that no person started must wait; None if it may sweep."""
    context = execution.context
    if not is_unattended(first_tags(context.instance, context.run)):
        return None
    policy = execution.resources.collector.policy(ctx.repository)
    return waits_for(ctx, policy.sweep, policy.auto.limits())


class RestoreConfig(dg.Config):
    """The objects to restore: all objects of the mark, some addresses, or a branch's objects."""

    everything: bool = Field(default=False, description="all objects that the mark names")
    addresses: list[str] = Field(default=[], description="objects to restore, by their addresses")
    branch: str | None = Field(
        default=None, description="branch, tag or commit whose objects are restored"
    )
    path: str | None = Field(default=None, description="only the object at this path of `branch`")
    prefix: str | None = Field(
        default=None, description="only objects below this prefix of `branch`"
    )

    def choice(self) -> Choice:
        """The same choice for the core; a ``RefusedError`` if the fields contradict each other."""
        return Choice(self.everything, tuple(self.addresses), self.branch, self.path, self.prefix)


# The backup is read, too, but it is no dependency: Dagster would skip this step without a backup.
@stage(columns=RESTORED, reads=("swept_set",), config=RestoreConfig, skippable=True)
def restored_set(execution: Execution) -> Iterator[dg.MaterializeResult[None]]:
    """The outcome of each object of a mark that was to be restored.

    Reads: the published mark, the record of the sweep, and the backup if ``backup_url`` is set.
    Writes: first a pin in the namespace. Then, in a separate folder for each restore: address, size
    (bytes), outcome (restored, already_there, not_kept), source (store, backup), error_code,
    detail, at (UTC). Nothing if the run selects several assets ("Materialize all") and its
    configuration requests no restore.
    Guarantees: overwrites no object that exists. Only one restore or sweep runs at a time. Marks
    spare restored objects until their pin ends. A killed restore continues where it stopped.
    """
    asked, context = RestoreConfig(**(execution.step.op_config or {})), execution.context
    if asked == RestoreConfig() and len(context.run.asset_selection or ()) > 1:
        context.log.info("nothing is restored: the configuration of this run requests no restore")
        return
    # Swept objects can be restored also if the repository is not collected any more.
    with execution.run_context(excluded=True) as ctx:
        manifest = restore(ctx, asked.choice())
    yield materialization(ctx.root, manifest, of_restore(manifest))


@stage(columns=CURVE, reads=("gc_report",), skippable=True)
def policy_forecast(execution: Execution) -> Iterator[dg.MaterializeResult[None]]:
    """The garbage under other retention rules, computed from this mark.

    Reads: the mark and its commits, the ranges that marks have decoded, and the rules in lakeFS.
    Writes: only its metadata: objects and bytes today and under the other rules, the same for each
    default from 1 to 365 days, and the objects that today's rules free over time. Nothing if
    `forecast` is not set.
    Guarantees: reads no range that no mark has read. If something is unknown, the amount is a
    bound, and is shown as one. Deletes nothing, and sets no rule.
    """
    # Nothing is collected here, so repositories that are excluded from collection are allowed.
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
    """The state of each repository, from its artifacts and Dagster's schedules, in one table.

    Reads: the artifacts of all repositories, the partition keys of repositories in Dagster, the
    schedules that are on, and the hold and the lease in each namespace; not lakeFS.
    Writes: only its metadata: for each repository size, garbage, bytes freed, last mark, last
    sweep, next run, state and reason; and the bytes freed by repository and week.
    Guarantees: each repository that Dagster knows, or that has artifacts, has a row. If its
    artifacts cannot be read, the row says so.
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
    """Leftovers of the server and its stores: objects that no collection of a repository finds.

    Reads: the repositories that lakeFS lists, all files below the roots of namespaces, unfinished
    uploads in parts (on Azure: blocks that no blob has), versions and other copies of deleted
    objects that the stores hold, the tables below `_lakefs/` of each repository, and the dumps of
    all commits that lakeFS writes on request.
    Writes: only its metadata; and those dumps, which lakeFS writes below `_lakefs/` of each
    repository that has tables older than 30 days which neither logs nor earlier dumps name.
    Guarantees: removes nothing. A place that cannot be read is named, and the others are still
    read. `lakegc leftovers remove` removes only objects that a person confirms.
    """
    context, resources = execution.context, execution.resources
    server = Server(
        resources.root,
        execution.repository_context,
        resources.lakefs.config().connect(),
        resources.collector.roots(),
    )
    if not server.namespace_roots:
        context.log.info(
            "no namespace_roots are set: namespaces without a repository are not found"
        )
    found = find_leftovers(server)
    for problem in found.problems:
        context.log.warning("%s could not be read: %s", problem.where, problem.what)
    return shown_tables(of_leftovers(found))


#: The assets in the order of the graph.
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
#: The assets of a mark: the stages up to the report, and the attribution of storage.
MARK: Final = STAGES[: STAGES.index(backup)]
#: The assets of one step: Dagster would skip a sweep in a step after a backup that made nothing.
SWEEP: Final = (backup, swept_set)
