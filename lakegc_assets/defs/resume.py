"""``gc_resume``: marks that were left half-way and sweeps that were killed go on, under their ids.

A run that no step has failed in did not end by itself: its process was killed, or its machine
stopped. What a check, a store or a server refused is not tried again; what they did not answer is,
once.

Dagster's own retries (``run_retries``) start runs of one step again. Of a mark they would begin
with the listing, which a published mark refuses, or behind the last step that Dagster knows, which
has refused since it has written its manifest: only the artifacts say what is left.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any, Final

import dagster as dg

from lakegc_assets.defs.collection import Collection
from lakegc_assets.defs.execution import collector_config
from lakegc_assets.defs.failures import failed_for_a_while
from lakegc_assets.defs.names import REPOSITORY_TAG, RUN_TAG, Names, location_of, partition_key
from lakegc_assets.defs.policy import Policies
from lakegc_assets.defs.requests import (
    ASKED_TAG,
    RESUMED_TAG,
    RETRIED_TAG,
    first_tags,
    is_retried,
    is_unattended,
)
from lakegc_assets.errors import IntegrityError, LakegcError, RefusedError
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets.lakefs.errors import EndpointNotFoundError, NotFoundError
from lakegc_assets.mark.publication import read_summary
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.storage.opening import open_store
from lakegc_assets.sweep.ledger import ASSET

_JOBS: Final = ("gc", "gc_mark", "gc_sweep")
_TRIES: Final = 3
#: What did not answer is asked again after this.
_PAUSE: Final = timedelta(minutes=5)
#: Runs that ended earlier are no business of a sensor that is turned on.
_BACK: Final = timedelta(days=1)
_OUR_TAGS: Final = "lakegc/"


def resume_sensor(jobs: Sequence[Any], collection: Collection) -> dg.SensorDefinition:
    """``gc_resume``, which goes on with three of the jobs that are defined."""
    names = collection.names

    @collection.sensor(
        "gc_resume",
        120,
        "Goes on with marks and sweeps whose process was killed, three times at most; and once, "
        "after five minutes, with those that lakeFS or a store did not answer.",
        *("lakefs", "stores", "collector"),
        jobs=[job for job in jobs if job.name in map(names.of, _JOBS)],
    )
    def resume(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        resources, since = collection.of(context), _since(context)
        # The storages of runs compare with whole seconds, some of them.
        records = context.instance.get_run_records(
            dg.RunsFilter(
                statuses=[dg.DagsterRunStatus.FAILURE],
                updated_after=since - timedelta(seconds=2),
            ),
            ascending=True,
        )
        requests: list[dg.RunRequest] = []
        latest, waiting = since, []
        for record in records:
            run = record.dagster_run
            latest = max(latest, record.update_timestamp)
            transient = failed_for_a_while(context.instance, run.run_id)
            if not _may_go_on(context, names, record, transient=transient):
                continue
            if transient and collection.now() - record.update_timestamp < _PAUSE:
                waiting.append(record.update_timestamp)
                continue
            if not is_included(collection.policies, names, run):
                context.log.info("run %s does not go on: its repository is excluded", run.run_id)
                continue
            try:
                found = _request(
                    run,
                    names,
                    resources.lakefs.config(),
                    resources.root,
                    first_tags(context.instance, run),
                    transient=bool(transient),
                )
            except LakegcError as error:
                gone = isinstance(error, NotFoundError)
                if isinstance(error, IntegrityError) or (
                    gone and not isinstance(error, EndpointNotFoundError)
                ):
                    # What is damaged or gone stays so, and keeps the others from nothing.
                    context.log.warning("run %s cannot go on: %s", run.run_id, error)
                    continue
                if not requests:
                    raise
                # The next tick looks at all of them again, and starts none of these twice.
                latest = since
                break
            if found is not None:
                requests.append(found)
        # Those that wait are found again by the next ticks.
        return collection.started(requests, min([latest, *waiting]).isoformat())

    return resume


def _since(context: dg.SensorEvaluationContext) -> datetime:
    """From when on runs are looked at: at most a day back, where nobody knows."""
    back = datetime.now(timezone.utc) - _BACK
    if not context.cursor:
        return back
    try:
        known = datetime.fromisoformat(context.cursor)
    except ValueError:
        known = None
    if known is None or known.tzinfo is None:
        context.log.warning("the cursor cannot be read, so this begins anew: %s", context.cursor)
        return back
    return known


def _may_go_on(
    context: dg.SensorEvaluationContext,
    names: Names,
    record: dg.RunRecord,
    *,
    transient: bool | None,
) -> bool:
    """True if a run of ours can go on, and nobody has gone on with it.

    ``transient`` is as ``failed_for_a_while`` returns it; a run that no step failed in was cut off.
    """
    run, instance = record.dagster_run, context.instance
    key = run.tags.get("dagster/partition")
    if not names.owns_at(run, location_of(context.code_location_origin)):
        return False
    if names.plain_job(run) not in _JOBS and not names.is_of_assets(run):
        return False
    if key is None or run.tags.get(RUN_TAG) is None or is_retried(instance, run):
        return False
    if transient is False or (transient and RETRIED_TAG in run.tags):
        return False
    if transient is None and int(run.tags.get(RESUMED_TAG, "0")) >= _TRIES:
        return False
    later = instance.get_run_records(
        dg.RunsFilter(tags={"dagster/partition": key}, created_after=record.create_timestamp)
    )
    others = (one.dagster_run for one in later if one.dagster_run.run_id != run.run_id)
    return not any(map(names.owns, others))


def is_included(policies: Policies, names: Names, run: dg.DagsterRun) -> bool:
    """True if the repository of a run is collected, or the run itself says ``collect_excluded``."""
    said = collector_config(run, names)
    return bool(said.get("collect_excluded")) or policies.collects(run.tags[REPOSITORY_TAG])


def _request(
    run: dg.DagsterRun,
    names: Names,
    lakefs: LakeFSConfig,
    root: ArtifactRoot,
    first: Mapping[str, str],
    *,
    transient: bool,
) -> dg.RunRequest | None:
    """The request that goes on with a run; None where nothing is left to do.

    ``first`` are the tags of the run that it is a retry of, or its own; ``transient`` says that it
    failed for a reason that may pass, else it did not end by itself.
    """
    repository, mark = (run.tags[tag] for tag in (REPOSITORY_TAG, RUN_TAG))
    job = names.plain_job(run) or "gc"
    selection: list[dg.AssetKey] | None = None
    try:
        attempt = root.attempt(repository, mark)
    except RefusedError:
        attempt = None
    if attempt is not None and attempt.has(ASSET):
        return None
    if attempt is not None and attempt.has("gc_report"):
        if job == "gc_mark":
            return None
        job = "gc_sweep"
    elif attempt is not None and attempt.has("deletion_candidates") and job != "gc_sweep":
        found = lakefs.connect().repository(repository)
        namespace = StorageNamespace.parse(found.storage_namespace).url()
        if read_summary(open_store(namespace, root.stores), mark) is not None:
            # It was published, but not reported: this finishes it.
            left = ("gc_report", "backup", ASSET) if job == "gc" else ("gc_report",)
            selection = [names.key(name) for name in left]
    ours = {k: v for k, v in run.tags.items() if k.startswith(_OUR_TAGS)}
    if not is_unattended(first):
        ours[ASKED_TAG] = "by a person"
    if transient:
        ours[RETRIED_TAG] = "once"
    else:
        ours[RESUMED_TAG] = str(int(run.tags.get(RESUMED_TAG, "0")) + 1)
    return dg.RunRequest(
        run_key=f"{repository}/{mark}/after-{run.run_id}",
        job_name=names.of(job),
        partition_key=partition_key(repository, mark),
        run_config=run.run_config,
        asset_selection=selection,
        tags=ours,
    )
