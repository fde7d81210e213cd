"""Every address that is staged is on a page, however the pages are cut and whatever happens."""

from __future__ import annotations

import base64
import errno
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from lakegc_assets.embedded import EmbeddedLakeFS, gc
from lakegc_assets.embedded.errors import ApiError
from lakegc_assets.embedded.lake import Lake, catalog
from lakegc_assets.embedded.lake.catalog import Repository
from lakegc_assets.embedded.lake.settings import ServerSettings
from lakegc_assets.embedded.objects import objects
from lakegc_assets.embedded.refs import history, staging
from lakegc_assets.graveler.entry import (
    AddressType,
    Entry,
    Timestamp,
    decode_entry,
    decode_place,
    encode_entry,
)
from lakegc_assets.graveler.sstable import Record
from lakegc_assets.storage import local
from lakegc_assets.storage.errors import StorageError
from lakegc_assets_tests.embedded.api import Api, Repo
from lakegc_assets_tests.embedded.conftest import NOW, Clock
from lakegc_assets_tests.embedded.scans import direct_pages, files, pages, rows

PREFIX = "local://repo/"
ODD_KEYS = ("a b", "a|b", "new\nline", "..", "a%2Fb", "ü/ÿ/\U0001f600", "x/" * 400, "end/", "\x01")


def make_lake(data: Path, clock: Clock, **settings: object) -> Lake:
    lake = Lake(ServerSettings(data, clock=clock, **settings))  # type: ignore[arg-type]
    new = Repository("repo", "local://repo", "main", int(NOW), read_only=False, rules=None)
    history.create_repository(lake, new)
    return lake


@pytest.fixture
def lake(tmp_path: Path, clock: Clock) -> Iterator[Lake]:
    made = make_lake(tmp_path, clock)
    yield made
    made.close()


def branch(lake: Lake, name: str) -> None:
    with lake.state.write() as db:
        repo = catalog.repository(db, "repo")
        catalog.insert_branch(
            db, repo, name, catalog.branch(db, repo, "main").commit_id, hidden=False
        )


def drop(lake: Lake, name: str) -> None:
    with lake.state.write() as db:
        catalog.delete_branch(db, catalog.branch(db, catalog.repository(db, "repo"), name))


def put(lake: Lake, name: str, path: str) -> str:
    return objects.upload(lake, "repo", name, path, path.encode()).entry.address


def plant(lake: Lake, path: str, entry: Entry) -> None:
    """Stage an entry as nothing but an older server would."""
    record = Record(path.encode(), b"", encode_entry(entry))
    with lake.state.write() as db:
        target = catalog.branch(db, catalog.repository(db, "repo"), "main")
        staging.stage(db, target, (record.key, record))


def test_every_staged_address_is_on_a_page(
    repo: Repo, server: EmbeddedLakeFS, clock: Clock
) -> None:
    expected = {}

    def put(path: str, branch: str) -> None:
        clock.now += 1
        address = repo.put(path, path, branch)["physical_address"]
        expected[address.removeprefix("local://repo/")] = int(clock.now)

    repo.put("committed", b"1")
    repo.commit()
    for name in ("b-0", "b-1", "b-2", "empty-1", "empty-2", "empty-3"):
        repo.branch(name, hidden=name == "b-1")
    for name in ("b-0", "b-1", "b-2"):
        for path in ("x", "ü/y", "z"):
            put(path, name)
    repo.remove("committed", "b-2")
    external = {"physical_address": "s3://elsewhere/x", "checksum": "c", "size_bytes": 1}
    repo.call("PUT", "/branches/main/objects", 201, params={"path": "ext"}, json=external)
    found = pages(repo)
    assert len(found) > 5
    assert len({page["run_id"] for page in found}) == 1
    locations = [page["gc_uncommitted_location"] for page in found]
    # From the first file on every page names the files.
    assert locations[0] == locations[1] == "" or locations[0]
    assert len(set(locations) - {""}) == 1
    assert "" not in locations[locations.index(max(locations)) :]
    assert rows(server.objects_dir, found) == expected


def test_tokens_say_where_the_next_page_starts(repo: Repo) -> None:
    repo.put("a", b"1")
    repo.put("b", b"1")
    first = repo.call("POST", "/gc/prepare_uncommited", 201)
    token = json.loads(base64.b64decode(first["continuation_token"]))
    assert token == {
        "branch": "main",
        "path": "b",
        "run_id": first["run_id"],
        "key": "",
        "namespace": "local://repo",
    }


def test_a_branch_deleted_between_pages_loses_no_other_rows(
    repo: Repo, server: EmbeddedLakeFS
) -> None:
    for name in ("a", "b", "c"):
        repo.branch(name)
    for path in ("1", "2"):
        repo.put(path, b"", "a")
        repo.put(path, b"", "b")
    kept = [repo.put(path, b"", "c")["physical_address"] for path in ("1", "2")]
    found = [repo.call("POST", "/gc/prepare_uncommited", 201)]
    repo.call("DELETE", "/branches/a", 204)
    while token := found[-1].get("continuation_token"):
        body = {"continuation_token": token}
        found.append(repo.call("POST", "/gc/prepare_uncommited", 201, json=body))
    listed = rows(server.objects_dir, found)
    assert {address.removeprefix("local://repo/") for address in kept} <= set(listed)
    assert len(listed) == 5


