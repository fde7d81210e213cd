"""Reads of other repositories of the server: errors that stop the run, and costs."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from lakegc_assets.embedded.lake import catalog
from lakegc_assets.embedded.refs import history
from lakegc_assets.errors import IntegrityError
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.lakefs.errors import of_status
from lakegc_assets.lakefs.models import Branch, Repository
from lakegc_assets.mark.candidates import find_candidates
from lakegc_assets.mark.commits import find_active_commits
from lakegc_assets.mark.references import UnreadableRepositoryError
from lakegc_assets.run.connections import Connections
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.lake import REPOSITORY, STAGES, Marked, SmallLake, candidates, running
from lakegc_assets_tests.lake import mark as mark_all
from lakegc_assets_tests.sessions import Session
from lakegc_assets_tests.sweep.others import (
    OTHER,
    commit,
    commit_it,
    forget,
    make_other,
    mark,
    name_it,
    once_asked,
)


@contextmanager
def counted(lake: SmallLake) -> Iterator[Counter[str]]:
    """The requests that are about other repositories, and about their list."""
    seen: Counter[str] = Counter()

    def see(method: str, path: str) -> None:
        if not path.startswith(f"/api/v1/repositories/{REPOSITORY}"):
            seen[f"{method} {path.removeprefix('/api/v1')}"] += 1

    lake.on_request = see
    yield seen
    lake.on_request = lambda _method, _path: None


def test_what_only_the_mark_of_another_repository_in_the_same_wave_knows_counts(
    tmp_path: Path, spark: Session
) -> None:
    """Runs of a wave have one id, and the other repository's mark was taken for this very run."""
    with running(tmp_path / "lake") as lake:
        client, embedded = lake.client, lake.server.lake
        lake.calendar.days_ago = 60
        client.create_repository(REPOSITORY, f"local://{REPOSITORY}")
        make_other(lake)
        address = lake.upload("main", "x", "named by another repository alone")
        lake.upload("main", "y", "stays")
        client.delete_object(REPOSITORY, "main", "x")
        lake.commit("main")
        client.upload_object(OTHER, "main", "first", b"1")
        before = commit(lake)
        lake.calendar.days_ago = 45
        name_it(lake, address)
        client.create_branch(OTHER, "dev", commit(lake))
        for days, path in ((44, "x"), (43, "second")):
            lake.calendar.days_ago = days
            if path == "x":
                client.delete_object(OTHER, "dev", path)
            else:
                client.upload_object(OTHER, "dev", path, b"2")
            commit(lake, "dev")
        lake.calendar.days_ago = 0
        for name in (OTHER, REPOSITORY):
            client.set_gc_rules(name, 0, {"main": 30})
        ctx = lake.context(spark, "wave")
        for stage in STAGES[: STAGES.index(find_active_commits) + 1]:
            stage(replace(ctx, repository=OTHER))
        history.hard_reset(embedded, OTHER, "main", before)
        for stage in STAGES[: STAGES.index(find_candidates) + 1]:
            stage(ctx)
        assert address not in candidates(ctx)
        forget(lake, OTHER)
        other_wave = replace(ctx, run="next")
        for stage in STAGES[: STAGES.index(find_candidates) + 1]:
            stage(other_wave)
        assert address in candidates(other_wave)


# What cannot be read


