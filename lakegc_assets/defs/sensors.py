"""Sensors for new repositories (starts nothing), for approvals, and for interrupted runs.

Each sensor starts a run once: it derives the run key from the event. So a tick that is repeated
after a crash requests the same runs, and Dagster does not start them again.
"""

import json
import logging
from collections.abc import Container, Sequence, Sized
from datetime import datetime, timedelta, timezone
from time import monotonic
from typing import Any, Final, NamedTuple

import dagster as dg

from lakegc_assets.defs.automation_state import locations_of
from lakegc_assets.defs.collection import Collection, changes, collected, remembered
from lakegc_assets.defs.execution import Resources, collector_config
from lakegc_assets.defs.failures import failed_for_a_while, is_ended_from_outside
from lakegc_assets.defs.jobs import left_to_do
from lakegc_assets.defs.names import (
    ASKED_TAG,
    LAUNCHED,
    REPOSITORY,
    REPOSITORY_TAG,
    RESUMED_JOBS,
    RESUMED_TAG,
    RETRIED_TAG,
    RUN,
    RUN_TAG,
    Names,
    first_tags,
    is_cancelled,
    is_left_to_dagster,
    is_retried,
    is_unattended,
    location_of,
    partition_key,
    resumed_before,
    tag_value,
)
from lakegc_assets.defs.policy import Policies
from lakegc_assets.defs.round_robin import BUDGET_S, RoundRobin, looked_at
from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.errors import IntegrityError, LakegcError, RefusedError
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.lakefs.errors import EndpointNotFoundError, NotFoundError
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.opening import open_store
from lakegc_assets.sweep.approval import Approval, approval_of
from lakegc_assets.sweep.ledger import ASSET
from lakegc_assets.wording import counted

#: Runs of a repository that are read at the same time.
_THREADS: Final = 4
#: In the cursor of ``gc_approvals``: expiry of each approval whose sweep was requested.
_ASKED: Final = "asked"
#: In the cursor of ``gc_repositories``: the partition keys that it has added.
_MADE: Final = "made"
#: In the cursor: the run key that was added last for people to choose.
_SPARE: Final = "spare"
#: In the cursor of ``gc_resume``: the time up to which failed runs were read; and the times of
#: change of those that were continued, by run id.
_SINCE: Final = "since"
_CONTINUED: Final = "continued"