def test_a_page_has_no_limit_by_default(tmp_path: Path) -> None:
    with EmbeddedLakeFS(tmp_path) as server, Api.of(server) as api:
        repo = api.repository()
        assert pages(repo)[0]["gc_uncommitted_location"] == ""
        for number in range(20):
            repo.put(f"{number}", b"")
        found = pages(repo)
        assert len(found) == 1
        assert len(rows(server.objects_dir, found)) == 20


@pytest.mark.parametrize("steps", [1, 2, 3, 7, None])
def test_the_cut_of_the_pages_changes_nothing(
    tmp_path: Path, clock: Clock, steps: int | None
) -> None:
    lake = make_lake(tmp_path, clock, uncommitted_page_steps=steps)
    expected = set()
    for name in ("a", "ä", "b-1", "b_2"):
        branch(lake, name)
        expected |= {put(lake, name, path) for path in ODD_KEYS}
        put(lake, name, "gone")
        objects.delete(lake, "repo", name, ["gone"])
    found = direct_pages(lake, "repo")
    listed = rows(lake.settings.objects_dir, found)
    assert set(listed) == expected
    assert set(listed.values()) == {int(NOW)}
    assert len({page["run_id"] for page in found}) == 1
    assert found[-1]["gc_uncommitted_location"].endswith(f"/{found[0]['run_id']}/uncommitted/")
    assert (len(found) > 1) == (steps is not None)
    lake.close()


def test_a_page_ends_when_its_time_is_over(tmp_path: Path, clock: Clock) -> None:
    def later(_: str) -> None:
        clock.now += 10

    lake = make_lake(tmp_path, clock, uncommitted_page_seconds=60, at_scan_step=later)
    expected = set()
    for number in range(20):
        branch(lake, f"b{number:02}")
        expected.add(put(lake, f"b{number:02}", "a"))
    found = direct_pages(lake, "repo")
    # A branch takes two steps, 20 s, so that a page has room for three of them at most.
    assert len(found) >= 7
    assert set(rows(lake.settings.objects_dir, found)) == expected
    lake.close()


def test_a_page_ends_when_its_file_is_full(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gc, "GROUP_ROWS", 10)
    monkeypatch.setattr(gc, "BATCH_ROWS", 5)
    lake = make_lake(tmp_path, clock, uncommitted_file_bytes=600)
    expected = {put(lake, "main", f"{number:03}") for number in range(100)}
    found = direct_pages(lake, "repo")
    written = files(lake.settings.objects_dir, found)
    assert set(rows(lake.settings.objects_dir, found)) == expected
    assert len(written) == len(found) > 2
    sizes = [file.stat().st_size for file in written]
    assert max(sizes) < 3000
    counts = [pq.read_metadata(file).num_rows for file in written]
    assert sum(counts) == 100
    assert {pq.read_metadata(file).row_group(0).num_rows for file in written[:-1]} == {10}
    lake.close()


def test_a_file_size_that_nothing_fits_into_still_advances(tmp_path: Path, clock: Clock) -> None:
    lake = make_lake(tmp_path, clock, uncommitted_file_bytes=1)
    expected = {put(lake, "main", "a"), put(lake, "main", "b")}
    found = direct_pages(lake, "repo")
    assert set(rows(lake.settings.objects_dir, found)) == expected
    lake.close()


@pytest.mark.parametrize("end", ["delete", "reset", "recreate"])
def test_a_branch_that_goes_away_at_any_moment_takes_no_other_rows(
    tmp_path: Path, clock: Clock, end: str
) -> None:
    lake = make_lake(tmp_path, clock, uncommitted_page_steps=1)
    for name in "abc":
        branch(lake, name)
    last = 2 * len("abc") + 2
    for at in range(last + 1):
        kept = {put(lake, name, "x") for name in "ac"}
        lost = put(lake, "b", "x")

        def act(page: int, at: int = at) -> None:
            if page == at and end == "reset":
                history.reset(lake, "repo", "b", kind="reset", path="")
            elif page == at:
                drop(lake, "b")
                if end == "recreate":
                    branch(lake, "b")

        found = direct_pages(lake, "repo", act)
        assert len(found) <= last
        listed = set(rows(lake.settings.objects_dir, found))
        assert kept <= listed <= kept | {lost}, at
        # A branch takes two pages, so the fourth has read it.
        assert (lost in listed) == (at > 3), at
        if end == "delete" and at < len(found):
            branch(lake, "b")
    lake.close()


def test_a_branch_that_goes_away_inside_a_page_takes_no_rows_at_all(
    tmp_path: Path, clock: Clock
) -> None:
    done: list[str] = []

    def act(name: str) -> None:
        if name == "b" and not done:
            done.append(name)
            drop(running, "a")
            history.reset(running, "repo", "b", kind="reset", path="")

    running = make_lake(tmp_path, clock, at_scan_step=act)
    expected = set()
    for name in ("a", "b", "c"):
        branch(running, name)
        expected.add(put(running, name, "x"))
    # A page is one consistent view.
    assert set(rows(running.settings.objects_dir, direct_pages(running, "repo"))) == expected
    assert done
    running.close()


