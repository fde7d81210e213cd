"""Which uploads are left over, and that a place that cannot be listed is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakegc_assets.errors import ConfigurationError, IntegrityError, RefusedError
from lakegc_assets.lakefs.errors import ReadOnlyRepositoryError
from lakegc_assets.leftovers.removal import FOLDER, Choices, Ledger, unfinished
from lakegc_assets.leftovers.report import find_leftovers
from lakegc_assets.leftovers.server import Server
from lakegc_assets.leftovers.uploads import abort_uploads, leftover_uploads, plan_uploads
from lakegc_assets.mark.installation import MARKER
from lakegc_assets.mark.installation import Server as Collector
from lakegc_assets.run.lock import repository_lock
from lakegc_assets.storage.errors import AccessDeniedError, StorageError
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.storage.values import MultipartUpload, UncommittedBlob
from lakegc_assets.sweep.hold import HOLD
from lakegc_assets.sweep.lease_record import LEASE
from lakegc_assets_tests.lake import REPOSITORY, SmallLake

_DAY = timedelta(days=1)


def test_an_upload_is_as_old_as_its_last_part(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def uploads(store: LocalStore, begun_before: datetime) -> Sequence[MultipartUpload]:
        if store.url == "local://team":
            raise AccessDeniedError("not allowed to list uploads of local://team")
        old = begun_before - _DAY
        return [
            MultipartUpload("late", "1", old, begun_before + _DAY, 5),
            MultipartUpload("b", "2", old, old, 6),
            MultipartUpload("a", "3", old - _DAY, old, 7),
        ]

    monkeypatch.setattr(LocalStore, "multipart_uploads", uploads)
    (found,), problems = leftover_uploads(server)
    assert (found.where, [one.key for one in found.uploads], found.size) == ("repo", ["a", "b"], 13)
    assert [(one.where, "not allowed" in one.what) for one in problems] == [("local://team", True)]


def test_a_repository_that_lakefs_has_written_nothing_for_has_none(
    lake: SmallLake, server: Server
) -> None:
    made = {"name": "shown", "storage_namespace": "local://shown", "read_only": True}
    lake.client.call("POST", "repositories", json=made)
    # As lakeFS 1.84 leaves it.
    shutil.rmtree(lake.server.objects_dir / "shown", ignore_errors=True)
    found = find_leftovers(server, ["shown"])
    assert (found.uploads, found.problems) == ([], [])


def test_a_blob_that_nobody_committed_is_told_once(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = UncommittedBlob("x", 8)
    monkeypatch.setattr(LocalStore, "uncommitted_blobs", lambda _: [blob])
    there = replace(server, namespace_roots=(f"local://{REPOSITORY}", "local://team"))
    found = find_leftovers(there)
    assert [(one.where, one.size) for one in found.blocks] == [("repo", 8), ("local://team", 8)]
    told = found.to_json()["uncommitted_blobs"]
    assert told[0]["blobs"] == [blob._asdict()]
    assert json.dumps(told)


def test_only_uploads_are_aborted_that_nobody_goes_on_with(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the plan and the abort somebody completes one, and writes a part of another."""
    parts = {"idle": 0, "busy": 0, "done": 0}
    aborted: list[str] = []

    old = server.open(f"local://{REPOSITORY}").server_time() - 10 * _DAY

    def uploads(_: LocalStore, begun_before: datetime) -> Sequence[MultipartUpload]:
        assert old < begun_before
        return [MultipartUpload(key, key, old, old + late * _DAY, 1) for key, late in parts.items()]

    def abort(_: LocalStore, upload: MultipartUpload) -> bool:
        aborted.append(upload.key)
        return True

    begin = Ledger.begin

    def begin_and_go_on(ledger: Ledger, planned: pa.Table) -> None:
        begin(ledger, planned)
        parts["busy"] = 9
        del parts["done"]

    monkeypatch.setattr(LocalStore, "multipart_uploads", uploads)
    monkeypatch.setattr(LocalStore, "abort_upload", abort)
    monkeypatch.setattr(Ledger, "begin", begin_and_go_on)
    plan = plan_uploads(server, REPOSITORY)
    assert plan.rows["upload_id"].to_pylist() == ["busy", "done", "idle"]
    store = server.open(f"local://{REPOSITORY}")
    other = Collector("another", REPOSITORY, 1)
    for key, text, why in (
        (HOLD, "{}", "it is on hold"),
        (LEASE, "{damaged", "it is not known whether somebody works on it"),
        (MARKER, json.dumps(asdict(other)), "is collected by another lakeFS server"),
    ):
        store.put(key, text.encode())
        with pytest.raises(RefusedError, match=why):
            abort_uploads(server, REPOSITORY, Choices("somebody", plan.id))
        store.delete_many([key])
    with (
        repository_lock(store.url),
        ThreadPoolExecutor(1) as pool,
        pytest.raises(RefusedError, match="another run holds"),
    ):
        pool.submit(abort_uploads, server, REPOSITORY, Choices("somebody", plan.id)).result()
    with pytest.raises(ConfigurationError, match="cannot be read, nor copied"):
        abort_uploads(server, REPOSITORY, Choices("somebody", plan.id, "/somewhere"))
    found = abort_uploads(server, REPOSITORY, Choices("somebody", plan.id))
    assert found == {"deleted": 1, "spared": 1, "already_missing": 1}
    assert aborted == ["idle"]
    assert not unfinished(server.root)


