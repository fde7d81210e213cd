"""Deletes that come too late: what is signed, what stores answer, and which stores keep to it."""

from __future__ import annotations

import base64
import hashlib
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from threading import Barrier
from typing import Any

import boto3
import pytest

from lakegc_assets.storage import bulk, local, probes
from lakegc_assets.storage.bulk import Bulk, Deadline
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.errors import StorageError, StoreUnavailableError, error_class
from lakegc_assets.storage.files import locked
from lakegc_assets.storage.http import HttpFailure
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.storage.opening import open_store
from lakegc_assets.storage.probes import probe_deadlines
from lakegc_assets.storage.s3.client import clients
from lakegc_assets.storage.values import DeleteOutcome
from lakegc_assets_tests.storage.conftest import Answer, Script, codes, listed, query_of
from lakegc_assets_tests.storage.s3_answers import delete_result
from lakegc_assets_tests.storage.servers import Server

_FOLDER = "_lakefs/retention/gc/lakegc/probe-"
_SPACE = "<Error><Key>ns/{}</Key><Code>AccessDenied</Code><Message>{}</Message></Error>"
_GONE = "<Deleted><Key>ns/{}</Key></Deleted>"


class Clock:
    """In place of the one that nobody sets; the machine is suspended when a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(bulk, "seconds", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_a_window_is_what_is_left_since_the_deadline_was_set(clock: Clock) -> None:
    deadline = Deadline.after(60)
    clock.now += 12.5
    begin, length = deadline.window()
    assert abs(datetime.now(timezone.utc) - begin) < timedelta(seconds=30)
    assert length == 47
    clock.now += 46.6
    with pytest.raises(HttpFailure, match="nothing was sent") as raised:
        deadline.window()
    assert error_class(raised.value.code) is StoreUnavailableError


def test_a_window_that_is_over_from_the_beginning_is_signed_to_try_a_store(clock: Clock) -> None:
    clock.now += 5
    begin, length = Deadline.after(-30).window()
    ended = datetime.now(timezone.utc) - begin - timedelta(seconds=length)
    assert timedelta(seconds=25) < ended < timedelta(seconds=60)


@pytest.mark.parametrize(
    ("code", "told", "later", "read"),
    [
        ("AccessDenied", "Access Denied.", 0, "AccessDenied"),
        ("AccessDenied", "Access Denied.", 60, "Expired"),
        ("AccessDenied", "Request has expired", 0, "Expired"),
        ("ExpiredToken", "The provided token has expired.", 0, "ExpiredToken"),
        ("ExpiredToken", "Request signature expired at: 2026-01-01T00:00:00", 0, "Expired"),
        ("AuthenticationFailed", "Signature not valid in the specified time frame", 0, "Expired"),
        ("SlowDown", "Request has expired", 60, "SlowDown"),
        ("NoSuchKey", "", 60, "NoSuchKey"),
    ],
)
def test_only_a_refusal_that_the_deadline_explains_is_one(
    clock: Clock, code: str, told: str, later: float, read: str
) -> None:
    deadline = Deadline.after(60)
    clock.now += later
    assert deadline.read(HttpFailure(code, told, 403)).code == read


@pytest.mark.parametrize(
    ("code", "status", "late"),
    [
        # Garage, earlier versions of Ozone, and Scality.
        ("InvalidRequest", 400, "Expired"),
        ("MalformedHeader", 400, "Expired"),
        ("RequestTimeTooSkewed", 403, "Expired"),
        # In the answer about one key, or of another kind.
        ("InvalidRequest", None, "InvalidRequest"),
        ("InternalError", 500, "InternalError"),
        ("PreconditionFailed", 412, "PreconditionFailed"),
        ("ObjectLocked", 400, "ObjectLocked"),
    ],
)
def test_some_servers_call_a_late_request_a_bad_one(
    clock: Clock, code: str, status: int | None, late: str
) -> None:
    """Otherwise they would seem to keep no deadlines, and deletes would have none there."""
    deadline, failure = Deadline.after(60), HttpFailure(code, "Date is too old", status)
    assert deadline.read(failure).code == code
    clock.now += 60
    assert deadline.read(failure).code == late


@pytest.mark.usefixtures("clock")
def test_a_bulk_delete_on_s3_is_signed_in_its_url(script: Script) -> None:
    script.answers = [Answer(body=delete_result(_GONE.format("a"), _GONE.format("b")))]
    store = open_store("s3://bkt/ns", script.config())
    outcomes = store.delete_many(["a", "b"], {"a": "e1", "b": "e2"}, expires_s=60)
    assert [o.outcome for o in outcomes] == ["deleted", "deleted"]
    query = query_of(script.requests[0])
    assert {"delete", "X-Amz-Signature", "X-Amz-Credential"} <= query.keys()
    assert 55 <= int(query["X-Amz-Expires"]) <= 60
    signed = datetime.strptime(query["X-Amz-Date"], "%Y%m%dT%H%M%S%z")
    assert abs(datetime.now(timezone.utc) - signed) < timedelta(seconds=30)
    assert "authorization" not in script.headers[0]
    digest = hashlib.md5(script.bodies[0]).digest()
    assert script.headers[0]["content-md5"] == base64.b64encode(digest).decode()
    # The digest is signed, so that nobody can send the signature with another body.
    assert "content-md5" in query["X-Amz-SignedHeaders"].split(";")
    assert script.bodies[0].count(b"<ETag>") == 2


def test_a_deadline_that_counts_from_the_stores_time_asks_no_clock_of_ours(
    script: Script, clock: Clock
) -> None:
    """However long it takes to get there, and however wrong this machine's clock is."""
    script.answers = [Answer(503), Answer(body=delete_result(_GONE.format("a")))]
    store = open_store("s3://bkt/ns", script.config(2))

    class Slow(list[str]):
        def append(self, request: str) -> None:
            super().append(request)
            clock.now += 20.0

    script.requests = Slow()
    told = datetime(2026, 1, 2, 5, 4, 5, tzinfo=timezone(timedelta(hours=2)))
    assert codes(store.delete_many(["a"], expires_s=45, since=told)) == [None]
    for request in script.requests:
        query = query_of(request)
        assert (query["X-Amz-Date"], query["X-Amz-Expires"]) == ("20260102T030405Z", "45")
        assert query["X-Amz-Credential"].split("/")[1] == "20260102"


