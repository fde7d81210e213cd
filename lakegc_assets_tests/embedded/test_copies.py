"""Copies: whose address stays, whose data are copied, and a rename that no scan ever misses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lakegc_assets.embedded import EmbeddedLakeFS
from lakegc_assets.embedded.errors import ApiError
from lakegc_assets.embedded.lake import Lake, catalog
from lakegc_assets.embedded.lake.catalog import Repository
from lakegc_assets.embedded.objects import copies, objects
from lakegc_assets.embedded.refs import history
from lakegc_assets.errors import ConfigurationError
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.opening import open_store
from lakegc_assets_tests.embedded.api import Api, Repo
from lakegc_assets_tests.embedded.conftest import NOW, Clock
from lakegc_assets_tests.embedded.scans import direct_pages, rows
from lakegc_assets_tests.embedded.test_uncommitted import ODD_KEYS, branch, make_lake, put

DAY = 24 * 3600


@pytest.fixture
def lake(tmp_path: Path, clock: Clock) -> Iterator[Lake]:
    made = make_lake(tmp_path, clock, uncommitted_page_steps=1)
    yield made
    made.close()


def copy(lake: Lake, source: str, path: str, name: str = "main", **how: Any) -> str:
    how = {"source_ref": name, **how}
    return copies.copy(lake, "repo", name, path, source_path=source, **how).entry.address


def commit(lake: Lake) -> None:
    history.commit(lake, "repo", "main", message="m", metadata={}, date=None, allow_empty=False)


def listed(lake: Lake, act: Callable[[int], object] = lambda _: None) -> set[str]:
    return set(rows(lake.settings.objects_dir, direct_pages(lake, "repo", act)))


def content(lake: Lake, path: str, ref: str = "main") -> bytes:
    return objects.content(lake, objects.get_entry(lake, "repo", ref, path))


def call(repo: Repo, source: str, path: str, status: int = 201, **fields: object) -> Any:
    return repo.call(
        "POST",
        "/branches/main/objects/copy",
        status,
        params={"dest_path": path},
        json={"src_path": source, **fields},
    )


def test_copies_over_the_api(repo: Repo) -> None:
    first = repo.put("a", b"content", headers={"x-lakefs-meta-k": "v"})
    shallow = call(repo, "a", "b", src_ref="main", force=True, shallow=False)
    assert shallow["physical_address"] == first["physical_address"]
    assert (shallow["path"], shallow["metadata"]) == ("b", {"k": "v"})
    repo.commit()
    whole = call(repo, "a", "c", shallow=True)
    assert whole["physical_address"] != first["physical_address"]
    assert {k: whole[k] for k in ("checksum", "size_bytes", "metadata")} == {
        k: first[k] for k in ("checksum", "size_bytes", "metadata")
    }
    repo.remove("a")
    repo.remove("b")
    assert repo.read("c") == b"content"


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"src_path": "none"}, 404, "not found"),
        ({"src_path": "a", "src_ref": "none"}, 404, "not found"),
        ({"src_path": "gone"}, 404, "not found"),
        ({"src_path": "a", "force": "yes"}, 400, "value must be a boolean"),
        ({"src_path": "a", "shallow": None}, 400, "Value is not nullable"),
        ({"src_path": 1}, 400, "value must be a string"),
        ({}, 400, 'property "src_path" is missing'),
    ],
)
def test_copies_of_nothing(repo: Repo, fields: dict[str, Any], status: int, message: str) -> None:
    repo.put("a", b"1")
    repo.put("gone", b"1")
    repo.remove("gone")
    where = {"params": {"dest_path": "b"}, "json": fields}
    found = repo.call("POST", "/branches/main/objects/copy", status, **where)
    assert message in found["message"]
    assert repo.list() == ["a"]


def test_copies_to_nowhere(repo: Repo) -> None:
    repo.put("a", b"1")
    assert "required" in call(repo, "a", "", 400)["message"]
    where: dict[str, Any] = {"params": {"dest_path": "b"}, "json": {"src_path": "a"}}
    body = {**where["json"], "src_ref": "main"}
    repo.call("POST", "/branches/none/objects/copy", 404, params=where["params"], json=body)
    repo.call("POST", "/branches/main/objects/copy", 400, json=body)


def test_a_copy_from_another_branch_or_commit_has_its_own_data(lake: Lake) -> None:
    branch(lake, "dev")
    staged = put(lake, "main", "a")
    assert copy(lake, "a", "a", "dev", source_ref="main") != staged
    # Both have staged this path: the source's counts.
    objects.upload(lake, "repo", "dev", "a", b"of dev")
    copy(lake, "a", "from-dev", source_ref="dev")
    assert content(lake, "from-dev") == b"of dev"
    commit(lake)
    assert copy(lake, "a", "b") != staged
    head = catalog_head(lake)
    assert copy(lake, "a", "c", source_ref=head) != staged
    # Staged again, but asked for as it was committed.
    again = put(lake, "main", "a")
    assert copy(lake, "a", "d", source_ref="main@") not in {staged, again}
    assert copy(lake, "a", "e") == again
    for path in "bcde":
        assert content(lake, path) == b"a"


def catalog_head(lake: Lake) -> str:
    with lake.state.read() as db:
        return catalog.branch(db, catalog.repository(db, "repo"), "main").commit_id


def test_a_copy_from_another_repository_has_its_own_data(lake: Lake) -> None:
    for name in ("other", "repo/inside"):
        new = Repository(
            name.replace("/", "-"), f"local://{name}", "main", int(NOW), read_only=False, rules=None
        )
        history.create_repository(lake, new)
        objects.upload(lake, new.id, "main", "a", name.encode())
        address = copy(lake, "a", "b", source_repository=new.id)
        assert content(lake, "b") == name.encode()
        assert address in listed(lake)


def test_metadata_and_content_type_can_be_replaced(lake: Lake) -> None:
    objects.upload(lake, "repo", "main", "a", b"1", content_type="x/y", metadata={"k": "v"})
    kept = copies.copy(lake, "repo", "main", "b", source_ref="main", source_path="a").entry
    assert (kept.metadata, kept.content_type) == ({"k": "v"}, "x/y")
    new = copies.copy(
        lake,
        "repo",
        "main",
        "a",
        source_ref="main",
        source_path="a",
        metadata={},
        content_type="text/plain",
    ).entry
    assert (new.metadata, new.content_type) == ({}, "text/plain")
    assert objects.get_entry(lake, "repo", "main", "a").entry == new


def test_data_that_were_swept_cannot_be_copied(lake: Lake) -> None:
    address = put(lake, "main", "a")
    commit(lake)
    (lake.settings.objects_dir / "repo" / address).unlink()
    with pytest.raises(ApiError, match="No data") as caught:
        copy(lake, "a", "b")
    assert caught.value.status == 410
    with pytest.raises(ApiError, match="not found"):
        objects.get_entry(lake, "repo", "main", "b")


def test_a_copy_is_as_young_as_the_servers_clock_says(lake: Lake, clock: Clock) -> None:
    put(lake, "main", "a")
    commit(lake)
    clock.now += 5 * DAY
    address = copy(lake, "a", "b")
    assert (lake.settings.objects_dir / "repo" / address).stat().st_mtime == clock.now
    assert objects.get_entry(lake, "repo", "main", "b").entry.last_modified.seconds == clock.now


@pytest.mark.parametrize("key", ODD_KEYS)
def test_odd_paths_are_copied(lake: Lake, key: str) -> None:
    address = put(lake, "main", key)
    assert copy(lake, key, key + "'") == address
    objects.delete(lake, "repo", "main", [key])
    assert content(lake, key + "'") == key.encode()
    assert listed(lake) == {address}


@pytest.mark.parametrize("first", ["commit", "reset", "overwrite", "delete"])
@pytest.mark.parametrize("victim", ["a", "b"])
def test_an_address_lives_as_long_as_one_of_its_two_entries(
    lake: Lake, clock: Clock, first: str, victim: str
) -> None:
    address = put(lake, "main", "a")
    assert copy(lake, "a", "b") == address
    other = "b" if victim == "a" else "a"
    clock.now += lake.settings.copies_kept + 1
    if first == "commit":
        commit(lake)
        objects.delete(lake, "repo", "main", [victim])
        commit(lake)
        assert listed(lake) == set()
    elif first == "reset":
        history.reset(lake, "repo", "main", kind="object", path=victim)
        assert listed(lake) == {address}
    elif first == "overwrite":
        new = objects.upload(lake, "repo", "main", victim, b"new").entry.address
        assert listed(lake) == {address, new}
    else:
        objects.delete(lake, "repo", "main", [victim])
        assert listed(lake) == {address}
    assert objects.get_entry(lake, "repo", "main", other).entry.address == address
    assert content(lake, other) == b"a"


@pytest.mark.parametrize(("source", "target"), [("a", "z"), ("z", "a")])
def test_a_rename_at_any_moment_of_a_scan_loses_nothing(
    lake: Lake, clock: Clock, source: str, target: str
) -> None:
    branch(lake, "early")
    branch(lake, "work")
    for name in ("early", "main", "work"):
        put(lake, name, "m")
    last = len(direct_pages(lake, "repo")) + 3
    renamed = 0
    for copied in range(last):
        for deleted in (copied, copied + 1):
            address = put(lake, "main", source)

            def act(
                page: int, address: str = address, copied: int = copied, deleted: int = deleted
            ) -> None:
                if page == copied:
                    assert copy(lake, source, target) == address
                if page == deleted:
                    objects.delete(lake, "repo", "main", [source])

            assert address in listed(lake, act), (copied, deleted)
            history.reset(lake, "repo", "main", kind="object", path=source)
            history.reset(lake, "repo", "main", kind="object", path=target)
            # The next scan shall not read this copy.
            clock.now += lake.settings.copies_kept + 1
            renamed += 1
    assert renamed == 2 * last > 15


def test_a_rename_inside_a_page_loses_nothing(tmp_path: Path, clock: Clock) -> None:
    wanted = -1
    count = 0

    def act(_: str) -> None:
        nonlocal count
        count += 1
        if count == wanted:
            copy(running, "z", "a", "main")
            objects.delete(running, "repo", "main", ["z"])

    running = make_lake(tmp_path, clock, at_scan_step=act)
    branch(running, "a")
    branch(running, "z")
    put(running, "a", "x")
    put(running, "main", "m")
    put(running, "z", "x")
    address = put(running, "main", "z")
    listed(running)
    steps, count = count, 0
    assert steps >= 6
    for wanted in range(1, steps + 1):
        assert address in listed(running), wanted
        assert count >= steps
        # Back to where it was, for the next moment, which must not read these copies.
        copy(running, "a", "z")
        objects.delete(running, "repo", "main", ["a"])
        clock.now += running.settings.copies_kept + 1
        count = 0
    running.close()


def test_copies_are_listed_page_by_page_behind_all_branches(lake: Lake) -> None:
    addresses = set()
    for number in range(5):
        addresses.add(put(lake, "main", f"{number}"))
        copy(lake, f"{number}", f"{number}-copy")
        objects.delete(lake, "repo", "main", [f"{number}", f"{number}-copy"])
    found = direct_pages(lake, "repo")
    assert set(rows(lake.settings.objects_dir, found)) == addresses
    # One page for the branch, ten for its tombstones, one for each copy.
    assert len(found) >= 15


def test_a_copy_is_forgotten_when_no_scan_can_need_it(lake: Lake, clock: Clock) -> None:
    address = put(lake, "main", "a")
    copy(lake, "a", "b")
    objects.delete(lake, "repo", "main", ["a", "b"])
    kept = lake.settings.copies_kept
    clock.now += kept
    assert listed(lake) == {address}
    clock.now += 1
    assert listed(lake) == set()


def test_copies_must_be_kept_for_some_time(tmp_path: Path, clock: Clock) -> None:
    with pytest.raises(ConfigurationError, match="copies_kept is 0"):
        make_lake(tmp_path, clock, copies_kept=0)


def test_the_last_copy_of_an_address_counts(lake: Lake, clock: Clock) -> None:
    address = put(lake, "main", "a")
    copy(lake, "a", "b")
    clock.now += lake.settings.copies_kept - 10
    copy(lake, "a", "c")
    clock.now -= 5
    # A clock that was set back makes no copy older.
    copy(lake, "a", "d")
    objects.delete(lake, "repo", "main", ["a", "b", "c", "d"])
    clock.now += lake.settings.copies_kept + 5
    assert listed(lake) == {address}
    clock.now += 1
    assert listed(lake) == set()


def test_a_scan_that_lasts_too_long_is_refused_before_copies_go(lake: Lake, clock: Clock) -> None:
    address = put(lake, "main", "z")
    copied_at = 0.0

    def slow(page: int) -> None:
        nonlocal copied_at
        if page == 2:
            copied_at = clock.now
            copy(lake, "z", "a")
            objects.delete(lake, "repo", "main", ["z"])
        if page >= 2:
            clock.now += lake.settings.copies_kept / 5

    put(lake, "main", "b")
    put(lake, "main", "c")
    with pytest.raises(ApiError, match="begin again without a token") as caught:
        listed(lake, slow)
    assert caught.value.status == 400
    assert clock.now - copied_at < lake.settings.copies_kept
    assert listed(lake) == {address, *(put_address(lake, path) for path in "bc")}


def put_address(lake: Lake, path: str) -> str:
    return objects.get_entry(lake, "repo", "main", path).entry.address


def test_outside_objects_are_copied_by_address_within_a_branch(repo: Repo) -> None:
    body = {"physical_address": "s3://elsewhere/x", "checksum": "c", "size_bytes": 1}
    repo.call("PUT", "/branches/main/objects", 201, params={"path": "a"}, json=body)
    assert call(repo, "a", "b")["physical_address"] == "s3://elsewhere/x"
    page = repo.call("POST", "/gc/prepare_uncommited", 201)
    while "continuation_token" in page:
        assert page["gc_uncommitted_location"] == ""
        token = {"continuation_token": page["continuation_token"]}
        page = repo.call("POST", "/gc/prepare_uncommited", 201, json=token)


def test_copies_on_s3_stay_in_the_store(
    s3_server: str, s3_bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = StoreConfig(endpoint_url=s3_server)
    store = f"s3://{s3_bucket}/lake"

    def through_memory(*_: object) -> bytes:
        raise AssertionError("the data went through memory")

    with EmbeddedLakeFS(tmp_path, store, store_config=config) as server, Api.of(server) as api:
        repo = api.repository(namespace=f"{store}/repo")
        repo.put("a ü", b"content")
        outside = f"s3://{s3_bucket}/elsewhere/x"
        open_store(f"s3://{s3_bucket}", config).put("elsewhere/x", b"outside")
        body = {"physical_address": outside, "checksum": "c", "size_bytes": 7}
        repo.call("PUT", "/branches/main/objects", 201, params={"path": "x"}, json=body)
        repo.commit()
        with monkeypatch.context() as patched:
            patched.setattr(objects, "content", through_memory)
            copied = call(repo, "a ü", "b")
            inside = call(repo, "x", "y")
        assert copied["physical_address"].startswith(f"{store}/repo/data/")
        assert inside["physical_address"].startswith(f"{store}/repo/data/")
        assert repo.read("b") == b"content"
        assert repo.read("y") == b"outside"
