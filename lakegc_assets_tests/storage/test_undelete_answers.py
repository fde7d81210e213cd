"""Undo on Azure and Google's service, by answers that their references describe.

https://learn.microsoft.com/rest/api/storageservices/list-blobs, undelete-blob, copy-blob;
https://cloud.google.com/storage/docs/json_api/v1/objects/rewrite, restore
"""

from __future__ import annotations

import json
from collections.abc import Callable
from urllib.parse import unquote

import pytest

from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.values import Lost
from lakegc_assets_tests.storage import azure_answers
from lakegc_assets_tests.storage.azure_answers import page
from lakegc_assets_tests.storage.conftest import Answer, Script, query_of
from lakegc_assets_tests.storage.gcs_answers import refusal

LOST = Lost("a", 7, "0x8D")
COPIED = Answer(202, headers={"x-ms-copy-status": "success"})
Undelete = Callable[..., tuple[str, str]]


@pytest.fixture
def azure_undelete(azure: Callable[..., ObjectStore]) -> Undelete:
    def called(*answers: Answer, lost: Lost = LOST) -> tuple[str, str]:
        (outcome,) = azure(*answers).undelete_many([lost])
        return outcome.outcome, f"{outcome.error_code}: {outcome.detail}"

    return called


def kept(
    name: str = "ns/a",
    *,
    version: str = "",
    current: bool = False,
    deleted: bool = False,
    snapshot: bool = False,
    deletion: str = "",
    etag: str = "0x8D",
) -> str:
    said = [
        f"<Name>{name}</Name>",
        "<Snapshot>2026-01-01T00:00:00.0000000Z</Snapshot>" if snapshot else "",
        f"<VersionId>{version}</VersionId>" if version else "",
        "<IsCurrentVersion>true</IsCurrentVersion>" if current else "",
        "<Deleted>true</Deleted>" if deleted or deletion else "",
        f"<DeletionId>{deletion}</DeletionId>" if deletion else "",
        f"<Properties><Etag>{etag}</Etag><Content-Length>7</Content-Length></Properties>",
    ]
    return f"<Blob>{''.join(said)}</Blob>"


OLD, NEW = "2026-01-01T00:00:00.0000000Z", "2026-02-01T00:00:00.0000000Z"


def test_the_newest_version_is_copied_where_no_blob_is(
    azure_undelete: Undelete, script: Script
) -> None:
    """The names that begin with the blob's come after it."""
    versions = [kept(version=OLD, etag="0x1"), kept(version=NEW), kept("ns/ab", version=NEW)]
    assert azure_undelete(page(*versions), COPIED)[0] == "restored"
    listing, copy = script.requests
    assert query_of(listing)["prefix"] == "ns/a"
    assert query_of(listing)["include"] == "versions,deleted"
    assert copy == "PUT /acc/box/ns/a"
    sent = script.headers[1]
    assert sent["if-none-match"] == "*"
    assert unquote(sent["x-ms-copy-source"]).endswith(f"/acc/box/ns/a?versionid={NEW}")


@pytest.mark.parametrize("backwards", [False, True])
def test_the_version_of_the_object_is_copied_where_another_was_written_since_and_deleted(
    azure_undelete: Undelete, script: Script, *, backwards: bool
) -> None:
    versions = [kept(version=OLD), kept(version=NEW, etag="0x1")]
    assert azure_undelete(page(*versions[:: -1 if backwards else 1]), COPIED)[0] == "restored"
    source = unquote(script.headers[1]["x-ms-copy-source"])
    assert source.endswith(f"/acc/box/ns/a?versionid={OLD}")


@pytest.mark.parametrize("told", [["failed"], ["aborted"], [""], ["pending", "failed"]])
def test_a_copy_that_did_not_succeed_brings_nothing_back(
    azure_undelete: Undelete, script: Script, told: list[str]
) -> None:
    """The blob has its name from the beginning of a copy that takes longer than its request."""
    statuses = zip((202, 200), told, strict=False)
    answers = [Answer(code, headers={"x-ms-copy-status": one}) for code, one in statuses]
    outcome, detail = azure_undelete(page(kept(version=NEW)), *answers)
    assert outcome == "failed"
    assert f"the copy of a version ended as {told[-1]!r}" in detail
    assert script.requests[2:] == ["HEAD /acc/box/ns/a"][: len(told) - 1]


@pytest.mark.parametrize("removed", [Answer(202), azure_answers.refusal(412, "ConditionNotMet")])
def test_the_empty_blob_of_a_copy_that_failed_goes_unless_it_was_replaced(
    azure_undelete: Undelete, script: Script, removed: Answer
) -> None:
    begun = Answer(202, headers={"x-ms-copy-status": "pending"})
    failed = Answer(200, headers={"x-ms-copy-status": "failed", "ETag": '"0x7"'})
    outcome, detail = azure_undelete(page(kept(version=NEW)), begun, failed, removed)
    assert outcome == "failed"
    assert "the copy of a version ended as 'failed'" in detail
    assert script.requests[3:] == ["DELETE /acc/box/ns/a"]
    assert script.headers[3]["if-match"] == '"0x7"'


