"""What ``lakegc usage`` says of a repository of the embedded lakeFS, and whether it comes true."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from lakegc_assets.attribution.attribution import ASSET, attribute
from lakegc_assets.engine.datasets import Part
from lakegc_assets.mark.ranges import KIND
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.table_cache import TableCache
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.cli.calling import lakegc, say
from lakegc_assets_tests.defs.running import mark_outside
from lakegc_assets_tests.sessions import Session
from lakegc_assets_tests.site import Site

REPOSITORY = "gamma"
_AS_THERE: dict[str, Any] = {"max_candidate_share": 1.0, "skip_new_slices": False}


def _upload(site: Site, branch: str, path: str, size: int) -> None:
    site.client.upload_object(REPOSITORY, branch, path, path.encode() * size)


@pytest.fixture(scope="module")
def marked(site: Site, spark: Session) -> Site:
    """Main, a branch that was merged, and one that has data of its own; then a mark."""
    client, on = site.client, site.calendar
    on.days_ago = 60
    client.create_repository(REPOSITORY, f"local://{REPOSITORY}")
    client.set_gc_rules(REPOSITORY, 10, {"main": 100, "exp-7": 100})
    _upload(site, "main", "tables/sales/day=1/a", 100)
    _upload(site, "main", "tables/sales/day=2/b", 100)
    _upload(site, "main", "readme", 1)
    client.commit_branch(REPOSITORY, "main", "first")
    on.days_ago = 50
    client.create_branch(REPOSITORY, "exp-7", "main")
    client.create_branch(REPOSITORY, "same", "main")
    _upload(site, "exp-7", "models/m", 1000)
    client.commit_branch(REPOSITORY, "exp-7", "a model")
    on.days_ago = 40
    _upload(site, "exp-7", "models/m", 2000)
    client.commit_branch(REPOSITORY, "exp-7", "a better model")
    _upload(site, "main", "tables/sales/day=3/c", 10)
    client.commit_branch(REPOSITORY, "main", "second")
    on.days_ago = 30
    _upload(site, "main", "staged", 7)
    _upload(site, "main", "gone", 9)
    client.delete_object(REPOSITORY, "main", "gone")
    on.days_ago = 0
    _mark_outside(site, spark, "u1", **_AS_THERE)
    return site


def _mark_outside(
    site: Site, spark: Session, run: str, repository: str = REPOSITORY, **settings: object
) -> RunContext:
    """Mark and attribute without Dagster, which takes most of a small run."""
    ctx = mark_outside(site, repository, run, spark, **settings)
    attribute(ctx)
    return ctx


def _usage(*options: str) -> dict[str, Any]:
    result = lakegc("usage", REPOSITORY, *options, "--json")
    say(result, 0)
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def _rows(found: dict[str, Any], column: str = "bytes") -> dict[str, int]:
    return {row["key"]: row[column] for row in found["rows"]}


def test_the_classes_are_all_that_is_listed(marked: Site) -> None:
    found = _usage("--run", "u1")
    files = [p for p in (marked.namespace(REPOSITORY) / "data").rglob("*") if p.is_file()]
    totals = {row["class"]: (row["objects"], row["bytes"]) for row in found["classes"]}
    assert totals["staged"] == (1, len("staged") * 7)
    assert totals["garbage"] == (1, len("gone") * 9)
    assert totals["live and committed"][0] == 6
    listed = tuple(map(sum, zip(*totals.values(), strict=True)))
    own = marked.namespace(REPOSITORY) / "dummy"
    assert listed == (
        len(files) + own.exists(),
        sum(p.stat().st_size for p in [*files, *[own] * own.exists()]),
    )
    assert found["problems"] == []
    below = sum(
        p.stat().st_size
        for p in (marked.namespace(REPOSITORY) / "_lakefs").rglob("*")
        if p.is_file()
    )
    assert sum(row["bytes"] for row in found["below_lakefs"]) == below


def test_live_bytes_are_told_by_path_age_size_commit_and_committer(marked: Site) -> None:  # noqa: ARG001 - its mark
    live = next(r for r in _usage()["classes"] if r["class"] == "live and committed")["bytes"]
    assert _rows(_usage("--by", "path", "--depth", "3")) == {
        "models/": len("models/m") * 3000,
        **{f"tables/sales/day={n}/": len("tables/sales/day=1/a") * 100 for n in (1, 2)},
        "tables/sales/day=3/": len("tables/sales/day=1/a") * 10,
        "(root)": len("readme"),
    }
    found = {by: _usage("--by", by) for by in ("path", "age", "size", "commit", "committer")}
    assert set(_rows(found["path"])) == {"models/", "tables/", "(root)"}
    assert list(_rows(found["age"])) == ["up to 90 days"]
    assert _rows(found["committer"]) == {"admin": live}
    assert [row["objects"] for row in found["commit"]["rows"]] == [1, 1, 3, 1]
    assert {sum(_rows(one).values()) for one in found.values()} == {live}


def test_what_deleting_a_branch_frees_is_what_the_next_mark_finds(
    marked: Site, spark: Session
) -> None:
    before = _usage("--run", "u1")
    model = len("models/m") * 3000
    assert _rows(before, "only_bytes") == {
        "exp-7": model,
        "main": len("tables/sales/day=1/a") * 10,
        "same": 0,
    }
    assert _rows(before, "shared_bytes")["same"] == len("tables/sales/day=1/a") * 200 + 6
    assert _rows(before, "freed_bytes")["exp-7"] == model
    logical = before["logical"]
    assert logical["of_heads"]["objects"] == 4 + 4 + 3
    assert logical["stored"]["objects"] == 6
    assert logical["of_commits"]["objects"] == 3 + 4 + 4 + 4
    text = lakegc("usage", REPOSITORY, "--run", "u1")
    say(text, 0, "exp-7", "deleting it frees", "deleting a branch frees these bytes")
    shown = lakegc("usage", REPOSITORY, "--run", "u1", "--csv", "--top", "1")
    (row,) = csv.DictReader(io.StringIO(shown.stdout))
    assert (row["branch"], int(row["freed_bytes"])) == ("exp-7", model)
    marked.client.delete_branch(REPOSITORY, "exp-7")
    _mark_outside(marked, spark, "u2", **_AS_THERE)
    after = _usage("--run", "u2")
    assert _garbage(after) - _garbage(before) == model


def _garbage(found: dict[str, Any]) -> int:
    return sum(row["bytes"] for row in found["classes"] if row["class"] == "garbage")


def test_what_is_not_there_is_told_and_a_range_that_is_not_cached_is_not_read(marked: Site) -> None:
    options = ("--max-candidate-share", "1", "--set", "attribution=false")
    say(lakegc("mark", REPOSITORY, "--run", "u3", *options), 0)
    attempt = marked.root.attempt(REPOSITORY, "u3")
    assert not attempt.has(ASSET)
    part: Part = attempt.manifest("store_listing").parts["data"][0]
    there = Path(attempt.url, part.key)
    elsewhere = there.rename(there.with_suffix(".gone"))
    say(lakegc("usage", REPOSITORY, "--run", "u3"), 1, part.key, "is gone")
    say(lakegc("usage", REPOSITORY, "--run", "nothing"), 3, "there is no mark 'nothing'")
    elsewhere.rename(there)
    (place,) = {p.parent for p in Path(marked.root.url).rglob(f"{REPOSITORY}/_cache/*/{KIND.name}")}
    cache = TableCache(marked.root.open(REPOSITORY, "_cache", place.name), KIND)
    cache.forget({slot.file for slot in cache.slots().values()})
    found = _usage("--run", "u3", "--by", "path")
    assert found["ranges_not_read"] > 0
    assert cache.slots() == {}
    assert set(_rows(found)) == {"not attributed"}
    assert found["problems"] == []
    assert any("not in the cache" in sentence for sentence in found["covers"])


@pytest.mark.parametrize(
    ("mode", "said"), [("committed", "it read only the"), ("uncommitted", "every range")]
)
def test_a_mark_that_looked_at_a_part_says_so(
    marked: Site, spark: Session, mode: str, said: str
) -> None:
    _mark_outside(marked, spark, f"u-{mode}", mode=mode, **_AS_THERE)
    found = _usage("--run", f"u-{mode}")
    assert found["mode"] == mode
    assert any(said in sentence for sentence in found["covers"])
    assert found["problems"] == []
    if mode == "uncommitted":
        assert set(_rows(found, "only_bytes")) >= {"main", "no branch"}
        assert not any(row.get("freed_bytes") for row in found["rows"])
    else:
        # It did not look at what branches hold, and knows not what deleting one would free.
        assert found["rows"] == []
    shown = lakegc("usage", REPOSITORY, "--run", f"u-{mode}").stdout
    assert "deleting a branch frees these bytes" not in shown
    assert ("live and committed, by branch" in shown) is (mode != "committed")


def test_what_a_sweep_deleted_is_a_class_of_its_own_where_it_was_listed_before(
    marked: Site, spark: Session
) -> None:
    marked.client.set_gc_rules(REPOSITORY, 10, {"main": 100})
    ctx = _mark_outside(marked, spark, "u6", **_AS_THERE)
    assert _usage("--run", "u6")["gone"] == {"objects": 0, "bytes": 0}
    sweep(ctx)
    swept = marked.root.attempt(REPOSITORY, "u6").manifest("swept_set").facts["outcomes"]
    assert _usage("--run", "u6")["gone"] == swept["deleted"]
    since = "since then: mark u6 was swept on "
    say(lakegc("usage", REPOSITORY, "--run", "u6"), 0, "garbage: ", since)
    _mark_outside(marked, spark, "u7", **_AS_THERE)
    found = _usage("--run", "u7")
    totals = {row["class"]: row["objects"] for row in found["classes"]}
    assert totals["swept since"] == swept["deleted"]["objects"] > 0
    assert "garbage" not in totals
    assert found["problems"] == []


def test_a_repository_without_commits_and_rules_has_nothing_to_attribute(
    marked: Site, spark: Session
) -> None:
    marked.calendar.days_ago = 0
    marked.client.create_repository("empty", "local://empty")
    _mark_outside(marked, spark, "e1", "empty")
    result = lakegc("usage", "empty")
    say(result, 0, "listed", "every range below _lakefs/")
    assert "do not add up" not in result.output
    say(lakegc("usage", "delta"), 3, "repository 'delta' has no mark")


@pytest.mark.parametrize(
    ("repository", "date", "made"),
    [
        pytest.param(
            "late", 1_795_236_038_000, "9999-12-31T23:59:59+00:00", marks=pytest.mark.conformance
        ),
        ("early", -(10**13), "0001-01-01T00:00:00+00:00"),
    ],
)
def test_a_commit_of_a_date_that_no_calendar_has_is_told_all_the_same(
    marked: Site, spark: Session, repository: str, date: int, made: str
) -> None:
    """Clients tell the date of a commit, in milliseconds for one."""
    client = marked.client
    marked.calendar.days_ago = 3
    client.create_repository(repository, f"local://{repository}")
    client.set_gc_rules(repository, 10, {})
    client.upload_object(repository, "main", "a", b"a")
    client.commit_branch(repository, "main", "of another time", date=date)
    marked.calendar.days_ago = 0
    _mark_outside(marked, spark, "m", repository)
    (row,) = json.loads(lakegc("usage", repository, "--by", "commit", "--json").stdout)["rows"]
    assert (row["objects"], row["made"]) == (1, made)
