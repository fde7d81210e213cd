"""What is particular to Azure: batches, conditions, errors, credentials."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError
from azure.identity import CredentialUnavailableError
from tenacity import Retrying

from lakegc_assets import traffic
from lakegc_assets.errors import ConfigurationError, LakegcError
from lakegc_assets.storage import http
from lakegc_assets.storage.azure import auth as azure_auth
from lakegc_assets.storage.azure.auth import TokenSigner, write_azure_credentials_file
from lakegc_assets.storage.azure.store import AzureStore
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import AzureAccess, StoreConfig
from lakegc_assets.storage.errors import (
    AccessDeniedError,
    ArchivedError,
    InvalidKeyError,
    PreconditionFailedError,
    StorageError,
    StoreThrottledError,
    StoreUnavailableError,
    error_class,
)
from lakegc_assets.storage.http import HttpFailure, Request
from lakegc_assets.storage.opening import open_store
from lakegc_assets_tests.storage.azure_answers import FLAT, batch, blob, page, refusal
from lakegc_assets_tests.storage.conftest import AZURE_URL, Answer, Script, listed, query_of
from lakegc_assets_tests.storage.servers import AZURE_KEY


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (403, "AuthenticationFailed", AccessDeniedError),
        (403, "AuthorizationPermissionMismatch", AccessDeniedError),
        (403, "", AccessDeniedError),
        (404, "ContainerNotFound", ConfigurationError),
        (404, "", StorageError),
        (503, "ServerBusy", StoreThrottledError),
        (429, "", StoreThrottledError),
        (500, "OperationTimedOut", StoreUnavailableError),
        (500, "InternalError", StoreUnavailableError),
        (409, "BlobArchived", ArchivedError),
        (400, "Odd", StorageError),
    ],
)
def test_errors_are_told_apart(
    azure: Callable[..., ObjectStore], status: int, code: str, expected: type[LakegcError]
) -> None:
    answer = refusal(status, code) if code else Answer(status, "<html>proxy</html>")
    store = azure(answer)
    calls: list[Callable[[], object]] = [
        lambda: store.get("some/key"),
        lambda: store.put("some/key", b""),
        lambda: store.put_if_absent("some/key", b""),
        lambda: store.list_prefixes("some/key"),
    ]
    for call in calls:
        with pytest.raises(expected) as raised:
            call()
        assert raised.type is expected
        assert AZURE_URL in str(raised.value)
        assert AZURE_KEY not in str(raised.value)
    (outcome,) = store.delete_many(["some/key"])
    assert outcome.outcome == "failed"
    assert error_class(outcome.error_code or "") is expected


def test_a_conditional_put_is_repeated_only_if_it_was_refused(
    azure: Callable[..., ObjectStore], script: Script
) -> None:
    store = azure(refusal(503, "ServerBusy"), Answer(201, headers={"ETag": '"0x1"'}), tries=3)
    before = traffic.by_kind()
    assert store.put_if_absent("k", b"x") == "0x1"
    assert sum(traffic.since(before).values()) == 2
    assert [h["if-none-match"] for h in script.headers] == ["*", "*"]
    script.answers = [refusal(500, "InternalError"), Answer(201)]
    with pytest.raises(StoreUnavailableError, match="not known whether"):
        store.put_if_match("k", b"x", "0x1")
    assert script.headers[-1]["if-match"] == '"0x1"'
    for status, code in (
        (412, "ConditionNotMet"),
        (409, "BlobAlreadyExists"),
        (404, "BlobNotFound"),
    ):
        script.answers = [refusal(status, code)]
        with pytest.raises(PreconditionFailedError):
            store.put_if_match("k", b"x", "0x1")


def test_each_key_of_a_batch_has_the_outcome_that_the_store_gave(
    azure: Callable[..., ObjectStore], script: Script
) -> None:
    answer = batch(
        (4, 202, ""), (0, 404, "BlobNotFound"), (1, 409, "PendingCopyOperation"),
        (2, 503, "ServerBusy"),
    )  # fmt: skip
    store = azure(answer)
    outcomes = store.delete_many(["0", "1 é", "2", "3", "4", "b\\s"])
    assert [(o.key, o.outcome, o.error_code) for o in outcomes] == [
        ("0", "already_missing", None),
        ("1 é", "failed", "PendingCopyOperation"),
        ("2", "failed", "ServerBusy"),
        ("3", "failed", "NoAnswer"),
        ("4", "deleted", None),
        ("b\\s", "failed", "InvalidKey"),
    ]
    assert f"DELETE /acc/box/ns/{quote('1 é')} HTTP/1.1\r\n".encode() in script.bodies[0]
    assert script.bodies[0].count(b"Authorization: SharedKey acc:") == 5


def test_a_service_gets_some_seconds_to_recover(monkeypatch: pytest.MonkeyPatch) -> None:
    """As much as botocore gives S3."""
    pauses: list[float] = []
    waiting = partial(Retrying, sleep=pauses.append)
    monkeypatch.setattr(http, "Retrying", waiting)

    def busy() -> None:
        raise HttpFailure("ServerBusy", "try later", 503)

    for _ in range(200):
        with pytest.raises(HttpFailure):
            http.repeated(busy, StoreConfig().max_attempts, lambda _: True)
    assert sum(pauses) / 200 > 6


def _answered(status: int) -> Any:
    return SimpleNamespace(status_code=status, reason="r", headers={}, text=str)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ServiceRequestError("down"), StoreUnavailableError),
        (CredentialUnavailableError("no response from the IMDS endpoint"), StoreUnavailableError),
        (ClientAuthenticationError("busy", response=_answered(429)), StoreUnavailableError),
        (ClientAuthenticationError("down", response=_answered(500)), StoreUnavailableError),
        (ClientAuthenticationError("wrong secret", response=_answered(401)), AccessDeniedError),
        (ClientAuthenticationError("nothing to try"), AccessDeniedError),
    ],
)
def test_a_source_of_tokens_that_does_not_answer_denies_nothing(
    error: Exception, expected: type[LakegcError]
) -> None:
    class Identity:
        def get_token(self, *_: str, **__: Any) -> Any:
            raise error

    with pytest.raises(HttpFailure) as found:
        TokenSigner(Identity())(Request("GET", "https://acc"))
    assert found.value.kind is expected


def test_the_time_is_asked_for_below_the_namespace(
    azure: Callable[..., ObjectStore], script: Script
) -> None:
    """A directory's SAS, and conditions of a role, allow no list of the whole container."""
    azure(page()).server_time()
    assert query_of(script.requests[-1])["prefix"] == "ns/"


