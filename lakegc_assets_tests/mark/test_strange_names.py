"""Whatever lies around in one repository: names that differ by little, long ones, markers, files.

Each store gets the names that it can hold. What is dead goes, to the letter; what cannot be named
in a list or a request, and what lakeFS would never write, stays and is reported.
"""

from __future__ import annotations

import time
import unicodedata
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import boto3
import pytest
from botocore.exceptions import ClientError

from lakegc_assets.errors import RefusedError
from lakegc_assets.mark.foreign_marks import NAMED, find_mark, read_mark
from lakegc_assets.mark.publication import mark_folder
from lakegc_assets.mark.session_folder import SessionFolder
from lakegc_assets.run.context import RunContext
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.errors import StorageError
from lakegc_assets.storage.opening import open_store
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests import recorded
from lakegc_assets_tests.lake import REPOSITORY, STAGES, SmallLake, running
from lakegc_assets_tests.sessions import Session
from lakegc_assets_tests.storage.servers import Server

#: A live name, and dead ones that a server, a file system or a person may take for it.
_TWINS: Final = {
    "data/case/report.csv": ["data/Case/report.csv", "data/case/REPORT.csv"],
    "data/form/caf\u00e9": ["data/form/cafe\u0301"],
    "data/form/\uac00": ["data/form/\u1100\u1161"],
    "data/%41": ["data/A", "data/%2541"],
    "data/blank/a": ["data/blank/a ", "data/blank/ a"],
    "data/plus+": ["data/plus ", "data/plus%2B"],
    "data/folder/a": ["data/folder/", "data/folder", "data/folder_$folder$"],
    "data/pipe|a": ["data/pipe", "data/pipe|", "data/pipe|b"],
}
_LONGEST: Final = 1024 - len(f"{REPOSITORY}/")