def test_versions_go_on_over_pages(azure_undelete: Undelete, script: Script) -> None:
    pages = [page(kept(version=OLD, etag="0x1"), marker="m"), page(kept(version=NEW))]
    assert azure_undelete(*pages, COPIED)[0] == "restored"
    assert query_of(script.requests[1])["marker"] == "m"


def test_what_soft_delete_keeps_is_undeleted(azure_undelete: Undelete, script: Script) -> None:
    """Snapshots of it, as an overwrite leaves them, are not the blob."""
    snapshot = kept(snapshot=True, deleted=True, etag="0x1")
    listing = page(snapshot, kept(deleted=True), snapshot)
    assert azure_undelete(listing, Answer())[0] == "restored"
    assert script.requests[1] == "PUT /acc/box/ns/a?comp=undelete"


REFUSED = azure_answers.refusal(400, "InvalidQueryParameterValue")


@pytest.mark.parametrize("before", [[], [page()], [REFUSED, page()]])
def test_a_path_with_a_hierarchical_namespace_is_undeleted_by_the_id_of_its_deletion(
    azure_undelete: Undelete, script: Script, before: list[Answer]
) -> None:
    """Such accounts have no versions, keep each deletion of a path, and may list these alone."""
    deletions = page(
        kept(deletion="11", etag="0x1"), kept(deletion="12"), kept(deletion="13", etag="0x1")
    )
    assert azure_undelete(REFUSED, *before, deletions, Answer())[0] == "restored"
    *_, listing, undeleted = script.requests
    assert query_of(listing).get("showonly") == ("deleted" if before else None)
    assert undeleted == "PUT /acc/box/ns/a?comp=undelete"
    assert script.headers[-1]["x-ms-undelete-source"] == "ns/a?deletionid=12"


def test_a_path_that_is_there_is_not_undeleted(azure_undelete: Undelete, script: Script) -> None:
    found = azure_undelete(REFUSED, page(kept(), kept(deletion="11")))
    assert found[0] == "already_there"
    assert len(script.requests) == 2


@pytest.mark.parametrize(
    ("listing", "outcome", "words"),
    [
        (page(kept(version=OLD), kept(version=NEW, current=True)), "already_there", ""),
        (page(kept(), kept(deleted=True)), "already_there", ""),
        (page(), "not_kept", "keeps nothing"),
        (page(kept("ns/ab")), "not_kept", "keeps nothing"),
        (page(kept(version=OLD, deleted=True)), "not_kept", "keeps nothing"),
        (
            page(kept(version=NEW, etag="0x1"), kept(version=OLD, etag="0x2")),
            "not_kept",
            "etag 0x1",
        ),
        (page(kept(deleted=True, etag="0x1")), "not_kept", "0x8D were expected"),
        (page(kept(version=NEW).replace(">7<", ">8<")), "not_kept", "has 8 bytes"),
        (Answer(body="<EnumerationResults/>"), "failed", "it is not a listing"),
        (azure_answers.refusal(403, "AuthorizationFailure"), "failed", "AuthorizationFailure"),
    ],
)
def test_nothing_is_sent_where_nothing_may_come_back(
    azure_undelete: Undelete, script: Script, listing: Answer, outcome: str, words: str
) -> None:
    found, detail = azure_undelete(listing)
    assert found == outcome
    assert words in detail
    assert len(script.requests) == 1


@pytest.mark.parametrize(("version", "outcome"), [(NEW, "failed"), ("", "restored")])
def test_a_version_in_the_archive_tier_is_not_copied(
    azure_undelete: Undelete, script: Script, version: str, outcome: str
) -> None:
    """The service would refuse it; what soft delete keeps comes back as it was: in the archive."""
    tier = "<Properties><AccessTier>Archive</AccessTier>"
    archived = kept(version=version, deleted=not version).replace("<Properties>", tier)
    found, detail = azure_undelete(page(archived), Answer())
    assert found == outcome
    assert "it is in an archive: bring it back to a tier that can be read" in detail
    assert len(script.requests) == (1 if version else 2)
    copied = LOST._replace(copied=True)
    found, detail = azure_undelete(page(archived), lost=copied)
    assert (found, "in an archive" in detail) == ("not_kept", True)


@pytest.mark.parametrize("code", ["BlobAlreadyExists", "ConditionNotMet"])
def test_a_blob_that_is_written_meanwhile_stays(azure_undelete: Undelete, code: str) -> None:
    refused = azure_answers.refusal(409, code)
    assert azure_undelete(page(kept(version=NEW)), refused)[0] == "already_there"


def test_a_version_that_goes_meanwhile_is_a_failure(azure_undelete: Undelete) -> None:
    refused = azure_answers.refusal(404, "CannotVerifyCopySource")
    outcome, detail = azure_undelete(page(kept(version=NEW)), refused)
    assert outcome == "failed"
    assert "CannotVerifyCopySource" in detail


def test_a_key_that_azure_reads_as_another_is_not_asked_for(
    azure_undelete: Undelete, script: Script
) -> None:
    assert azure_undelete(Answer(), lost=LOST._replace(key="a\\b"))[0] == "failed"
    assert script.requests == []