@pytest.mark.parametrize(("sas", "expires_s"), [(False, None), (False, 60.0), (True, None)])
def test_only_a_batch_itself_names_a_version(
    azure: Callable[..., ObjectStore],
    azure_key_file: str,
    script: Script,
    *,
    sas: bool,
    expires_s: float | None,
) -> None:
    """Azure refuses a request in a batch that names a version; Azurite takes it."""
    if sas:
        write_azure_credentials_file(azure_key_file, sas_token="sv=1&sig=s")
    store = azure(batch((0, 202, ""), (1, 202, "")))
    outcomes = store.delete_many("ab", dict.fromkeys("ab", "0x1"), expires_s=expires_s)
    assert [o.outcome for o in outcomes] == ["deleted", "deleted"]
    assert script.headers[0]["x-ms-version"] == azure_auth.VERSION
    assert script.bodies[0].count(b'If-Match: "0x1"\r\n') == 2
    assert b"x-ms-version" not in script.bodies[0].lower()


def test_a_blob_with_another_etag_is_spared(
    azure: Callable[..., ObjectStore], script: Script
) -> None:
    changed = Answer(headers={"ETag": '"0x2"'})
    missing = Answer(404, headers={"x-ms-error-code": "BlobNotFound"})
    same = Answer(headers={"ETag": '"0x1"'})
    refused = batch(*((number, 412, "ConditionNotMet") for number in range(3)))
    store = azure(refused, changed, missing, same)
    outcomes = store.delete_many("abc", dict.fromkeys("abc", "0x1"))
    assert [o.outcome for o in outcomes] == ["spared", "already_missing", "failed"]
    assert script.bodies[0].count(b'If-Match: "0x1"\r\n') == 3
    script.answers = [Answer(412, headers={"x-ms-error-code": "ConditionNotMet"}), changed]
    (outcome,) = store.delete_many(["a"], {"a": "0x1"}, singly=True)
    assert outcome.outcome == "spared"
    with pytest.raises(KeyError):
        store.delete_many(["a", "b"], {"a": "0x1"})


