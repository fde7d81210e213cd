"""Notices about runs that failed: what they say, and that they arrive."""

from __future__ import annotations

import json
import socketserver
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from unittest.mock import MagicMock

import dagster as dg
import pytest
from typing_extensions import Self

from lakegc_assets.defs import notices
from lakegc_assets.defs.collection import Collection
from lakegc_assets.defs.component import GarbageCollection
from lakegc_assets.defs.names import partition_key
from lakegc_assets.defs.notices import failure_sensor, notice
from lakegc_assets.defs.policy import MailSection, NoticeSection, Override, Policies
from lakegc_assets.errors import ConfigurationError
from lakegc_assets.estate import notices as delivery
from lakegc_assets.estate.notices import NoticeError, document, in_form, mail, post
from lakegc_assets_tests.defs.daemon import Daemon
from lakegc_assets_tests.defs.running import own_instance

_POLICIES = Policies(overrides=[Override(include=["repo"], owners=["ada@example.com", "team:x"])])


_LINKED = Collection(_POLICIES, notices=NoticeSection(dagster_url="https://dagster.example.com/"))


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with own_instance() as instance:
        yield Daemon(GarbageCollection().definitions(), instance)


def start(daemon: Daemon, job: str = "gc", **tags: str) -> dg.DagsterRun:
    daemon.instance.add_dynamic_partitions("repository", ["repo"])
    daemon.instance.add_dynamic_partitions("run", ["m1"])
    request = dg.RunRequest(partition_key=partition_key("repo", "m1"), tags={"lakegc/wave": "w"})
    run = daemon.instance.get_run_by_id(daemon.launch(request, job, tags))
    assert run is not None
    return run


