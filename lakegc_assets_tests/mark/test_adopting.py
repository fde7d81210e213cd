"""A run that is made out of lakeFS's own mark deletes nothing that our own mark would keep."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from lakegc_assets.errors import RefusedError
from lakegc_assets.mark.adoption import require_adoptable
from lakegc_assets.mark.candidates import find_candidates
from lakegc_assets.mark.comparison import compare
from lakegc_assets.mark.comparison_relations import WHY
from lakegc_assets.mark.explanation import explain_object
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests import recorded
from lakegc_assets_tests.lake import REPOSITORY, SmallLake, running
from lakegc_assets_tests.mark import foreign
from lakegc_assets_tests.mark.conftest import Goldens
from lakegc_assets_tests.mark.histories import candidates, mark
from lakegc_assets_tests.recorded import Marked
from lakegc_assets_tests.replay import GOLDEN
from lakegc_assets_tests.sessions import Session

#: What lakeFS's mark of ``retention`` names in place of ``data/legacy-flat-object``.
TWICE = "data/legacy-flat-object/legacy-flat-object"


@contextmanager
def adopted(golden: Goldens, repository: str, folder: Path, **settings: Any) -> Iterator[Marked]:
    """A run that adopts a mark, which is the recorded one unless the settings name another."""
    copy = recorded.rewind(golden(repository).marked, folder).ctx
    with recorded.preserved(repository):
        settings = {"adopt": foreign.load_recorded(repository), **settings}
        ctx = replace(copy, run="adopted", settings=copy.settings.changed(**settings))
        yield recorded.mark(ctx, publish=True)


@pytest.fixture(scope="module")
def adoptions(
    _goldens: Goldens, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Marked]:
    """Gives the run that adopts the recorded mark of a repository."""

    @cache
    def adoption(repository: str) -> Marked:
        with adopted(_goldens, repository, tmp_path_factory.mktemp("adopted")) as marked:
            return marked

    return adoption


def adopted_candidates(golden: Goldens, folder: Path, mark: str) -> Marked:
    """A run on ``small`` that adopts a mark, up to its candidates."""
    found = recorded.rewind(golden("small").marked, folder, "deletion_candidates", adopt=mark)
    find_candidates(found.ctx)
    return found


def put(key: str, body: bytes) -> None:
    """Plant a file of a mark in the repository that most tests use."""
    recorded.plant("small", key, body, recorded.mark_time("small"))


def kept(marked: Marked) -> dict[str, str]:
    """What the mark names and stays, and as what."""
    rows = marked.attempt.read("deletion_candidates", "kept").to_pylist()
    return {row["address"]: row["kind"] for row in rows}


def facts(marked: Marked) -> dict[str, Any]:
    found: dict[str, Any] = marked.attempt.manifest("deletion_candidates").facts["adopted"]
    return found


@pytest.mark.parametrize(
    "repository",
    [
        "retention",
        *(
            pytest.param(one, marks=pytest.mark.conformance)
            for one in ("small", "orderhz", "identical")
        ),
    ],
)
def test_nothing_live_is_ever_a_candidate(
    repository: str, adoptions: Callable[[str], Marked]
) -> None:
    marked = adoptions(repository)
    theirs = foreign.recorded_addresses(repository)
    ours = recorded.expected(repository)
    assert theirs
    assert marked.candidates == theirs & ours
    assert set(kept(marked)) == theirs - ours
    assert set(kept(marked)) <= set(marked.spared)
    assert facts(marked)["objects"] == len(theirs)
    assert facts(marked)["not_named"]["objects"] == len(ours - theirs)
    assert [check.name for check in marked.checks if not check.passed] == []
    assert marked.manifests["gc_report"].facts["objects"] == len(theirs & ours)
    for manifest in marked.manifests.values():
        assert manifest.settings["adopt"] == facts(marked)["mark"]


def test_what_an_active_commit_holds_is_spared_with_who_holds_it(
    adoptions: Callable[[str], Marked],
) -> None:
    rows = json.loads((GOLDEN / "orderhz" / "manifest.json").read_text())["rows"]
    lost = {row["object_of_P"]: row["P"] for row in rows if not row["P_active_in_csv"]}
    assert len(lost) == 4
    marked = adoptions("orderhz")
    assert marked.candidates == set()
    assert kept(marked) == dict.fromkeys(lost, "committed")
    assert marked.spared == dict.fromkeys(lost, WHY["committed"])
    for address, commit in lost.items():
        found = explain_object(marked.ctx, address)
        assert (found.verdict, found.facts["commit_id"]) == ("spared", commit)
        assert f"the active commit {commit}" in found.because
        assert found.because.startswith("mark 'ft6u36hksdue9psu42m0', which this run adopted")


def test_what_lakefs_serves_is_spared(adoptions: Callable[[str], Marked]) -> None:
    told = json.loads((GOLDEN / "identical" / "manifest.json").read_text())
    live = told["live_but_not_listed_by_prepare_uncommited"]
    marked = adoptions("identical")
    assert kept(marked) == dict.fromkeys(live, "spared")
    rows = marked.attempt.read("deletion_candidates", "kept").to_pylist()
    assert {row["why"] for row in rows} == {"lakeFS serves it"}
    spared = marked.attempt.read("deletion_candidates", "spared")["address"].to_pylist()
    assert len(spared) == len(set(spared)), "what was spared already is not spared twice"
    assert "lakeFS serves it" in explain_object(marked.ctx, live[0]).because


def test_what_the_store_does_not_hold_and_what_the_mark_does_not_name(
    adoptions: Callable[[str], Marked],
) -> None:
    marked = adoptions("retention")
    assert kept(marked) == {TWICE: "missing"}
    assert marked.spared[TWICE] == "the store does not hold it"
    assert facts(marked)["kept"] == {"the store does not hold it": 1}
    assert explain_object(marked.ctx, TWICE).verdict == "spared"
    left = explain_object(marked.ctx, "data/legacy-flat-object")
    assert left.verdict == "not adopted"
    assert "does not name it" in left.because
    with recorded.preserved("retention"):
        mark = foreign.load_recorded("retention")
        beside = compare(marked.ctx, "adopted", mark, 10)
        runs = compare(marked.ctx, "adopted", "run1", 10)
    assert beside.only_run.total.objects == 0
    assert [one["kept"] for one in beside.only_other.objects] == ["the store does not hold it"]
    assert [(one["address"], one["kept"]) for one in runs.only_other.objects] == [
        ("data/legacy-flat-object", "the mark that the run adopted does not name it")
    ]


def test_every_reason_to_stay_is_told(golden: Goldens, tmp_path: Path) -> None:
    marked = golden("small").marked
    staged, young = sorted(marked.addresses("uncommitted_snapshot"))[:2], "data/young"
    dead = min(recorded.expected("small"))
    names = {
        dead: None,
        staged[0]: "staged",
        f"s3a://lab/small/{staged[1]}": "staged",
        young: "too young",
        "other/place": "outside data",
        "_lakefs/x": "outside data",
        "data/nowhere ; # |é\u2028": "missing",
        "s3://elsewhere/small/data/x": "elsewhere",
        "s3://lab/small/../up": "elsewhere",
        "data/line\nbreak": "spared",
        f"s3n://lab/small/{dead}": None,
    }

    copy = recorded.rewind(marked, tmp_path).ctx
    with recorded.preserved("small"):
        recorded.plant("small", young, written=recorded.mark_time("small"))
        recorded.plant("small", "other/place")
        recorded.plant("small", "data/line\nbreak")
        foreign.with_summary(put, list(names), "odd")
        # The server's own list of staged objects lies in the folder of its id.
        put(f"{foreign.GC}uncommitted/odd/uncommitted/x", b"parquet")
        ctx = replace(copy, run="adopted", settings=copy.settings.changed(adopt="odd"))
        found = recorded.mark(ctx, publish=True)
    assert found.candidates == {dead}
    expected = {name: kind for name, kind in names.items() if kind is not None}
    expected[staged[1]] = expected.pop(f"s3a://lab/small/{staged[1]}")
    assert kept(found) == expected
    assert set(found.spared) == set(expected)
    assert facts(found)["objects"] == len(names) - 1, "one is named in two ways"
    assert "it is staged on branch" in explain_object(found.ctx, staged[1]).because
    assert "not below" in found.spared["s3://elsewhere/small/data/x"]
    assert "cannot be determined" in found.spared["s3://lab/small/../up"]


@pytest.mark.parametrize("form", ["mark_id", "run_id", "uncommitted"])
def test_older_forms_are_adopted_as_well(form: str, golden: Goldens, tmp_path: Path) -> None:
    dead = sorted(recorded.expected("small"))
    assert golden("small")
    with recorded.preserved("small"):
        if form == "uncommitted":
            foreign.with_summary(put, dead[:5], "older", form)
        else:
            foreign.without_summary(put, dead[:5], "older", form)
        marked = adopted_candidates(golden, tmp_path, "older")
    assert marked.candidates == set(dead[:5])
    assert facts(marked)["not_named"]["objects"] == len(dead) - 5


def test_a_mark_of_another_place_leaves_nothing_to_delete(golden: Goldens, tmp_path: Path) -> None:
    dead = sorted(recorded.expected("small"))
    assert golden("small")
    with recorded.preserved("small"):
        foreign.with_summary(put, [f"small/{address}" for address in dead], "prefixed")
        marked = adopted_candidates(golden, tmp_path, "prefixed")
    assert marked.candidates == set()
    assert set(kept(marked).values()) == {"outside data"}


def test_an_empty_mark_makes_an_empty_run(golden: Goldens, tmp_path: Path) -> None:
    assert golden("small")
    with recorded.preserved("small"):
        foreign.with_summary(put, [], "empty")
        with adopted(golden, "small", tmp_path, adopt="empty") as marked:
            assert (marked.candidates, kept(marked)) == (set(), {})
            assert facts(marked)["not_named"]["objects"] == len(recorded.expected("small"))


def test_a_mark_of_our_own_is_not_adopted(golden: Goldens, tmp_path: Path) -> None:
    with (
        pytest.raises(RefusedError, match="Sweep it: `lakegc sweep small --run run1`"),
        adopted(golden, "small", tmp_path, adopt="run1"),
    ):
        pass


def test_a_run_has_an_id_of_its_own(golden: Goldens) -> None:
    ctx = golden("small").marked.ctx
    with recorded.preserved("small"):
        foreign.without_summary(put, ["data/x"], "one")
        store = ctx.connect().connections.store()
        assert require_adoptable(store, ctx.root, "small", "another", "one").id == "one"
        with pytest.raises(RefusedError, match="Choose another id for the run"):
            require_adoptable(store, ctx.root, "small", "one", "one")


@pytest.mark.conformance
def test_on_spark_it_is_the_same(golden: Goldens, tmp_path: Path) -> None:
    marked = golden("retention").marked
    with recorded.preserved("retention"):
        mark = foreign.load_recorded("retention")
        asset, on_spark = "deletion_candidates", {"adopt": mark, "engine": "spark"}
        copy = recorded.rewind(marked, tmp_path, asset, **on_spark)
        find_candidates(copy.ctx)
        beside = compare(copy.ctx, "run1", mark, 10)
    assert copy.candidates == recorded.expected("retention") - {"data/legacy-flat-object"}
    assert kept(copy) == {TWICE: "missing"}
    assert [one["address"] for one in beside.only_other.objects] == [TWICE]
    assert beside.both.objects == 10


# What follows an adopted run


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[SmallLake]:
    """Ten objects on main in slices of three, two of which were overwritten, two given up."""
    with running(tmp_path / "lake", slice_max_objects=3) as found:
        found.client.create_repository(REPOSITORY, f"local://{REPOSITORY}")
        found.rules(20)
        found.calendar.days_ago = 90
        for number in range(10):
            found.upload("main", f"a/{number}", f"object {number}")
        found.commit("main")
        found.calendar.days_ago = 60
        for number in range(4):
            found.upload("main", f"a/{number}", f"another object {number}")
        found.commit("main")
        found.calendar.days_ago = 0
        yield found


def test_an_adopted_run_is_swept_and_later_runs_lose_no_garbage(
    lake: SmallLake, spark: Session
) -> None:
    dead = sorted(candidates(mark(lake, spark, "first")))
    assert len(dead) == 4
    live = sorted(lake.keys() - set(dead) - {"dummy"})
    foreign.with_summary(lake.write, [*dead[:2], *live], "theirs")
    second = mark(lake, spark, "second", adopt="theirs")
    assert candidates(second) == set(dead[:2])
    sweep(second)
    assert lake.keys() >= {*live, *dead[2:]}
    assert not lake.keys() & set(dead[:2])
    third = mark(lake, spark, "third")
    listing = third.root.attempt(REPOSITORY, "third").manifest("store_listing").facts
    assert listing["mode"] == "optimized"
    assert candidates(third) == set(dead[2:])


def test_what_was_swept_since_it_was_listed_is_not_there(lake: SmallLake, spark: Session) -> None:
    """An optimized run carries forward what a sweep has deleted; the store holds it no more."""
    first = mark(lake, spark, "first")
    dead = sorted(candidates(first))
    sweep(first)
    foreign.with_summary(lake.write, dead, "theirs")
    second = mark(lake, spark, "second", adopt="theirs")
    manifest = second.root.attempt(REPOSITORY, "second").manifest("deletion_candidates")
    assert second.root.attempt(REPOSITORY, "second").manifest("store_listing").facts["carried"]
    assert manifest.rows == 0
    assert manifest.facts["spared"] == {"the store does not hold it": len(dead)}
    beside = compare(second, "second", "theirs", 10)
    assert beside.only_other.kept.keys() == {"the store does not hold it"}
    assert beside.only_other.total.objects == len(dead)


@pytest.mark.parametrize(
    "kind", ["optimized", pytest.param("clean", marks=pytest.mark.conformance)]
)
def test_what_the_sweep_of_the_older_of_two_runs_has_deleted_is_told_as_that(
    kind: str, lake: SmallLake, spark: Session
) -> None:
    """Else its own sweep reads like a loss, or like something that never was."""
    first = mark(lake, spark, "first")
    dead = sorted(candidates(first))
    gone = lake.objects / dead[0]
    gone.unlink()
    sweep(first)
    second = mark(lake, spark, "second", clean=kind == "clean")
    beside = compare(second, "first", "second", 10)
    deleted = "the sweep of run 'first' has deleted it"
    kept = {one["address"]: one["kept"] for one in beside.only_run.objects}
    others = dict.fromkeys(dead[1:], deleted)
    assert kept == {dead[0]: "the store does not hold it", **others}
    assert {why: total.objects for why, total in beside.only_run.kept.items()} == {
        "the store does not hold it": 1,
        deleted: len(dead) - 1,
    }


def test_a_mark_that_is_not_there_stops_the_run_before_anything_is_published(
    golden: Goldens, tmp_path: Path
) -> None:
    assert golden("small")
    before = set(recorded.keys("small"))
    with (
        pytest.raises(RefusedError, match="there is no mark 'nowhere'"),
        adopted(golden, "small", tmp_path, adopt="nowhere"),
    ):
        pass
    assert set(recorded.keys("small")) == before