@pytest.fixture
def gcs_undelete(gcs: Callable[..., ObjectStore]) -> Undelete:
    def called(*answers: Answer, etag: str = "7") -> tuple[str, str]:
        (outcome,) = gcs(*answers).undelete_many([Lost("a/b", 3, etag)])
        return outcome.outcome, f"{outcome.error_code}: {outcome.detail}"

    return called


MISSING = refusal(404, "notFound")
MET = refusal(412, "conditionNotMet")
#: Answers of a bucket whose soft delete is off, to a restore and to a question.
NO_POLICY = refusal(400, "invalid", "bucket soft delete policy must be set.")
NOT_ASKED = refusal(
    400, "invalid", "Soft delete policy is required to request a soft-deleted version"
)
#: The bucket is there: an empty listing.
BUCKET = Answer(body=json.dumps({"kind": "storage#objects"}))
DONE = Answer(body=json.dumps({"done": True}))


def test_a_generation_is_copied_where_no_object_is(gcs_undelete: Undelete, script: Script) -> None:
    half = Answer(body=json.dumps({"done": False, "rewriteToken": "t"}))
    assert gcs_undelete(MISSING, BUCKET, half, DONE)[0] == "restored"
    copies = [query_of(request) for request in script.requests if "rewriteTo" in request]
    assert [(q["sourceGeneration"], q["ifGenerationMatch"]) for q in copies] == [("7", "0")] * 2
    assert copies[1]["rewriteToken"] == "t"


def test_what_soft_delete_keeps_is_restored(gcs_undelete: Undelete, script: Script) -> None:
    assert gcs_undelete(MISSING, BUCKET, MISSING, Answer(body="{}"))[0] == "restored"
    last = script.requests[-1]
    assert last.startswith("POST /storage/v1/b/bkt/o/ns%2Fa%2Fb/restore?")
    assert query_of(last) == {"generation": "7", "ifGenerationMatch": "0"}


@pytest.mark.parametrize(
    ("answers", "outcome", "words"),
    [
        ([MISSING, BUCKET, MET], "already_there", ""),
        ([MISSING, BUCKET, MISSING, MET], "already_there", ""),
        ([MISSING, BUCKET, MISSING, MISSING], "not_kept", "no generation 7"),
        ([MISSING, BUCKET, MISSING, NO_POLICY], "not_kept", "no generation 7"),
        ([MISSING, BUCKET, MISSING, refusal(400, "invalid")], "failed", "invalid"),
        ([MISSING, BUCKET, refusal(403, "forbidden")], "failed", "forbidden"),
        ([MISSING, BUCKET, Answer(body="{}")], "failed", "damaged"),
        ([MISSING, BUCKET, Answer(404, "page not found")], "failed", "404"),
        ([MISSING, MISSING], "failed", "NoSuchBucket"),
    ],
)
def test_what_a_condition_or_a_refusal_says_is_believed(
    gcs_undelete: Undelete, answers: list[Answer], outcome: str, words: str
) -> None:
    found, detail = gcs_undelete(*answers)
    assert found == outcome
    assert words in detail


@pytest.mark.parametrize("etag", ["0", "", "abc", "-1"])
def test_an_etag_that_is_no_generation_names_nothing(
    gcs_undelete: Undelete, script: Script, etag: str
) -> None:
    """0 would mean no object to a condition."""
    assert gcs_undelete(DONE, etag=etag)[0] == "failed"
    assert script.requests == []


def test_to_look_what_azure_keeps_asks_for_nothing_else(
    azure: Callable[..., ObjectStore], script: Script
) -> None:
    answers = (
        page(kept(version=NEW)),
        page(kept(current=True)),
        page(kept(etag="0x1", deleted=True)),
    )
    store = azure(*answers)
    told = [store.kept_many([LOST])[0].outcome for _ in answers]
    assert told == ["restored", "already_there", "not_kept"]
    assert all(request.startswith("GET ") for request in script.requests)


@pytest.mark.parametrize(
    ("answers", "outcome"),
    [
        ([MISSING, BUCKET, Answer(body="{}")], "restored"),
        ([MISSING, BUCKET, MISSING, Answer(body="{}")], "restored"),
        ([MISSING, BUCKET, MISSING, MISSING], "not_kept"),
        ([MISSING, BUCKET, MISSING, NOT_ASKED], "not_kept"),
        ([MISSING, BUCKET, refusal(403, "forbidden")], "failed"),
    ],
)
def test_to_look_what_google_keeps_asks_for_nothing_else(
    gcs: Callable[..., ObjectStore], script: Script, answers: list[Answer], outcome: str
) -> None:
    (told,) = gcs(*answers).kept_many([Lost("a/b", 3, "7")])
    assert told.outcome == outcome
    assert not any(request.startswith("POST") for request in script.requests)
    asked = [query_of(request) for request in script.requests[2:]]
    assert [q["generation"] for q in asked] == ["7"] * len(asked)
    assert [q.get("softDeleted") for q in asked] == [None, "true"][: len(asked)]