def test_a_deadline_that_is_over_by_the_stores_time_is_signed_to_try_it() -> None:
    told = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
    assert Deadline.after(-30, told).window() == (told - timedelta(seconds=60), 30)


def test_a_single_delete_on_s3_keeps_its_condition(script: Script) -> None:
    script.answers = [Answer(204)]
    store = open_store("s3://bkt/ns", script.config())
    (outcome,) = store.delete_many(["a b"], {"a b": "e1"}, singly=True, expires_s=60)
    assert outcome.outcome == "deleted"
    assert script.requests[0].startswith("DELETE /bkt/ns/a%20b?")
    assert script.headers[0]["if-match"] == '"e1"'
    query = query_of(script.requests[0])
    assert "if-match" in query["X-Amz-SignedHeaders"].split(";")
    assert "authorization" not in script.headers[0]


def test_other_requests_are_signed_as_ever(script: Script) -> None:
    script.answers = [Answer(body=delete_result(_GONE.format("a")))]
    store = open_store("s3://bkt/ns", script.config())
    store.delete_many(["a"], expires_s=60)
    store.delete_many(["a"])
    assert script.requests[1] == "POST /bkt?delete"
    assert "authorization" in script.headers[1]


def test_temporary_credentials_are_sent_with_their_token(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "the token")
    script.answers = [Answer(body=delete_result(_GONE.format("a")))]
    open_store("s3://bkt/ns", script.config()).delete_many(["a"], expires_s=60)
    assert query_of(script.requests[0])["X-Amz-Security-Token"] == "the token"


def test_no_error_quotes_a_signature(aws_environment: None) -> None:  # noqa: ARG001
    config = StoreConfig(endpoint_url="http://127.0.0.1:9", max_attempts=1)
    (found,) = open_store("s3://bkt/ns", config).delete_many(["a"], expires_s=60)
    assert found.error_code == "ConnectionFailed"
    assert "http://127.0.0.1:9/bkt" in str(found.detail)
    assert "X-Amz" not in str(found.detail)


