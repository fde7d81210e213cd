"""Receivers of notices, and ``gc_failures``, which sends notices about failed runs.

It is a plain sensor, since Dagster's own sensor for failed runs does not retry a notice that was
not delivered.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

import dagster as dg

from lakegc_assets.checks.invariants import NAMES
from lakegc_assets.defs.collection import Collection, remembered
from lakegc_assets.defs.failures import failed_for_a_while, failed_steps, first_cause
from lakegc_assets.defs.names import (
    OTHER_JOBS,
    WAVE_TAG,
    Names,
    is_retried,
    location_of,
    partition_of,
)
from lakegc_assets.defs.policy import NoticeSection
from lakegc_assets.errors import ConfigurationError
from lakegc_assets.estate.notices import Document, Outbox, Way, document, mail, post
from lakegc_assets.run.command_line import command_line
from lakegc_assets.wording import counted


def link_to_run(section: NoticeSection, run_id: str | None) -> str | None:
    """The URL of a run in Dagster's interface; None if the interface's URL is unknown."""
    if section.dagster_url is None or run_id is None:
        return None
    return f"{section.dagster_url.rstrip('/')}/runs/{run_id}"


def ways_of(section: NoticeSection) -> dict[str, Way]:
    """The delivery methods, by name; empty if no receiver is configured."""
    ways: dict[str, Way] = {}
    if section.url or section.url_variable:
        ways["url"] = lambda document: post(_url(section), document, section.form)
    chosen = section.mail
    if chosen is not None:
        ways["mail"] = lambda document: mail(chosen, document)
    return ways


def _url(section: NoticeSection) -> str:
    url = section.url or os.environ.get(section.url_variable or "")
    if not url:
        raise ConfigurationError(
            f"the variable {section.url_variable!r} is not set, which must hold the URL for "
            "notices: set it where Dagster runs"
        )
    return url


#: Most failures that one tick reads.
_AT_ONCE: Final = 100
#: The check that a person may overrule.
APPROVABLE: Final = "candidate_share"


def failure_sensor(collection: Collection) -> dg.SensorDefinition:
    """``gc_failures``, which sends a notice about each failed run."""

    @collection.sensor(
        "gc_failures",
        30,
        "Posts or mails a notice about each failed run: repository, run, check, finding, and what "
        "to do. Tries to deliver it for a day.",
    )
    def failures(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        if not ways_of(collection.notices):
            return dg.SkipReason("no receiver is configured: set `notices` in the component's file")
        known = remembered(context)
        if "after" not in known:
            return dg.SensorResult(
                skip_reason="notices begin with the next run that fails",
                cursor=json.dumps({**_place(_failures(context.instance, None)), "waiting": {}}),
            )
        outbox = Outbox(ways_of(collection.notices), known.get("waiting", {}), collection.now())
        place = _still_there(context.instance, known)
        found = _failures(context.instance, int(place["after"]))
        for record in found:
            run = context.instance.get_run_by_id(record.run_id)
            if run is not None and _is_ours(context, collection.names, run):
                event = record.event_log_entry.dagster_event
                said = event.message if event is not None else None
                outbox.add(run.run_id, message=said or "")

        def make(run_id: str, message: str) -> Document | None:
            run = context.instance.get_run_by_id(run_id)
            if run is None:
                return None
            return notice(context.instance, run, message, collection)

        outbox.deliver(context.log, make)
        place = _place(found) if found else place
        cursor = json.dumps({**place, "waiting": outbox.waiting})
        said = outbox.reason(f"{counted(len(found), 'run has', 'runs have')} failed")
        return dg.SensorResult(skip_reason=said, cursor=cursor)

    return failures


def _place(failures: Sequence[dg.EventLogRecord]) -> dict[str, float]:
    """The last failure of some, for the cursor: the id and the time of its record."""
    if not failures:
        return {"after": -1}
    return {"after": failures[-1].storage_id, "at": failures[-1].timestamp}


def _still_there(instance: dg.DagsterInstance, known: Mapping[str, Any]) -> dict[str, float]:
    """The known place; or an earlier one, if its run was deleted.

    SQLite gives the ids of deleted records to new ones, so the next failure may have a lower id.
    """
    last = _place(_failures(instance, None))
    if last["after"] > known["after"]:
        return {**known}
    is_new = last.get("at", 0) > known.get("at", math.inf)
    return {**last, "after": last["after"] - is_new}


def _failures(instance: dg.DagsterInstance, after: int | None) -> list[dg.EventLogRecord]:
    """Failures of runs after a given record, the oldest first; without one, only the last."""
    records = instance.fetch_run_status_changes(
        dg.RunStatusChangeRecordsFilter(
            event_type=dg.DagsterEventType.RUN_FAILURE, after_storage_id=after
        ),
        limit=1 if after is None else _AT_ONCE,
        ascending=after is not None,
    ).records
    return list(records)


def _is_ours(context: dg.SensorEvaluationContext, names: Names, run: dg.DagsterRun) -> bool:
    """True for runs of this component on a repository, or of a job without repositories."""
    if partition_of(run)[0] is None and names.plain_job(run) not in OTHER_JOBS:
        return False
    return names.owns_at(run, location_of(context.code_location_origin))


def notice(
    instance: dg.DagsterInstance,
    run: dg.DagsterRun,
    message: str,
    collection: Collection,
) -> Document:
    """The notice about a failed run."""
    policies, (repository, mark) = collection.policies, partition_of(run)
    causes = (one.step_failure_data.error for one in failed_steps(instance, run.run_id))
    error = next((first_cause(one) for one in causes if one is not None), "")
    failed = _failed_checks(instance, run.run_id) or _checks_in(error)
    what = f"{repository}, run {mark}" if repository else run.job_name
    return document(
        "failed",
        f"{what} failed",
        "; ".join(failed.values()) or error or message,
        _what_to_do(instance, run, set(failed), collection.names),
        link_to_run(collection.notices, run.run_id),
        repository=repository,
        run=mark,
        job=run.job_name,
        dagster_run=run.run_id,
        wave=run.tags.get(WAVE_TAG),
        check=next(iter(failed), None),
        checks=sorted(failed),
        owners=policies.of(repository).owners if repository else policies.for_all.owners,
    )


def _failed_checks(instance: dg.DagsterInstance, run_id: str) -> dict[str, str]:
    """The findings of the checks that stopped a run, by name."""
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


def _digest(instance: dg.DagsterInstance, run: dg.DagsterRun, names: Names) -> list[str]:
    """The option that approves exactly the candidates of a run; empty if it has recorded none."""
    entries = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION)
    for event in (entry.dagster_event for entry in reversed(entries)):
        if event is not None and event.asset_key == names.key("deletion_candidates"):
            found = event.step_materialization_data.materialization.metadata.get("digest")
            return ["--digest", str(found.value)] if found is not None else []
    return []


def _checks_in(error: str) -> dict[str, str]:
    """The findings of failed checks in the error of a run that evaluates them in one step."""
    lines = (line.partition(": ") for line in error.splitlines())
    return {name: said for name, _, said in lines if name in NAMES}


def _what_to_do(
    instance: dg.DagsterInstance, run: dg.DagsterRun, failed: AbstractSet[str], names: Names
) -> str:
    repository, mark = partition_of(run)
    if is_retried(instance, run):
        return (
            "nothing yet: its process was killed or its machine stopped, and Dagster starts it "
            "again (`run_retries` of the instance)"
        )
    sensor, transient = names.of("gc_resume"), failed_for_a_while(instance, run)
    resumed = names.is_resumed(run, transient=transient)
    if transient and resumed:
        return f"nothing yet: the sensor {sensor} tries it once more in five minutes"
    if failed == {APPROVABLE} and repository is not None and mark is not None:
        options = [*_digest(instance, run, names), "--max-candidate-share", "SHARE"]
        approving = command_line("approve", repository, "--run", mark, *options)
        return (
            "look at some of its objects with `lakegc why`. If the mark is right, "
            f"`{approving}`; else correct the retention rules"
        )
    if transient is None and not resumed:
        return "its process was killed or its machine stopped: launch it again"
    if transient is None:
        return (
            f"its process was killed or its machine stopped: the sensor {sensor} continues it, or "
            "the same command with the same --run"
        )
    return 'what the message says; docs/operations.md explains it, "When it stops"'
