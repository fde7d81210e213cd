"""Objects that moved branches bring to life are found as by a look at all commits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from unittest.mock import MagicMock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.decode import etag_hash
from lakegc_assets.mark.relations import AMBIGUOUS
from lakegc_assets.retention.active_commits import active_commits
from lakegc_assets.retention.commits import Commit
from lakegc_assets.retention.retain_rules import Retain
from lakegc_assets.retention.rules import Rules
from lakegc_assets.run.hashing import address_hashes
from lakegc_assets.storage.opening import open_store
from lakegc_assets.sweep import delta_extension
from lakegc_assets.sweep.delta_extension import (
    ALIKE,
    HELD,
    AddedObjects,
    Extender,
    KnownCommits,
    TooMuchError,
    extended,
    more_paths,
    moved_aside,
    read_known,
    with_commits,
    write_known,
)

NOW = datetime(2026, 3, 1, tzinfo=timezone.utc)
RULES = Rules(20, {"short": 3, "long": 500})


def commit(name: str, days_ago: float, *parents: str) -> Commit:
    date = int((NOW - timedelta(days=days_ago)).timestamp())
    return Commit(name, parents, date, f"metarange of {name}")


def known(heads: dict[str, str], *commits: Commit, rules: Rules | None = RULES) -> KnownCommits:
    by_id = {c.id: c for c in commits}
    active = by_id.keys() if rules is None else active_commits(by_id, heads, rules, NOW).active
    return KnownCommits(rules, NOW, heads, by_id, set(active))


LINE = (commit("a", 90), commit("b", 60, "a"), commit("c", 50, "b"), commit("d", 40, "c"))


def test_a_commit_adds_its_metarange() -> None:
    before = known({"main": "d"}, *LINE)
    heads = {"main": "e"}
    more = with_commits(before, {"e": commit("e", 0, "d")})
    assert moved_aside(more, heads) == []
    found = extended(more, heads, {})
    assert found.metaranges() - more.metaranges() == {"metarange of e"}
    assert found.heads == heads
    # What was HEAD until now stays active: it was replaced inside the retention.
    assert found.active == {"d", "e"}


def test_a_branch_from_an_expired_commit() -> None:
    before = known({"main": "d"}, *LINE)
    heads = {"main": "d", "rescue": "a"}
    assert moved_aside(before, heads) == []
    assert extended(before, heads, {}).metaranges() - before.metaranges() == {"metarange of a"}


def test_a_branch_whose_rule_reaches_further_back() -> None:
    """It has no commit of its own, and yet brings back all of them."""
    before = known({"main": "d"}, *LINE)
    found = extended(before, {"main": "d", "long": "d"}, {})
    assert found.active == {"a", "b", "c", "d"}


def test_a_merge_brings_commits_of_a_deleted_branch() -> None:
    before = known({"main": "d"}, *LINE)
    read = {"m": commit("m", 0, "d", "y"), "y": commit("y", 2, "x"), "x": commit("x", 30, "b")}
    found = extended(with_commits(before, read), {"main": "m"}, {})
    assert found.active == {"d", "m", "y", "x"}


def test_a_branch_that_is_gone_keeps_alive_what_it_held() -> None:
    before = known({"main": "d", "work": "w"}, *LINE, commit("w", 60, "a"))
    heads = {"main": "d"}
    assert moved_aside(before, heads) == ["work"]
    found = extended(before, heads, {})
    assert "w" in found.active
    assert found.metaranges() <= before.metaranges()


@pytest.mark.parametrize("head", ["c", "x"])
def test_a_branch_that_was_set_back_or_aside(head: str) -> None:
    """Commits may have come and gone meanwhile, which only lakeFS's list can name."""
    before = known({"main": "d"}, *LINE, commit("x", 45, "b"))
    assert moved_aside(before, {"main": head}) == ["main"]
    more = with_commits(before, {"lost": commit("lost", 0, "d")})
    found = extended(more, {"main": head}, {"lost": "metarange of lost"})
    assert "metarange of lost" in found.metaranges()


def test_a_list_that_contradicts_the_log() -> None:
    before = known({"main": "d"}, *LINE)
    with pytest.raises(IntegrityError, match="the list cannot be trusted"):
        extended(before, {"main": "d"}, {"a": "metarange of b"})


def test_without_rules_all_that_is_read_is_active() -> None:
    before = known({"main": "d"}, *LINE, rules=None)
    more = with_commits(before, {"e": commit("e", 900, "d"), "f": commit("f", 800, "e")})
    found = extended(more, {"main": "f"}, {})
    assert found.metaranges() - before.metaranges() == {"metarange of e", "metarange of f"}