def test_after_a_batch_that_fails_as_a_whole_no_other_is_sent(
    azure: Callable[..., ObjectStore], script: Script
) -> None:
    keys = [f"{n:04d}" for n in range(600)]
    good = batch(*((number, 202, "") for number in range(256)))
    store = azure(good, refusal(403, "AuthorizationFailure"))
    codes = [o.error_code for o in store.delete_many(keys)]
    assert codes == [None] * 256 + ["AuthorizationFailure"] * 256 + ["NotSent"] * 88
    assert len(script.requests) == 2
    for odd in (Answer(202, "no batch"), batch((0, 202, ""), (0, 202, ""))):
        script.answers = [odd]
        assert {o.error_code for o in store.delete_many(["a", "b"])} == {"NoAnswer"}
    script.answers = [Answer(202, good.body, headers=good.headers, cut=True)]
    assert {o.error_code for o in store.delete_many(["a", "b"])} == {"ConnectionFailed"}
    whole = "--b\r\n\r\nHTTP/1.1 400 Bad\r\nx-ms-error-code: InvalidInput\r\n\r\n--b--"
    script.answers = [Answer(202, whole, headers=good.headers)]
    assert {o.error_code for o in store.delete_many(["a", "b"])} == {"InvalidInput"}


@pytest.mark.parametrize(
    ("parts", "answers"),
    [
        # What is locked must not be sent again and again as a key without an answer.
        (
            [(1, 409, "BlobImmutableDueToPolicy"), (2, 409, "BlobImmutableDueToPolicy")],
            [("locked", "BlobImmutableDueToPolicy")] * 2,
        ),
        # It is not known which key has which answer, or whether a key has one.
        ([(1, 409, "BlobImmutableDueToPolicy"), (2, 404, "BlobNotFound")], None),
        ([(1, 404, "BlobNotFound")], None),
        # A key is deleted only if that is said of it.
        ([(1, 202, ""), (2, 202, "")], None),
    ],
)
def test_parts_that_name_no_request_take_no_answer_from_the_others(
    azure: Callable[..., ObjectStore],
    parts: list[tuple[int, int, str]],
    answers: list[tuple[str, str]] | None,
) -> None:
    """Azure leaves out the number in some errors."""
    answer = batch((0, 202, ""), *parts)
    for number in ("1", "2"):
        answer = replace(answer, body=answer.body.replace(f"Content-ID: {number}\r\n", ""))
    outcomes = azure(answer).delete_many(["a", "b", "c"])
    assert [(o.outcome, o.error_code) for o in outcomes] == [
        ("deleted", None),
        *(answers or [("failed", "NoAnswer")] * 2),
    ]


def test_a_batch_that_is_answered_for_another_one_says_nothing(
    azure: Callable[..., ObjectStore],
) -> None:
    outcomes = azure(batch((0, 202, ""), (2, 202, ""))).delete_many(["a", "b"])
    assert [(o.outcome, o.error_code) for o in outcomes] == [("failed", "NoAnswer")] * 2
    assert "named 2" in str(outcomes[0].detail)


