"""``gc_failures``: one JSON document, or one mail, for each run that failed."""

import json
import os
import smtplib
from email.message import EmailMessage
from typing import Any, Final

import dagster as dg
import requests

from lakegc_assets.defs.policy import MailSection, NoticeSection, Policies
from lakegc_assets.errors import ConfigurationError, LakegcError

_TIMEOUT_S: Final = 20
_ATTEMPTS: Final = 3
_APPROVABLE: Final = "candidate_share"


class NoticeError(LakegcError):
    """A notice was not delivered."""


def failure_sensor(policies: Policies, section: NoticeSection) -> dg.SensorDefinition:
    """``gc_failures``."""

    @dg.run_failure_sensor(
        name="gc_failures",
        default_status=policies.sensor_status,
        description="Tells a URL, or people by mail, about each run that failed: repository, run, "
        "check, what was found, and what to do.",
    )
    def failures(context: dg.RunFailureSensorContext) -> dg.SkipReason | None:
        run = context.dagster_run
        if "dagster/partition/repository" not in run.tags:
            return dg.SkipReason(f"run {run.run_id} is of no repository")
        url = section.url or os.environ.get(section.url_variable or "")
        if url is None and section.mail is None:
            return dg.SkipReason("nobody is to be told: set `failures` of the component")
        document = notice(context.instance, run, context.failure_event.message or "", policies)
        if url is not None:
            post(url, document)
        if section.mail is not None:
            mail(section.mail, document)
        return None

    return failures


def notice(
    instance: dg.DagsterInstance, run: dg.DagsterRun, message: str, policies: Policies
) -> dict[str, Any]:
    """What is told about a run that failed, as JSON values.

    Args:
        instance: that has the run.
        run: on a partition of a repository.
        message: of Dagster, told where no step says more.
        policies: of all repositories.
    """
    repository, mark = (run.tags[f"dagster/partition/{name}"] for name in ("repository", "run"))
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
        "owners": policies.of(repository).owners,
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


def _what_to_do(repository: str, mark: str, failed: dict[str, str], *, cut_off: bool) -> str:
    if set(failed) == {_APPROVABLE}:
        return (
            f"look at why with `lakegc why`; if the rules mean it, `lakegc approve {repository} "
            f"--run {mark} --max-candidate-share SHARE`, else correct the rules"
        )
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
            answer = requests.post(url, json=document, timeout=_TIMEOUT_S)
        except requests.RequestException as error:
            # Its text may hold the URL, which may hold a secret.
            said = type(error).__name__
            continue
        if answer.ok:
            return
        said = f"status {answer.status_code}"
    raise NoticeError(f"the notice about run {document['dagster_run']} was not delivered: {said}")


def mail(section: MailSection, document: dict[str, Any]) -> None:
    """Send a document as mail, to the configured addresses and the owners that have one.

    Raises:
        NoticeError: the server does not take it.
        ConfigurationError: the variable of the password is not set.
    """
    message = EmailMessage()
    message["Subject"] = f"lakegc: {document['repository']}, run {document['run']} failed"
    message["From"] = section.sender
    owners = [owner for owner in document["owners"] if "@" in owner]
    message["To"] = ", ".join(dict.fromkeys([*section.to, *owners]))
    message.set_content(
        f"{document['sentence']}\n\nWhat to do: {document['what_to_do']}\n\n"
        f"{json.dumps(document, indent=1)}\n"
    )
    try:
        with smtplib.SMTP(section.host, section.port, timeout=_TIMEOUT_S) as server:
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