_DAYS = st.sampled_from([0, 2, 5, 19, 30, 400])


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Commit], dict[str, str], dict[str, str], int]:
    """Commits in an order, HEADs among the first of them, and HEADs among all."""
    commits: list[Commit] = []
    for number in range(draw(st.integers(1, 12))):
        before = [c.id for c in commits]
        most = min(2, len(before))
        parents = (
            draw(st.lists(st.sampled_from(before), max_size=most, unique=True)) if most else []
        )
        commits.append(commit(str(number), draw(_DAYS), *parents))
    seen = draw(st.integers(1, len(commits)))
    names = st.sampled_from(["main", "short", "long", "dev"])
    first = st.sampled_from([c.id for c in commits[:seen]])
    later = st.sampled_from([c.id for c in commits])
    return (
        commits,
        draw(st.dictionaries(names, first, min_size=1)),
        draw(st.dictionaries(names, later, min_size=1)),
        seen,
    )


@given(histories())
def test_nothing_that_is_active_now_is_left_out(
    history: tuple[list[Commit], dict[str, str], dict[str, str], int],
) -> None:
    """Against the active commits of everything, found at once."""
    commits, first, later, seen = history
    before = known(first, *commits[:seen])
    read = {c.id: c for c in commits[seen:]}
    found = extended(with_commits(before, read), later, {})
    everything = {c.id: c for c in commits}
    wanted = active_commits(everything, later, RULES, NOW).active.keys()
    assert found.active == before.active | wanted
    new = found.metaranges() - before.metaranges()
    assert new == {f"metarange of {c}" for c in found.active - before.active}


def test_two_extensions_are_as_one() -> None:
    before = known({"main": "d"}, *LINE)
    read = {"e": commit("e", 0, "d"), "f": commit("f", 0, "e")}
    more = with_commits(before, read)
    once = extended(more, {"main": "f", "rescue": "a"}, {})
    first = extended(with_commits(before, {"e": read["e"]}), {"main": "e"}, {})
    second = extended(with_commits(first, {"f": read["f"]}), {"main": "f", "rescue": "a"}, {})
    assert second == replace(once, active=second.active)
    assert second.active == once.active


PATHS = Retain(paths={"r/**": 55})


def test_a_branch_adds_what_paths_keep_to_what_they_kept() -> None:
    """What is below a path stays, though the branch that it was on is gone, or set elsewhere."""
    before = known({"main": "d", "work": "w"}, *LINE, commit("w", 30, "b"))
    before = replace(before, retain=PATHS, paths={"r/**": {"b", "c", "lost"}})
    same = extended(before, before.heads, {})
    assert same.paths == before.paths
    assert more_paths(before, same) == []
    # On main, the first commit was replaced 60 days ago, and on the new branch 30 days ago.
    more = with_commits(before, {"x": commit("x", 30, "a")})
    found = extended(more, {"main": "d", "again": "x"}, {})
    assert found.paths == {"r/**": {"a", "b", "c", "lost"}}
    assert more_paths(before, found) == ["r/**"]
    # What is alive as a whole needs no path.
    listed = extended(before, before.heads, {"b": "metarange of b"})
    assert listed.paths == {"r/**": {"c", "lost"}}
    assert more_paths(before, listed) == []
    assert more_paths(replace(before, paths={}), before) == ["r/**"]


def test_what_a_task_reads_is_what_the_delta_mark_knew(tmp_path: Path) -> None:
    """An expired commit that counted as active there would add nothing when a branch has it."""
    switched = Commit("m", ("x", "d"), 7, "", version=0)
    before = known({"main": "d", "old": "m"}, *LINE, commit("x", 3, "a"), switched)
    assert before.active < before.commits.keys()
    before = replace(before, retain=PATHS, paths={"r/**": {"b", "c"}})
    store = open_store(str(tmp_path))
    files = write_known(store, "known/", before, {"one", "other"})
    assert read_known(store, files) == (before, {"one", "other"})


def extending(
    patch: pytest.MonkeyPatch, heads: list[dict[str, str]], listed: Callable[[], Iterable[str]]
) -> Extender:
    """An extender to which lakeFS tells these HEADs, one after the other, and lists of commits.

    The metaranges that are added are what it finds. Commits that are not known yet follow ``c``.
    """
    patch.setattr(delta_extension, "read_heads", lambda *_: heads.pop(0))
    patch.setattr(
        delta_extension, "read_commits_csv", lambda *_: {c: f"metarange of {c}" for c in listed()}
    )
    patch.setattr(
        delta_extension, "load_commits", lambda *args: {c: commit(c, 0, "c") for c in args[2]}
    )
    patch.setattr(Extender, "read_added", lambda _, metaranges, _ranges: metaranges)
    return Extender(MagicMock(), MagicMock(), "repo")


