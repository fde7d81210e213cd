"""Notices to people, mailed, or posted in the form that a chat shows.

A sensor keeps an undelivered notice in its cursor for a day. A process that is killed after a
delivery and before the cursor is written delivers the notice twice.
"""

from __future__ import annotations

import json
import logging
import os
import ssl
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from email.message import EmailMessage
from html import escape
from smtplib import SMTP, SMTPException
from time import monotonic
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import requests
from pydantic import BaseModel, Field, model_validator
from requests import post as send

from lakegc_assets.errors import ConfigurationError, LakegcError
from lakegc_assets.run.bounds import Bounds

#: Forms in which notices are posted.
FORMS: Final = ("auto", "json", "slack", "teams")
#: Seconds in which a tick begins deliveries: Dagster ends a tick after 60 s.
_BUDGET_S: Final = 20
_ATTEMPTS: Final = 3
#: First digit of the status of a notice that a server has accepted.
_TAKEN: Final = 2
#: Seconds to reach the server, and between parts of its answer.
_TIMEOUTS_S: Final = (3, 5)
_MAIL_TIMEOUT_S: Final = 8
#: Time for which the delivery of a notice is tried.
_LIFETIME: Final = timedelta(days=1)
#: Hosts of Slack that accept notices, and ends of those of Teams.
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
    """A notice of an event (failed, waiting, stale, wave, sensor, or schedule), as JSON values.

    ``link``: to a page of Dagster's interface. ``values``: other facts, by name.
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


class Outbox:
    """Notices that wait for their delivery, as the cursor of a sensor keeps them.

    Attributes:
        waiting: entries as JSON values, by key.
        ways: methods of delivery; methods of an entry that are not in them are skipped.
    """

    def __init__(self, ways: Mapping[str, Way], waiting: Mapping[str, Any], now: datetime) -> None:
        """Load the waiting notices."""
        self.waiting: dict[str, dict[str, Any]] = dict(waiting)
        self.ways = ways
        self._now = now
        self._problems: list[str] = []

    def add(self, key: str, **content: object) -> None:
        """Add a notice: its ``document``, or the content from which it is made at its delivery."""
        self.waiting[key] = {**content, "since": self._now.isoformat(), "ways": list(self.ways)}

    def deliver(
        self, log: logging.Logger, make: Callable[[str, str], Document | None] | None = None
    ) -> None:
        """Deliver waiting notices while there is time, and remove the delivered ones.

        ``make``: makes the notice of a key and a message, or returns None if there is none any
        more; without it, entries contain their notices.
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
                # It moves to the end, so that the next tick tries others first.
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


def post(url: str, document: Document, form: str = "auto") -> None:
    """Post a notice as JSON in a form, see ``in_form``; three tries.

    Raises:
        NoticeError: the server does not accept it.
    """
    body = in_form(document, _form_at(url) if form == "auto" else form)
    said = ""
    for _ in range(_ATTEMPTS):
        try:
            # A client repeats a redirected POST as GET, without the notice.
            with send(
                url, json=body, timeout=_TIMEOUTS_S, allow_redirects=False, stream=True
            ) as answer:
                status = answer.status_code
        except requests.RequestException as error:
            # Its text may contain the URL, which may contain a secret.
            said = type(error).__name__
            continue
        if status // 100 == _TAKEN:
            return
        said = f"status {status}"
    raise NoticeError(
        f"the notice {document['title']!r} was not delivered: {said}. Check `url` or "
        "`url_variable` of the notices"
    )


def _form_at(url: str) -> str:
    host = urlsplit(url).hostname or ""
    if host in _SLACK:
        return "slack"
    return "teams" if host.endswith(_TEAMS) else "json"


def in_form(document: Document, form: str) -> Document:
    """A notice in the form that its receiver shows.

    json: all fields; most chats show the field ``text``. slack: only this field. teams: an
    adaptive card.
    """
    if form == "slack":
        return {"text": escape(document["text"], quote=False)}
    return _card(document) if form == "teams" else document


def _card(document: Document) -> Document:
    """An adaptive card in a message, as Teams accepts it.

    Its texts are text runs, in which Teams reads no Markdown: names and words of others could
    otherwise become links.
    """
    parts = (document["sentence"], f"What to do: {document['what_to_do']}")
    card: Document = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": [
            _plain(document["title"], weight="Bolder"),
            *map(_plain, parts),
        ],
    }
    if document["link"]:
        card["actions"] = [
            {"type": "Action.OpenUrl", "title": "Open in Dagster", "url": document["link"]}
        ]
    content = {"contentType": "application/vnd.microsoft.card.adaptive", "content": card}
    return {"type": "message", "attachments": [content]}


def _plain(text: str, **style: str) -> Document:
    """A paragraph of a card that shows a text unchanged."""
    return {"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": text, **style}]}


class MailServer(BaseModel):
    """The mail server and its recipients."""

    host: str = Field(description="of the SMTP server")
    port: Annotated[int, Bounds(1, 65_535)] = Field(default=25, description="of the SMTP server")
    sender: str = Field(description="address that mails come from")
    to: list[str] = Field(description="addresses, at least one; owners that have one are added")
    starttls: bool = Field(
        default=False, description="encrypt the connection, to a server whose certificate is valid"
    )
    user: str | None = Field(default=None, description="name to log in with")
    password_variable: str | None = Field(
        default=None, description="name of the environment variable that holds the password"
    )

    @model_validator(mode="after")
    def _require_password(self) -> MailServer:
        if self.user and not self.password_variable:
            raise ValueError(f"user {self.user!r} needs a password: name its password_variable")
        return self

    def password(self) -> str:
        """The value of its environment variable; a ``ConfigurationError`` if that is not set."""
        password = os.environ.get(self.password_variable or "")
        if password is None:
            raise ConfigurationError(
                f"user {self.user!r} of {self.host} needs a password: set the environment variable "
                f"{self.password_variable}, which password_variable names"
            )
        return password


def mail(server: MailServer, document: Document) -> None:
    """Send a notice as mail, to the configured addresses and to owners with an address.

    Raises:
        NoticeError: the server does not accept it.
    """
    message = EmailMessage()
    message["Subject"] = f"lakegc: {document['title']}"
    message["From"] = server.sender
    owners = [owner for owner in document.get("owners", ()) if "@" in owner]
    message["To"] = ", ".join(dict.fromkeys([*server.to, *owners]))
    body = (document["sentence"], f"What to do: {document['what_to_do']}", document["link"])
    values = {name: value for name, value in document.items() if name != "text"}
    message.set_content(
        "\n\n".join(part for part in (*body, json.dumps(values, indent=1)) if part) + "\n"
    )
    try:
        with SMTP(server.host, server.port, timeout=_MAIL_TIMEOUT_S) as open_server:
            if server.starttls:
                # Without a context smtplib accepts any certificate, and anybody could get the
                # password.
                open_server.starttls(context=ssl.create_default_context())
            if server.user:
                open_server.login(server.user, server.password())
            open_server.send_message(message)
    except (SMTPException, OSError) as error:
        raise NoticeError(
            f"the mail {document['title']!r} was not sent by {server.host}, port {server.port}: "
            f"{error}. Check this server and `mail` of the notices"
        ) from error
