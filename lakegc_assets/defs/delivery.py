"""Delivers notices: posted in the form that a chat shows, or mailed; what is not taken is kept.

A sensor keeps what was not delivered in its cursor, for a day. Who is killed between a delivery and
the cursor's being written delivers twice.
"""

import json
import logging
import os
import smtplib
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from email.message import EmailMessage
from time import monotonic
from typing import Any, Final
from urllib.parse import urlsplit

import requests
from requests import post as send

from lakegc_assets.defs.policy import MailSection, NoticeSection
from lakegc_assets.errors import ConfigurationError, LakegcError

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
        event: what it is about: failed, waiting, stale, or wave.
        title: one line.
        sentence: what happened.
        what_to_do: about it.
        link: to a page of Dagster's interface.
        values: what else is known, by name.
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
    """How people are told, by name; empty where nobody is to be told."""
    ways: dict[str, Way] = {}
    if section.url or section.url_variable:
        ways["url"] = lambda document: post(_url(section), document, section.form)
    chosen = section.mail
    if chosen is not None:
        ways["mail"] = lambda document: mail(chosen, document)
    return ways


def entry(ways: Mapping[str, Way], now: datetime, **content: object) -> dict[str, Any]:
    """What a cursor keeps of a notice until it is delivered, as JSON values."""
    return {**content, "since": now.isoformat(), "ways": list(ways)}


def deliver(
    ways: Mapping[str, Way],
    waiting: dict[str, dict[str, Any]],
    make: Callable[[str, dict[str, Any]], Document | None],
    now: datetime,
    log: logging.Logger,
) -> list[str]:
    """Deliver what waits, as far as there is time, and take it out of what waits.

    Args:
        ways: how people are told; one that is not among them any more is left out.
        waiting: entries by their keys.
        make: the notice of a key and its entry; None where there is none any more.
        now: the time, UTC.
        log: is told what nobody was told of in a day.

    Returns:
        What went wrong, in sentences.
    """
    problems: list[str] = []
    deadline = monotonic() + _BUDGET_S
    for key in list(waiting):
        if monotonic() > deadline:
            break
        one = waiting.pop(key)
        left = []
        for way in one["ways"]:
            try:
                made = make(key, one)
                if made is not None and way in ways:
                    ways[way](made)
            except Exception as error:  # noqa: BLE001 - a tick that fails would tell nobody anything
                problems.append(str(error) or type(error).__name__)
                left.append(way)
        if left and now - datetime.fromisoformat(one["since"]) < _LIFETIME:
            # At the end, so that others come before it at the next tick.
            waiting[key] = {**one, "ways": left}
        elif left:
            log.error("nobody was told about %s in a day: %s", key, problems[-1])
    return list(dict.fromkeys(problems))


def said_of(waiting: Mapping[str, object], problems: list[str], otherwise: str) -> str:
    """Why a tick that only tells people has started nothing."""
    if problems:
        return f"{len(waiting)} notices wait: {'; '.join(problems)}"
    return f"{len(waiting)} notices wait" if waiting else otherwise


def _url(section: NoticeSection) -> str:
    url = section.url or os.environ.get(section.url_variable or "")
    if not url:
        raise ConfigurationError(
            f"the variable {section.url_variable!r} is not set: it holds the URL that notices are "
            "posted to"
        )
    return url


def post(url: str, document: Document, form: str = "auto") -> None:
    """Post a notice as JSON; tried three times.

    Args:
        url: of the receiver.
        document: the notice.
        form: json, slack, teams; auto goes by the URL's host.

    Raises:
        NoticeError: the server does not take it.
    """
    body = in_form(document, _form_at(url) if form == "auto" else form)
    said = ""
    for _ in range(_ATTEMPTS):
        try:
            # Behind a redirection it would be asked for something, and be told nothing.
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

    Args:
        document: the notice.
        form: json for all of it, which has the field ``text`` that most chats show; slack for that
            alone; teams for an adaptive card.
    """
    if form == "slack":
        return {"text": _escaped_for_slack(document["text"])}
    return _card(document) if form == "teams" else document


def _escaped_for_slack(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


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
        ConfigurationError: the variable of the password is not set.
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
                server.login(section.user, _password(section))
            server.send_message(message)
    except (smtplib.SMTPException, OSError) as error:
        raise NoticeError(
            f"the mail {document['title']!r} was not sent by {section.host}: {error}"
        ) from error


def _password(section: MailSection) -> str:
    password = os.environ.get(section.password_variable or "")
    if password is None:
        raise ConfigurationError(
            f"user {section.user!r} of {section.host} needs a password: set the variable that "
            "password_variable names"
        )
    return password