@pytest.mark.parametrize(
    ("seen", "heads"),
    [
        ("c", ("c", "c")), ("c", ("c", "e")), ("c", ("c", "f")), ("c", ("e", "c")),
        ("e", ("c", "c")), ("e", ("c", "e")), ("e", ("c", "f")),
    ],
)  # fmt: skip
def test_every_head_that_was_seen_counts(
    seen: str, heads: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that a branch had while lakeFS made its list, and left before the next look."""
    read = {"e": commit("e", 0, "d"), "f": commit("f", 0, "c")}
    before = with_commits(known({"main": "d"}, *LINE), read)
    told = [{"main": head} for head in (*heads, heads[1])]
    extender = extending(monkeypatch, told, lambda: ("d", *heads[: 3 - len(told)]))
    found, metaranges = extender.extend(before, set(), {"main": seen})
    new: object = metaranges
    assert {seen, *heads} <= found.active
    assert found.heads == {"main": heads[1]}
    assert new == found.metaranges() - before.metaranges()
    # Where the branch is set back meanwhile, a second list is asked for.
    assert len(told) == (heads != ("e", "c"))


@pytest.mark.parametrize("first", ["b", "c"])
def test_what_came_and_went_while_lakefs_made_its_list(
    first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A branch that stands elsewhere then has left what only a list names that is made later."""
    told, lists = [{"main": head} for head in ("c", "b", "b")], [(first,), ("b", "x")]
    extender = extending(monkeypatch, told, lambda: lists.pop(0))
    found, _ = extender.extend(known({"main": "d"}, *LINE), set(), {"main": "c"})
    assert found.heads == {"main": "b"}
    assert "x" in found.active


def test_what_lakefs_lists_counts_beside_what_is_found() -> None:
    before = known({"main": "d"}, *LINE)
    found = extended(before, before.heads, {"a": "metarange of a"})
    assert found.active == before.active | {"a"}


def test_a_list_without_a_head_that_stayed(monkeypatch: pytest.MonkeyPatch) -> None:
    extender = extending(monkeypatch, [{"main": "c"}, {"main": "c"}], lambda: ("d",))
    with pytest.raises(IntegrityError, match="HEAD of branch 'main' is not among the active"):
        extender.extend(known({"main": "d"}, *LINE), set(), {"main": "c"})


def test_a_branch_that_is_set_aside_where_there_are_no_rules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There, lakeFS has no list to make."""
    extender = extending(monkeypatch, [{"main": "c"}], lambda: pytest.fail("a list"))
    with pytest.raises(TooMuchError, match="'main' is gone, or was set elsewhere"):
        extender.extend(known({"main": "d"}, *LINE, rules=None), set(), {"main": "c"})


def test_branches_that_are_set_aside_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then a task cannot tell."""
    told = [{"main": head} for head in "dcba"]
    extender = extending(monkeypatch, told, lambda: [c.id for c in LINE])
    with pytest.raises(TooMuchError, match="'main' is gone, or was set elsewhere"):
        extender.extend(known({"main": "d"}, *LINE), set(), {"main": "c"})


def test_all_is_spared_that_what_was_added_may_need() -> None:
    one, other = "a" * 32, "b" * 32
    expected = {
        ("data/held", 1, other): HELD,
        ("data/x/unplaced", 1, other): AMBIGUOUS,
        ("data/same", 7, one): ALIKE,
        ("data/in-parts", 7, f"{one}-2"): ALIKE,
        # What has an entry without a telling etag may be served by any of its size.
        ("data/whatever", 8, other): ALIKE,
        ("data/other", 7, other): None,
        ("data/unplaced/x", 1, one): None,
    }
    looks = pa.table({"size": [7, 8], "etag_hash": pa.array([etag_hash(one), 0], pa.int64())})
    held = address_hashes(pa.array(["data/held"]))
    added = AddedObjects({"range"}, held, {"unplaced"}, looks)
    columns = zip(("address", "size", "etag"), zip(*expected, strict=True), strict=True)
    objects = pa.table({name: list(values) for name, values in columns})
    assert added.spares(objects) == {row[0]: why for row, why in expected.items() if why}