def test_what_s3_says_of_a_late_delete_is_no_missing_permission(script: Script) -> None:
    """Some answer so for each key, and some for the request; who is denied in time is denied."""
    late = delete_result(
        _SPACE.format("a", "Request has expired"), _SPACE.format("b", "Access Denied")
    )
    whole = "<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>"
    script.answers = [Answer(body=late), Answer(403, whole), Answer(403, whole)]
    store = open_store("s3://bkt/ns", script.config())
    assert codes(store.delete_many(["a", "b"], expires_s=60)) == ["Expired", "AccessDenied"]
    assert codes(store.delete_many(["a", "b"], expires_s=60)) == ["Expired", "Expired"]
    assert codes(store.delete_many(["a", "b"], singly=True, expires_s=60)) == ["Expired", "NotSent"]


def test_without_a_deadline_the_same_words_are_a_refusal(script: Script) -> None:
    late = delete_result(_SPACE.format("a", "Request has expired"))
    script.answers = [Answer(body=late)]
    assert codes(open_store("s3://bkt/ns", script.config()).delete_many(["a"])) == ["AccessDenied"]


def test_all_requests_of_one_call_end_at_its_deadline(script: Script, clock: Clock) -> None:
    """A machine that was suspended after the first of them does not sign the others anew."""
    keys = [f"{number:04d}" for number in range(2500)]
    script.answers = [
        Answer(body=delete_result(*(_GONE.format(key) for key in keys[start : start + 1000])))
        for start in (0, 1000)
    ]
    store = open_store("s3://bkt/ns", script.config())
    taken = iter([0.0, 20.0, 100.0])

    class Suspended(list[str]):
        def append(self, request: str) -> None:
            super().append(request)
            clock.now += next(taken) + 20.0

    script.requests = Suspended()
    outcomes = store.delete_many(keys, expires_s=60)
    spans = [int(query_of(request)["X-Amz-Expires"]) for request in script.requests]
    assert spans == [60, 40]
    assert codes(outcomes) == [None] * 2000 + ["Expired"] * 500
    assert "nothing was sent" in str(outcomes[-1].detail)


def test_calls_that_are_sent_at_a_time_end_at_one_deadline_and_with_the_first_failure(
    clock: Clock,
) -> None:
    """Google's store takes one key in a request with a deadline."""
    together, sent = Barrier(4), list[str]()
    deadline = Deadline.after(60)

    def send(keys: Sequence[str], _etags: Mapping[str, str] | None) -> Mapping[str, None]:
        deadline.window()
        sent.extend(keys)
        # No call ends before four have begun.
        together.wait(60)
        if "bad" in keys[0]:
            raise HttpFailure("SlowDown", "less")
        return dict.fromkeys(keys)

    calls = Bulk("gs://b", 1, lambda _: None, send, str, deadline=deadline, threads=4)
    assert [o.outcome for o in calls.delete(map(str, range(8)), None)] == ["deleted"] * 8
    assert sorted(sent) == [*map(str, range(8))]
    bad = [f"bad-{n}" for n in range(8)]
    assert codes(calls.delete(bad, None)) == ["SlowDown"] * 4 + ["NotSent"] * 4
    assert sorted(sent[8:]) == bad[:4]
    clock.now += 60
    assert set(codes(calls.delete(["late", "too"], None))) <= {"Expired", "NotSent"}
    assert len(sent) == 12


def test_a_repeated_request_is_not_signed_for_longer(script: Script, clock: Clock) -> None:
    script.answers = [Answer(503), Answer(body=delete_result(_GONE.format("a")))]
    store = open_store("s3://bkt/ns", script.config(2))

    class Slow(list[str]):
        def append(self, request: str) -> None:
            super().append(request)
            clock.now += 20.0

    script.requests = Slow()
    assert codes(store.delete_many(["a"], expires_s=60)) == [None]
    assert [query_of(r)["X-Amz-Expires"] for r in script.requests] == ["60", "40"]


