"""``gc_failures``: a notice about each run that failed.

A plain sensor, since one of Dagster's for failed runs forgets a run whose notice was not delivered.
"""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import dagster as dg

from lakegc_assets.checks.evaluation import NAMES
from lakegc_assets.defs.delivery import (
    Document,
    deliver,
    document,
    entry,
    link_to_run,
    said_of,
    ways_of,
)
from lakegc_assets.defs.failures import failed_for_a_while
from lakegc_assets.defs.names import OTHER_JOBS, Names, partition_of
from lakegc_assets.defs.policy import NoticeSection, Policies
from lakegc_assets.defs.requests import RETRIED_TAG, remembered
from lakegc_assets.lakefs.reads import utc_now
from lakegc_assets.run.command_line import command_line, in_dagster, printing
from lakegc_assets.wording import counted

#: Failures that are looked at in one tick.
_AT_ONCE: Final = 100
_APPROVABLE: Final = "candidate_share"


def failure_sensor(
    policies: Policies,
    names: Names,
    section: NoticeSection,
    now: Callable[[], datetime] = utc_now,
) -> dg.SensorDefinition:
    """``gc_failures``."""

    @dg.sensor(
        name=names.of("gc_failures"),
        minimum_interval_seconds=30,
        default_status=policies.sensor_status,
        description="Tells a URL, or people by mail, about each run that failed: repository, run, "
        "check, what was found, and what to do. What cannot be delivered is tried for a day.",
    )
    @printing(names.source)
    def failures(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        ways = ways_of(section)
        if not ways:
            return dg.SkipReason("nobody is to be told: set `notices` of the component")
        known = remembered(context)
        if "after" not in known:
            last = _failures(context.instance, None)
            known = {"after": last[-1].storage_id if last else -1, "waiting": {}}
            return dg.SensorResult(
                skip_reason="runs that fail from now on are told", cursor=json.dumps(known)
            )
        waiting: dict[str, dict[str, Any]] = known["waiting"]
        found = _failures(context.instance, known["after"])
        for record in found:
            run = context.instance.get_run_by_id(record.run_id)
            if run is not None and _is_ours(context, names, run):
                event = record.event_log_entry.dagster_event
                said = event.message if event is not None else None
                waiting[run.run_id] = entry(ways, now(), message=said or "")

        def make(run_id: str, one: dict[str, Any]) -> Document | None:
            run = context.instance.get_run_by_id(run_id)
            if run is None:
                return None
            return notice(context.instance, run, one["message"], policies, section)

        problems = deliver(ways, waiting, make, now(), context.log)
        after = found[-1].storage_id if found else known["after"]
        cursor = json.dumps({"after": after, "waiting": waiting})
        said = said_of(waiting, problems, f"{counted(len(found), 'run has', 'runs have')} failed")
        return dg.SensorResult(skip_reason=said, cursor=cursor)

    return failures


def _failures(instance: dg.DagsterInstance, after: int | None) -> list[dg.EventLogRecord]:
    """Failures of runs behind one, the oldest first; the last one of all where none is given."""
    records = instance.fetch_run_status_changes(
        dg.RunStatusChangeRecordsFilter(
            event_type=dg.DagsterEventType.RUN_FAILURE, after_storage_id=after
        ),
        limit=1 if after is None else _AT_ONCE,
        ascending=after is not None,
    ).records
    return list(records)


def _is_ours(context: dg.SensorEvaluationContext, names: Names, run: dg.DagsterRun) -> bool:
    """Whether a run is of this component, and on a repository or of a job that is of none."""
    if partition_of(run)[0] is None and names.plain_job(run) not in OTHER_JOBS:
        return False
    here = context.code_location_origin
    return names.owns_at(run, here.location_name if here is not None else None)


def notice(
    instance: dg.DagsterInstance,
    run: dg.DagsterRun,
    message: str,
    policies: Policies,
    section: NoticeSection,
) -> Document:
    """The notice about a run that failed.

    Args:
        instance: that has the run.
        run: on a partition of a repository, or of a job that is of none.
        message: of Dagster, told where no step says more.
        policies: of all repositories.
        section: of the component's file.
    """
    repository, mark = partition_of(run)
    error = _error(instance, run.run_id)
    failed = _failed_checks(instance, run.run_id) or _checks_in(error)
    sentence = "; ".join(failed.values()) or error or message
    what = f"{repository}, run {mark}" if repository else run.job_name
    cut_off, tried_again = not _steps(instance, run), _is_tried_again(instance, run)
    return document(
        "failed",
        f"{what} failed",
        sentence,
        _what_to_do(repository, mark, failed, cut_off=cut_off, tried_again=tried_again),
        link_to_run(section, run.run_id),
        repository=repository,
        run=mark,
        job=run.job_name,
        dagster_run=run.run_id,
        wave=run.tags.get("lakegc/wave"),
        check=next(iter(failed), None),
        checks=sorted(failed),
        owners=policies.of(repository).owners if repository else policies.for_all.owners,
    )


def _failed_checks(instance: dg.DagsterInstance, run_id: str) -> dict[str, str]:
    """What each check that stopped a run has found, by its name."""
    entries = instance.all_logs(run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION)
    evaluations = [
        entry.dagster_event.asset_check_evaluation_data
        for entry in entries
        if entry.dagster_event is not None
    ]
    return {
        one.check_name: one.description or ""
        for one in evaluations
        if not one.passed and one.severity is dg.AssetCheckSeverity.ERROR
    }


def _checks_in(error: str) -> dict[str, str]:
    """What failed checks have found, by the error of a run that evaluates them in one step."""
    lines = (line.partition(": ") for line in error.splitlines())
    return {name: said for name, _, said in lines if name in NAMES}


def _is_tried_again(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Whether ``gc_resume``, where it is on, starts a run once more that failed for a while."""
    if not run.job_name.endswith(("gc", "gc_mark", "gc_sweep")) or RETRIED_TAG in run.tags:
        return False
    return bool(failed_for_a_while(instance, run.run_id))


def _steps(instance: dg.DagsterInstance, run: dg.DagsterRun) -> list[dg.DagsterEvent]:
    """The failures of steps of a run."""
    entries = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
    return [entry.dagster_event for entry in entries if entry.dagster_event is not None]


def _error(instance: dg.DagsterInstance, run_id: str) -> str:
    """The message of the first step that failed, without the names of the errors around it."""
    entries = instance.all_logs(run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
    for one in entries:
        event = one.dagster_event
        error = event.step_failure_data.error if event is not None else None
        while error is not None and error.cause is not None:
            error = error.cause
        if error is not None:
            kind, _, said = error.message.strip().partition(": ")
            return said or kind
    return ""


def _what_to_do(
    repository: str | None,
    mark: str | None,
    failed: dict[str, str],
    *,
    cut_off: bool,
    tried_again: bool,
) -> str:
    if tried_again:
        sensor = in_dagster("gc_resume")
        return f"nothing yet: the sensor {sensor} tries it once more in five minutes"
    if set(failed) == {_APPROVABLE} and repository is not None and mark is not None:
        approving = command_line(
            "approve", repository, "--run", mark, "--max-candidate-share", "SHARE"
        )
        return (
            f"look at why with `lakegc why`; if the rules mean it, `{approving}`, else correct "
            "the rules"
        )
    if cut_off and repository is None:
        return "its process was killed or its machine stopped: launch the job again"
    if cut_off:
        return (
            "its process was killed or its machine stopped: the sensor "
            f"{in_dagster('gc_resume')} goes on with it, or the same command with the same --run"
        )
    return 'the sentence says it; docs/operations.md has a table of messages, "When it stops"'
