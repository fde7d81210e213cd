"""Undo on S3: exactly one marker goes, and only from above the very version that was deleted."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import boto3
import pytest
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.s3.models import FakeDeleteMarker, s3_backends

from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.http import HttpFailure
from lakegc_assets.storage.opening import open_store
from lakegc_assets.storage.probes import probe_recovery
from lakegc_assets.storage.s3.deletes import S3Deletes, S3Versions
from lakegc_assets.storage.values import Lost
from lakegc_assets.sweep.expiry import expiry_warnings
from lakegc_assets_tests.storage.conftest import Answer, Script, query_of
from lakegc_assets_tests.storage.s3_answers import SPACE, error
from lakegc_assets_tests.storage.servers import Server
from lakegc_assets_tests.storage.test_undelete import versioned

_VERSION = (
    "<Version><Key>{}</Key><VersionId>{}</VersionId><IsLatest>{}</IsLatest>"
    "<LastModified>2026-01-02T03:04:05Z</LastModified><ETag>&quot;e&quot;</ETag><Size>1</Size>"
    "</Version>"
)
_MARKER = (
    "<DeleteMarker><Key>{}</Key><VersionId>{}</VersionId><IsLatest>{}</IsLatest>"
    "<LastModified>2026-01-02T03:04:05Z</LastModified></DeleteMarker>"
)


_MARKER_END, _ALL_END = "DelMarkerExpiration", "AllVersionsExpiration"
_OLD_END = (
    "<NoncurrentVersionExpiration><NoncurrentDays>9</NoncurrentDays></NoncurrentVersionExpiration>"
)
_ENABLED = f"<VersioningConfiguration {SPACE}><Status>Enabled</Status></VersioningConfiguration>"


class Bucket:
    """A versioned bucket, seen from behind the store."""

    def __init__(self, endpoint: str, store: ObjectStore) -> None:
        self.client = boto3.client("s3", endpoint_url=endpoint)
        self.store = store
        _, _, rest = store.url.partition("://")
        self.name, _, prefix = rest.partition("/")
        self.prefix = f"{prefix}/"

    def lose(self, key: str, content: bytes = b"1") -> Lost:
        """Write an object and delete it."""
        etag = self.store.put(key, content)
        return Lost(key, len(content), etag, self.delete(key))

    def delete(self, key: str) -> str | None:
        (outcome,) = self.store.delete_many([key])
        assert outcome.outcome == "deleted"
        return outcome.version

    def versions(self, key: str) -> list[str]:
        """Ids of all versions and markers of a key, newest first."""
        answer: Any = self.client.list_object_versions(Bucket=self.name, Prefix=self.prefix + key)
        found = [*answer.get("Versions", ()), *answer.get("DeleteMarkers", ())]
        found = [one for one in found if one["Key"] == self.prefix + key]
        return [
            str(one["VersionId"])
            for one in sorted(found, key=lambda one: (one["IsLatest"], one["LastModified"]))
        ][::-1]

    def undelete(self, *lost: Lost) -> list[tuple[str, str]]:
        return [
            (outcome.outcome, f"{outcome.error_code}: {outcome.detail}")
            for outcome in self.store.undelete_many(lost)
        ]

    def expire(self, key: str, version: str) -> None:
        """Remove a version, as a lifecycle rule does."""
        self.client.delete_object(Bucket=self.name, Key=self.prefix + key, VersionId=version)


@pytest.fixture(
    params=[
        "s3_server",
        pytest.param("versioned_gateway", marks=pytest.mark.stores),
        pytest.param("minio_server", marks=pytest.mark.stores),
    ]
)
def bucket(request: pytest.FixtureRequest) -> Bucket:
    server: str | Server = request.getfixturevalue(request.param)
    endpoint = server.endpoint if isinstance(server, Server) else server
    return Bucket(endpoint, versioned(endpoint))


def test_exactly_the_marker_goes(bucket: Bucket) -> None:
    bucket.store.put("data/a", b"older")
    lost, near = bucket.lose("data/a"), bucket.lose("data/ab")
    before = {key: set(bucket.versions(key)) for key in ("data/a", "data/ab")}
    assert lost.version in before["data/a"]
    assert [outcome for outcome, _ in bucket.undelete(lost)] == ["restored"]
    assert set(bucket.versions("data/a")) == before["data/a"] - {lost.version}
    assert set(bucket.versions("data/ab")) == before["data/ab"]
    assert not bucket.store.exists(near.key)


@pytest.mark.parametrize("told", [True, False])
def test_what_was_deleted_twice_by_lost_answers_comes_back(bucket: Bucket, *, told: bool) -> None:
    """A delete whose answer was lost is sent again, and leaves another marker."""
    first = bucket.lose("data/a")
    bucket.delete("data/a")
    last = bucket.delete("data/a")
    known = first._replace(version=last if told else None)
    assert [outcome for outcome, _ in bucket.undelete(known)] == ["restored"]
    assert bucket.store.get("data/a") == b"1"


@pytest.mark.parametrize("later", [1, 20])
def test_what_a_late_request_deleted_once_more_comes_back(bucket: Bucket, later: int) -> None:
    """Its answer came from another try, so that nobody knows the markers on top."""
    lost = bucket.lose("data/a")
    (kept,) = set(bucket.versions("data/a")) - {lost.version}
    for _ in range(later):
        bucket.delete("data/a")
    outcomes = [bucket.undelete(lost)[0]]
    if later > 1:
        ((outcome, detail),) = outcomes
        assert outcome == "failed"
        assert "it has many delete markers, or gets new ones: restore again, which goes" in detail
        outcomes = bucket.undelete(lost)
    assert [outcome for outcome, _ in outcomes] == ["restored"]
    assert bucket.versions("data/a") == [kept]
    assert bucket.store.get("data/a") == b"1"


def test_what_a_lifecycle_rule_removed_meanwhile_is_gone(bucket: Bucket) -> None:
    lost, without_any = bucket.lose("data/a"), bucket.lose("data/b")
    for key in ("data/a", "data/b"):
        (version,) = set(bucket.versions(key)) - {lost.version, without_any.version}
        bucket.expire(key, version)
    bucket.expire("data/b", str(without_any.version))
    (first, why), (second, none) = bucket.undelete(lost, without_any)
    assert (first, second) == ("not_kept", "not_kept")
    assert "lifecycle rules" in why
    assert "no version of it" in none
    assert not bucket.store.exists("data/a")


def test_what_was_rewritten_and_deleted_by_another_is_not_taken_for_the_lost_one(
    bucket: Bucket,
) -> None:
    lost = bucket.lose("data/a")
    bucket.store.put("data/a", b"another")
    bucket.delete("data/a")
    ((outcome, detail),) = bucket.undelete(lost._replace(version=None))
    assert outcome == "not_kept"
    assert "7 bytes and the etag" in detail
    assert f"1 and {lost.etag} were expected" in detail


def test_what_is_written_between_look_and_undo_stays(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, remove = bucket.lose("data/a"), S3Versions.remove_markers

    def meanwhile(self: S3Versions, markers: Any) -> Any:
        bucket.store.put("data/a", b"meanwhile")
        return remove(self, markers)

    monkeypatch.setattr(S3Versions, "remove_markers", meanwhile)
    assert [outcome for outcome, _ in bucket.undelete(lost)] == ["already_there"]
    assert bucket.store.get("data/a") == b"meanwhile"


def test_a_killed_undo_is_done_again(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = [bucket.lose(f"data/{number}") for number in range(6)]
    twice = bucket.lose("data/twice")
    lost.append(twice._replace(version=bucket.delete("data/twice")))
    remove = S3Versions.remove_markers

    def killed(self: S3Versions, markers: Any) -> Any:
        remove(self, dict(list(markers.items())[:3] + list(markers.items())[-1:]))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(S3Versions, "remove_markers", killed)
        with pytest.raises(KeyboardInterrupt):
            bucket.undelete(*lost)
    assert sum(bucket.store.exists(one.key) for one in lost) == 3
    outcomes = [outcome for outcome, _ in bucket.undelete(*lost)]
    assert outcomes == ["already_there"] * 3 + ["restored"] * 4
    assert all(bucket.store.get(one.key) == b"1" for one in lost)


def test_an_answer_that_names_only_some_keys_is_believed_for_these_only(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the store did all the same shows in the look that follows."""
    lost = [bucket.lose(f"data/{number}") for number in range(3)]
    remove = S3Versions.remove_markers

    def partial(self: S3Versions, markers: Any) -> Any:
        answers = remove(self, {key: markers[key] for key in list(markers)[:2]})
        silence = HttpFailure("NoAnswer", "the store's answer does not name this key")
        first = next(iter(markers))
        return dict.fromkeys(markers, silence) | {first: answers[first]}

    monkeypatch.setattr(S3Versions, "remove_markers", partial)
    outcomes = bucket.undelete(*lost)
    assert [outcome for outcome, _ in outcomes] == ["restored", "restored", "failed"]
    assert "does not name this key" in outcomes[2][1]