def test_a_store_that_ignores_deadlines_is_found_out(s3_server: str, s3_bucket: str) -> None:
    store = open_store(f"s3://{s3_bucket}/n s/%41", StoreConfig(endpoint_url=s3_server))
    assert store.delete_deadlines()
    assert not probe_deadlines(store, _FOLDER)
    assert listed(store) == []


def test_a_delete_in_time_is_carried_out(s3_server: str, s3_bucket: str) -> None:
    store = open_store(f"s3://{s3_bucket}/n s/%41", StoreConfig(endpoint_url=s3_server))
    keys = ["a//b", "plain", "é +", "ctl\x01"]
    for key in keys:
        store.put(key.replace("//", "/"), b"1")
    assert codes(store.delete_many(keys, expires_s=60)) == [None] * 4
    assert listed(store) == ["a/b"]


def test_local_files_have_no_store_that_keeps_a_deadline(tmp_path: Path, clock: Clock) -> None:
    store = open_store(str(tmp_path))
    assert not store.delete_deadlines()
    assert not probe_deadlines(store, _FOLDER)
    assert listed(store) == []
    store.put("a", b"1")
    assert codes(store.delete_many(["a"], expires_s=-1)) == ["Expired"]
    assert store.exists("a")
    clock.now += 1
    assert codes(store.delete_many(["a"], expires_s=1)) == [None]
    assert not store.exists("a")


