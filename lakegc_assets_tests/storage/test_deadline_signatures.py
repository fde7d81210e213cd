"""What deletes with a deadline carry to Azure and to Google, and what is answered there."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from azure.storage.blob import BlobServiceClient, UserDelegationKey, generate_blob_sas
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from google.oauth2.service_account import Credentials

from lakegc_assets.errors import ConfigurationError
from lakegc_assets.storage.azure import auth
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import AzureAccess, GcsAccess, StoreConfig
from lakegc_assets.storage.gcs.store import GcsStore
from lakegc_assets.storage.http import HttpFailure
from lakegc_assets.storage.opening import open_store
from lakegc_assets.storage.probes import probe_deadlines
from lakegc_assets_tests.storage.conftest import AZURE_URL, Answer, Script, codes, query_of
from lakegc_assets_tests.storage.servers import AZURE_KEY

_FOLDER = "_lakefs/retention/gc/lakegc/probe-"


def test_each_delete_of_a_batch_on_azure_has_its_own_end(
    azure: Callable[..., ObjectStore], script: Script
) -> None:
    store = azure(Answer(503))
    assert store.delete_deadlines()
    store.delete_many(["a b", "c"], {"a b": "e1", "c": "e2"}, expires_s=60)
    assert script.headers[0]["authorization"].startswith("SharedKey acc:")
    body = script.bodies[0].decode()
    assert "Authorization" not in body
    sent = re.findall(r"^DELETE (\S+) HTTP/1.1", body, re.MULTILINE)
    assert [urlsplit(url).path for url in sent] == ["/acc/box/ns/a%20b", "/acc/box/ns/c"]
    for url, etag in zip(sent, ("e1", "e2"), strict=True):
        query = query_of(url)
        assert (query["sp"], query["sr"]) == ("d", "b")
        ends = datetime.strptime(query["se"], "%Y-%m-%dT%H:%M:%S%z")
        assert timedelta(seconds=30) < ends - datetime.now(timezone.utc) < timedelta(seconds=61)
        assert f'If-Match: "{etag}"' in body


def test_the_end_on_azure_counts_from_the_stores_time(
    azure: Callable[..., ObjectStore], script: Script
) -> None:
    told = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
    assert codes(azure(Answer(202)).delete_many(["a"], expires_s=45, since=told)) == [None]
    assert query_of(script.requests[0])["se"] == "2026-01-02T03:04:50Z"


def test_a_single_delete_on_azure_is_signed_by_its_end_alone(
    azure: Callable[..., ObjectStore], script: Script
) -> None:
    told = (
        "<Error><Code>AuthenticationFailed</Code><Message>Server failed.\nRequestId:1</Message>"
        "<AuthenticationErrorDetail>Signature not valid in the specified time frame: Start [x]"
        "</AuthenticationErrorDetail></Error>"
    )
    store = azure(Answer(202), Answer(403, told), Answer(403, told.replace("time frame", "form")))
    assert codes(store.delete_many(["a"], {"a": "e"}, expires_s=60)) == [None]
    assert "sig=" in script.requests[0]
    assert "authorization" not in script.headers[0]
    assert script.headers[0]["if-match"] == '"e"'
    assert codes(store.delete_many(["a"], expires_s=60)) == ["Expired"]
    assert codes(store.delete_many(["a"], expires_s=60)) == ["AuthenticationFailed"]


def test_a_sas_token_cannot_be_given_another_end(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AZURE_STORAGE_KEY", raising=False)
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sv=1&sig=s")
    config = StoreConfig(azure=AzureAccess(f"{script.endpoint}/acc"))
    store = open_store(AZURE_URL, config)
    assert not store.delete_deadlines()
    with pytest.raises(ConfigurationError, match="SAS token"):
        store.delete_many(["a"], expires_s=60)
    assert script.requests == []


_NAMED = {
    "skoid": "o", "sktid": "t", "skt": "2026-01-01T00:00:00Z", "ske": "2026-01-02T00:00:00Z",
    "sks": "b", "skv": auth.VERSION,
}  # fmt: skip
#: What the library signs besides, for identities whose key is for another one; all of it is empty.
_LATER_FIELDS = {13, 14, 21, 22}


@pytest.mark.parametrize("told", [None, _NAMED])
def test_signatures_for_azure_are_those_of_its_own_library(
    monkeypatch: pytest.MonkeyPatch, told: dict[str, str] | None
) -> None:
    usual = BlobServiceClient("https://account.blob.core.windows.net").api_version
    monkeypatch.setattr(auth, "VERSION", usual)
    ends = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
    delegation = None
    if told is not None:
        delegation = UserDelegationKey()  # type: ignore[no-untyped-call]
        delegation.value = AZURE_KEY
        delegation.signed_oid, delegation.signed_tid = told["skoid"], told["sktid"]
        delegation.signed_start, delegation.signed_expiry = told["skt"], told["ske"]
        delegation.signed_service, delegation.signed_version = told["sks"], told["skv"]
    signed: list[str] = []
    theirs = generate_blob_sas(
        "acc", "box", "n s/é", account_key=None if told else AZURE_KEY,
        user_delegation_key=delegation, permission="d", expiry=ends, sts_hook=signed.append,
    )  # fmt: skip
    if told is not None:
        lines = signed[0].split("\n")
        assert {lines[number] for number in _LATER_FIELDS} == {""}
        text = "\n".join(line for n, line in enumerate(lines) if n not in _LATER_FIELDS)
        digest = hmac.digest(base64.b64decode(AZURE_KEY), text.encode(), "sha256")
        theirs = f"{theirs.rpartition('&sig=')[0]}&sig={quote(base64.b64encode(digest))}"
    ours = auth.signature(base64.b64decode(AZURE_KEY), "/blob/acc/box/n s/é", ends, told)
    assert parse_qs(ours) == parse_qs(theirs)


def test_a_key_of_an_identity_is_read_strictly() -> None:
    now = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
    parts = "".join(f"<{tag}>{tag}</{tag}>" for tag in auth.DELEGATION_FIELDS.values())
    body = f"<UserDelegationKey>{parts}<Value>{AZURE_KEY}</Value></UserDelegationKey>".encode()
    found = auth.read_delegation(body, now)
    assert found.key == base64.b64decode(AZURE_KEY)
    assert list(found.fields) == ["skoid", "sktid", "skt", "ske", "sks", "skv"]
    assert now < found.renewed < now + timedelta(hours=1)
    for damaged in (b"", b"<UserDelegationKey/>", body.replace(b"==", b"")):
        with pytest.raises(HttpFailure, match="no key to sign with"):
            auth.read_delegation(damaged, now)


@pytest.fixture(scope="module")
def account_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


@pytest.fixture
def gcs(script: Script, account_key: rsa.RSAPrivateKey) -> GcsStore:
    pem = account_key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()
    told = {"client_email": "me@project", "private_key": pem, "token_uri": "https://none"}
    config = StoreConfig(max_attempts=1, gcs=GcsAccess(endpoint=script.endpoint))
    store = open_store("gs://bkt/n s", config)
    assert isinstance(store, GcsStore)
    store.service.key = Credentials.from_service_account_info(told)  # type: ignore[no-untyped-call]
    return store


def test_a_delete_on_google_is_signed_in_its_url(
    gcs: GcsStore, script: Script, account_key: rsa.RSAPrivateKey
) -> None:
    script.answers = [Answer(204)]
    assert gcs.delete_deadlines()
    assert codes(gcs.delete_many(["a/é ~"], {"a/é ~": "7"}, expires_s=60)) == [None]
    path, _, query = script.requests[0].removeprefix("DELETE ").partition("?")
    assert path == "/bkt/n%20s/a/%C3%A9%20~"
    assert script.headers[0]["x-goog-if-generation-match"] == "7"
    signed, _, signature = query.rpartition("&X-Goog-Signature=")
    host = script.endpoint.removeprefix("http://")
    headers = f"host:{host}\nx-goog-if-generation-match:7\n"
    names = "host;x-goog-if-generation-match"
    canonical = f"DELETE\n{path}\n{signed}\n{headers}\n{names}\nUNSIGNED-PAYLOAD"
    told = query_of(script.requests[0])
    assert told["X-Goog-SignedHeaders"] == names
    assert 30 <= int(told["X-Goog-Expires"]) <= 60
    day = told["X-Goog-Date"][:8]
    assert told["X-Goog-Credential"] == f"me@project/{day}/auto/storage/goog4_request"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = f"GOOG4-RSA-SHA256\n{told['X-Goog-Date']}\n{day}/auto/storage/goog4_request\n{digest}"
    account_key.public_key().verify(
        bytes.fromhex(signature), text.encode(), padding.PKCS1v15(), hashes.SHA256()
    )


def test_what_google_answers_to_signed_deletes_is_told_apart(gcs: GcsStore, script: Script) -> None:
    def error(code: str, details: str = "") -> str:
        told = f"<Message>m</Message><Details>{details}</Details>"
        return f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code>{told}</Error>"

    expired = error("ExpiredToken", "Request signature expired at: 2026-01-01T00:00:00+00:00")
    script.answers = [
        Answer(404, error("NoSuchKey")),
        Answer(412, error("PreconditionFailed")), Answer(404, "no word of the store"),
        Answer(400, expired),
    ]  # fmt: skip
    # Several keys are sent at a time, in no order.
    outcomes = [gcs.delete_many([key], {key: "7"}, expires_s=60)[0] for key in ("a", "b", "c")]
    assert [o.outcome for o in outcomes] == ["already_missing", "failed", "failed"]
    assert codes(outcomes)[2:] == ["Expired"]
    script.answers = [Answer(403, error("SignatureDoesNotMatch"))]
    assert codes(gcs.delete_many(["a"], expires_s=60)) == ["SignatureDoesNotMatch"]
    assert codes(gcs.delete_many(["a//b"], expires_s=60)) == ["InvalidKey"]


def test_without_a_key_google_gets_no_deadline(script: Script) -> None:
    config = StoreConfig(max_attempts=2, gcs=GcsAccess(endpoint=script.endpoint))
    store = open_store("gs://bkt/ns", config)
    assert not store.delete_deadlines()
    assert not probe_deadlines(store, _FOLDER)
    with pytest.raises(ConfigurationError, match="service account"):
        store.delete_many(["a"], expires_s=60)
    assert script.requests == []