def test_many_keys_that_lie_together_take_few_requests(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [f"data/{number:04d}" for number in range(250)]
    etags = {key: bucket.store.put(key, b"1") for key in keys}
    bucket.store.delete_many(etags)
    asked: list[str] = []
    page, send = S3Versions.read_page, S3Deletes.send

    def counted_page(self: S3Versions, prefix: str, start: Any, size: int) -> Any:
        asked.append("list")
        return page(self, prefix, start, size)

    def counted_removal(self: S3Deletes, keys: Any, etags: Any) -> Any:
        asked.append("remove")
        return send(self, keys, etags)

    monkeypatch.setattr(S3Versions, "read_page", counted_page)
    monkeypatch.setattr(S3Deletes, "send", counted_removal)
    outcomes = bucket.undelete(*(Lost(key, 1, etag) for key, etag in etags.items()))
    assert {outcome for outcome, _ in outcomes} == {"restored"}
    assert asked.count("remove") == 1
    # A look before and a look afterwards, with one key more where a server is unsure.
    assert asked.count("list") <= 6


def test_of_many_keys_all_are_looked_at_again_and_those_with_markers_once_more(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = [bucket.lose(f"data/{number:02d}") for number in range(20)]
    lost[3] = lost[3]._replace(version=bucket.delete(lost[3].key))
    looks: list[list[str]] = []
    look, remove = S3Versions.histories, S3Versions.remove_markers

    def counted(self: S3Versions, keys: Any) -> Any:
        looks.append(sorted(key.removeprefix(bucket.prefix) for key in keys))
        return look(self, keys)

    def meanwhile(self: S3Versions, markers: Any) -> Any:
        if len(markers) == len(lost):
            bucket.store.put(lost[5].key, b"meanwhile")
        return remove(self, markers)

    monkeypatch.setattr(S3Versions, "histories", counted)
    monkeypatch.setattr(S3Versions, "remove_markers", meanwhile)
    outcomes = [outcome for outcome, _ in bucket.undelete(*lost)]
    assert outcomes == ["already_there" if n == 5 else "restored" for n in range(20)]
    assert looks == [[one.key for one in lost]] * 2 + [[lost[3].key]]
    assert bucket.store.get(lost[5].key) == b"meanwhile"
    assert bucket.store.get(lost[3].key) == b"1"


class _NullMarker(FakeDeleteMarker):
    """A delete marker of a bucket whose versioning is suspended."""

    version_id = "null"


def test_a_suspended_bucket_keeps_nothing_and_its_markers_are_not_touched(s3_server: str) -> None:
    """A marker without an id may be a writer's object by the time it is removed."""
    bucket = Bucket(s3_server, versioned(s3_server))
    lost = bucket.lose("data/a")
    suspended: Any = {"Status": "Suspended"}
    bucket.client.put_bucket_versioning(Bucket=bucket.name, VersioningConfiguration=suspended)
    found = bucket.store.recovery()
    assert found.kind == "nothing"
    assert "versioning is suspended" in found.notice
    assert probe_recovery(bucket.store, "_lakefs/probe-", None).kind == "nothing"
    backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"].get_bucket(bucket.name)
    name = f"{bucket.prefix}data/a"
    backend.keys.setlist(
        name,
        [
            _NullMarker(one.key) if isinstance(one, FakeDeleteMarker) else one
            for one in backend.keys.getlist(name)
        ],
    )
    before = bucket.versions("data/a")
    assert "null" in before
    ((outcome, detail),) = bucket.undelete(lost._replace(version="null"))
    assert outcome == "not_kept"
    assert "no unique id" in detail
    assert bucket.versions("data/a") == before


@pytest.mark.parametrize(
    ("rule", "days"),
    [
        ({"NoncurrentVersionExpiration": {"NoncurrentDays": 14}}, 14),
        ({"Filter": {"Prefix": "n"}, "NoncurrentVersionExpiration": {"NoncurrentDays": 9}}, 9),
        ({"Filter": {"Prefix": "m/"}, "NoncurrentVersionExpiration": {"NoncurrentDays": 9}}, None),
        ({"Status": "Disabled", "NoncurrentVersionExpiration": {"NoncurrentDays": 9}}, None),
        ({"Expiration": {"Days": 3}}, None),
    ],
)
def test_lifecycle_rules_say_for_how_long(
    s3_server: str, rule: dict[str, Any], days: float | None
) -> None:
    bucket = Bucket(s3_server, versioned(s3_server))
    rules: Any = {"Rules": [{"ID": "r", "Status": "Enabled", "Filter": {"Prefix": ""}, **rule}]}
    bucket.client.put_bucket_lifecycle_configuration(
        Bucket=bucket.name, LifecycleConfiguration=rules
    )
    found = bucket.store.recovery()
    assert found[:2] == ("versions", days)
    assert ("days, by a lifecycle rule" in found.notice) == (days is not None)
    assert "paid for" in found.notice


@pytest.mark.parametrize(
    ("elements", "days", "removed"),
    [
        (f"<{_MARKER_END}><Days>3</Days></{_MARKER_END}>", 3, None),
        (f"<{_MARKER_END}><Days>soon</Days></{_MARKER_END}>", 0, None),
        (f"{_OLD_END}<{_MARKER_END}><Days> 3 </Days></{_MARKER_END}>", 3, None),
        (f"<{_ALL_END}><Days>3</Days></{_ALL_END}>", None, 3),
        (f"<{_ALL_END}><Days>3</Days><DeleteMarker>true</DeleteMarker></{_ALL_END}>", 3, 3),
    ],
)
def test_rules_of_minio_end_what_was_deleted(
    script: Script, elements: str, days: float | None, removed: float | None
) -> None:
    """boto3 does not know these elements: the undo had no end, and the versions were gone."""
    rule = f"<Rule><ID>r</ID><Status>Enabled</Status><Filter/>{elements}</Rule>"
    other = "<Rule><ID>o</ID><Status>Enabled</Status><Filter/><Expiration/></Rule>"
    rules = Answer(body=f"<LifecycleConfiguration {SPACE}>{other}{rule}</LifecycleConfiguration>")
    script.answers = [Answer(body=_ENABLED), rules, rules]
    store = open_store("s3://bkt/ns", script.config())
    assert store.recovery()[:2] == ("versions", days)
    assert store.expires_after(["data/"]) == [removed]


@pytest.mark.parametrize(
    ("rule", "days"),
    [
        ({"Filter": {"Prefix": ""}, "Expiration": {"Days": 7}}, [7, 7]),
        ({"Filter": {"Prefix": "other/"}, "Expiration": {"Days": 7}}, [None, None]),
        ({"Filter": {"Prefix": "{}_lakefs/retention"}, "Expiration": {"Days": 7}}, [7, None]),
        ({"Filter": {"Tag": {"Key": "k", "Value": "v"}}, "Expiration": {"Days": 7}}, [None, None]),
        (
            {"Filter": {"Prefix": ""}, "Status": "Disabled", "Expiration": {"Days": 7}},
            [None, None],
        ),
        (
            {"Filter": {"Prefix": ""}, "NoncurrentVersionExpiration": {"NoncurrentDays": 7}},
            [None, None],
        ),
        (
            {
                "Filter": {"Prefix": ""},
                "Expiration": {"Date": datetime(2026, 1, 1, tzinfo=timezone.utc)},
            },
            [0, 0],
        ),
        (None, [None, None]),
    ],
)
def test_rules_that_remove_what_a_sweep_relies_on(
    s3_server: str, rule: dict[str, Any] | None, days: list[float | None]
) -> None:
    """A hold does not expire, and a pin lasts until its day, but by such a rule."""
    bucket = Bucket(s3_server, versioned(s3_server))
    if rule is not None:
        chosen = {
            name: text.format(bucket.prefix) if name == "Prefix" else text
            for name, text in rule["Filter"].items()
        }
        rules: Any = [{"ID": "r", "Status": "Enabled", **rule, "Filter": chosen}]
        bucket.client.put_bucket_lifecycle_configuration(
            Bucket=bucket.name, LifecycleConfiguration={"Rules": rules}
        )
    assert bucket.store.expires_after(["_lakefs/retention/gc/lakegc/", "data/"]) == days
    told = expiry_warnings(bucket.store)
    ends = [one for one in days if one is not None]
    for sentence, most in zip(told, ends, strict=True):
        assert f"older than {most} days below {bucket.store.url}/" in sentence


@pytest.mark.parametrize(("kind", "told"), [("GLACIER", True), ("GLACIER_IR", False)])
def test_rules_that_move_versions_into_an_archive_are_told(
    s3_server: str, kind: str, *, told: bool
) -> None:
    bucket = Bucket(s3_server, versioned(s3_server))
    moved = [{"NoncurrentDays": 3, "StorageClass": kind}]
    rule: Any = {
        "ID": "r", "Status": "Enabled", "Filter": {}, "NoncurrentVersionTransitions": moved,
    }  # fmt: skip
    bucket.client.put_bucket_lifecycle_configuration(
        Bucket=bucket.name, LifecycleConfiguration={"Rules": [rule]}
    )
    assert (
        "3 days after they were deleted a rule moves them" in bucket.store.recovery().notice
    ) is told


def test_what_comes_back_from_an_archive_cannot_be_read_yet(
    undelete: Callable[..., list[tuple[str, str]]], script: Script
) -> None:
    archived = "<StorageClass>DEEP_ARCHIVE</StorageClass></Version>"
    before = listing(gone("ns/a").replace("</Version>", archived))
    after = listing(back("ns/a").replace("</Version>", archived))
    deleted = Answer(
        body=f"<DeleteResult {SPACE}><Deleted><Key>ns/a</Key></Deleted></DeleteResult>"
    )
    ((outcome, detail),) = undelete("a", answers=[before, deleted, after])
    assert outcome == "restored"
    assert "in an archive (DEEP_ARCHIVE): restore it from there" in detail
    script.answers = [before]
    (found,) = open_store("s3://bkt/ns", script.config()).kept_many([Lost("a", 1, "e")])
    assert (found.outcome, found.detail) == ("restored", detail.removeprefix("None: "))
    # Where a copy can be read, it stays there.
    script.answers = [before]
    copied = Lost("a", 1, "e", copied=True)
    (found,) = open_store("s3://bkt/ns", script.config()).undelete_many([copied])
    assert (found.outcome, found.detail) == ("not_kept", "it is in an archive (DEEP_ARCHIVE)")


def listing(*entries: str, more: str = "", encoded: bool = True) -> Answer:
    encoding = "<EncodingType>url</EncodingType>" if encoded else ""
    more = more or "<IsTruncated>false</IsTruncated>"
    body = f"<ListVersionsResult {SPACE}>{encoding}{more}{''.join(entries)}</ListVersionsResult>"
    return Answer(body=body)


def gone(key: str, marker: str = "m1", version: str = "v1") -> str:
    return _MARKER.format(key, marker, "true") + _VERSION.format(key, version, "false")


def back(key: str) -> str:
    return _VERSION.format(key, "v1", "true")


@pytest.fixture
def undelete(script: Script) -> Callable[..., list[tuple[str, str]]]:
    """Brings back objects named so, from a server that gives these answers."""

    def called(*keys: str, answers: list[Answer]) -> list[tuple[str, str]]:
        script.answers = answers
        store = open_store("s3://bkt/ns", script.config())
        outcomes = store.undelete_many([Lost(key, 1, "e") for key in keys])
        return [(one.outcome, f"{one.error_code}: {one.detail}") for one in outcomes]

    return called


def test_keys_that_xml_cannot_carry_are_named_in_urls(
    script: Script, undelete: Callable[..., list[tuple[str, str]]]
) -> None:
    answers = [listing(gone("ns/a%01%0Ab")), Answer(status=204), listing(back("ns/a%01%0Ab"))]
    assert undelete("a\x01\nb", answers=answers)[0][0] == "restored"
    assert script.requests[1] == "DELETE /bkt/ns/a%01%0Ab?versionId=m1"


def test_a_server_that_does_not_encode_keys_cannot_tell_which_they_are(
    script: Script, undelete: Callable[..., list[tuple[str, str]]]
) -> None:
    told = listing(gone("ns/a\nb"), encoded=False)
    ((outcome, detail),) = undelete("a\nb", answers=[told])
    assert outcome == "failed"
    assert "not percent-encoded" in detail
    assert all(request.startswith("GET") for request in script.requests)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (listing(_MARKER.format("ns/a", "m1", "true") * 2), "are the latest"),
        (listing(_MARKER.format("other", "m1", "true")), "has 'other'"),
        (listing(more="<IsTruncated>true</IsTruncated>"), "does not go on"),
        (listing(gone("ns/a"), more="<!-- nothing -->"), "does not go on"),
        (listing(gone("ns/a").replace("true", "false")), "does not mark the latest"),
        (Answer(status=403, body=error("AccessDenied")), "s3:ListBucketVersions"),
        (Answer(status=503, body=error("SlowDown")), "SlowDown"),
    ],
)
def test_without_a_list_that_is_whole_nothing_is_removed(
    script: Script,
    undelete: Callable[..., list[tuple[str, str]]],
    answer: Answer,
    words: str,
) -> None:
    ((outcome, detail),) = undelete("a", answers=[answer])
    assert outcome == "failed"
    assert words in detail
    assert all(request.startswith("GET") for request in script.requests)