def test_a_batch_that_is_missing_says_of_no_key_that_it_is(
    azure: Callable[..., ObjectStore],
) -> None:
    for code in ("BlobNotFound", "ConditionNotMet"):
        outcomes = azure(refusal(404, code)).delete_many("ab", {"a": "1", "b": "1"})
        assert [(o.outcome, o.error_code) for o in outcomes] == [("failed", code)] * 2


def test_what_no_store_says_is_no_answer(azure: Callable[..., ObjectStore]) -> None:
    """Whoever answers 200 to everything is no store."""
    portal = azure(Answer(body="It works!"))
    for keys in (["a"], ["a", "b"]):
        assert {o.error_code for o in portal.delete_many(keys)} == {"NoAnswer"}
    for call in (
        lambda: portal.put("k", b""),
        lambda: portal.put_if_absent("k", b""),
        lambda: portal.head("k"),
    ):
        with pytest.raises(StorageError):
            call()
    for part in (204, 206):
        with pytest.raises(StorageError, match=str(part)):
            azure(Answer(part, "" if part == 204 else "par")).get("k")
    with pytest.raises(StorageError, match="time is None"):
        azure(Answer(headers={"ETag": '"e"'})).head("k")
    refused = batch((0, 412, "ConditionNotMet"), (1, 202, ""))
    outcomes = azure(refused, Answer()).delete_many("ab", {"a": "1", "b": "1"})
    assert [o.error_code for o in outcomes] == ["NoAnswer", None]


@pytest.mark.parametrize("key", ["a//b", "/a", "a/../b", "a/.", "a.", "a./b"])
def test_keys_that_a_path_cannot_carry_are_not_sent(
    azure: Callable[..., ObjectStore], script: Script, key: str
) -> None:
    """Accounts with real directories, and proxies, read ``a//b`` as ``a/b``.

    The service drops dots at the end of names; Azurite does not.
    """
    store = azure(Answer(202))
    (outcome,) = store.delete_many([key])
    assert (outcome.outcome, outcome.error_code) == ("failed", "InvalidKey")
    with pytest.raises(InvalidKeyError):
        store.get(key)
    assert script.requests == []


def test_what_keeps_deleted_blobs_is_told(azure: Callable[..., ObjectStore]) -> None:
    def service(policy: str) -> Answer:
        return Answer(body=f"<StorageServiceProperties>{policy}</StorageServiceProperties>")

    on = "<DeleteRetentionPolicy><Enabled>true</Enabled><Days>7</Days></DeleteRetentionPolicy>"
    off = "<DeleteRetentionPolicy><Enabled>false</Enabled></DeleteRetentionPolicy>"
    found = azure(service(on), page(blob("ns/a"))).recovery()
    assert found[:2] == ("soft_delete", 7.0)
    assert "7 days, and are paid for" in found.notice
    assert azure(service(off), page(blob("ns/a"))).recovery()[:2] == ("nothing", None)
    versions = page(blob("ns/a").replace("<Properties>", "<VersionId>1</VersionId><Properties>"))
    found = azure(service(off), versions).recovery()
    assert found[:2] == ("versions", None)
    assert "versioning is on" in found.notice
    no_versions = refusal(400, "UnsupportedQueryParameter")
    assert azure(service(on), no_versions).recovery()[:2] == ("soft_delete", 7.0)
    assert azure(service(on), refusal(403, "AuthorizationFailure")).recovery().kind == "unknown"
    found = azure(refusal(403, "AuthorizationFailure")).recovery()
    assert found[:2] == ("unknown", None)
    assert "not known whether deleted objects are kept (AuthorizationFailure)" in found.notice
    assert "read the properties" in found.notice