def test_a_deadline_that_passes_while_a_directory_is_waited_for_keeps_the_file(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(str(tmp_path))
    store.put("a", b"1")

    def late(*asked: Any, **more: Any) -> Any:
        clock.now += 2
        return locked(*asked, **more)

    monkeypatch.setattr(local, "locked", late)
    assert codes(store.delete_many(["a"], expires_s=1)) == ["Expired"]
    assert store.exists("a")


class Claiming(LocalStore):
    """Says that it keeps deadlines; how it answers to those that are over is up to a test."""

    def __init__(
        self, root: Path, late: str = "Expired", in_time: str | None = None, *, only: str = ""
    ) -> None:
        super().__init__(root, root.as_uri())
        self.late, self.in_time, self.only = late, in_time, only

    def delete_deadlines(self) -> bool:
        return True

    def delete_many(
        self, keys: Iterable[str], etags: Mapping[str, str] | None = None, **how: Any
    ) -> Sequence[DeleteOutcome]:
        asked, expires_s = list(keys), how.get("expires_s")
        meant = self.only in {"", "single" if how.get("singly") else "bulk"}
        code = None
        if expires_s is not None and meant:
            code = self.late if expires_s < 0 else self.in_time
        if code == "carried out":
            return super().delete_many(asked, etags)
        if code == "a lie":
            super().delete_many(asked, etags)
            code = "Expired"
        if code is not None:
            return [DeleteOutcome(key, "failed", code, "no") for key in asked]
        return super().delete_many(asked, etags, **how)


@pytest.mark.parametrize(
    ("late", "in_time", "kept"),
    [
        ("Expired", None, True),
        ("carried out", None, False),
        ("a lie", None, False),
        ("NotImplemented", None, False),
        ("Expired", "AccessDenied", False),
        ("Expired", "Expired", False),
    ],
)
@pytest.mark.parametrize("only", ["", "single", "bulk"])
def test_a_store_must_refuse_what_is_late_and_take_what_is_not(
    tmp_path: Path, late: str, in_time: str | None, only: str, *, kept: bool
) -> None:
    store = Claiming(tmp_path, late, in_time, only=only)
    assert probe_deadlines(store, _FOLDER) is kept
    assert listed(store) == []


def test_a_condition_is_sent_only_where_deletes_have_one(tmp_path: Path) -> None:
    class Strict(Claiming):
        def delete_many(
            self, keys: Iterable[str], etags: Mapping[str, str] | None = None, **how: Any
        ) -> Sequence[DeleteOutcome]:
            if etags is not None:
                return [DeleteOutcome(key, "failed", "NotImplemented", "no") for key in keys]
            return super().delete_many(keys, **how)

    assert probe_deadlines(Strict(tmp_path), _FOLDER)
    assert not probe_deadlines(Strict(tmp_path), _FOLDER, conditional=True)


@pytest.mark.parametrize("code", ["SlowDown", "NoAnswer", "Timeout"])
def test_a_store_that_does_not_answer_has_said_nothing(tmp_path: Path, code: str) -> None:
    for store in (Claiming(tmp_path, late=code), Claiming(tmp_path, in_time=code)):
        with pytest.raises(StorageError, match=f"not known whether .*: {code}"):
            probe_deadlines(store, _FOLDER)
        assert listed(store) == []


def test_a_store_that_is_slow_has_said_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep would go on without deadlines, which this store keeps."""
    now = [0.0]
    monkeypatch.setattr(probes, "seconds", lambda: now[0])

    class Slow(Claiming):
        def delete_many(self, *asked: Any, **how: Any) -> Sequence[DeleteOutcome]:
            now[0] += 30.0
            return super().delete_many(*asked, **how)

    with pytest.raises(StorageError, match="one took longer than 30 s"):
        probe_deadlines(Slow(tmp_path, in_time="Expired"), _FOLDER)
    assert probe_deadlines(Slow(tmp_path), _FOLDER)


@pytest.fixture(params=["versitygw_server", "minio_server"])
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    return found


@pytest.mark.stores
def test_real_s3_servers_keep_deadlines(server: Server) -> None:
    bucket = f"bucket-{uuid.uuid4().hex}"
    boto3.client("s3", endpoint_url=server.endpoint).create_bucket(Bucket=bucket)
    config = StoreConfig(endpoint_url=server.endpoint)
    store = open_store(f"s3://{bucket}/n s/%41é", config)
    assert [probe_deadlines(store, _FOLDER, conditional=c) for c in (False, True)] == [True, True]
    store.put("a", b"1")
    for singly in (False, True):
        (outcome,) = store.delete_many(["a"], singly=singly, expires_s=-30)
        assert (outcome.error_code, store.exists("a")) == ("Expired", True)
    assert "expired" in str(outcome.detail).lower()


@pytest.mark.stores
@pytest.mark.parametrize("singly", [False, True])
def test_a_delete_that_is_held_back_is_refused(server: Server, *, singly: bool) -> None:
    """As where a process is suspended after it has signed, and before it sends."""
    bucket = f"bucket-{uuid.uuid4().hex}"
    boto3.client("s3", endpoint_url=server.endpoint).create_bucket(Bucket=bucket)
    config = StoreConfig(endpoint_url=server.endpoint, connect_timeout_s=9.0)
    store = open_store(f"s3://{bucket}", config)
    store.put("a", b"1")
    pauses = [3.5]

    def hold(**_: object) -> None:
        time.sleep(pauses.pop() if pauses else 0)

    for name in ("DeleteObject", "DeleteObjects"):
        clients(config).usual.meta.events.register(f"before-send.s3.{name}", hold)
    assert codes(store.delete_many(["a"], singly=singly, expires_s=2)) == ["Expired"]
    assert store.exists("a")
    assert codes(store.delete_many(["a"], singly=singly, expires_s=30)) == [None]
    assert not store.exists("a")


@pytest.mark.stores
def test_azurite_keeps_deadlines(
    azure_container: tuple[str, StoreConfig], azure_by_sas: StoreConfig
) -> None:
    url, config = azure_container
    store = open_store(f"{url}/n s/%2541é", config)
    assert [probe_deadlines(store, _FOLDER, conditional=c) for c in (False, True)] == [True, True]
    keys = ["a", "b"]
    for key in keys:
        store.put(key, b"1")
    assert set(codes(store.delete_many(keys, expires_s=-30))) == {"Expired"}
    assert [*map(store.exists, keys)] == [True, True]
    assert not probe_deadlines(open_store(f"{url}/n s", azure_by_sas), _FOLDER)


@pytest.mark.stores
def test_the_stand_in_for_google_has_none(gcs_bucket: tuple[str, StoreConfig]) -> None:
    """It asks for no credentials, so nothing can be signed."""
    bucket, config = gcs_bucket
    assert not probe_deadlines(open_store(f"gs://{bucket}/ns", config), _FOLDER)