def test_addresses_inside_the_namespace_are_made_relative(lake: Lake) -> None:
    for path, address, kind in (
        ("1", "local://repo/data/s/1", AddressType.FULL),
        ("2", "local://repo/data/s/a%20b", AddressType.FULL),
        ("3", "s3://repo/data/s/3", AddressType.FULL),
        ("4", "data/s/4", AddressType.BY_PREFIX_DEPRECATED),
        ("5", "local://repo/data/s/5", AddressType.BY_PREFIX_DEPRECATED),
        ("6", "local://repository/data/s/6", AddressType.FULL),
        ("7", "data/s/a%20b c", AddressType.RELATIVE),
    ):
        plant(lake, path, Entry(address, Timestamp(7), address_type=kind))
    assert rows(lake.settings.objects_dir, direct_pages(lake, "repo")) == dict.fromkeys(
        (
            *("data/s/1", "data/s/a%20b", "data/s/a b"),
            *("data/s/4", "data/s/5", "data/s/a%20b c"),
        ),
        7,
    )


def test_an_address_that_cannot_be_told_stops_the_list(lake: Lake) -> None:
    put(lake, "main", "a")
    odd = "local://repo/data/../data/x"
    plant(lake, "b", Entry(odd, address_type=AddressType.FULL))
    with pytest.raises(ApiError, match="reset that path") as caught:
        direct_pages(lake, "repo")
    assert odd in caught.value.message
    assert caught.value.status == 500


def test_damaged_entries_stop_the_list(lake: Lake) -> None:
    with lake.state.write() as db:
        target = catalog.branch(db, catalog.repository(db, "repo"), "main")
        staging.stage(db, target, (b"a", Record(b"a", b"", b"\xff\xff")))
    with pytest.raises(ValueError, match="message"):
        direct_pages(lake, "repo")


def test_a_list_that_cannot_be_written_whole_is_not_there(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = put(lake, "main", "a")
    lost = []

    def die(directory: int, temporary: str, name: str) -> None:
        # The file is written, and not yet under its name.
        lost.append((directory, temporary, name))
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as patched:
        patched.setattr(local, "replace", die)
        with pytest.raises(StorageError, match="no room"):
            direct_pages(lake, "repo")
    assert len(lost) == 1
    folder = lake.settings.objects_dir / "repo" / "_lakefs"
    assert not [path for path in folder.rglob("*") if path.is_file() and "uncommitted" in str(path)]
    assert set(rows(lake.settings.objects_dir, direct_pages(lake, "repo"))) == {address}


def token(**fields: object) -> str:
    return base64.b64encode(json.dumps(fields).encode()).decode()


def test_tokens_that_are_none_or_too_old_are_refused(lake: Lake, clock: Clock) -> None:
    run_id = direct_pages(lake, "repo")[0]["run_id"]
    place = {"branch": "main", "path": "", "key": ""}
    whole = {**place, "run_id": run_id, "namespace": "local://repo"}
    gc.prepare_uncommitted(lake, "repo", token(**whole))
    for bad in (
        "%%%",
        "ü",
        token(**{**whole, "run_id": "mine"}),
        *(token(**{k: v for k, v in whole.items() if k != name}) for name in whole),
        base64.b64encode(b"[]").decode(),
        base64.b64encode(b"\xff").decode(),
    ):
        with pytest.raises(ApiError, match="invalid continuation token") as caught:
            gc.prepare_uncommitted(lake, "repo", bad)
        assert caught.value.status == 400
    # It would begin where another repository's list goes on, and leave out what is before.
    with pytest.raises(ApiError, match="token of local://other: begin again"):
        gc.prepare_uncommitted(lake, "repo", token(**{**whole, "namespace": "local://other"}))
    clock.now += lake.settings.copies_kept / 2 + 1
    with pytest.raises(ApiError, match="begin again without a token"):
        gc.prepare_uncommitted(lake, "repo", token(**whole))


def test_the_short_decoder_reads_what_the_long_one_reads() -> None:
    for entry in (
        Entry("data/x"),
        Entry("", Timestamp(2**40, 5), 2**60, "é", {"k": "v"}, AddressType.FULL, "text/plain"),
        Entry("a" * 5000, Timestamp(-5), address_type=AddressType.BY_PREFIX_DEPRECATED),
    ):
        data = encode_entry(entry)
        long = decode_entry(data)
        assert decode_place(data) == (
            long.address,
            long.address_type,
            long.last_modified.seconds,
        )
    with pytest.raises(ValueError, match="message"):
        decode_place(b"\x0a\xff")


def test_a_repository_takes_its_copies_with_it(lake: Lake) -> None:
    with lake.state.write() as db:
        db.execute("INSERT INTO copies VALUES ('repo', 'data/x', 0, ?)", (NOW,))
        catalog.delete_repository(db, "repo")
        assert db.execute("SELECT * FROM copies").fetchall() == []