def test_a_renewed_file_takes_effect(
    azure: Callable[..., ObjectStore],
    script: Script,
    azure_key_file: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = azure(FLAT, page(blob("ns/a")))
    assert listed(store) == ["a"]
    write_azure_credentials_file(azure_key_file, sas_token="?sv=1&sig=s%2Fe")
    assert listed(store) == ["a"]
    assert "authorization" in script.headers[-1]
    monkeypatch.setattr(azure_auth, "REREAD_S", -1.0)
    assert listed(store) == ["a"]
    assert "authorization" not in script.headers[-1]
    assert script.requests[-1].endswith("&sv=1&sig=s%2Fe")


@pytest.mark.parametrize("keys", [["k"], ["k", "l"]])
def test_a_delete_is_not_sent_after_its_credentials_took_long_to_renew(
    azure: Callable[..., ObjectStore],
    script: Script,
    monkeypatch: pytest.MonkeyPatch,
    keys: list[str],
) -> None:
    store = azure(Answer(202))
    readings = iter([0.0, 11.0])
    monkeypatch.setattr(http, "seconds", lambda: next(readings))
    outcomes = store.delete_many(keys)
    assert {(o.outcome, o.error_code) for o in outcomes} == {("failed", "ConnectionFailed")}
    assert script.requests == []


@pytest.mark.parametrize("content", ["{", "[]", '{"account_key": ""}', '{"key": "hidden"}'])
def test_a_damaged_file_is_refused_without_quoting_it(
    azure: Callable[..., ObjectStore], azure_key_file: str, content: str
) -> None:
    Path(azure_key_file).write_text(content)
    with pytest.raises(ConfigurationError, match="credentials file") as raised:
        azure(FLAT).get("k")
    assert "hidden" not in str(raised.value)
    write_azure_credentials_file(azure_key_file, account_key="no base64!")
    with pytest.raises(ConfigurationError, match="not base64"):
        azure(FLAT).get("k")


def test_a_token_is_not_sent_in_the_open(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    config = StoreConfig(azure=AzureAccess(f"{script.endpoint}/acc"))
    with pytest.raises(ConfigurationError, match="in the open"):
        open_store(AZURE_URL, config).get("k")
    monkeypatch.setenv("AZURE_STORAGE_KEY", AZURE_KEY)
    script.answers = [Answer(body="x", headers={"ETag": '"e"'})]
    assert open_store(AZURE_URL, config).get("k") == b"x"
    assert script.headers[0]["authorization"].startswith("SharedKey acc:")


def test_the_url_of_an_account_must_be_that_of_the_namespace(azure_key_file: str) -> None:
    access = AzureAccess("https://other.blob.core.windows.net", azure_key_file)
    with pytest.raises(ConfigurationError, match="'acc'"):
        open_store(AZURE_URL, StoreConfig(azure=access)).get("k")


def test_the_account_of_another_cloud_is_asked_there(azure_key_file: str) -> None:
    url = "https://acc.blob.core.usgovcloudapi.net/box/ns"
    store = open_store(url, StoreConfig(azure=AzureAccess(credentials_file=azure_key_file)))
    assert isinstance(store, AzureStore)
    assert store.service.url == "https://acc.blob.core.usgovcloudapi.net"
    assert (store.url, store.service.account) == (url, "acc")
    elsewhere = AzureAccess("https://acc.blob.core.windows.net", azure_key_file)
    with pytest.raises(ConfigurationError, match=r"'acc' of core\.usgovcloudapi\.net"):
        open_store(url, StoreConfig(azure=elsewhere)).get("k")


@pytest.mark.parametrize(
    "url",
    [
        "https://acc.blob.core.windows.net/box/ns/",
        "https://ACC.dfs.core.windows.net/box/ns",
        "abfss://box@acc.dfs.core.windows.net/ns",
        "wasbs://box@acc.blob.core.windows.net/ns/",
    ],
)
def test_every_form_of_a_namespace_opens_the_same_store(url: str) -> None:
    store = open_store(url)
    assert isinstance(store, AzureStore)
    assert store.url == AZURE_URL