def test_who_may_not_remove_versions_is_told_what_it_takes(
    undelete: Callable[..., list[tuple[str, str]]],
) -> None:
    denied = (
        f"<DeleteResult {SPACE}><Error><Key>ns/a</Key><Code>AccessDenied</Code>"
        "<Message>no</Message></Error></DeleteResult>"
    )
    answers = [listing(gone("ns/a")), Answer(body=denied), listing(gone("ns/a"))]
    ((outcome, detail),) = undelete("a", answers=answers)
    assert outcome == "failed"
    assert "s3:DeleteObjectVersion, and where MFA delete is on the root user" in detail


def test_far_keys_are_not_reached_through_all_that_lies_between(
    script: Script, undelete: Callable[..., list[tuple[str, str]]]
) -> None:
    more = (
        "<IsTruncated>true</IsTruncated><NextKeyMarker>ns/b</NextKeyMarker>"
        "<NextVersionIdMarker>v1</NextVersionIdMarker>"
    )
    first = listing(gone("ns/a1"), gone("ns/b"), more=more)
    answers = [first, listing(gone("ns/y2")), Answer(status=403, body=error("AccessDenied"))]
    undelete("a1", "y2", answers=answers)
    queries = [query_of(request) for request in script.requests if request.startswith("GET")]
    assert [query.get("key-marker") for query in queries[:2]] == ["ns/a", "ns/y"]
    assert {query["prefix"] for query in queries} == {"ns/"}


