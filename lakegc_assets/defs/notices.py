"""Notices, posted in the form that a chat shows or mailed; and ``gc_failures``, which makes some.

A sensor holds a notice that was not delivered in its cursor, for a day. Who is killed between a
delivery and the cursor's being written delivers twice. ``gc_failures`` is a plain sensor, since one
of Dagster's for failed runs forgets a run whose notice was not delivered.
"""

import json
import logging
import os
import smtplib
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta
from email.message import EmailMessage
from html import escape
from time import monotonic
from typing import Any, Final
from urllib.parse import urlsplit

import dagster as dg
import requests
from requests import post as send

from lakegc_assets.checks.evaluation import NAMES
from lakegc_assets.defs.collection import Collection, remembered
from lakegc_assets.defs.failures import failed_for_a_while, first_cause, step_failures
from lakegc_assets.defs.names import (
    OTHER_JOBS,
    RETRIED_TAG,
    WAVE_TAG,
    Names,
    is_retried,
    location_of,
    partition_of,
)
from lakegc_assets.defs.policy import MailSection, NoticeSection, Policies
from lakegc_assets.errors import ConfigurationError, LakegcError
from lakegc_assets.run.command_line import command_line, in_dagster
from lakegc_assets.wording import counted

#: Dagster gives a tick 60 s: what is begun within the first 20 ends before that.
_BUDGET_S: Final = 20
_ATTEMPTS: Final = 3
#: The first digit of the status of what a server has taken.
_TAKEN: Final = 2
#: To reach the server, and between parts of its answer.
_TIMEOUTS_S: Final = (3, 5)
_MAIL_TIMEOUT_S: Final = 8
#: For how long it is tried to deliver a notice.
_LIFETIME: Final = timedelta(days=1)
#: Hosts at which Slack takes notices, and the ends of those at which Teams does.
_SLACK: Final = ("hooks.slack.com", "hooks.slack-gov.com")
_TEAMS: Final = (".webhook.office.com", ".logic.azure.com", ".api.powerplatform.com")

Document = dict[str, Any]
Way = Callable[[Document], None]


class NoticeError(LakegcError):
    """A notice was not delivered."""


def document(
    event: str,
    title: str,
    sentence: str,
    what_to_do: str,
    link: str | None = None,
    **values: object,
) -> Document:
    """A notice, as JSON values.

    Args:
        event: failed, waiting, stale, or wave.
        title: one line.
        sentence: what happened.
        what_to_do: about it.
        link: to a page of Dagster's interface.
        values: other facts, by name.
    """
    lines = (title, sentence, f"What to do: {what_to_do}", link)
    return {
        **values,
        "event": event,
        "title": title,
        "sentence": sentence,
        "what_to_do": what_to_do,
        "link": link,
        "text": "\n".join(line for line in lines if line),
    }


def link_to_run(section: NoticeSection, run_id: str | None) -> str | None:
    """The page of a run in Dagster's interface; None where it is not known where that is."""
    if section.dagster_url is None or run_id is None:
        return None
    return f"{section.dagster_url.rstrip('/')}/runs/{run_id}"


def ways_of(section: NoticeSection) -> dict[str, Way]:
    """The ways of delivery, by name; empty where no receiver is configured."""
    ways: dict[str, Way] = {}
    if section.url or section.url_variable:
        ways["url"] = lambda document: post(_url(section), document, section.form)
    chosen = section.mail
    if chosen is not None:
        ways["mail"] = lambda document: mail(chosen, document)
    return ways


