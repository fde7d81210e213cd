"""Ranges and metaranges that nothing names: what is one, and all that is none."""

from __future__ import annotations

import os

import pytest

from lakegc_assets.errors import IntegrityError
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.leftovers.metadata import UnreferencedTables, unreferenced_tables
from lakegc_assets.leftovers.report import find_leftovers
from lakegc_assets.leftovers.server import Server
from lakegc_assets_tests.lake import REPOSITORY, SmallLake
from lakegc_assets_tests.leftovers.conftest import age, orphan


def look(server: Server) -> UnreferencedTables:
    ctx = server.context(REPOSITORY)
    return unreferenced_tables(ctx, *ctx.connect())


def keys(found: UnreferencedTables) -> set[str]:
    return set(found.tables["key"].to_pylist())


def test_only_old_tables_that_no_commit_has_are_unreferenced(
    lake: SmallLake, server: Server
) -> None:
    """The commit of the deleted branch is in no log, and in the dump."""
    lost = orphan(lake, "lost")
    assert keys(look(server)) == set()
    age(lake.objects / "_lakefs", 31)
    young = orphan(lake, "young")
    found = look(server)
    assert keys(found) == {*lost}
    assert (found.metaranges, found.size > 0, found.dumps > 0) == (1, True, True)
    # The dump that was just written is old tomorrow, and stays all the same.
    age(lake.objects / "_lakefs", 31)
    assert keys(look(server)) == {*lost, *young}


def test_a_dump_is_asked_for_only_where_it_can_tell_something(
    lake: SmallLake, server: Server
) -> None:
    """The commit of the deleted branch is in no log; the first dump names it for good."""
    asked: list[str] = []
    lake.on_request = lambda method, path: asked.append(path) if method == "POST" else None
    age(lake.objects / "_lakefs", 31)
    for orphaned, dumps, found in ((False, 1, 0), (False, 1, 0), (True, 2, 1)):
        if orphaned:
            orphan(lake, "lost")
        age(lake.objects / "_lakefs", 31)
        assert len(find_leftovers(server, [REPOSITORY]).metadata) == found
        assert sum(path.endswith("/dump") for path in asked) == dumps


def test_a_range_stays_that_a_young_metarange_names(lake: SmallLake, server: Server) -> None:
    lost = orphan(lake, "lost")
    for young, left in ((lost.range, {lost.metarange}), (lost.metarange, set())):
        age(lake.objects / "_lakefs", 31)
        os.utime(lake.objects / young)
        assert keys(look(server)) == left


def test_nothing_is_known_where_something_cannot_be_read(
    lake: SmallLake, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = orphan(lake, "lost")
    age(lake.objects / "_lakefs", 31)
    odd = lake.objects / "_lakefs" / ("f" * 64)
    odd.write_bytes(b"no table")
    with pytest.raises(IntegrityError, match="nobody knows what is unreferenced"):
        look(server)
    odd.unlink()
    assert keys(look(server)) == {*lost}
    lake.upload("main", "c", "of a commit that a dump lacks")
    before = server.client.dump_refs(REPOSITORY)
    lake.commit("main")
    monkeypatch.setattr(LakeFSClient, "dump_refs", lambda *_: before)
    with pytest.raises(IntegrityError, match="which a branch or a tag has"):
        look(server)


def test_the_metarange_of_a_commit_must_be_listed(lake: SmallLake, server: Server) -> None:
    orphan(lake, "lost")
    age(lake.objects / "_lakefs", 31)
    metarange = server.client.commit(REPOSITORY, lake.head("main")).meta_range_id
    (lake.objects / "_lakefs" / metarange).unlink()
    with pytest.raises(IntegrityError, match="metarange of a commit, is not listed"):
        look(server)