def _as_long_as_can_be(part: str) -> str:
    """A key of as many bytes as any store takes, in folders of some of a text."""
    room = _LONGEST - len("data/")
    folders = f"{part}/" * (room // (len(part.encode()) + 1))
    key = "data/" + folders + "x" * (room - len(folders.encode()))
    return key.removesuffix("/") + "x" * key.endswith("/")


_ALONE: Final = [
    "data/" + "\u00e9" * ((_LONGEST - 5) // 2) + "x" * ((_LONGEST - 5) % 2),
    "data/\U0001f600|#;,@=$!*()[]{}^`~?&<>\"'",
    'data/a "quoted", with a comma',
    "data/#no-comment",
    "data/;neither",
    "data/marker/",
    "data/-",
    "at-the-root",
    "data",
]
#: They break lists with one address a line, or cannot be named in a request.
_UNNAMEABLE: Final = [
    "data/tab\there",
    "data/new\nline",
    "data/return\r",
    "data/\x01",
    "data/\x7f",
    "data/\x85",
    # In place of what some servers cannot write in a listing.
    "data/\ufffd",
]
#: Names that lakeFS would not give, and places where it keeps no objects.
_NOT_LAKEFS: Final = [
    "data/../up",
    "data/a/../b",
    "data/a/./b",
    "data/s3://bucket/key",
    "elsewhere/object",
    "DATA/object",
    "data/x/y/",
    "data/table/data/00000-1.parquet",
    _as_long_as_can_be("\u00e9" * 100),
    _as_long_as_can_be("d"),
]
_FOREIGN: Final = [
    "_lakefs/notes.txt",
    "_lakefs/backup/old.parquet",
    "_lakefs/folder/",
    "_lakefs/" + "0" * 64,
    "_lakefs/retention/gc/unified/README",
    "_lakefs/retention/gc/reports/notes/deleted.csv",
]
_PLANTED: Final = [
    *_TWINS,
    *(name for names in _TWINS.values() for name in names),
    *_ALONE,
    *_UNNAMEABLE,
    *_NOT_LAKEFS,
    *_FOREIGN,
]
#: Paths in lakeFS, each of which is written twice: the first object is garbage.
_PATHS: Final = [
    *("a|b", "new\nline", "..", "x/../y", "caf\u00e9", "cafe\u0301", "Case", "case", "d/" * 400),
]
_DEAD: Final = {*(name for names in _TWINS.values() for name in names), *_ALONE}


@dataclass(frozen=True)
class Place:
    """Where a repository keeps its objects.

    Attributes:
        settings: of the lake.
        namespace: URL of the repository's.
        plant: writes an object below the namespace, as others than lakeFS would; false where the
            store takes no such name.
    """

    settings: Mapping[str, Any]
    namespace: str
    plant: Callable[[str, bytes], bool]


@pytest.fixture
def local(tmp_path: Path) -> Place:
    folder = tmp_path / "lake" / "lakefs" / "objects" / REPOSITORY

    def plant(key: str, body: bytes) -> bool:
        path = folder / key
        # A file system has no files of such names.
        if key.endswith("/") or ".." in path.parts or f"{folder}/{key}" != str(path):
            return False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body)
        except OSError:
            return False
        return True

    return Place({}, f"local://{REPOSITORY}", plant)


@pytest.fixture
def emulated(s3_server: str, s3_bucket: str) -> Place:
    def plant(key: str, body: bytes) -> bool:
        # The server's own front takes no line breaks.
        recorded.backend().put_object(s3_bucket, f"{REPOSITORY}/{key}", body)
        return True

    return _in_bucket(s3_server, s3_bucket, plant)


@pytest.fixture
def minio(minio_server: Server) -> Place:
    return _real(minio_server)


@pytest.fixture
def versitygw(versitygw_server: Server) -> Place:
    return _real(versitygw_server)


def _real(server: Server) -> Place:
    bucket, client = f"bucket-{uuid.uuid4().hex}", boto3.client("s3", endpoint_url=server.endpoint)
    client.create_bucket(Bucket=bucket)
    store = open_store(f"s3://{bucket}/{REPOSITORY}", StoreConfig(endpoint_url=server.endpoint))

    def plant(key: str, body: bytes) -> bool:
        whole = f"{REPOSITORY}/{key}"
        # One that is a folder, too, is refused by some, and hides what is in it from others.
        if any(other.startswith(f"{key}/") for other in _PLANTED):
            return False
        try:
            client.put_object(Bucket=bucket, Key=whole, Body=body)
        except ClientError:
            return False
        # It may have cleaned the name, or list it in a way that nobody can read.
        with suppress(StorageError):
            if any(key in page["key"].to_pylist() for page in store.list(key[:-1])):
                return True
        client.delete_object(Bucket=bucket, Key=whole)
        return False

    return _in_bucket(server.endpoint, bucket, plant)


def _in_bucket(endpoint: str, bucket: str, plant: Callable[[str, bytes], bool]) -> Place:
    settings = {"store": f"s3://{bucket}", "store_config": StoreConfig(endpoint_url=endpoint)}
    return Place(settings, f"s3://{bucket}/{REPOSITORY}", plant)


@dataclass(frozen=True)
class Strange:
    """A repository in which everything lies around.

    Attributes:
        lake: the lakeFS server.
        store: rooted at the namespace.
        planted: what the store could hold of the names.
        replaced: addresses of objects that were uploaded and overwritten.
    """

    lake: SmallLake
    store: ObjectStore
    planted: frozenset[str]
    replaced: frozenset[str]

    def stored(self) -> dict[str, str]:
        """The etag of each object but for what lakeFS and its collectors write themselves."""
        found = {
            key: etag
            for page in self.store.list()
            for key, etag in zip(page["key"].to_pylist(), page["etag"].to_pylist(), strict=True)
        }
        return {
            key: etag
            for key, etag in found.items()
            if key != "dummy" and (not key.startswith("_lakefs/") or key in _FOREIGN)
        }


@pytest.fixture(
    params=[
        "local",
        pytest.param("emulated", marks=pytest.mark.conformance),
        pytest.param("minio", marks=pytest.mark.stores),
        pytest.param("versitygw", marks=pytest.mark.stores),
    ]
)
def strange(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Strange]:
    place: Place = request.getfixturevalue(request.param)
    (tmp_path / "lake").mkdir()
    with ExitStack() as stack:
        lake = stack.enter_context(running(tmp_path / "lake", **place.settings))
        lake.client.create_repository(REPOSITORY, place.namespace)
        lake.rules(20)
        lake.calendar.days_ago = 90
        replaced = {
            _relative(place, lake, path, f"the first object number {n}: {'-' * n}")
            for n, path in enumerate(_PATHS)
        }
        lake.commit("main")
        lake.calendar.days_ago = 60
        for n, path in enumerate(_PATHS):
            _relative(place, lake, path, _content(n))
        planted = set()
        for number, key in enumerate(_PLANTED):
            body = f"content number {number}, with a size of its own{'.' * number}".encode()
            if place.plant(key, body):
                planted.add(key)
                if key in _TWINS:
                    lake.stage("main", f"path/{number}", key, size=len(body))
        lake.commit("main")
        lake.calendar.days_ago = 0
        store = open_store(place.namespace, lake.server.store_config)
        # Candidates are older than a second, by clocks that tell whole ones, some of them late.
        time.sleep(3.1)
        yield Strange(lake, store, frozenset(planted), frozenset(replaced))


def _relative(place: Place, lake: SmallLake, path: str, content: str) -> str:
    found = lake.client.upload_object(REPOSITORY, "main", path, content.encode())
    return found.physical_address.removeprefix(f"{place.namespace}/")


def _content(number: int) -> str:
    return f"what is read at path number {number}{'+' * number}"


def named_in_csv(ctx: RunContext) -> set[str]:
    """What the standalone collector's form of the mark names, by our reader of such marks."""
    ctx = ctx.connect()
    found = find_mark(ctx.connections.store(), f"reports/{ctx.run}")
    with ctx.frames() as frames:
        url = f"{ctx.root.url}/read-back"
        named = read_mark(SessionFolder(ctx, frames, url, "mark/"), found)
        rows = frames.collect(frames.read(named), NAMED, "read a mark back").to_pylist()
    assert {row["elsewhere"] for row in rows} <= {None}
    return {row["address"] for row in rows}


def test_what_is_dead_goes_to_the_letter_and_all_else_stays_and_is_reported(
    strange: Strange, spark: Session
) -> None:
    before = strange.stored()
    assert strange.planted <= before.keys()
    # Whatever the store is, most names can lie there, some of each kind.
    for names in (_TWINS, _DEAD, _UNNAMEABLE, _NOT_LAKEFS, _FOREIGN):
        assert len(strange.planted & set(names)) >= 2
    dead = strange.replaced | (strange.planted & _DEAD)
    ctx = strange.lake.context(spark, publish="sgc")
    for stage in STAGES:
        stage(ctx)
    attempt = ctx.root.attempt(REPOSITORY, ctx.run)
    assert set(attempt.read("deletion_candidates")["address"].to_pylist()) == dead
    spared = attempt.read("deletion_candidates", "spared").to_pylist()
    assert {row["address"] for row in spared} == strange.planted & set(_UNNAMEABLE)
    assert all("control character" in row["why"] for row in spared)
    facts = attempt.manifest("deletion_candidates").facts
    assert facts["outside_data"] >= len(strange.planted & set(_NOT_LAKEFS))
    # In each form of the mark.
    texts = [
        strange.store.get(key).decode()
        for page in strange.store.list(f"{mark_folder(ctx.run)}deleted.text/")
        for key in page["key"].to_pylist()
    ]
    assert {line for text in texts for line in text.split("\n")[:-1]} == dead
    assert named_in_csv(ctx) == dead
    sweep(ctx)
    outcomes = ctx.root.attempt(REPOSITORY, ctx.run).read("swept_set").to_pylist()
    assert {row["address"]: row["outcome"] for row in outcomes} == dict.fromkeys(dead, "deleted")
    assert strange.stored() == {key: etag for key, etag in before.items() if key not in dead}
    read = strange.lake.client.get_object
    for number, path in enumerate(_PATHS):
        assert read(REPOSITORY, "main", path) == _content(number).encode()


@pytest.mark.stores
def test_an_object_that_hides_its_folder_from_listings_stops_the_mark(
    minio: Place, tmp_path: Path, spark: Session
) -> None:
    """MinIO lists nothing below a name that is an object, too."""
    with running(tmp_path, **minio.settings) as lake:
        lake.client.create_repository(REPOSITORY, minio.namespace)
        lake.rules(20)
        lake.calendar.days_ago = 10
        _relative(minio, lake, "a", "what a HEAD holds")
        lake.commit("main")
        lake.calendar.days_ago = 0
        store = open_store(minio.namespace, lake.server.store_config)
        address = next(key for page in store.list("data/") for key in page["key"].to_pylist())
        store.put("data", b"an object where a folder is")
        assert store.exists(address)
        assert not any(address in page["key"].to_pylist() for page in store.list())
        time.sleep(2.1)
        ctx = lake.context(spark, max_candidate_share=1.0)
        for stage in STAGES[:-1]:
            stage(ctx)
        with pytest.raises(RefusedError, match="listing_holds_heads: 1 object"):
            STAGES[-1](ctx)


def test_names_are_what_they_are_meant_to_be() -> None:
    """Editors and checkouts may change how a name is written."""
    assert {len(key.encode()) for key in (_ALONE[0], *_NOT_LAKEFS[-2:])} == {_LONGEST}
    for live, dead in _TWINS.items():
        if "/form/" in live:
            assert [unicodedata.normalize("NFC", one) for one in dead] == [live]
            assert live not in dead
    assert len(_PLANTED) == len(set(_PLANTED))