class Outbox:
    """Notices that wait for their delivery, as the cursor of a sensor has them.

    Attributes:
        waiting: entries as JSON values, by their keys.
        ways: of delivery; one of an entry that is not among them any more is left out.
    """

    def __init__(self, section: NoticeSection, waiting: Mapping[str, Any], now: datetime) -> None:
        """Take what waits."""
        self.waiting: dict[str, dict[str, Any]] = dict(waiting)
        self.ways = ways_of(section)
        self._now = now
        self._problems: list[str] = []

    def add(self, key: str, **content: object) -> None:
        """Let a notice wait: its ``document``, or what it is made of when it is delivered."""
        self.waiting[key] = {**content, "since": self._now.isoformat(), "ways": list(self.ways)}

    def deliver(
        self, log: logging.Logger, make: Callable[[str, str], Document | None] | None = None
    ) -> None:
        """Deliver what waits, as far as there is time, and take it out of what waits.

        ``make`` gives the notice of a key and a message, or None where there is none any more;
        without it, entries hold their notices.
        """
        deadline = monotonic() + _BUDGET_S
        for key in list(self.waiting):
            if monotonic() > deadline:
                break
            one = self.waiting.pop(key)
            left = []
            for way in one["ways"]:
                try:
                    made = make(key, one["message"]) if make else one["document"]
                    if made is not None and way in self.ways:
                        self.ways[way](made)
                except Exception as error:  # noqa: BLE001 - a tick that fails would deliver no other notice
                    self._problems.append(str(error) or type(error).__name__)
                    left.append(way)
            if left and self._now - datetime.fromisoformat(one["since"]) < _LIFETIME:
                # At the end, so that others come before it at the next tick.
                self.waiting[key] = {**one, "ways": left}
            elif left:
                said = self._problems[-1]
                log.error("the notice about %s was not delivered in a day: %s", key, said)

    def reason(self, otherwise: str) -> str:
        """The reason why a tick that only delivers notices has started nothing."""
        if self._problems:
            said = "; ".join(dict.fromkeys(self._problems))
            return f"{len(self.waiting)} notices wait: {said}"
        return f"{len(self.waiting)} notices wait" if self.waiting else otherwise


def _url(section: NoticeSection) -> str:
    url = section.url or os.environ.get(section.url_variable or "")
    if not url:
        raise ConfigurationError(
            f"the variable {section.url_variable!r} is not set: it holds the URL that notices are "
            "posted to"
        )
    return url


def post(url: str, document: Document, form: str = "auto") -> None:
    """Post a notice as JSON in a form, see ``in_form``; tried three times.

    Raises:
        NoticeError: the server does not take it.
    """
    body = in_form(document, _form_at(url) if form == "auto" else form)
    said = ""
    for _ in range(_ATTEMPTS):
        try:
            # Behind a redirection it would be asked for something, and receive nothing.
            with send(
                url, json=body, timeout=_TIMEOUTS_S, allow_redirects=False, stream=True
            ) as answer:
                status = answer.status_code
        except requests.RequestException as error:
            # Its text may hold the URL, which may hold a secret.
            said = type(error).__name__
            continue
        if status // 100 == _TAKEN:
            return
        said = f"status {status}"
    raise NoticeError(f"the notice {document['title']!r} was not delivered: {said}")


def _form_at(url: str) -> str:
    host = urlsplit(url).hostname or ""
    if host in _SLACK:
        return "slack"
    return "teams" if host.endswith(_TEAMS) else "json"


def in_form(document: Document, form: str) -> Document:
    """A notice as its receiver shows it.

    The form json has all of it, with the field ``text`` that most chats show; slack that alone;
    teams is an adaptive card.
    """
    if form == "slack":
        return {"text": escape(document["text"], quote=False)}
    return _card(document) if form == "teams" else document


def _card(document: Document) -> Document:
    """An adaptive card in a message, as Teams takes it."""
    parts = (document["sentence"], f"What to do: {document['what_to_do']}")
    card: Document = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": [
            {"type": "TextBlock", "text": document["title"], "weight": "Bolder", "wrap": True},
            *({"type": "TextBlock", "text": part, "wrap": True} for part in parts),
        ],
    }
    if document["link"]:
        card["actions"] = [
            {"type": "Action.OpenUrl", "title": "Open in Dagster", "url": document["link"]}
        ]
    content = {"contentType": "application/vnd.microsoft.card.adaptive", "content": card}
    return {"type": "message", "attachments": [content]}


def mail(section: MailSection, document: Document) -> None:
    """Send a notice as mail, to the configured addresses and the owners that have one.

    Raises:
        NoticeError: the server does not take it.
    """
    message = EmailMessage()
    message["Subject"] = f"lakegc: {document['title']}"
    message["From"] = section.sender
    owners = [owner for owner in document.get("owners", ()) if "@" in owner]
    message["To"] = ", ".join(dict.fromkeys([*section.to, *owners]))
    body = (document["sentence"], f"What to do: {document['what_to_do']}", document["link"])
    values = {name: value for name, value in document.items() if name != "text"}
    message.set_content(
        "\n\n".join(part for part in (*body, json.dumps(values, indent=1)) if part) + "\n"
    )
    try:
        with smtplib.SMTP(section.host, section.port, timeout=_MAIL_TIMEOUT_S) as server:
            if section.starttls:
                server.starttls()
            if section.user:
                server.login(section.user, section.password())
            server.send_message(message)
    except (smtplib.SMTPException, OSError) as error:
        raise NoticeError(
            f"the mail {document['title']!r} was not sent by {section.host}: {error}"
        ) from error


