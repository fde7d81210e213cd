"""Ranges and metaranges that nothing names: what is one, and all that is none."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import pytest

from lakegc_assets.embedded.lake import catalog
from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.ranges import read_metarange
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.leftovers.metadata import UnreferencedTables, unreferenced_tables
from lakegc_assets.leftovers.report import find_leftovers
from lakegc_assets.leftovers.server import Server
from lakegc_assets_tests.files import age
from lakegc_assets_tests.lake import REPOSITORY, SmallLake
from lakegc_assets_tests.leftovers.conftest import orphan


def look(server: Server) -> UnreferencedTables:
    ctx = server.context(REPOSITORY)
    return unreferenced_tables(ctx.connect())


def keys(found: UnreferencedTables) -> set[str]:
    return set(found.tables["key"].to_pylist())


def test_only_old_tables_that_no_commit_has_are_unreferenced(
    lake: SmallLake, server: Server
) -> None:
    """The commit of the deleted branch is in no log, and in the dump."""
    lost = orphan(lake.objects, "lost")
    assert keys(look(server)) == set()
    age(lake.objects / "_lakefs", 31)
    young = orphan(lake.objects, "young")
    found = look(server)
    assert keys(found) == {*lost}
    assert (found.metaranges, found.size > 0, found.dumps > 0) == (1, True, True)
    # The dump that was just written is old tomorrow, and stays all the same.
    age(lake.objects / "_lakefs", 31)
    assert keys(look(server)) == {*lost, *young}


def test_a_dump_is_asked_for_only_where_it_can_tell_something(
    lake: SmallLake, server: Server
) -> None:
    """The commit of the deleted branch is in no log; the first dump names it for good.

    What nothing names is asked about twice.
    """
    asked: list[str] = []
    lake.on_request = lambda method, path: asked.append(path) if method == "POST" else None
    age(lake.objects / "_lakefs", 31)
    for orphaned, dumps, found in ((False, 1, 0), (False, 1, 0), (True, 3, 1)):
        if orphaned:
            orphan(lake.objects, "lost")
        age(lake.objects / "_lakefs", 31)
        assert len(find_leftovers(server, [REPOSITORY]).metadata) == found
        assert sum(path.endswith("/dump") for path in asked) == dumps


def test_a_range_stays_that_a_young_metarange_names(lake: SmallLake, server: Server) -> None:
    lost = orphan(lake.objects, "lost")
    for young, left in ((lost.range, {lost.metarange}), (lost.metarange, set())):
        age(lake.objects / "_lakefs", 31)
        os.utime(lake.objects / young)
        assert keys(look(server)) == left


def test_nothing_is_known_where_something_cannot_be_read(
    lake: SmallLake, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = orphan(lake.objects, "lost")
    age(lake.objects / "_lakefs", 31)
    odd = lake.objects / "_lakefs" / ("f" * 64)
    odd.write_bytes(b"no table")
    with pytest.raises(IntegrityError, match="it is not known what is unreferenced"):
        look(server)
    odd.unlink()
    assert keys(look(server)) == {*lost}
    lake.upload("main", "c", "of a commit that a dump lacks")
    before = server.client.dump_refs(REPOSITORY)
    lake.commit("main")
    monkeypatch.setattr(LakeFSClient, "dump_refs", lambda *_: before)
    with pytest.raises(
        IntegrityError, match="the log of a branch or tag, a child or an earlier list has"
    ):
        look(server)


@pytest.mark.parametrize("dumps", [{0}, {1}, {0, 1}], ids=["first", "second", "both"])
def test_a_dump_that_lacks_a_commit_reports_no_table_of_it(
    dumps: set[int], lake: SmallLake, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A throttled key-value store ends a list early without an error.

    Only a commit that both dumps lack, that no branch or tag leads to and that has no child is
    known to nobody.
    """
    orphan(lake.objects, "lost")
    age(lake.objects / "_lakefs", 31)
    with lake.server.lake.state.read() as db:
        repo = catalog.writable_repository(db, REPOSITORY)
        commits = list(catalog.all_commits(db, repo))
    tables = set(lake.objects.glob("_lakefs/*"))
    parents = {parent for one in commits for parent in one.parents}
    whole = catalog.all_commits
    unknown = 0
    for lacking in commits:
        made = iter(range(9))

        def cut(*args: Any, lacking: Any = lacking, made: Any = made) -> list[Any]:
            left = next(made) in dumps
            return [one for one in whole(*args) if not left or one.id != lacking.id]

        monkeypatch.setattr(catalog, "all_commits", cut)
        for table in lake.objects.glob("_lakefs/*"):
            if table.is_file() and table not in tables:
                table.unlink()
        found: set[str] = set()
        with suppress(IntegrityError):
            found = keys(look(server))
        tree = f"_lakefs/{lacking.metarange_id}"
        if tree in found:
            assert lacking.id not in parents
            assert lacking.id != lake.head("main")
            assert dumps == {0, 1}
            unknown += 1
    assert unknown == (dumps == {0, 1})


def test_the_metarange_of_a_commit_must_be_listed(lake: SmallLake, server: Server) -> None:
    orphan(lake.objects, "lost")
    age(lake.objects / "_lakefs", 31)
    metarange = server.client.commit(REPOSITORY, lake.head("main")).meta_range_id
    (lake.objects / "_lakefs" / metarange).unlink()
    with pytest.raises(IntegrityError, match="metarange of a commit, is not in the listing"):
        look(server)


def test_lakefs_takes_an_old_table_as_it_is(lake: SmallLake, server: Server) -> None:
    """So none is ever removed: nothing about the files tells, neither before nor after."""
    lost = orphan(lake.objects, "lost")
    age(lake.objects / "_lakefs", 31)
    ctx = server.context(REPOSITORY).connect()
    found = unreferenced_tables(ctx)
    assert set(found.tables["key"].to_pylist()) == {*lost}
    store = ctx.connections.store()
    before = [store.head(key) for key in lost]
    ctx.client.call(
        "POST", "repositories", REPOSITORY, "branches", "main", "commits",
        params={"source_metarange": lost.metarange.removeprefix("_lakefs/")},
        json={"message": "of a tree that is there"},
    )  # fmt: skip
    assert [store.head(key) for key in lost] == before
    tree = ctx.client.commit(REPOSITORY, lake.head("main")).meta_range_id
    (only,) = read_metarange(store.get(f"_lakefs/{tree}"), tree)
    assert (f"_lakefs/{only.id}", f"_lakefs/{tree}") == lost
    assert unreferenced_tables(ctx).tables.num_rows == 0