def test_a_repository_that_cannot_be_read_stops_the_run_unless_it_is_ignored(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    commit_it(lake, min(marked.candidates))
    tables = lake.server.objects_dir / OTHER / "_lakefs"
    shutil.rmtree(tables)
    with pytest.raises(UnreadableRepositoryError, match=r"'other' of the same server .* is not li"):
        mark(lake, spark, "stopped")
    with pytest.raises(UnreadableRepositoryError, match="ignored_repositories"):
        sweep(lake.context(spark))
    assert lake.keys() == marked.live | marked.candidates
    ctx = mark(lake, spark, "ignoring", publish=True, ignored_repositories=[OTHER])
    assert candidates(ctx) == marked.candidates
    facts = ctx.root.attempt(REPOSITORY, "ignoring").manifest("gc_report").facts
    assert facts["ignored_repositories"] == [OTHER]


def test_a_repository_in_another_storage_of_the_server_is_said_to_be_there(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its store may be one that this process does not reach."""
    commit_it(lake, min(marked.candidates))
    shutil.rmtree(lake.server.objects_dir / OTHER / "_lakefs")
    listed = LakeFSClient.repositories

    def repositories(client: LakeFSClient, prefix: str = "") -> Iterator[Repository]:
        for one in listed(client, prefix):
            more = {"storage_id": "second"} if one.id == OTHER else {}
            yield one.model_copy(update=more)

    monkeypatch.setattr(LakeFSClient, "repositories", repositories)
    with pytest.raises(UnreadableRepositoryError, match="in the storage 'second' of the server"):
        mark(lake, spark, "stopped")


def test_a_sweep_ignores_only_what_its_mark_has_ignored(
    lake: SmallLake, marked: Marked, spark: Session, caplog: pytest.LogCaptureFixture
) -> None:
    """Else an object that the repository names only since the mark would be lost."""
    held = min(marked.candidates)
    commit_it(lake, held)
    sweep(lake.context(spark, ignored_repositories=[OTHER]))
    assert lake.keys() == marked.live | {held}
    assert "the references of other are read, although ignored_repositories" in caplog.text


def test_a_range_that_is_missing_stops_the_run_although_it_is_no_head(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    make_other(lake)
    before = {path.name for path in (lake.server.objects_dir / OTHER / "_lakefs").iterdir()}
    name_it(lake, min(marked.candidates))
    commit(lake)
    lake.client.delete_object(OTHER, "main", "x")
    lake.upload("main", "y", "of no interest")
    for path in (lake.server.objects_dir / OTHER / "_lakefs").iterdir():
        if path.name not in before and b"metaranges" not in path.read_bytes():
            path.unlink()
    commit(lake)
    with pytest.raises(UnreadableRepositoryError, match="is missing"):
        mark(lake, spark)


def test_a_damaged_range_stops_the_run(lake: SmallLake, marked: Marked, spark: Session) -> None:
    commit_it(lake, min(marked.candidates))
    for path in (lake.server.objects_dir / OTHER / "_lakefs").iterdir():
        if path.is_file() and b"metaranges" not in (data := path.read_bytes()):
            path.unlink()
            path.write_bytes(data[:20] + bytes([data[20] ^ 1]) + data[21:])
    with pytest.raises(UnreadableRepositoryError, match="'other'"):
        mark(lake, spark)


def test_a_repository_that_is_deleted_meanwhile_is_no_error(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    make_other(lake)
    asked = once_asked(lake, "/other/branches", lambda: forget(lake, OTHER))
    assert candidates(mark(lake, spark)) == marked.candidates
    assert asked


def test_not_found_of_a_repository_that_is_listed_stops_the_run(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_other(lake)
    listed = LakeFSClient.repositories

    def with_a_ghost(client: LakeFSClient, prefix: str = "") -> Iterator[Repository]:
        yield from (
            found.model_copy(update={"id": "ghost"}) if found.id == OTHER else found
            for found in listed(client, prefix)
        )

    monkeypatch.setattr(LakeFSClient, "repositories", with_a_ghost)
    with pytest.raises(UnreadableRepositoryError, match=r"'ghost' .* answered 404"):
        mark(lake, spark)
    assert lake.keys() == marked.live | marked.candidates


def test_a_repository_that_is_made_while_others_are_read_is_read_too(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    make_other(lake)
    named = min(marked.candidates)

    def make_another() -> None:
        make_other(lake, "another")
        name_it(lake, named, of="another")

    once_asked(lake, "/other/branches", make_another)
    assert candidates(mark(lake, spark)) == marked.candidates - {named}


def test_a_list_of_branches_that_is_cut_hides_nothing_that_is_staged(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server may end a scan early without a word, behind the default branch for one."""
    make_other(lake)
    lake.client.create_branch(OTHER, "zz", "main")
    named = min(marked.candidates)
    name_it(lake, named, branch="zz")
    listed = LakeFSClient.branches

    def cut(
        client: LakeFSClient, repository: str, *, after: str = "", show_hidden: bool = True
    ) -> Iterator[Branch]:
        found = listed(client, repository, after=after, show_hidden=show_hidden)
        return islice(found, 1) if repository == OTHER else found

    monkeypatch.setattr(LakeFSClient, "branches", cut)
    assert candidates(mark(lake, spark)) == marked.candidates - {named}


def test_a_list_without_the_repository_itself_is_not_whole(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LakeFSClient, "repositories", lambda *_: iter(()))
    with pytest.raises(IntegrityError, match="list of repositories has 0, and not 'repo'"):
        mark(lake, spark)
    assert lake.keys() == marked.live | marked.candidates


@pytest.fixture
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the server end each list of repositories behind the first one, without a word."""
    listed = catalog.repositories

    def cut(db: sqlite3.Connection, prefix: str, after: str, _: int) -> list[catalog.Repository]:
        return listed(db, prefix, after, 1)

    monkeypatch.setattr(catalog, "repositories", cut)


@pytest.mark.usefixtures("one_at_a_time")
def test_a_list_of_repositories_that_is_cut_hides_none(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    make_other(lake, "zzz")
    named = min(marked.candidates)
    name_it(lake, named, of="zzz")
    assert candidates(mark(lake, spark)) == marked.candidates - {named}


@pytest.mark.usefixtures("one_at_a_time")
def test_a_list_of_repositories_that_is_cut_hides_no_overlap(
    lake: SmallLake, spark: Session
) -> None:
    lake.client.create_repository("zzz", f"local://{REPOSITORY}/data/inner")
    with pytest.raises(IntegrityError, match=r"'repo' .* and 'zzz' .* overlap"):
        lake.context(spark).connect()


def test_a_list_of_objects_that_is_cut_hides_nothing_that_the_diff_names(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_other(lake)
    shown, hidden = sorted(marked.candidates)[:2]
    name_it(lake, shown, "a")
    name_it(lake, hidden, "b")
    listed = LakeFSClient.objects_page

    def cut(client: LakeFSClient, repository: str, *args: Any, **more: Any) -> Any:
        objects, has_more = listed(client, repository, *args, **more)
        # Also where it is asked again behind the last item.
        first = [one for one in objects if one.path == "a"]
        return (first, False) if repository == OTHER else (objects, has_more)

    monkeypatch.setattr(LakeFSClient, "objects_page", cut)
    with counted(lake) as seen:
        assert candidates(mark(lake, spark)) == marked.candidates - {shown, hidden}
    assert seen["GET /repositories/other/refs/main/objects/stat"] == 1


@pytest.mark.parametrize("every_call", [True, False])
def test_a_repository_in_deletion_names_nothing(
    lake: SmallLake,
    marked: Marked,
    spark: Session,
    monkeypatch: pytest.MonkeyPatch,
    *,
    every_call: bool,
) -> None:
    """LakeFS lists it, and answers 410 for whatever is asked of it, and for it itself."""
    make_other(lake)
    name_it(lake, min(marked.candidates))
    call = LakeFSClient.call

    def answer(client: LakeFSClient, method: str, *path: str, **more: Any) -> Any:
        if path[:2] == ("repositories", OTHER) and (every_call or path[2:]):
            raise of_status(f"{method} {'/'.join(path)}", 410, "repository in deletion")
        return call(client, method, *path, **more)

    monkeypatch.setattr(LakeFSClient, "call", answer)
    if every_call:
        assert candidates(mark(lake, spark)) == marked.candidates
    else:
        with pytest.raises(UnreadableRepositoryError, match="repository in deletion"):
            mark(lake, spark)


# What it costs


def test_a_server_with_one_repository_is_asked_for_its_list_alone(
    lake: SmallLake, spark: Session
) -> None:
    with counted(lake) as before:
        mark_all(lake.context(spark, "again"), STAGES[:3])
    with counted(lake) as seen:
        STAGES[3](lake.context(spark, "again"))
    assert {path for path in before if "/repositories" in path} == {"GET /repositories"}
    # One for the comparison of namespaces, as in every stage, and one more; each is asked for
    # again behind the last one.
    assert seen["GET /repositories"] == 4


def noted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """URLs of the ranges and metaranges that are read from now on."""
    fetched: list[str] = []
    fetch_table = Connections.fetch_table

    def fetch(connections: Connections, table_id: str) -> bytes:
        fetched.append(connections.table_url(table_id))
        return fetch_table(connections, table_id)

    monkeypatch.setattr(Connections, "fetch_table", fetch)
    return fetched


def test_what_did_not_change_is_not_read_again(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a repository with two branches its branches and their diffs are asked for, and a list."""
    make_other(lake)
    lake.client.create_branch(OTHER, "dev", "main")
    commit(lake)
    mark(lake, spark)
    fetched = noted(monkeypatch)
    with counted(lake) as seen:
        ctx = mark(lake, spark, "later")
    assert candidates(ctx) == marked.candidates
    other = {path: count for path, count in seen.items() if "/repositories/other" in path}
    assert other == {
        # Behind the last one, too: a list that is cut looks like a whole one.
        "GET /repositories/other/branches": 2,
        "GET /repositories/other/refs/main@/diff/main$": 1,
        "GET /repositories/other/refs/dev@/diff/dev$": 1,
    }
    assert not [url for url in fetched if "://other" in url]


def test_one_look_at_a_repository_serves_all_that_are_collected(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A range names other objects in one of them than in another."""
    make_other(lake)
    make_other(lake, "third")
    third = lake.client.upload_object("third", "main", "x", b"of the third").physical_address
    lake.client.reset_branch("third", "main")
    name_it(lake, third, "third")
    commit(lake)
    assert candidates(mark(lake, spark, "first")) == marked.candidates
    fetched = noted(monkeypatch)
    ctx = replace(lake.context(spark, "of-third"), repository="third")
    mark_all(ctx, STAGES[:5])
    found = ctx.root.attempt("third", "of-third")
    assert found.manifest("committed_addresses").facts["references"] == {OTHER: 1}
    assert found.read("deletion_candidates").num_rows == 0
    assert not [url for url in fetched if "://other" in url]


def test_a_damaged_cache_is_read_again(lake: SmallLake, marked: Marked, spark: Session) -> None:
    named = min(marked.candidates)
    commit_it(lake, named)
    mark(lake, spark)
    caches = [p for p in (lake.folder / "artifacts").rglob("_cache/*/*/*/*") if p.is_file()]
    kinds = {path.parent.parent.name for path in caches}
    assert kinds >= {"full", "commits", "others", "ranges", "metaranges"}
    for path in caches:
        path.write_bytes(path.read_bytes()[:-9] + b"damaged!!")
    assert candidates(mark(lake, spark, "later")) == marked.candidates - {named}


def test_commits_of_which_the_cache_has_lost_ancestors_are_read_again(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    named = min(marked.candidates)
    commit_it(lake, named)
    mark(lake, spark)
    cached = set((lake.folder / "artifacts").rglob("_cache/*/commits/*/*"))
    assert cached
    for run in ("second", "third"):
        commit(lake)
        assert candidates(mark(lake, spark, run)) == marked.candidates - {named}
        for path in cached:
            path.unlink(missing_ok=True)


@pytest.mark.parametrize("seen_by", ["this version", "an earlier one", "one that passed over"])
def test_a_list_that_lacks_what_an_earlier_run_has_read_stops_the_run(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch, seen_by: str
) -> None:
    """Credentials that see fewer repositories get a shorter list, and no error."""
    commit_it(lake, min(marked.candidates))
    if seen_by == "one that passed over":
        # This file is no table, so what was read of the repository is read again each time.
        (lake.server.objects_dir / OTHER / "_lakefs" / ("5" * 64)).write_bytes(b"")
    mark(lake, spark, "seen")
    (seen,) = (lake.folder / "artifacts").rglob("others/*/")
    if seen_by == "an earlier one":
        seen.rename(seen.with_name("v1-0"))
    listed = LakeFSClient.repositories

    def without_it(client: LakeFSClient, prefix: str = "") -> Iterator[Repository]:
        return (found for found in listed(client, prefix) if found.id != OTHER)

    monkeypatch.setattr(LakeFSClient, "repositories", without_it)
    with pytest.raises(IntegrityError, match="lacks 'other', which an earlier run has read"):
        mark(lake, spark, "blind")
    with pytest.raises(IntegrityError, match="fs:ListRepositories"):
        sweep(lake.context(spark))
    assert lake.keys() == marked.live | marked.candidates
    if seen_by == "this version":
        ignoring = mark(lake, spark, "ignoring", ignored_repositories=[OTHER])
        assert candidates(ignoring) == marked.candidates
        forget(lake, OTHER)
        assert candidates(mark(lake, spark, "gone")) == marked.candidates