#: Failures that are looked at in one tick.
_AT_ONCE: Final = 100
_APPROVABLE: Final = "candidate_share"


def failure_sensor(collection: Collection) -> dg.SensorDefinition:
    """``gc_failures``."""

    @collection.sensor(
        "gc_failures",
        30,
        "Posts to a URL, or mails, each run that failed: repository, run, check, what was found, "
        "and what to do. What cannot be delivered is tried for a day.",
    )
    def failures(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        if not ways_of(collection.notices):
            return dg.SkipReason("no receiver is configured: set `notices` of the component")
        known = remembered(context)
        if "after" not in known:
            last = _failures(context.instance, None)
            known = {"after": last[-1].storage_id if last else -1, "waiting": {}}
            return dg.SensorResult(
                skip_reason="notices begin with the next run that fails", cursor=json.dumps(known)
            )
        outbox = Outbox(collection.notices, known["waiting"], collection.now())
        found = _failures(context.instance, known["after"])
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
            policies, section = collection.policies, collection.notices
            return notice(context.instance, run, message, policies, section)

        outbox.deliver(context.log, make)
        after = found[-1].storage_id if found else known["after"]
        cursor = json.dumps({"after": after, "waiting": outbox.waiting})
        said = outbox.reason(f"{counted(len(found), 'run has', 'runs have')} failed")
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
    """True for runs of this component on a repository, or of a job without repositories."""
    if partition_of(run)[0] is None and names.plain_job(run) not in OTHER_JOBS:
        return False
    return names.owns_at(run, location_of(context.code_location_origin))


def notice(
    instance: dg.DagsterInstance,
    run: dg.DagsterRun,
    message: str,
    policies: Policies,
    section: NoticeSection,
) -> Document:
    """The notice about a run that failed."""
    repository, mark = partition_of(run)
    causes = step_failures(instance, run.run_id)
    error = next((first_cause(one.error) for one in causes if one.error is not None), "")
    failed = _failed_checks(instance, run.run_id) or _checks_in(error)
    what = f"{repository}, run {mark}" if repository else run.job_name
    return document(
        "failed",
        f"{what} failed",
        "; ".join(failed.values()) or error or message,
        _what_to_do(instance, run, set(failed), cut_off=not causes),
        link_to_run(section, run.run_id),
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
    """The findings of each check that stopped a run, by its name."""
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
    """The findings of failed checks, by the error of a run that evaluates them in one step."""
    lines = (line.partition(": ") for line in error.splitlines())
    return {name: said for name, _, said in lines if name in NAMES}


def _is_tried_again(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """True if ``gc_resume``, where it is on, starts a failed run once more."""
    if not run.job_name.endswith(("gc", "gc_mark", "gc_sweep")) or RETRIED_TAG in run.tags:
        return False
    return bool(failed_for_a_while(instance, run.run_id))


def _what_to_do(
    instance: dg.DagsterInstance, run: dg.DagsterRun, failed: AbstractSet[str], *, cut_off: bool
) -> str:
    repository, mark = partition_of(run)
    if is_retried(instance, run):
        return "nothing yet: Dagster starts it again (`run_retries` of the instance)"
    sensor = in_dagster("gc_resume")
    if _is_tried_again(instance, run):
        return f"nothing yet: the sensor {sensor} tries it once more in five minutes"
    if failed == {_APPROVABLE} and repository is not None and mark is not None:
        share = ("--max-candidate-share", "SHARE")
        approving = command_line("approve", repository, "--run", mark, *share)
        return (
            f"look at why with `lakegc why`; if the rules mean it, `{approving}`, else correct "
            "the rules"
        )
    if cut_off and repository is None:
        return "its process was killed or its machine stopped: launch the job again"
    if cut_off:
        return (
            f"its process was killed or its machine stopped: the sensor {sensor} goes on with it, "
            "or the same command with the same --run"
        )
    return 'the sentence says it; docs/operations.md has a table of messages, "When it stops"'
