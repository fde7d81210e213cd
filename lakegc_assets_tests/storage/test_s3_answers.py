"""What S3 answers to single requests: errors told apart, repeats, conditional puts, the time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from datetime import datetime, timezone

import pytest
from botocore.exceptions import ClientError
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends

from lakegc_assets.errors import ConfigurationError, LakegcError
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.copies import copy_object
from lakegc_assets.storage.errors import (
    AccessDeniedError,
    ArchivedError,
    StorageError,
    StoreThrottledError,
    StoreUnavailableError,
    error_class,
)
from lakegc_assets.storage.opening import open_store
from lakegc_assets.storage.s3.client import clients
from lakegc_assets_tests.storage.conftest import Answer, Script, listed
from lakegc_assets_tests.storage.s3_answers import completed, entry, error, page


def test_an_answer_that_is_cut_off_is_asked_for_again(script: Script) -> None:
    whole = Answer(body=page(entry("ns/a")))
    script.answers = [Answer(body=whole.body[:-40], cut=True), whole]
    assert listed(open_store("s3://bkt/ns", script.config(2))) == ["a"]
    rest = Answer(206, "f and half", headers={"ETag": '"e"', "Content-Range": "bytes 3-12/13"})
    script.answers = [Answer(body="hal", headers={"ETag": '"e"'}, cut=True), rest]
    assert open_store("s3://bkt/ns", script.config(2)).get("k") == b"half and half"
    script.answers = [Answer(body="hal", headers={"ETag": '"e"'}, cut=True)]
    for ask in (lambda s: s.get("k"), listed):
        with pytest.raises(StoreUnavailableError):
            ask(open_store("s3://bkt/ns", script.config(2)))


@pytest.mark.parametrize(
    ("status", "code", "expected", "advice"),
    [
        (403, "AccessDenied", AccessDeniedError, "policy"),
        (403, "InvalidAccessKeyId", AccessDeniedError, "credentials"),
        (400, "ExpiredToken", AccessDeniedError, "renew"),
        (404, "NoSuchBucket", ConfigurationError, "bucket does not exist"),
        (400, "AuthorizationHeaderMalformed", ConfigurationError, "region"),
        (403, "RequestTimeTooSkewed", ConfigurationError, "clock"),
        (403, "InvalidObjectState", ArchivedError, "bring it back"),
        (503, "SlowDown", StoreThrottledError, "SlowDown"),
        (503, "", StoreThrottledError, "503"),
        (429, "Odd", StoreThrottledError, "429"),
        (500, "InternalError", StoreUnavailableError, "InternalError"),
        (502, "", StoreUnavailableError, "502"),
        (404, "", StorageError, "404"),
        (400, "Odd", StorageError, "Odd"),
    ],
)
def test_errors_are_told_apart(
    script: Script, status: int, code: str, expected: type[LakegcError], advice: str
) -> None:
    script.answers = [Answer(status, error(code) if code else "")]
    store = open_store("s3://bkt/ns", script.config())
    calls: list[Callable[[], object]] = [
        lambda: store.get("some/key"),
        lambda: store.put("some/key", b""),
        lambda: store.put_if_absent("some/key", b""),
        lambda: listed(store, "some/key"),
    ]
    for call in calls:
        with pytest.raises(expected, match=advice) as raised:
            call()
        assert raised.type is expected
        assert "s3://bkt/ns" in str(raised.value)
        assert "some/key" in str(raised.value)
        assert "test-secret-key" not in str(raised.value)
    (outcome,) = store.delete_many(["some/key"])
    assert outcome.outcome == "failed"
    assert outcome.error_code in {code, str(status)}
    assert error_class(outcome.error_code or "") is expected


def test_a_server_that_cannot_be_reached(s3_server: str) -> None:
    assert s3_server
    store = open_store(
        "s3://bkt/ns", StoreConfig(endpoint_url="http://127.0.0.1:9", max_attempts=1)
    )
    with pytest.raises(StoreUnavailableError, match=r"127\.0\.0\.1:9"):
        store.get("k")
    with pytest.raises(StoreUnavailableError, match="not known whether"):
        store.put_if_absent("k", b"")
    assert [o.error_code for o in store.delete_many(["k"])] == ["ConnectionFailed"]


def test_a_wrong_bucket_is_not_a_missing_object(s3_server: str) -> None:
    store = open_store("s3://no-such-bucket/ns", StoreConfig(endpoint_url=s3_server))
    calls: list[Callable[[], object]] = [
        lambda: store.get("k"),
        lambda: store.head("k"),
        lambda: store.put("k", b""),
        lambda: listed(store),
        store.server_time,
    ]
    for call in calls:
        with pytest.raises(ConfigurationError, match="no-such-bucket"):
            call()


def test_throttling_is_waited_for_and_retries_can_be_turned_off(script: Script) -> None:
    slow = Answer(503, error("SlowDown"))
    deleted = Answer(body="<DeleteResult><Deleted><Key>ns/k</Key></Deleted></DeleteResult>")
    script.answers = [slow, slow, deleted]
    assert [o.outcome for o in open_store("s3://bkt/ns", script.config(3)).delete_many(["k"])] == [
        "deleted"
    ]
    assert len(script.requests) == 3
    script.answers = [slow, deleted]
    outcomes = open_store("s3://bkt/ns", script.config(1)).delete_many(["k"])
    assert [(o.outcome, o.error_code) for o in outcomes] == [("failed", "SlowDown")]
    assert len(script.requests) == 4


@pytest.mark.parametrize("code", ["SlowDown", "SlowDownRead", "SlowDownWrite"])
def test_a_key_for_which_the_server_is_too_busy_is_throttled(script: Script, code: str) -> None:
    """MinIO names it for single keys, where it lacks a quorum of drives."""
    refused = f"<Error><Key>ns/k</Key><Code>{code}</Code><Message>less</Message></Error>"
    script.answers = [Answer(body=f"<DeleteResult>{refused}</DeleteResult>")]
    (outcome,) = open_store("s3://bkt/ns", script.config(1)).delete_many(["k"])
    assert (outcome.outcome, outcome.error_code) == ("failed", code)
    assert error_class(code) is StoreThrottledError


def test_a_conditional_put_is_repeated_only_if_it_was_refused(script: Script) -> None:
    store = open_store("s3://bkt/ns", script.config(3))
    script.answers = [
        Answer(503, error("SlowDown")),
        Answer(409, error("ConditionalRequestConflict")),
        Answer(headers={"ETag": '"e"'}),
    ]
    store.put_if_absent("k", b"x")
    assert len(script.requests) == 3
    script.answers = [Answer(500, error("InternalError")), Answer()]
    with pytest.raises(StoreUnavailableError, match="not known whether"):
        store.put_if_absent("k", b"x")
    # Neither writer may have written: it does not say that anything is there.
    script.answers = [Answer(409, error("ConditionalRequestConflict"))]
    with pytest.raises(StoreUnavailableError, match="ConditionalRequestConflict"):
        store.put_if_match("k", b"x", "e")


@pytest.mark.parametrize("ask", ["put", "copy", "head"])
def test_a_write_that_is_sent_once_meets_no_connection_that_a_refusal_has_closed(
    script: Script, ask: str
) -> None:
    """MinIO closes it behind a 412, and does not say so."""
    store = open_store("s3://bkt/ns", script.config())
    asked: dict[str, Callable[[], object]] = {
        "put": lambda: store.put_if_match("k", b"x", "e"),
        "copy": lambda: copy_object(store, "k", store, "l", size=10**5, etag="e", if_absent=False),
        "head": lambda: store.head("k"),
    }
    script.answers = [Answer(412, dead=True), Answer(headers={"ETag": '"e"'})]
    with pytest.raises(StorageError):
        asked[ask]()
    assert store.put_if_absent("other", b"x") == "e"


def test_an_upload_that_is_completed_once_meets_no_connection_that_a_refusal_has_closed(
    script: Script,
) -> None:
    client = clients(script.config()).once
    script.answers = [Answer(412, error("PreconditionFailed"), dead=True), completed("e")]
    for refused in (True, False):
        with pytest.raises(ClientError) if refused else nullcontext():
            client.complete_multipart_upload(Bucket="b", Key="k", UploadId="u", IfNoneMatch="*")


def test_the_time_comes_from_the_answer(script: Script) -> None:
    script.answers = [Answer(body=page(""), date="Fri, 01 Jan 2027 01:02:03 GMT")]
    store = open_store("s3://bkt/ns", script.config())
    assert store.server_time() == datetime(2027, 1, 1, 1, 2, 3, tzinfo=timezone.utc)
    script.answers = [Answer(body=page(""), date="soon")]
    with pytest.raises(StorageError, match="'soon'"):
        store.server_time()
    script.answers = [Answer(body=page(""), date="Fri, 01 Jan 2027 01:02:03")]
    with pytest.raises(StorageError, match="01:02:03"):
        store.server_time()


def test_an_answer_that_lacks_what_a_store_says_is_none(script: Script) -> None:
    """Whoever answers 200 to everything is no store."""
    script.answers = [Answer()]
    store = open_store("s3://bkt/ns", script.config())
    for call in (
        lambda: store.put("k", b""),
        lambda: store.put_if_absent("k", b""),
        lambda: store.head("k"),
        lambda: store.exists("k"),
    ):
        with pytest.raises(StoreUnavailableError, match="no ETag"):
            call()
    script.answers = [Answer(headers={"ETag": '"e"'})]
    with pytest.raises(StorageError, match="LastModified"):
        store.head("k")
    script.answers = [Answer(206, "par")]
    with pytest.raises(StoreUnavailableError, match="206"):
        store.get("k")


def test_an_archived_object_is_not_one_that_credentials_may_not_read(
    s3_server: str, s3_bucket: str
) -> None:
    store = open_store(f"s3://{s3_bucket}/ns", StoreConfig(endpoint_url=s3_server))
    for size in (3, 40_000):
        etag = store.put("k", b"x" * size)
        stored = s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets[s3_bucket].keys["ns/k"]
        stored.set_storage_class("GLACIER")
        with pytest.raises(ArchivedError, match="bring it back"):
            store.get("k")
        for if_absent in (False, True):
            with pytest.raises(ArchivedError, match="bring it back"):
                copy_object(store, "k", store, "copy", size=size, etag=etag, if_absent=if_absent)
    assert [o.outcome for o in store.delete_many(["k"])] == ["deleted"]
