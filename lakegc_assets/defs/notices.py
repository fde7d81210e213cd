"""``gc_failures``: one JSON document, or one mail, for each run that failed.

A plain sensor, since one of Dagster's for failed runs forgets a run whose notice was not delivered.
What was not delivered waits in the cursor, for a day. Who is killed in between tells a run twice.
"""

import json
import os
import smtplib
from collections.abc import Callable
from datetime import datetime, timedelta
from email.message import EmailMessage
from time import monotonic
from typing import Any, Final

import dagster as dg
import requests

from lakegc_assets.defs.names import OTHER_JOBS, REPOSITORY_TAG, RUN_TAG, Names
from lakegc_assets.defs.policy import MailSection, NoticeSection, Policies
from lakegc_assets.defs.requests import remembered
from lakegc_assets.errors import ConfigurationError, LakegcError
from lakegc_assets.lakefs.reads import utc_now
from lakegc_assets.run.command_line import command_line

#: Dagster gives a tick 60 s: what is begun within the first 20 ends before that.
_BUDGET_S: Final = 20
_ATTEMPTS: Final = 3
#: The first digit of the status of what a server has taken.
_TAKEN: Final = 2
#: To reach the server, and between parts of its answer.
_TIMEOUTS_S: Final = (3, 5)
_MAIL_TIMEOUT_S: Final = 8
#: Failures that are looked at in one tick.
_AT_ONCE: Final = 100
#: For how long it is tried to deliver a notice.
_LIFETIME: Final = timedelta(days=1)
_APPROVABLE: Final = "candidate_share"