@pytest.fixture
def old_uploads(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three uploads of the repository that nobody has gone on with: ``a``, ``b`` and ``c``."""
    old = server.open(f"local://{REPOSITORY}").server_time() - 10 * _DAY
    found = [MultipartUpload(key, key, old, old, 1) for key in "abc"]
    monkeypatch.setattr(LocalStore, "multipart_uploads", lambda *_: found)


def test_one_that_cannot_be_aborted_is_recorded_with_the_others(
    old_uploads: None,  # noqa: ARG001 - they are wanted to be there
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def abort(_: LocalStore, upload: MultipartUpload) -> bool:
        if upload.key == "a":
            raise AccessDeniedError("not allowed")
        return upload.key == "c"

    monkeypatch.setattr(LocalStore, "abort_upload", abort)
    with pytest.raises(StorageError, match="1 object could not be removed"):
        abort_uploads(server, REPOSITORY, Choices("me", plan_uploads(server, REPOSITORY).id))
    (removal,) = unfinished(server.root)
    recorded = pq.read_table(Path(server.root.url, FOLDER, removal.id, "outcomes/000000.parquet"))
    assert recorded["upload_id"].to_pylist() == ["a", "b", "c"]
    assert recorded["outcome"].to_pylist() == ["failed", "already_missing", "deleted"]


def test_a_hold_that_comes_behind_the_plan_keeps_all_uploads(
    old_uploads: None,  # noqa: ARG001 - they are wanted to be there
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin = Ledger.begin

    def begin_and_hold(ledger: Ledger, planned: pa.Table) -> None:
        begin(ledger, planned)
        server.open(f"local://{REPOSITORY}").put(HOLD, b"{}")

    monkeypatch.setattr(Ledger, "begin", begin_and_hold)
    monkeypatch.setattr(LocalStore, "abort_upload", lambda *_: pytest.fail("it is on hold"))
    with pytest.raises(RefusedError, match="it is on hold"):
        abort_uploads(server, REPOSITORY, Choices("me", plan_uploads(server, REPOSITORY).id))


def test_uploads_of_a_repository_that_cannot_be_collected_stay(
    lake: SmallLake,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its namespace, or a part of it, may belong to another server or repository."""
    made = {"name": "shown", "storage_namespace": "local://shown", "read_only": True}
    lake.client.call("POST", "repositories", json=made)
    lake.client.create_repository("around", "local://around")
    lake.client.create_repository("inside", "local://around/in")
    old = server.open("local://around").server_time() - 10 * _DAY
    found = [MultipartUpload("in/data/x", "1", old, old, 1)]
    monkeypatch.setattr(LocalStore, "multipart_uploads", lambda *_: found)
    monkeypatch.setattr(LocalStore, "abort_upload", lambda *_: pytest.fail("it is aborted"))
    for name, error in (("shown", ReadOnlyRepositoryError), ("around", IntegrityError)):
        with pytest.raises(error):
            abort_uploads(server, name, Choices("me", plan_uploads(server, name).id))
        assert not server.open(f"local://{name}").exists(MARKER)


def test_uploads_stay_if_the_clock_of_the_store_is_ahead(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = server.open(f"local://{REPOSITORY}").server_time()
    found = [MultipartUpload("x", "1", now, now, 1)]
    monkeypatch.setattr(LocalStore, "multipart_uploads", lambda *_: found)
    monkeypatch.setattr(LocalStore, "abort_upload", lambda *_: pytest.fail("it is aborted"))
    monkeypatch.setattr(LocalStore, "server_time", lambda _: now + 400 * _DAY)
    with pytest.raises(RefusedError, match="ages cannot be trusted"):
        abort_uploads(server, REPOSITORY, Choices("me", plan_uploads(server, REPOSITORY).id))