def repositories_sensor(collection: Collection) -> dg.SensorDefinition:
    """``gc_repositories``, which maintains partition keys and starts nothing."""
    names = collection.names

    @collection.sensor(
        "gc_repositories",
        60,
        "Adds new repositories and an unused run to the partitions. Removes a repository that it "
        "has added if it is deleted or excluded now and has no runs.",
        "lakefs",
        running=True,
    )
    def repositories(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        lakefs = collection.of(context).lakefs
        server = {r.id for r in collected(lakefs.config(), Policies())}
        there = {name for name in server if collection.policies.collects(name)}
        instance = context.instance
        known = set(instance.get_dynamic_partitions(names.of(REPOSITORY)))
        memory = remembered(context)
        # Another code location may have keys of other servers. A new cursor has no list.
        made = known.intersection(memory.get(_MADE, server))
        gone = [r for r in sorted(made - there) if not _has_runs(instance, REPOSITORY_TAG, r)]
        new = sorted(there - known)
        before: str = memory.get(_SPARE, "")
        spare = _spare_run(instance, names, collection.now())
        requests = changes(names.repositories, new, gone)
        if spare is not None:
            # At most one unused key stays: since ``before`` was added, a wave has added a newer
            # one.
            known_runs = instance.get_dynamic_partitions(names.of(RUN))
            unused = before in known_runs and not _has_runs(instance, RUN_TAG, before)
            requests = [*changes(names.runs, [spare], [before] if unused else ()), *requests]
        # The cursor is written after the keys. If the process is killed in between, nobody removes
        # some keys, or they are removed a second time.
        cursor = json.dumps(
            {_MADE: sorted(made.union(new).difference(gone)), _SPARE: spare or before}
        )
        clash = _clash(context, names, collection.now())
        changed = [
            *([f"added: {_repositories(new)}"] if new else ()),
            *([f"removed: {_repositories(gone)}"] if gone else ()),
            *([f"added: the unused run {spare}"] if spare else ()),
        ]
        said = "; ".join(changed) or f"nothing is new: {_repositories(there)}"
        return dg.SensorResult(
            # The tick starts nothing, also if it changes keys.
            skip_reason=f"{said}; {clash}" if clash else said,
            cursor=cursor,
            dynamic_partitions_requests=requests,
        )

    return repositories


def _repositories(some: Sized) -> str:
    return counted(len(some), "repository", "repositories")


def _clash(context: dg.SensorEvaluationContext, names: Names, now: datetime) -> str:
    """A warning if another code location has a component of the same name; else empty."""
    here, sensor = context.code_location_origin, names.of("gc_repositories")
    others = here and locations_of(context.instance, sensor, here.location_name, now)
    if not others:
        return ""
    called = f"is called {names.name!r}, too" if names.name else "has no `name`, either"
    warning = (
        f"the component in the code location {', '.join(map(repr, others))} {called}: both have "
        "the same assets and partitions, and each shows what the other one collects. Give each of "
        "them a `name` of its own (docs/automation.md, Several in one Dagster)"
    )
    context.log.warning(warning)
    return warning


def _spare_run(instance: dg.DagsterInstance, names: Names, now: datetime) -> str | None:
    """A run id that people can choose without typing it; None if the last one is unused."""
    known = instance.get_dynamic_partitions(names.of(RUN))
    spare = f"{now:%Y%m%dT%H%M%SZ}"
    unused = known and not _has_runs(instance, RUN_TAG, known[-1])
    return None if unused or spare in known else spare


def _has_runs(instance: dg.DagsterInstance, tag: str, key: str) -> bool:
    return instance.get_runs_count(dg.RunsFilter(tags={tag: key})) > 0


def approvals_sensor(collection: Collection) -> dg.SensorDefinition:
    """``gc_approvals``, which sweeps approved marks."""

    @collection.sensor(
        "gc_approvals",
        120,
        "Sweeps each mark that a person has approved, once for each approval.",
        *("lakefs", "stores", "collector"),
        job_name=collection.names.of("gc_sweep"),
    )
    def approvals(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        resources = collection.of(context)
        root, moment, memory = resources.root, collection.now(), remembered(context)
        there = collected(resources.lakefs.config(), collection.policies)
        chosen = [r.id for r in there if collection.policies.of(r.id).sweep != "never"]
        turns = RoundRobin(collection.names.of("gc_approvals"), memory, moment)
        turns.put_changed_first(context.instance)
        log = context.log
        looked = turns.look(chosen, lambda name: _approved(log, root, name, moment))
        turns.require_any(looked)
        problems = [one for one in looked.values() if isinstance(one, LakegcError)]
        if problems and len(problems) == len(looked):
            raise problems[0]
        approved = [found for found in looked.values() if not isinstance(found, LakegcError)]
        holding = {
            f"{one.repository}/{one.run}/approved-{one.id}": one
            for found in approved
            for one in found
        }
        # Dagster forgets a run key with its run, and a person who cancels a sweep may delete that
        # run.
        before: dict[str, str] = memory.get(_ASKED, {})
        asked = {k: ends for k, ends in before.items() if moment < datetime.fromisoformat(ends)}
        requests = [
            collection.request(
                approval.repository,
                approval.run,
                run_key=key,
                job="gc_sweep",
                tags={"lakegc/approved-by": tag_value(approval.by)},
            )
            for key, approval in holding.items()
            if key not in asked and not _was_launched(context.instance, key)
        ]
        asked |= {key: approval.ends.isoformat() for key, approval in holding.items()}
        otherwise = "no mark that was not swept has a valid approval"
        if holding:
            of = counted(len(holding), "approval")
            otherwise = (
                f"the sweep of {of} was started before: if it did not end, launch "
                f"{collection.names.of('gc_sweep')}, or approve the mark again"
            )
        if len(looked) < len(chosen):
            otherwise += f"; {looked_at(looked, chosen)}"
        cursor = {_ASKED: asked, **turns.to_json(chosen)}
        return collection.started(requests, otherwise, json.dumps(cursor, sort_keys=True))

    return approvals


def _was_launched(instance: dg.DagsterInstance, run_key: str) -> bool:
    """True if a run with this key was launched, by a sensor of any code location.

    Dagster itself compares run keys within one code location only. A renamed location, or a second
    one with the same component, would sweep again what a person has cancelled.
    """
    runs = dg.RunsFilter(tags={"dagster/run_key": run_key}, statuses=LAUNCHED)
    return instance.get_runs_count(runs) > 0


def _approved(
    log: logging.Logger, root: ArtifactRoot, repository: str, now: datetime
) -> list[Approval] | LakegcError:
    """The valid approvals of marks that were not swept; or the reason why they are unknown.

    A damaged run hides no approval of other runs; an unreadable repository hides none of others.
    """

    def read(run: str) -> Approval | LakegcError | None:
        try:
            attempt = root.attempt(repository, run)
            return None if attempt.has(ASSET) else approval_of(attempt, now)
        except (IntegrityError, RefusedError) as error:
            return error

    approvals: list[Approval] = []
    try:
        runs = root.runs(repository)
        results = thread_map(read, runs, _THREADS)
    except LakegcError as error:
        log.warning("%s: its approvals cannot be read: %s", repository, error)
        return error
    for run, found in zip(runs, results, strict=True):
        if isinstance(found, LakegcError):
            log.warning("%s, run %s: %s", repository, run, found)
        elif found is not None:
            approvals.append(found)
    return approvals


# Interrupted runs

#: Time after which a run that got no answer is tried again.
_PAUSE: Final = timedelta(minutes=5)
#: Runs that ended longer ago are ignored by a sensor that is turned on.
_BACK: Final = timedelta(days=1)
_OUR_TAGS: Final = "lakegc/"


def resume_sensor(jobs: Sequence[Any], collection: Collection) -> dg.SensorDefinition:
    """``gc_resume``: continues interrupted marks and killed sweeps.

    If no step of a failed run has failed by itself, the process or pod of the run or of a step was
    killed, or its machine stopped. A mark that was interrupted from outside (an evicted pod, a
    service that restarts) goes on as well, but an interrupted sweep may be one that a person has
    stopped. If a check, a store or a server refused, the run is not tried again. If a store or a
    server did not answer, it is tried again once.

    Dagster's own retries (``run_retries``) start only jobs of one step again. A mark they would
    begin with the listing, which a published mark refuses; or after the last step that Dagster has
    recorded, with a step that refuses if it has already written its manifest. Only the artifacts
    show which steps remain.
    """
    names = collection.names

    @collection.sensor(
        "gc_resume",
        120,
        "Continues marks and sweeps whose process was killed, at most three times; and once, after "
        "five minutes, those to which lakeFS or a store did not answer.",
        *("lakefs", "stores", "collector"),
        jobs=[job for job in jobs if job.name in map(names.of, RESUMED_JOBS)],
    )
    def resume(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        since, before = _read_cursor(context)
        found = _continued(context, collection, since, before)
        if found.problems and not found.requests:
            raise found.problems[0]
        # The next ticks find waiting runs again.
        up_to = min([found.latest, *found.waiting])
        # Dagster forgets a run key with its run, and a person who cancels a continued sweep may
        # delete that run.
        kept = {
            run: at
            for run, at in {**before, **found.continued}.items()
            if datetime.fromisoformat(at) >= up_to - _BACK
        }
        cursor = {_SINCE: up_to.isoformat(), _CONTINUED: kept}
        waiting = len(found.waiting)
        otherwise = (
            f"{counted(waiting, 'run')}: tried again later" if waiting else "no run to continue"
        )
        return collection.started(found.requests, otherwise, json.dumps(cursor, sort_keys=True))

    return resume


class _Continued(NamedTuple):
    """Requests that continue failed runs, errors, and times for the cursor.

    ``continued``: times of change of the continued runs, by run id. ``waiting``: times of the runs
    that wait. ``latest``: all runs up to this time were read.
    """

    requests: list[dg.RunRequest]
    continued: dict[str, str]
    problems: list[LakegcError]
    waiting: list[datetime]
    latest: datetime


def _continued(
    context: dg.SensorEvaluationContext,
    collection: Collection,
    since: datetime,
    before: Container[str],
) -> _Continued:
    """Continue the runs that failed since a time, if possible, but not those of ``before``."""
    requests: list[dg.RunRequest] = []
    continued: dict[str, str] = {}
    problems: list[LakegcError] = []
    waiting: list[datetime] = []
    latest, deadline = since, monotonic() + BUDGET_S
    failed = _failed_since(context.instance, since)
    for record in (one for one in failed if one.dagster_run.run_id not in before):
        if requests and monotonic() >= deadline:
            # The next tick reads all of them again, and skips those that were continued.
            latest = since
            break
        run, at = record.dagster_run, record.update_timestamp
        latest, ago = max(latest, at), collection.now() - _ended(record)
        # An instance has thousands of failed runs of other jobs, and a tick has only a minute.
        if not collection.names.owns_at(run, location_of(context.code_location_origin)):
            continue
        transient = failed_for_a_while(context.instance, run)
        if not _may_go_on(context, collection, record, transient=transient):
            continue
        # Dagster starts a run again within seconds.
        if (transient or is_retried(context.instance, run)) and ago < _PAUSE:
            waiting.append(at)
            continue
        try:
            found = _request(context, collection, run, transient=bool(transient))
        except LakegcError as error:
            context.log.warning("run %s cannot be continued: %s", run.run_id, error)
            if _is_for_good(error) or ago >= _BACK:
                continue
            problems.append(error)
            waiting.append(at)
            if error.transient:
                # All other runs would wait for the same answer. The next tick reads all of them
                # again, and starts none of the requested ones twice.
                latest = since
                break
            continue
        if found is not None:
            requests.append(found)
            continued[run.run_id] = at.isoformat()
    return _Continued(requests, continued, problems, waiting, latest)


def _ended(record: dg.RunRecord) -> datetime:
    """The end of a run. Some databases give the time of its last change in their own time zone."""
    if record.end_time is None:
        return record.update_timestamp
    return datetime.fromtimestamp(record.end_time, timezone.utc)


def _failed_since(instance: dg.DagsterInstance, since: datetime) -> Sequence[dg.RunRecord]:
    """The runs that failed since a time, the oldest first."""
    # Some storages of runs compare whole seconds.
    updated_after = since - timedelta(seconds=2)
    failed = [dg.DagsterRunStatus.FAILURE]
    return instance.get_run_records(
        dg.RunsFilter(statuses=failed, updated_after=updated_after), ascending=True
    )


def _is_for_good(error: LakegcError) -> bool:
    """True if artifacts are damaged or gone: a permanent error, which must not block other runs."""
    if isinstance(error, EndpointNotFoundError):
        return False
    return isinstance(error, IntegrityError | NotFoundError)


def _read_cursor(context: dg.SensorEvaluationContext) -> tuple[datetime, dict[str, str]]:
    """The time since which failed runs are read, and the runs that were continued before.

    A day ago, and none, if the cursor holds no time.
    """
    try:
        # The cursor of older versions held only the time.
        memory: dict[str, Any] = {_SINCE: str(datetime.fromisoformat(context.cursor or ""))}
    except ValueError:
        memory = remembered(context)
    try:
        since = datetime.fromisoformat(str(memory.get(_SINCE))).astimezone(timezone.utc)
    except ValueError:
        return datetime.now(timezone.utc) - _BACK, {}
    return since, dict(memory.get(_CONTINUED, {}))


def _may_go_on(
    context: dg.SensorEvaluationContext,
    collection: Collection,
    record: dg.RunRecord,
    *,
    transient: bool | None,
) -> bool:
    """True if a failed run of ours may go on: its repository is collected, and no later run exists.

    ``transient``: the result of ``failed_for_a_while``; None for an interrupted run.
    """
    run, instance, names = record.dagster_run, context.instance, collection.names
    key = run.tags.get("dagster/partition")
    if key is None or is_left_to_dagster(instance, run):
        return False
    if not names.is_resumed(run, transient=transient):
        return False
    later = instance.get_run_records(
        dg.RunsFilter(tags={"dagster/partition": key}, created_after=record.create_timestamp)
    )
    others = (one.dagster_run for one in later if one.dagster_run.run_id != run.run_id)
    if any(names.owns(one) and not names.is_forecast(one) for one in others):
        return False
    if is_cancelled(instance, run):
        return False
    if is_included(collection.policies, names, run):
        return True
    context.log.info(
        "run %s is not continued: `include` and `exclude` leave its repository out", run.run_id
    )
    return False


def is_included(policies: Policies, names: Names, run: dg.DagsterRun) -> bool:
    """True if the repository of a run is collected, or the run itself has ``collect_excluded``."""
    said = collector_config(run, names)
    return bool(said.get("collect_excluded")) or policies.collects(run.tags[REPOSITORY_TAG])


def _request(
    context: dg.SensorEvaluationContext,
    collection: Collection,
    run: dg.DagsterRun,
    *,
    transient: bool,
) -> dg.RunRequest | None:
    """The request that continues a run; None if nothing is left to do.

    ``transient``: the run failed for a transient reason; otherwise it was interrupted.
    """
    names, resources = collection.names, collection.of(context)
    root = resources.root
    repository, mark = (run.tags[tag] for tag in (REPOSITORY_TAG, RUN_TAG))
    asked = not is_unattended(first_tags(context.instance, run))
    # The person who asked for a sweep may also have ended its process.
    sweeps = _sweeps(run, names) and not (asked and is_ended_from_outside(run))
    job = (names.plain_job(run) or "gc") if sweeps else "gc_mark"
    left: Sequence[str] = ()
    try:
        attempt = root.attempt(repository, mark)
    except RefusedError:
        attempt = None
    if attempt is not None:
        if attempt.has(ASSET) or (attempt.has("gc_report") and job == "gc_mark"):
            return None
        job = "gc_sweep" if attempt.has("gc_report") else job
        left = left_to_do(job, attempt, lambda: _store(resources, repository))
    ours = {k: v for k, v in run.tags.items() if k.startswith(_OUR_TAGS)}
    if asked:
        ours[ASKED_TAG] = "by a person"
    if transient:
        ours[RETRIED_TAG] = "once"
    else:
        ours[RESUMED_TAG] = str(resumed_before(run) + 1)
    return dg.RunRequest(
        run_key=f"{repository}/{mark}/after-{run.run_id}",
        job_name=names.of(job),
        partition_key=partition_key(repository, mark),
        run_config=run.run_config,
        asset_selection=[names.key(name) for name in left] or None,
        tags=ours,
    )


def _sweeps(run: dg.DagsterRun, names: Names) -> bool:
    """False if a run has a selection of assets, checks or steps that lacks the sweep."""
    key = names.key(ASSET)
    assets, steps = run.asset_selection, run.step_keys_to_execute
    # A run of checks only has no selection of assets.
    is_whole = not assets and not run.asset_check_selection
    return (is_whole or key in (assets or ())) and (
        not steps or key.to_python_identifier() in steps
    )


def _store(resources: Resources, repository: str) -> ObjectStore:
    found = resources.lakefs.config().connect().repository(repository)
    url = StorageNamespace.parse(found.storage_namespace).url()
    return open_store(url, resources.root.stores)
