"""What a store kept of deleted objects comes back, exactly, and only where nothing is."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import boto3
import pytest
import requests

from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import GcsAccess, StoreConfig
from lakegc_assets.storage.opening import open_store
from lakegc_assets.storage.probes import probe_recovery
from lakegc_assets.storage.trash import TRASH
from lakegc_assets.storage.values import DeleteOutcome, Lost

FOLDER = f"{TRASH}20261122T000000Z-sweep/"
_STORES = pytest.mark.stores
#: Fixture of a server, size of pages, and keys that make some.
_SERVERS = {"versitygw": ("versioned_gateway", 1000, 1200), "minio": ("minio_server", 100, 250)}
ODD = [
    "a-b", "a/b", "a/b/c" , "data/x/y", "with space", " leading", "trailing ", "plus+plus",
    "per%20cent", "%2F", "pipe|pipe", "uni/é☃", "\U0001f600", "a&b<c>\"'", "#;,:@=$!*()[]{}^`~?",
    "d/... /..x", "composed/\u00e9", "composed/e\u0301", "many/" + "y" * 200 + "/" + "z" * 255,
]  # fmt: skip


@dataclass(frozen=True)
class Keeping:
    """A store that keeps what is deleted.

    Attributes:
        store: it is empty.
        trash: where it does so, if it has to be told.
        kind: by what it says.
        files: an object cannot hold others.
        odd: more keys that it takes.
        many: keys that make some pages and some calls.
        same_etags: what comes back has its etag.
        absent: outcome of what it does not have; emulators may not know how to say so.
    """

    store: ObjectStore
    trash: str | None
    kind: str
    files: bool = False
    odd: tuple[str, ...] = ()
    same_etags: bool = True
    many: int = 1200
    absent: str = "not_kept"

    def put(self, keys: Sequence[str]) -> list[Lost]:
        with ThreadPoolExecutor(4) as pool:
            etags = list(pool.map(lambda key: self.store.put(key, key.encode()), keys))
        sizes = [len(key.encode()) for key in keys]
        return [Lost(*one) for one in zip(keys, sizes, etags, strict=True)]

    def delete(self, lost: Sequence[Lost], *, told: bool = True) -> list[Lost]:
        """Delete objects, and forget what the store told of it if need be."""
        etags = {one.key: one.etag for one in lost}
        outcomes = self.store.delete_many(etags, trash=self.trash)
        assert {outcome.outcome for outcome in outcomes} == {"deleted"}
        assert not any(self.store.exists(one.key) for one in lost[:3])
        if not told:
            return list(lost)
        return [one._replace(version=o.version) for one, o in zip(lost, outcomes, strict=True)]

    def undelete(self, lost: Sequence[Lost]) -> list[str]:
        before, said = self.keys(), self.store.kept_many(lost)
        assert self.keys() == before, "to look changes nothing"
        outcomes = self.store.undelete_many(lost)
        assert [outcome.key for outcome in outcomes] == [one.key for one in lost]
        # What an emulator cannot be asked for, it cannot say either.
        expected = [o.outcome for o in outcomes if o.outcome != "failed"]
        known = zip(said, outcomes, strict=True)
        assert [s.outcome for s, o in known if o.outcome != "failed"] == expected
        return [outcome.outcome for outcome in outcomes]

    def keys(self) -> list[str]:
        """All keys but those of the trash."""
        found = [key for batch in self.store.list() for key in batch["key"].to_pylist()]
        return [key for key in found if not key.startswith(TRASH)]


def versioned(endpoint: str, *, whole: bool = False, page_size: int = 1000) -> ObjectStore:
    bucket = f"bucket-{uuid.uuid4().hex}"
    client = boto3.client("s3", endpoint_url=endpoint)
    client.create_bucket(Bucket=bucket)
    enabled = {"Status": "Enabled"}
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration=enabled)  # type: ignore[arg-type]
    config = StoreConfig(endpoint_url=endpoint, page_size=page_size)
    return open_store(f"s3://{bucket}" if whole else f"s3a://{bucket}/n s/%41é/", config)


@pytest.fixture(
    params=[
        "local",
        "s3",
        pytest.param("s3 whole bucket", marks=pytest.mark.conformance),
        pytest.param("versitygw", marks=_STORES),
        pytest.param("minio", marks=_STORES),
        pytest.param("fake gcs", marks=_STORES),
    ]
)
def keeping(request: pytest.FixtureRequest, tmp_path: Path) -> Keeping:
    name = str(request.param)
    if name == "local":
        (tmp_path / "root").mkdir()
        store = open_store(str(tmp_path / "root"))
        return Keeping(store, FOLDER, "trash", files=True, odd=("line\nbreak", "\x01", "cr\r"))
    if name in _SERVERS:
        fixture, size, many = _SERVERS[name]
        store = versioned(request.getfixturevalue(fixture).endpoint, page_size=size)
        return Keeping(store, None, "versions", files=True, many=many)
    if name == "fake gcs":
        server = request.getfixturevalue("fake_gcs_server")
        bucket = f"versions-{uuid.uuid4().hex}"
        content = {"name": bucket, "versioning": {"enabled": True}}
        url = f"{server.endpoint}/storage/v1/b"
        requests.post(url, json=content, timeout=60).raise_for_status()
        access = GcsAccess(endpoint=server.endpoint)
        config = StoreConfig(gcs=access, page_size=100, read_timeout_s=60)
        store = open_store(f"gs://{bucket}/n s", config)
        # It cannot be asked for what soft delete keeps.
        return Keeping(store, None, "versions", same_etags=False, many=250, absent="failed")
    server = request.getfixturevalue("s3_server")
    store = versioned(server, whole="whole" in name, page_size=7)
    return Keeping(store, None, "versions", many=30)


@pytest.mark.parametrize("told", [True, False])
def test_odd_keys_come_back_as_they_were(keeping: Keeping, *, told: bool) -> None:
    keys = [key for key in ODD if not (keeping.files and key == "a/b/c")]
    keys += keeping.odd
    written = keeping.put(keys)
    lost = keeping.delete(written, told=told)
    assert keeping.undelete(lost) == ["restored"] * len(keys)
    for one in written:
        assert keeping.store.get(one.key) == one.key.encode()
        if keeping.same_etags:
            assert keeping.store.head(one.key).etag == one.etag
    assert keeping.keys() == sorted(keys, key=str.encode)
    assert keeping.undelete(lost) == ["already_there"] * len(keys)


@pytest.mark.parametrize("told", [True, False])
def test_what_is_newer_stays(keeping: Keeping, *, told: bool) -> None:
    lost = keeping.delete(keeping.put(["data/a", "data/b"]), told=told)
    keeping.store.put("data/a", b"newer")
    assert keeping.undelete(lost) == ["already_there", "restored"]
    assert keeping.store.get("data/a") == b"newer"
    assert keeping.store.get("data/b") == b"data/b"


def test_what_was_not_deleted_or_never_was_is_left_alone(keeping: Keeping) -> None:
    (there,) = keeping.put(["data/there"])
    never = Lost("data/never", 3, there.etag)
    assert keeping.undelete([there, never]) == ["already_there", keeping.absent]
    assert keeping.store.head("data/there").etag == there.etag
    assert keeping.keys() == ["data/there"]


def test_another_object_than_the_marked_one_does_not_come_back(keeping: Keeping) -> None:
    (first,) = keeping.put(["data/a"])
    keeping.store.put("data/a", b"another content")
    etag = keeping.store.head("data/a").etag
    (deleted,) = keeping.delete([Lost("data/a", 15, etag)])
    wrong = deleted._replace(etag="0" * 32 if keeping.same_etags else "12345")
    assert keeping.undelete([wrong]) == [keeping.absent]
    assert keeping.keys() == []
    assert first.etag != etag


def test_of_many_keys_only_those_that_are_asked_for_come_back(keeping: Keeping) -> None:
    """Also where keys are the beginnings of others, which are listed among their versions."""
    count = keeping.many
    keys = [f"data/slice-{number % 3}/{number:05d}" for number in range(count)]
    keys += [f"{key}-{end}" for key in keys[:10] for end in ("", "x", "y")]
    lost = keeping.delete(keeping.put(keys))
    wanted = [one for number, one in enumerate(lost) if number % 3 or number > count]
    assert keeping.undelete(wanted[::-1]) == ["restored"] * len(wanted)
    assert keeping.keys() == sorted(one.key for one in wanted)
    assert keeping.undelete(lost).count("restored") == len(lost) - len(wanted)
    assert keeping.keys() == sorted(keys)


def test_a_key_that_cannot_be_asked_for_is_an_outcome(keeping: Keeping) -> None:
    (good,) = keeping.delete(keeping.put(["data/a"]))
    long, empty = Lost("x/" * 600 + "y", 1, good.etag), Lost("", 1, good.etag)
    outcomes = keeping.store.undelete_many([long, good, empty])
    assert outcomes[1].outcome == "restored"
    assert (outcomes[2].outcome, outcomes[2].error_code) == ("failed", "InvalidKey")
    assert outcomes[0].outcome in {"failed", "not_kept"}


def test_the_probe_finds_out_that_objects_come_back(keeping: Keeping) -> None:
    found = probe_recovery(keeping.store, "_lakefs/probe-", keeping.trash)
    assert found.kind == keeping.kind == keeping.store.recovery().kind
    assert keeping.keys() == []


def test_outcomes_tell_what_was_kept(keeping: Keeping) -> None:
    (one,) = keeping.put(["data/a"])
    for singly, expires in ((False, None), (True, None), (False, 60.0)):
        if expires and not keeping.store.delete_deadlines() and keeping.kind != "trash":
            continue
        outcome: DeleteOutcome
        (outcome,) = keeping.store.delete_many(
            [one.key], singly=singly, expires_s=expires, trash=keeping.trash
        )
        assert outcome.outcome == "deleted"
        if keeping.same_etags:
            assert outcome.version
        assert keeping.undelete([one._replace(version=outcome.version)]) == ["restored"]
        one = keeping.put(["data/a"])[0] if not keeping.same_etags else one