def test_the_settings_that_cannot_be_read_are_named(script: Script) -> None:
    script.answers = [Answer(status=403, body=error("AccessDenied"))]
    found = open_store("s3://bkt/ns", script.config()).recovery()
    assert found[:2] == ("unknown", None)
    assert "s3:GetBucketVersioning" in found.notice
    enabled = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
    script.answers = [Answer(body=enabled), *script.answers]
    found = open_store("s3://bkt/ns", script.config()).recovery()
    assert found[:2] == ("versions", None)
    assert "s3:GetLifecycleConfiguration" in found.notice


@pytest.mark.parametrize(
    ("versioning", "plain", "outcome"),
    [
        (Answer(status=501, body=error("NotImplemented")), None, "not_kept"),
        (Answer(body=f"<VersioningConfiguration {SPACE}/>"), None, "not_kept"),
        (Answer(body=f"<VersioningConfiguration {SPACE}/>"), listing(), "failed"),
        (Answer(body=_ENABLED), None, "failed"),
        (Answer(status=403, body=error("AccessDenied")), None, "failed"),
    ],
)
def test_only_a_server_that_knows_no_versions_keeps_none(
    script: Script, versioning: Answer, plain: Answer | None, outcome: str
) -> None:
    """As Cloudflare R2. Others answer by 501 to a list that begins where it should not."""
    refused = Answer(status=501, body=error("NotImplemented"))
    script.answers = [refused, versioning, plain or refused]
    store = open_store("s3://b/ns", script.config())
    assert [one.outcome for one in store.undelete_many([Lost("a", 1, "e")])] == [outcome]