class _Receiver(BaseHTTPRequestHandler):
    documents: list[Any]
    answers: list[int]

    def do_POST(self) -> None:
        size = int(self.headers["Content-Length"])
        self.documents.append(json.loads(self.rfile.read(size)))
        self.send_response(self.answers.pop(0) if self.answers else 200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def receiver() -> Iterator[tuple[str, type[_Receiver]]]:
    kind = type("Receiver", (_Receiver,), {"documents": [], "answers": []})
    with HTTPServer(("127.0.0.1", 0), kind) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/hook", kind
        server.shutdown()
        thread.join()


def test_a_refusal_is_reported_with_its_sentence(daemon: Daemon) -> None:
    run = start(daemon)
    daemon.fail(run.run_id, "the clock of the object store differs: set the clocks")
    found = notice(daemon.instance, run, "Steps failed", Collection(_POLICIES))
    assert found["repository"] == "repo"
    assert found["run"] == "m1"
    assert found["wave"] == "w"
    assert found["sentence"] == "the clock of the object store differs: set the clocks"
    assert found["check"] is None
    assert "When it stops" in found["what_to_do"]
    assert found["owners"] == ["ada@example.com", "team:x"]


def test_a_failed_check_is_reported_with_what_to_do(daemon: Daemon) -> None:
    run = start(daemon)
    evaluation = dg.AssetCheckEvaluation(
        asset_key=dg.AssetKey("deletion_candidates"),
        check_name="candidate_share",
        passed=False,
        metadata={},
        severity=dg.AssetCheckSeverity.ERROR,
        description="9 of 10 listed objects are candidates",
    )
    event = dg.DagsterEvent(
        event_type_value=dg.DagsterEventType.ASSET_CHECK_EVALUATION.value,
        job_name="gc",
        event_specific_data=evaluation,
    )
    daemon.instance.report_dagster_event(event, run_id=run.run_id)
    daemon.fail(run.run_id, "a blocking check failed")
    found = notice(daemon.instance, run, "Steps failed", Collection(_POLICIES))
    assert (found["check"], found["checks"]) == ("candidate_share", ["candidate_share"])
    assert found["sentence"] == "9 of 10 listed objects are candidates"
    assert "lakegc approve repo --run m1 --max-candidate-share" in found["what_to_do"]
    # The command approves only the objects that the notice is about.

    @dg.asset
    def deletion_candidates() -> dg.MaterializeResult[None]:
        return dg.MaterializeResult(metadata={"digest": "9-ab"})

    for event in dg.materialize([deletion_candidates]).all_events:
        if event.event_type is dg.DagsterEventType.ASSET_MATERIALIZATION:
            daemon.instance.report_dagster_event(event, run_id=run.run_id)
    found = notice(daemon.instance, run, "Steps failed", Collection(_POLICIES))
    command = "lakegc approve repo --run m1 --digest 9-ab --max-candidate-share SHARE"
    assert command in found["what_to_do"]


def test_a_refused_approval_names_its_checks(daemon: Daemon) -> None:
    run = start(daemon)
    daemon.fail(run.run_id, "candidate_share: 9 of 10 go\ntags_protected: one is not")
    found = notice(daemon.instance, run, "Steps failed", _LINKED)
    assert found["checks"] == ["candidate_share"]
    assert found["sentence"] == "9 of 10 go"


def test_what_is_tried_again_is_reported_as_such(daemon: Daemon) -> None:
    run = start(daemon)
    daemon.fail(run.run_id, "lakeFS does not answer", transient=True)
    found = notice(daemon.instance, run, "Steps failed", _LINKED)
    assert "gc_resume tries it once more in five minutes" in found["what_to_do"]


def test_a_killed_run_is_reported_as_such(daemon: Daemon) -> None:
    run = start(daemon)
    daemon.kill(run.run_id)
    found = notice(daemon.instance, run, "Run process unexpectedly exited", _LINKED)
    assert found["sentence"] == "Run process unexpectedly exited"
    assert "gc_resume continues it" in found["what_to_do"]
    assert found["link"] == f"https://dagster.example.com/runs/{run.run_id}"


def test_a_killed_run_that_dagster_starts_again_is_reported_as_such(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(daemon, "gc_sweep")
    daemon.kill(run.run_id)
    monkeypatch.setattr(notices, "is_retried", lambda *_: True)
    found = notice(daemon.instance, run, "marked as failed from outside", _LINKED)
    assert found["what_to_do"].startswith("nothing yet: its process was killed")
    assert "Dagster starts it again" in found["what_to_do"]


@pytest.mark.parametrize(
    ("job", "tags"), [("gc_restore", {}), ("gc_backup", {}), ("gc", {"lakegc/resumed": "3"})]
)
def test_nobody_waits_for_a_sensor_that_does_not_go_on(
    daemon: Daemon, job: str, tags: dict[str, str]
) -> None:
    run = start(daemon, job, **tags)
    daemon.kill(run.run_id)
    found = notice(daemon.instance, run, "Run process unexpectedly exited", _LINKED)
    assert found["what_to_do"] == "its process was killed or its machine stopped: launch it again"


@dataclass
class Sensor:
    """``gc_failures``, with what it remembers."""

    daemon: Daemon
    section: NoticeSection
    now: datetime = datetime(2026, 3, 1, tzinfo=timezone.utc)
    cursor: str | None = None

    def tick(self) -> str:
        """Why it started nothing, as it never does."""
        collection = Collection(_POLICIES, notices=self.section, now=lambda: self.now)
        sensor = failure_sensor(collection)
        with dg.build_sensor_context(self.daemon.instance, cursor=self.cursor) as context:
            result = sensor.evaluate_tick(context)
        self.cursor = result.cursor
        assert result.skip_message is not None
        return result.skip_message


def test_one_document_is_posted_for_a_run(
    daemon: Daemon, receiver: tuple[str, type[_Receiver]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, kind = receiver
    daemon.fail(start(daemon).run_id, "what was before")
    sensor = Sensor(daemon, NoticeSection(url=url))
    assert sensor.tick() == "notices begin with the next run that fails"
    daemon.fail(start(daemon).run_id, "a tag has gone")
    sensor.tick()
    sensor.tick()
    assert [one["sentence"] for one in kind.documents] == ["a tag has gone"]
    monkeypatch.setenv("THE_HOOK", url)
    sensor.section = NoticeSection(url_variable="THE_HOOK")
    daemon.kill(start(daemon).run_id)
    sensor.tick()
    assert len(kind.documents) == 2


def test_what_a_server_does_not_take_is_reported_later(
    daemon: Daemon, receiver: tuple[str, type[_Receiver]]
) -> None:
    url, kind = receiver
    sensor = Sensor(daemon, NoticeSection(url=url))
    sensor.tick()
    daemon.fail(start(daemon).run_id, "one")
    kind.answers += [500, 500, 500]
    assert "1 notices wait: the notice 'repo, run m1 failed'" in sensor.tick()
    daemon.fail(start(daemon).run_id, "two")
    kind.answers += [302, 302, 302]
    assert "was not delivered: status 302" in sensor.tick()
    kind.documents.clear()
    sensor.tick()
    assert sensor.tick() == "0 runs have failed"
    assert [one["sentence"] for one in kind.documents] == ["one"]
    # After a day nobody waits for it any more.
    daemon.fail(start(daemon).run_id, "three")
    sensor.section = NoticeSection(url_variable="NOT_SET")
    assert "the variable 'NOT_SET' is not set" in sensor.tick()
    sensor.now += timedelta(days=1)
    sensor.tick()
    assert sensor.tick() == "0 runs have failed"


def test_a_server_that_does_not_answer_does_not_keep_others_from_being_reported(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor a tick from its end: Dagster would forget what it has done."""
    clock = iter(range(0, 1000, 15))
    monkeypatch.setattr(delivery, "monotonic", lambda: next(clock))
    reported: list[str] = []

    def hang(_url: str, document: dict[str, Any], _form: str) -> None:
        reported.append(document["sentence"])
        raise NoticeError("no answer")

    monkeypatch.setattr(notices, "post", hang)
    mails: list[str] = []
    monkeypatch.setattr(notices, "mail", lambda _, document: mails.append(document["sentence"]))
    both = NoticeSection(
        url="http://h", mail=MailSection(host="h", sender="gc@x.org", to=["on@x.org"])
    )
    sensor = Sensor(daemon, both)
    sensor.tick()
    for name in "abc":
        daemon.fail(start(daemon).run_id, name)
    sensor.tick()
    assert reported == ["a"]
    assert sensor.tick() == "3 notices wait: no answer"
    sensor.tick()
    assert (reported, mails) == (["a", "b", "c"], ["a", "b", "c"])


def test_a_notice_that_cannot_be_made_keeps_no_other_from_being_reported(
    daemon: Daemon, receiver: tuple[str, type[_Receiver]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, kind = receiver
    sensor = Sensor(daemon, NoticeSection(url=url))
    sensor.tick()
    odd = start(daemon)
    for run, said in ((odd, "odd"), (start(daemon), "usual")):
        daemon.fail(run.run_id, said)
    make = notices.notice

    def one_fails(instance: Any, run: dg.DagsterRun, *rest: Any) -> Any:
        if run.run_id == odd.run_id:
            raise ValueError("its events cannot be read")
        return make(instance, run, *rest)

    monkeypatch.setattr(notices, "notice", one_fails)
    assert sensor.tick() == "1 notices wait: its events cannot be read"
    assert [one["sentence"] for one in kind.documents] == ["usual"]


def test_a_prune_that_fails_is_reported(
    daemon: Daemon, receiver: tuple[str, type[_Receiver]]
) -> None:
    url, kind = receiver
    sensor = Sensor(daemon, NoticeSection(url=url))
    sensor.tick()
    for name in ("gc_prune", "gc_estate"):
        job = daemon.definitions.resolve_job_def(name)
        run = daemon.instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED)
        daemon.fail(run.run_id, f"what {name} says")
    sensor.tick()
    found = {one["job"]: (one["repository"], one["sentence"]) for one in kind.documents}
    assert found == {
        "gc_prune": (None, "what gc_prune says"),
        "gc_estate": (None, "what gc_estate says"),
    }


@pytest.mark.parametrize("cursor", ["{", "7", '{"__class__": "RunStatusSensorCursor"}'])
def test_a_damaged_cursor_is_a_new_beginning(daemon: Daemon, cursor: str) -> None:
    sensor = Sensor(daemon, NoticeSection(url="http://127.0.0.1:9"), cursor=cursor)
    assert sensor.tick() == "notices begin with the next run that fails"
    assert sensor.tick() == "0 runs have failed"


def test_a_cursor_may_hold_only_the_place_from_which_notices_begin(daemon: Daemon) -> None:
    sensor = Sensor(daemon, NoticeSection(url="http://127.0.0.1:9"), cursor='{"after": 0}')
    assert sensor.tick() == "0 runs have failed"


def test_a_run_that_fails_after_another_was_deleted_is_reported(
    daemon: Daemon, receiver: tuple[str, type[_Receiver]]
) -> None:
    """SQLite gives the records of the new run the ids of those that were deleted."""
    url, kind = receiver
    first = start(daemon)
    sensor = Sensor(daemon, NoticeSection(url=url), cursor='{"after": 0}')
    daemon.fail(first.run_id, "first")
    sensor.tick()
    for said in ("again", "and again"):
        daemon.instance.delete_run(first.run_id)
        first = start(daemon)
        daemon.fail(first.run_id, said)
        sensor.tick()
        sensor.tick()
    daemon.instance.delete_run(first.run_id)
    assert sensor.tick() == "0 runs have failed"
    daemon.fail(start(daemon).run_id, "last")
    sensor.tick()
    assert [one["sentence"] for one in kind.documents] == ["first", "again", "and again", "last"]


def test_nobody_is_reported_where_nobody_is_named(daemon: Daemon) -> None:
    daemon.fail(start(daemon).run_id, "something")
    assert "set `notices` in the component" in Sensor(daemon, NoticeSection()).tick()


_NOTICE = document("failed", "repo failed", "1 < 2 & so on", "wait", "https://d.example.com/runs/r")


@pytest.mark.parametrize(
    ("url", "form"),
    [
        ("https://hooks.slack.com/services/T/B/x", "slack"),
        ("https://example.webhook.office.com/webhookb2/x", "teams"),
        ("https://prod-1.westeurope.logic.azure.com:443/workflows/x", "teams"),
        ("https://chat.example.com/hook", "json"),
    ],
)
def test_a_notice_has_the_form_that_its_receiver_shows(
    monkeypatch: pytest.MonkeyPatch, url: str, form: str
) -> None:
    sent: list[Any] = []

    class Answer:
        status_code = 200

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            """Nothing is open."""

    def take(_url: str, *, json: Any, **_: Any) -> Answer:
        sent.append(json)
        return Answer()

    monkeypatch.setattr("lakegc_assets.estate.notices.send", take)
    post(url, _NOTICE)
    assert sent == [in_form(_NOTICE, form)]


def test_slack_teams_and_others_find_title_sentence_advice_and_link() -> None:
    text = "repo failed\n1 < 2 & so on\nWhat to do: wait\nhttps://d.example.com/runs/r"
    assert in_form(_NOTICE, "slack") == {"text": text.replace("&", "&amp;").replace("<", "&lt;")}
    (attachment,) = in_form(_NOTICE, "teams")["attachments"]
    card = attachment["content"]
    shown = [run["text"] for block in card["body"] for run in block["inlines"]]
    assert shown == ["repo failed", "1 < 2 & so on", "What to do: wait"]
    # Teams makes links of the Markdown in a TextBlock, and nothing of what is in a TextRun.
    kinds = {part["type"] for block in card["body"] for part in (block, *block["inlines"])}
    assert kinds == {"RichTextBlock", "TextRun"}
    assert card["actions"][0]["url"] == "https://d.example.com/runs/r"
    assert in_form(_NOTICE, "json")["text"] == text


def test_a_busy_server_is_asked_again_and_a_dead_one_is_an_error(
    receiver: tuple[str, type[_Receiver]],
) -> None:
    url, kind = receiver
    kind.answers += [503, 503]
    post(url, _NOTICE)
    assert len(kind.documents) == 3
    kind.answers += [500, 301, 500]
    with pytest.raises(NoticeError, match="the notice 'repo failed' was not delivered: status 500"):
        post(url, _NOTICE)
    with pytest.raises(NoticeError, match="was not delivered: ConnectionError") as error:
        post("http://127.0.0.1:9/secret-path", _NOTICE)
    assert "secret-path" not in str(error.value)


class _Mailbox(socketserver.StreamRequestHandler):
    """The little of SMTP that a client without TLS speaks."""

    received: list[str]

    def handle(self) -> None:
        self.wfile.write(b"220 here\r\n")
        while line := self.rfile.readline().decode().strip().upper():
            if line == "DATA":
                self.wfile.write(b"354 go on\r\n")
                lines = iter(lambda: self.rfile.readline().decode().rstrip("\r\n"), ".")
                self.received.append("\n".join(lines))
            if line == "QUIT":
                self.wfile.write(b"221 bye\r\n")
                return
            self.wfile.write(b"250 yes\r\n")


def test_one_mail_is_sent_to_people_and_owners() -> None:
    kind = type("Mailbox", (_Mailbox,), {"received": []})
    made = document(
        "failed", "repo, run m1 failed", "a tag has gone", "run again", "https://d.example.com/runs/r",
        owners=["ada@example.com", "team:x"],
    )  # fmt: skip
    with socketserver.TCPServer(("127.0.0.1", 0), kind) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        port = server.server_address[1]
        mail(MailSection(host="127.0.0.1", port=port, sender="gc@x.org", to=["on@x.org"]), made)
        server.shutdown()
        thread.join()
    (received,) = kind.received  # type: ignore[attr-defined] # given above
    assert "Subject: lakegc: repo, run m1 failed" in received
    assert "To: on@x.org, ada@example.com" in received
    assert "a tag has gone\n\nWhat to do: run again\n\nhttps://d.example.com/runs/r" in received


def test_a_password_goes_to_a_server_only_whose_certificate_is_valid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = MagicMock()
    monkeypatch.setattr(delivery, "SMTP", server)
    mail(MailSection(host="mail", sender="gc@x.org", to=["on@x.org"], starttls=True), _NOTICE)
    (call,) = server.return_value.__enter__.return_value.starttls.mock_calls
    context = call.kwargs["context"]
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


def test_a_mail_that_cannot_be_sent_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    section = MailSection(
        host="127.0.0.1", port=9, sender="gc@x.org", to=["on@x.org"], user="gc",
        password_variable="THE_PASSWORD",
    )  # fmt: skip
    with pytest.raises(NoticeError, match=r"was not sent by 127\.0\.0\.1"):
        mail(section, _NOTICE)
    with pytest.raises(ConfigurationError, match="needs a password"):
        section.password()
    monkeypatch.setenv("THE_PASSWORD", "open sesame")
    assert section.password() == "open sesame"