class NoticeError(LakegcError):
    """A notice was not delivered."""


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
    def failures(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        ways = _ways(section)
        if not ways:
            return dg.SkipReason("nobody is to be told: set `failures` of the component")
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
                waiting[run.run_id] = {
                    "since": now().isoformat(), "ways": list(ways), "message": said or "",
                }  # fmt: skip
        problems = _deliver(context, policies, ways, waiting, now())
        after = found[-1].storage_id if found else known["after"]
        cursor = json.dumps({"after": after, "waiting": waiting})
        if problems:
            said = f"{len(waiting)} notices wait: {'; '.join(problems)}"
        else:
            said = f"{len(waiting)} notices wait" if waiting else f"{len(found)} runs have failed"
        return dg.SensorResult(skip_reason=said, cursor=cursor)

    return failures


def _ways(section: NoticeSection) -> dict[str, Callable[[dict[str, Any]], None]]:
    """How people are told, by name."""
    ways: dict[str, Callable[[dict[str, Any]], None]] = {}
    if section.url or section.url_variable:
        ways["url"] = lambda document: post(_url(section), document)
    chosen = section.mail
    if chosen is not None:
        ways["mail"] = lambda document: mail(chosen, document)
    return ways


def _url(section: NoticeSection) -> str:
    url = section.url or os.environ.get(section.url_variable or "")
    if not url:
        raise ConfigurationError(
            f"the variable {section.url_variable!r} is not set: it holds the URL that is told "
            "about runs that failed"
        )
    return url


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
    if REPOSITORY_TAG not in run.tags and names.plain_job(run) not in OTHER_JOBS:
        return False
    here = context.code_location_origin
    return names.owns_at(run, here.location_name if here is not None else None)


def _deliver(
    context: dg.SensorEvaluationContext,
    policies: Policies,
    ways: dict[str, Callable[[dict[str, Any]], None]],
    waiting: dict[str, dict[str, Any]],
    now: datetime,
) -> list[str]:
    """Tell what waits, as far as there is time, and take it out; what went wrong, in sentences."""
    problems: list[str] = []
    deadline = monotonic() + _BUDGET_S
    for run_id in list(waiting):
        if monotonic() > deadline:
            break
        one = waiting.pop(run_id)
        run = context.instance.get_run_by_id(run_id)
        if run is None:
            continue
        left = []
        for way in one["ways"]:
            try:
                # One that the file does not name any more is left out.
                if way in ways:
                    ways[way](notice(context.instance, run, one["message"], policies))
            except Exception as error:  # noqa: BLE001 - a tick that fails would tell nobody anything
                problems.append(str(error) or type(error).__name__)
                left.append(way)
        if left and now - datetime.fromisoformat(one["since"]) < _LIFETIME:
            # At the end, so that others come before it at the next tick.
            waiting[run_id] = {**one, "ways": left}
        elif left:
            context.log.error("nobody was told about run %s in a day: %s", run_id, problems[-1])
    return list(dict.fromkeys(problems))


def notice(
    instance: dg.DagsterInstance, run: dg.DagsterRun, message: str, policies: Policies
) -> dict[str, Any]:
    """What is told about a run that failed, as JSON values.

    Args:
        instance: that has the run.
        run: on a partition of a repository, or of a job that is of none.
        message: of Dagster, told where no step says more.
        policies: of all repositories.
    """
    repository, mark = run.tags.get(REPOSITORY_TAG), run.tags.get(RUN_TAG)
    failed = _failed_checks(instance, run.run_id)
    sentence = "; ".join(failed.values()) or _error(instance, run.run_id) or message
    return {
        "repository": repository,
        "run": mark,
        "job": run.job_name,
        "dagster_run": run.run_id,
        "wave": run.tags.get("lakegc/wave"),
        "check": next(iter(failed), None),
        "checks": sorted(failed),
        "sentence": sentence,
        "what_to_do": _what_to_do(repository, mark, failed, cut_off=not _steps(instance, run)),
        "owners": policies.of(repository).owners if repository else policies.for_all.owners,
    }


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


def _steps(instance: dg.DagsterInstance, run: dg.DagsterRun) -> list[dg.DagsterEvent]:
    """The failures of steps of a run."""
    entries = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
    return [entry.dagster_event for entry in entries if entry.dagster_event is not None]


def _error(instance: dg.DagsterInstance, run_id: str) -> str:
    """The message of the first step that failed, without the names of the errors around it."""
    entries = instance.all_logs(run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
    for entry in entries:
        event = entry.dagster_event
        error = event.step_failure_data.error if event is not None else None
        while error is not None and error.cause is not None:
            error = error.cause
        if error is not None:
            kind, _, said = error.message.strip().partition(": ")
            return said or kind
    return ""


def _what_to_do(
    repository: str | None, mark: str | None, failed: dict[str, str], *, cut_off: bool
) -> str:
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
            "its process was killed or its machine stopped: the sensor gc_resume goes on with it, "
            "or the same command with the same --run"
        )
    return 'the sentence says it; docs/operations.md has a table of messages, "When it stops"'


def post(url: str, document: dict[str, Any]) -> None:
    """Post a document as JSON; tried three times.

    Raises:
        NoticeError: the server does not take it.
    """
    said = ""
    for _ in range(_ATTEMPTS):
        try:
            # Behind a redirection it would be asked for something, and be told nothing.
            with requests.post(
                url, json=document, timeout=_TIMEOUTS_S, allow_redirects=False, stream=True
            ) as answer:
                status = answer.status_code
        except requests.RequestException as error:
            # Its text may hold the URL, which may hold a secret.
            said = type(error).__name__
            continue
        if status // 100 == _TAKEN:
            return
        said = f"status {status}"
    raise NoticeError(f"the notice about run {document['dagster_run']} was not delivered: {said}")


def mail(section: MailSection, document: dict[str, Any]) -> None:
    """Send a document as mail, to the configured addresses and the owners that have one.

    Raises:
        NoticeError: the server does not take it.
        ConfigurationError: the variable of the password is not set.
    """
    message = EmailMessage()
    what = (
        f"{document['repository']}, run {document['run']}"
        if document["repository"]
        else document["job"]
    )
    message["Subject"] = f"lakegc: {what} failed"
    message["From"] = section.sender
    owners = [owner for owner in document["owners"] if "@" in owner]
    message["To"] = ", ".join(dict.fromkeys([*section.to, *owners]))
    message.set_content(
        f"{document['sentence']}\n\nWhat to do: {document['what_to_do']}\n\n"
        f"{json.dumps(document, indent=1)}\n"
    )
    try:
        with smtplib.SMTP(section.host, section.port, timeout=_MAIL_TIMEOUT_S) as server:
            if section.starttls:
                server.starttls()
            if section.user:
                server.login(section.user, _password(section))
            server.send_message(message)
    except (smtplib.SMTPException, OSError) as error:
        raise NoticeError(
            f"the mail about run {document['dagster_run']} was not sent by {section.host}: {error}"
        ) from error


def _password(section: MailSection) -> str:
    password = os.environ.get(section.password_variable or "")
    if password is None:
        raise ConfigurationError(
            f"user {section.user!r} of {section.host} needs a password: set the variable that "
            "password_variable names"
        )
    return password
