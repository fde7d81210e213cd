"""What Azure and Google Cloud Storage may answer to copies, and what is asked of them."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from azure.core.credentials import AccessToken

from lakegc_assets.storage.azure.auth import TokenSigner, write_azure_credentials_file
from lakegc_assets.storage.azure.service import AzureService
from lakegc_assets.storage.azure.store import AzureStore
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.bucket_store import Sizes
from lakegc_assets.storage.copies import copy_object
from lakegc_assets.storage.errors import (
    AccessDeniedError,
    ChangedError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
    StoreUnavailableError,
)
from lakegc_assets.storage.gcs.store import GcsStore
from lakegc_assets.storage.http import Request
from lakegc_assets.storage.opening import open_store
from lakegc_assets_tests.storage.azure_answers import refusal
from lakegc_assets_tests.storage.conftest import Answer, Script, query_of
from lakegc_assets_tests.storage.gcs_answers import refusal as google_refusal

_DATE = "Fri, 02 Jan 2026 03:04:05 GMT"
_DATA = "data"


def digest(data: str) -> str:
    return base64.b64encode(hashlib.md5(data.encode()).digest()).decode()


def blob(data: str, etag: str = "0x1", *, md5: str | None = None, cut: bool = False) -> Answer:
    """An answer to HEAD or GET."""
    headers = {"ETag": f'"{etag}"', "Last-Modified": _DATE, "Content-MD5": md5 or digest(data)}
    return Answer(200, data, headers=headers, cut=cut)


def written(etag: str = "0x2", status: int = 201, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status, headers={"ETag": f'"{etag}"', **named})


COPIED = written(status=202, x_ms_copy_status="success")


def copy(store: ObjectStore, data: str = _DATA, etag: str = "0x1") -> tuple[str, str]:
    done = copy_object(store, "k", store, "c", size=len(data), etag=etag, if_absent=True)
    return done.etag, done.verified_by


def test_azure_copies_at_once_under_conditions_for_both(
    azure: Callable[..., ObjectStore], script: Script
) -> None:
    store = azure(blob(_DATA), COPIED, blob(_DATA, "0x2"))
    assert copy(store) == ("0x2", "md5")
    assert [r.split()[0] for r in script.requests] == ["HEAD", "PUT", "HEAD"]
    asked = script.headers[1]
    assert asked["if-none-match"] == "*"
    assert asked["x-ms-source-if-match"] == '"0x1"'
    assert asked["x-ms-source-content-md5"] == digest(_DATA)
    assert asked["x-ms-requires-sync"] == "true"
    source = urlsplit(asked["x-ms-copy-source"])
    assert source.path == "/acc/box/ns/k"
    assert parse_qs(source.query)["sp"] == ["r"]


@pytest.mark.parametrize(
    ("answers", "kind", "named"),
    [
        ([Answer(404)], StorageError, "'k'"),
        ([refusal(404, "BlobNotFound")], StorageError, "'k'"),
        ([blob(_DATA, "0x9")], ChangedError, "'k'"),
        ([blob("dat")], ChangedError, "'k'"),
        ([blob(_DATA), refusal(412, "SourceConditionNotMet")], ChangedError, "'k'"),
        ([blob(_DATA), refusal(409, "BlobAlreadyExists")], PreconditionFailedError, "'c'"),
        ([blob(_DATA), refusal(403, "AuthorizationFailure")], AccessDeniedError, "'c'"),
        ([blob(_DATA), refusal(500, "InternalError")], StoreUnavailableError, "'c'.*not known"),
        ([blob(_DATA), replace(COPIED, headers={"ETag": '"0x2"'})], StorageError, "ended as None"),
        ([blob(_DATA), COPIED, blob("dat", "0x2")], StorageError, "cut it short"),
        ([blob(_DATA), COPIED, blob(_DATA, "0x3")], StorageError, "somebody else"),
        (
            [blob(_DATA), COPIED, blob(_DATA, "0x2", md5=digest("x"))],
            StorageError,
            "the copy has the md5",
        ),
    ],
)
def test_what_goes_wrong_with_a_copy_within_azure(
    azure: Callable[..., ObjectStore],
    answers: list[Answer],
    kind: type[StorageError],
    named: str,
) -> None:
    with pytest.raises(kind, match=named):
        copy(azure(*answers))


def test_a_sas_token_lets_azure_read_the_source(
    azure: Callable[..., ObjectStore], script: Script, azure_key_file: str
) -> None:
    write_azure_credentials_file(azure_key_file, sas_token="sp=rw&sig=s")
    copy(azure(blob(_DATA), COPIED, blob(_DATA, "0x2")))
    assert script.headers[1]["x-ms-copy-source"].endswith("/acc/box/ns/k?sp=rw&sig=s")


def test_an_identity_lets_azure_read_the_source(
    azure: Callable[..., ObjectStore], script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Identity:
        def get_token(self, *_: str, **__: Any) -> AccessToken:
            return AccessToken("token", 2**31)

    class InTheOpen(TokenSigner):
        def __call__(self, request: Request) -> None:
            super().__call__(replace(request, url="https://acc", headers=request.headers))

    store = azure(blob(_DATA), COPIED, blob(_DATA, "0x2"))
    assert isinstance(store, AzureStore)

    present = store.service
    signer = InTheOpen(Identity())
    service = AzureService(store.config, lambda: signer, present.account, present.url)
    monkeypatch.setattr("lakegc_assets.storage.azure.versions.open_service", lambda *_: service)
    copy(store)
    asked = script.headers[1]
    assert asked["x-ms-copy-source"].endswith("/acc/box/ns/k")
    assert asked["x-ms-copy-source-authorization"] == asked["authorization"] == "Bearer token"


def test_azure_copies_a_large_blob_in_blocks(
    azure: Callable[..., ObjectStore], script: Script
) -> None:
    store = azure(blob("12345"), written(), written(), written("0x7"), blob("12345", "0x7"))
    assert isinstance(store, AzureStore)
    store.sizes = Sizes(part=2, whole=3)
    # The MD5 is handed on, and nobody has compared it.
    assert copy(store, "12345") == ("0x7", "size")
    ranges = [asked.get("x-ms-source-range") for asked in script.headers]
    assert ranges == [None, "bytes=0-2", "bytes=3-4", None, None]
    assert all(h["x-ms-source-if-match"] == '"0x1"' for h in script.headers[1:3])
    assert script.headers[3]["if-none-match"] == "*"
    assert script.headers[3]["x-ms-blob-content-md5"] == digest("12345")
    blocks = [query_of(request.split()[1])["blockid"] for request in script.requests[1:3]]
    assert "".join(f"<Latest>{b}</Latest>" for b in blocks) in script.bodies[3].decode()


def test_blocks_have_names_that_no_other_upload_has(
    azure: Callable[..., ObjectStore], script: Script
) -> None:
    store = azure(written(Content_MD5=digest("12")), written(), written("0x7"), blob("123", "0x7"))
    assert isinstance(store, AzureStore)
    store.sizes = Sizes(part=2)
    assert store.put_stream("k", [b"1", b"23"], 3).etag == "0x7"
    assert script.bodies[:2] == [b"12", b"3"]
    first = [query_of(request.split()[1])["blockid"] for request in script.requests[:2]]
    script.requests.clear()
    script.answers = [written(), written(), written("0x7"), blob("123", "0x7")]
    store.put_stream("k", [b"1", b"23"], 3)
    second = [query_of(request.split()[1])["blockid"] for request in script.requests[:2]]
    assert len({*first, *second}) == 4
    script.answers = [written(Content_MD5=digest("21"))]
    with pytest.raises(StorageError, match="other bytes"):
        store.put_stream("k", [b"1", b"23"], 3)
    script.answers = [written(), written(), written("0x7"), blob("12", "0x7")]
    with pytest.raises(StorageError, match="cut it short"):
        store.put_stream("k", [b"1", b"23"], 3)


def test_reads_from_azure_that_break_off_go_on(
    azure: Callable[..., ObjectStore], script: Script
) -> None:
    rest = Answer(206, "3456789abc", headers={"ETag": '"0x1"', "Content-Range": "bytes 2-11/12"})
    store = azure(blob("12", md5=digest("123456789abc"), cut=True), rest, tries=2)
    with store.stream("k") as pieces:
        assert pieces.checksums == {"md5": hashlib.md5(b"123456789abc").hexdigest()}
        assert b"".join(pieces) == b"123456789abc"
    assert script.headers[1]["range"] == "bytes=2-"
    assert script.headers[1]["if-match"] == '"0x1"'


# Google Cloud Storage


def told(
    data: str, generation: str = "1", name: str = "ns/k", md5: str | None = None
) -> dict[str, str]:
    return {
        "name": name, "size": str(len(data)), "generation": generation,
        "updated": "2026-01-02T03:04:05.678Z",
        "md5Hash": md5 or digest(data),
    }  # fmt: skip


def said(content: object, status: int = 200, **headers: str) -> Answer:
    return Answer(status, json.dumps(content), headers=headers)


def rewritten(data: str, generation: str = "2", md5: str | None = None) -> Answer:
    return said({"done": True, "resource": told(data, generation, "ns/c", md5)})


def test_google_copies_under_conditions_and_in_as_many_steps_as_it_wants(
    gcs: Callable[..., GcsStore], script: Script
) -> None:
    more = said({"done": False, "rewriteToken": "t/1"})
    store = gcs(said(told(_DATA)), google_refusal(404, "notFound"), more, rewritten(_DATA))
    assert copy(store, etag="1") == ("2", "md5")
    assert script.requests[2].startswith(
        "POST /storage/v1/b/bkt/o/ns%2Fk/rewriteTo/b/bkt/o/ns%2Fc?"
    )
    first, second = (query_of(request.split()[1]) for request in script.requests[2:])
    assert (first["ifSourceGenerationMatch"], first["ifGenerationMatch"]) == ("1", "0")
    assert (second["rewriteToken"], second["ifGenerationMatch"]) == ("t/1", "0")


_FOUND = said(told(_DATA))
_NONE = google_refusal(404, "notFound")
#: A copy without a checksum.
_UNNAMED = said({"done": True, "resource": told(_DATA, "2", "ns/c") | {"md5Hash": None}})


@pytest.mark.parametrize(
    ("answers", "kind", "named"),
    [
        ([said(told(_DATA, "7"))], ChangedError, "'k'"),
        ([said(told("dat"))], ChangedError, "'k'"),
        ([_NONE], ObjectNotFoundError, "'k'"),
        ([_FOUND, said(told("x", name="ns/c"))], PreconditionFailedError, "'c'"),
        (
            [_FOUND, _NONE, google_refusal(412, "conditionNotMet"), _FOUND],
            PreconditionFailedError,
            "'c'",
        ),
        (
            [_FOUND, _NONE, google_refusal(412, "conditionNotMet"), said(told(_DATA, "7"))],
            ChangedError,
            "'k'",
        ),
        ([_FOUND, _NONE, google_refusal(404, "notFound")], ObjectNotFoundError, "'k'"),
        ([_FOUND, _NONE, google_refusal(403, "forbidden")], AccessDeniedError, "'c'"),
        ([_FOUND, _NONE, rewritten("dat")], StorageError, "3 of 4 bytes"),
        ([_FOUND, _NONE, rewritten("dxta"), _FOUND], StorageError, "the copy has the md5"),
        ([_FOUND, _NONE, rewritten("dxta"), said(told("dxta", "7"))], ChangedError, "'k'"),
        ([_FOUND, _NONE, _UNNAMED, said(told(_DATA, "7"))], ChangedError, "'k'"),
        ([_FOUND, _NONE, said({"done": False})], StorageError, "has no token"),
        ([_FOUND, _NONE, said({"done": True})], StorageError, "damaged"),
        ([_FOUND, _NONE, said([])], StorageError, "damaged"),
        ([_FOUND, _NONE, Answer(body="<html>")], StorageError, "damaged"),
    ],
)
def test_what_goes_wrong_with_a_copy_within_google(
    gcs: Callable[..., GcsStore],
    answers: list[Answer],
    kind: type[StorageError],
    named: str,
) -> None:
    """Among it servers that ignore conditions."""
    store = gcs(*answers)
    store.bucket_seen = True
    with pytest.raises(kind, match=named):
        copy(store, etag="1")


def chunked(
    gcs: Callable[..., GcsStore], script: Script, *answers: Answer, tries: int = 1
) -> GcsStore:
    session = Answer(headers={"Location": f"{script.endpoint}/upload/1"})
    store = gcs(session, *answers, tries=tries)
    store.sizes = Sizes(part=4)
    return store


def kept(upto: int) -> Answer:
    return Answer(308, headers={"Range": f"bytes=0-{upto}"} if upto >= 0 else {})


def test_google_gets_again_what_it_did_not_keep(
    gcs: Callable[..., GcsStore], script: Script
) -> None:
    store = chunked(
        gcs, script, kept(1), kept(3), google_refusal(503, "backendError"), kept(3),
        said(told("123456")), tries=3,
    )  # fmt: skip
    assert store.put_stream("k", [b"12345", b"6"], 6, if_absent=True).etag == "1"
    assert query_of(script.requests[0].split()[1])["ifGenerationMatch"] == "0"
    assert [h["content-range"] for h in script.headers[1:]] == [
        "bytes 0-3/6", "bytes 2-3/6", "bytes 4-5/6", "bytes */6", "bytes 4-5/6"
    ]  # fmt: skip
    assert script.bodies[1:] == [b"1234", b"34", b"56", b"", b"56"]


def test_google_is_asked_again_what_it_kept(gcs: Callable[..., GcsStore], script: Script) -> None:
    lost = google_refusal(500, "backendError")
    store = chunked(gcs, script, lost, lost, kept(3), said(told("123456")), tries=3)
    assert store.put_stream("k", [b"123456"], 6).etag == "1"
    assert [h["content-range"] for h in script.headers[1:]] == [
        "bytes 0-3/6", "bytes */6", "bytes */6", "bytes 4-5/6"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("answers", "kind"),
    [
        ([kept(-1)], StorageError),
        ([kept(9)], StorageError),
        ([said(told("1234"))], StorageError),
        ([kept(3), kept(5)], StorageError),
        ([kept(3), google_refusal(412, "conditionNotMet")], PreconditionFailedError),
        ([kept(3), google_refusal(403, "forbidden")], AccessDeniedError),
        ([kept(3), google_refusal(500, "backendError")], StoreUnavailableError),
    ],
)
def test_an_upload_to_google_that_fails_is_ended(
    gcs: Callable[..., GcsStore], script: Script, answers: list[Answer], kind: type[StorageError]
) -> None:
    store = chunked(gcs, script, *answers, Answer(499))
    with pytest.raises(kind):
        store.put_stream("k", [b"123456"], 6, if_absent=True)
    assert script.requests[-1] == "DELETE /upload/1"


def test_an_upload_is_not_sent_anywhere_else(gcs: Callable[..., GcsStore], script: Script) -> None:
    store = chunked(gcs, script)
    script.answers = [Answer(headers={"Location": "http://127.0.0.1:1/upload"})]
    with pytest.raises(StorageError, match="sends the upload to"):
        store.put_stream("k", [b"123456"], 6)
    assert len(script.requests) == 1


def test_what_google_got_is_what_was_sent(gcs: Callable[..., GcsStore]) -> None:
    for answer, why in (
        (told("dxta"), "other bytes"),
        (told("dat", md5=digest(_DATA)), "3 of 4 bytes"),
        (told(_DATA, name="other"), "names"),
    ):
        with pytest.raises(StorageError, match=why):
            gcs(said(answer)).put_stream("k", [b"data"], 4)


def media(data: str, of: str, generation: str = "1", *, cut: bool = False) -> Answer:
    headers = {"X-Goog-Generation": generation, "X-Goog-Hash": f"crc32c=AAAAAA==,md5={digest(of)}"}
    return Answer(200, data, headers=headers, cut=cut)


def test_reads_from_google_are_whole_and_compared(
    gcs: Callable[..., GcsStore], script: Script, tmp_path: object
) -> None:
    local = open_store(str(tmp_path))
    for answer in (media("12", "12", cut=True), media("12", "xx"), media("12", "12", "7")):
        with pytest.raises(StorageError, match="gs://bkt/ns"):
            copy_object(gcs(answer), "k", local, "k", size=2, etag="1", if_absent=False)
    assert not local.exists("k")
    done = copy_object(gcs(media("12", "12")), "k", local, "k", size=2, etag="1", if_absent=False)
    assert done.verified_by == "md5"
    assert query_of(script.requests[-1].split()[1])["ifGenerationMatch"] == "1"
