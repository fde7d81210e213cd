"""Each invariant fails on a planted fault and on nothing else; a failed one stops publication."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import islice
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakegc_assets.checks import invariants
from lakegc_assets.checks.context import EXAMPLES, Case, CheckResult
from lakegc_assets.checks.invariants import (
    INVARIANTS,
    NAMES,
    WARNINGS,
    check_candidates,
    evaluate,
    read_results,
    requests_of,
    require_passed,
)
from lakegc_assets.checks.logged_commits import kept_commits, main_ancestries
from lakegc_assets.engine.datasets import read_parts, write_part
from lakegc_assets.errors import IntegrityError, RefusedError
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.lakefs.models import Branch, Commit
from lakegc_assets.mark.report import report
from lakegc_assets.retention.naive_active_commits import naive_active_commits
from lakegc_assets.retention.retain_rules import OfBranches, Retain
from lakegc_assets.retention.rules import MAX_DAYS, Rules
from lakegc_assets.run.pins import PINS, Pin, write_pin
from lakegc_assets_tests.checks.conftest import Labs
from lakegc_assets_tests.checks.handmade import SETTINGS, Changes, Lab, Row, fails
from lakegc_assets_tests.sessions import Session


@pytest.mark.parametrize("repository", ["retention", "small", "identical"])
def test_a_right_mark_passes_in_few_steps(repository: str, labs: Labs) -> None:
    marked = labs(repository).mark()
    results = check_candidates(marked.ctx)
    assert [result.name for result in results if not result.passed] == []
    assert tuple(result.name for result in results) == NAMES
    assert len(results) == len(INVARIANTS) == len(set(NAMES))
    assert [result.name for result in results if not result.blocking] == ["tagged_commits_whole"]
    assert [function.__name__ for function in WARNINGS] == ["tagged_commits_whole"]
    assert len(marked.calls) == len(set(marked.calls))
    # Of an object at the root a client has declared another size.
    more = ["count sizes that differ"] if repository == "retention" else []
    most = ["find what is not listed"] if repository == "retention" else []
    # Tasks and computations; one of them only where lakeFS is asked what it serves.
    assert [call for call in marked.calls if call != "check what is served"] == [
        "check what lakeFS names",
        "check what HEADs hold",
        "check what is listed",
        *more,
        "check entries that look like candidates",
        "check candidates",
        *most,
    ]
    # Nothing that was written is left.
    assert list(marked.attempt.store().list("deletion_candidates/checking/")) == []
    # Read from the cache, ranges are the same.
    assert evaluate(marked.ctx)[:-1] == results[:-1]


@pytest.mark.conformance
@pytest.mark.parametrize("repository", ["retention", "identical"])
def test_every_planted_candidate_is_seen_on_spark(
    repository: str, labs: Labs, spark: Session
) -> None:
    lab = labs(repository)
    marked = lab.mark()
    on_spark = replace(marked.ctx, settings=SETTINGS.changed(engine="spark"), session=spark)
    assert [r.name for r in evaluate(on_spark) if not r.passed] == []
    held = min(lab.held(lab.heads["main"]))
    staged = min(a for a in staged_addresses(lab) if a.startswith("data/"))
    planted = ["other/x", "data/dummy", "data/never-listed", held, staged, *served_by(lab)]
    whole = marked.manifest("deletion_candidates").parts["data"]
    results = evaluate(on_spark, [*whole, *marked.plant(planted)])
    shown = {
        "inside_namespace": "other/x",
        "not_special": "data/dummy",
        "older_than_cutoff": "data/never-listed",
        "none_head_reachable": held,
        "none_staged": staged,
        # What a HEAD holds is served, too.
        "none_shadowed": min(served_by(lab) or [held]),
    }
    for name, address in shown.items():
        assert repr(address) in fails(require(results, name))


def staged_addresses(lab: Lab) -> set[str]:
    lists = [pq.read_table(lab.golden / "prepare" / "files" / key) for key in lab.lists]
    return {a for table in lists for a in table["physical_address"].to_pylist()}


def served_by(lab: Lab) -> list[str]:
    """Addresses that nothing tells of but what lakeFS serves."""
    if lab.repository != "identical":
        return []
    held = {a for commit in lab.heads.values() for a in lab.held(commit)}
    known = held | staged_addresses(lab) | {row["address"] for row in lab.candidates}
    listed = [row["address"] for row in lab.listing]
    return sorted(a for a in listed if a.startswith("data/") and a not in known)


def test_a_size_that_was_wrong_tells_of_others_where_the_object_was_swept_since(
    labs: Labs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its path may be served from a new upload, of which nothing else tells."""
    marked = labs("retention").mark()
    case = marked.case()
    found = pa.concat_tables(read_parts(case.attempt.store(), case.unlike)).to_pylist()
    (wrong,) = (row["address"] for row in found if row["listed"] is not None)
    asked = sum(part.rows for part in case.questions)
    monkeypatch.setattr(
        Case, "there", property(lambda self: self.store.where(f"address <> '{wrong}'"))
    )
    swept = marked.case()
    assert sum(part.rows for part in swept.questions) == asked > 0
    rows = pa.concat_tables(read_parts(swept.attempt.store(), swept.unlike)).to_pylist()
    assert {"address": wrong, "listed": None} in rows


def test_a_sweep_is_judged_by_what_it_is_about_to_delete(lab: Lab) -> None:
    marked = lab.mark()
    bad = marked.plant(["data/never-listed"])
    parts = marked.manifest("deletion_candidates").parts["data"]
    assert not require(evaluate(marked.ctx, [*parts, *bad]), "older_than_cutoff").passed
    assert require(evaluate(marked.ctx, parts), "older_than_cutoff").passed
    share = require(evaluate(marked.ctx, bad), "candidate_share")
    assert share.facts["candidates"] == 1


def require(results: list[CheckResult], name: str) -> CheckResult:
    return next(result for result in results if result.name == name)


def fails_for(result: CheckResult, addresses: Collection[str]) -> None:
    """A check fails for each of these candidates, and for no other one."""
    summary = fails(result)
    assert result.facts["count"] == len(addresses)
    examples = result.facts["examples"]
    assert len(examples) == min(EXAMPLES, len(addresses))
    assert set(examples) <= set(addresses)
    assert all(repr(address) in summary for address in examples)


OUTSIDE = [
    "other/never-looked-at",
    "data/",
    "data/a/../b",
    "data/./b",
    "data/table/data/00000-1.parquet",
    "../small/data/b",
    "s3://lab/retention/data/b",
    "",
]


def test_each_candidate_outside_of_the_namespace_is_seen(lab: Lab) -> None:
    fails_for(invariants.inside_namespace(lab.mark().case(OUTSIDE)), OUTSIDE)


LAKEFS_OWN = ["_lakefs/dummy", "dummy", "_lakefs", "data/a\nb", "data/a\rb"]
LAKEFS_OWN += ["data/team/_lakefs/0123abcd", "data/_lakefs/x", "data/team/dummy", "data/dummy"]


def test_each_candidate_that_is_lakefs_own_is_seen(lab: Lab) -> None:
    fails_for(invariants.not_special(lab.mark().case(LAKEFS_OWN)), LAKEFS_OWN)


def test_a_candidate_without_a_name_is_seen(lab: Lab) -> None:
    marked = lab.mark()
    rows = pa.table(
        {
            "address": pa.array([None], pa.string()),
            "size": pa.array([1], pa.int64()),
            "etag": pa.array(["a"], pa.string()),
        }
    )
    written = write_part(marked.attempt.store(), "planted/", rows)
    case = replace(marked.case(), parts=[written])
    assert "[None]" in fails(invariants.inside_namespace(case))


def test_a_candidate_that_was_not_listed_is_seen(lab: Lab) -> None:
    case = lab.mark().case(["data/never-listed"])
    assert "'data/never-listed'" in fails(invariants.older_than_cutoff(case))


def test_a_candidate_as_old_as_the_cutoff_is_seen(lab: Lab) -> None:
    marked = lab.mark()
    newest = max(row["last_modified"] for row in lab.candidates)

    def at(cutoff: Any) -> CheckResult:
        chain = {"store_listing": replace(marked.manifest("store_listing"), cutoff=cutoff)}
        return invariants.older_than_cutoff(marked.case(chain=chain))

    assert "is not older than the cutoff" in fails(at(newest))
    assert at(newest + timedelta(microseconds=1)).passed


def test_a_candidate_that_is_listed_twice_is_as_young_as_the_youngest(lab: Lab) -> None:
    again = {**lab.candidates[0], "last_modified": lab.now}
    marked = lab.mark(changes={("store_listing", "data"): lambda rows: [*rows, again]})
    assert repr(again["address"]) in fails(invariants.older_than_cutoff(marked.case()))


def test_a_share_above_the_limit_is_seen(lab: Lab) -> None:
    marked = lab.mark()
    listed = marked.manifest("store_listing").rows
    share = len(lab.candidates) / listed

    def limited(now: float, at_the_mark: float = 0.0) -> CheckResult:
        manifest = marked.manifest("deletion_candidates")
        settings = {**manifest.settings, "max_candidate_share": at_the_mark}
        chain = {"deletion_candidates": replace(manifest, settings=settings)}
        return invariants.candidate_share(marked.case(chain=chain, max_candidate_share=now))

    assert limited(share).passed
    assert "max_candidate_share" in fails(limited(share - 0.001))
    assert ", more than the limit of 0.4%. " in fails(limited(0.004))
    assert limited(0.0, at_the_mark=share).passed, "the sweep of an approved mark is approved"


def test_candidates_of_an_empty_listing_are_all_of_it(lab: Lab) -> None:
    marked = lab.mark(changes={("store_listing", "data"): lambda _: []})
    assert "(100.0%)" in fails(invariants.candidate_share(marked.case()))


def test_every_candidate_that_a_head_holds_is_seen(lab: Lab) -> None:
    held = sorted(lab.held(lab.heads["main"]))
    marked = lab.mark()
    for addresses in ([held[0], held[-1]], held):
        fails_for(invariants.none_head_reachable(marked.case(addresses)), addresses)


def test_a_list_of_branches_that_ends_early_hides_no_head(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server may end a scan early without a word, behind the default branch for one."""
    listed = LakeFSClient.branches

    def cut(client: LakeFSClient, repository: str, *, after: str = "") -> Iterator[Branch]:
        found = listed(client, repository, after=after)
        return islice(found, 5)

    monkeypatch.setattr(LakeFSClient, "branches", cut)
    others = {a for b, c in lab.heads.items() if b < "sq" for a in lab.held(c)}
    last = lab.held(lab.heads["sq"]) | lab.held(lab.heads["stale"])
    (address, *_) = sorted(last - others)
    result = invariants.none_head_reachable(lab.mark().case([address]))
    assert repr(address) in fails(result)


def test_a_list_of_branches_without_the_default_one_stops_the_run(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        LakeFSClient, "branches", lambda *_, **__: iter([Branch(id="sq", commit_id="c")])
    )
    with pytest.raises(IntegrityError, match="lacks its default branch 'main'"):
        invariants.none_head_reachable(lab.mark().case())


def test_readers_that_disagree_about_a_range_stop_the_run(lab: Lab) -> None:
    (range_id, *_) = lab.ranges(lab.heads["main"])

    def other(rows: list[Row]) -> list[Row]:
        return [{**r, "digest": "0-0"} if r["range_id"] == range_id else r for r in rows]

    def without(rows: list[Row]) -> list[Row]:
        return [r for r in rows if r["range_id"] != range_id]

    ranges = ("committed_addresses", "ranges")
    summary = fails(invariants.none_head_reachable(lab.mark(changes={ranges: other}).case()))
    digest = lab.range_row(range_id)["digest"]
    assert all(part in summary for part in (range_id, "0-0", digest, "backup"))
    marked = lab.mark("run2", {ranges: without})
    assert "did not read 1 range of branch HEADs" in fails(
        invariants.none_head_reachable(marked.case())
    )


def test_what_a_branch_moved_to_since_the_mark_need_not_have_been_read(lab: Lab) -> None:
    """A sweep looks at HEADs as they are now; the mark read those of its day."""
    moved, before = lab.heads["main"], set(lab.ranges(lab.heads["main"]))
    changes = {
        ("active_commits", "data"): lambda rows: [r for r in rows if r["commit_id"] != moved],
        ("committed_addresses", "ranges"): lambda rows: [
            r for r in rows if r["range_id"] not in before
        ],
    }
    others = {i for b, c in lab.heads.items() if c != moved for i in lab.ranges(c)}
    assert before - others, "there is a range that the mark need not have read"
    changes["committed_addresses", "ranges"] = lambda rows: [
        r for r in rows if r["range_id"] not in before - others
    ]
    marked = lab.mark(changes=changes)
    assert invariants.none_head_reachable(marked.case()).passed
    held = sorted(lab.held(moved))
    assert repr(held[0]) in fails(invariants.none_head_reachable(marked.case([held[0]])))


def test_a_candidate_that_is_staged_is_seen(lab: Lab) -> None:
    inside = sorted(address for address in staged_addresses(lab) if address.startswith("data/"))
    assert inside
    fails_for(invariants.none_staged(lab.mark().case(inside)), inside)


def test_a_candidate_that_is_staged_under_another_spelling_is_seen(lab: Lab) -> None:
    spelled = ["data/a b", "data/a%20b", "data/plain", "data/twice", "data/twice//", "é"]
    sink = pa.BufferOutputStream()
    full = ["s3a://lab/retention/data/a%20b", "s3://lab/retention/data/plain", "s3://lab/other/x"]
    # The mark spares what ends like an address that nobody can place: the checks go on.
    full += ["s3://lab/retention/a/../data/x", "mystery://x/y"]
    pq.write_table(pa.table({"physical_address": [*full, "data/twice//", "é"]}), sink)
    (key,) = lab.lists
    lab.put(key, sink.getvalue().to_pybytes())
    marked = lab.mark()
    fails_for(invariants.none_staged(marked.case(spelled)), spelled)
    assert invariants.none_staged(marked.case()).passed


def test_a_candidate_that_lakefs_serves_is_seen(labs: Labs) -> None:
    lab = labs("identical")
    marked = lab.mark()
    served = served_by(lab)
    assert len(served) == 4
    case = marked.case(served)
    fails_for(invariants.none_shadowed(case), served)
    assert invariants.none_staged(case).passed, "no list names it"
    case.close()


def test_a_candidate_that_was_restored_and_is_pinned_is_seen(lab: Lab) -> None:
    marked = lab.mark()
    address = lab.candidates[0]["address"]
    assert invariants.none_pinned(marked.case()).passed
    store, now = marked.case().ctx.connections.store(), datetime.now(timezone.utc)
    other = Pin("other", now + timedelta(days=1), "mark", "restored", 1)
    ended = Pin("ended", now - timedelta(minutes=1), "mark", "restored", 1)
    lasting = Pin("lasting", now + timedelta(days=1), "mark", "restored", 2)
    try:
        write_pin(store, other, pa.array(["data/of/another"]))
        write_pin(store, ended, pa.array([address]))
        assert invariants.none_pinned(marked.case()).passed
        write_pin(store, lasting, pa.array(["data/of/another", address]))
        assert repr(address) in fails(invariants.none_pinned(marked.case()))
    finally:
        for pin in (other, ended, lasting):
            lab.remove(f"{PINS}{pin.id}.parquet")


def test_active_commits_are_counted_as_many_as_there_are(lab: Lab) -> None:
    first = {("active_commits", "heads"): lambda rows: rows[:1]}
    said = invariants.active_commits_complete(lab.mark(changes=first).case()).summary
    assert said.endswith(" active commits hold the HEAD")


@pytest.mark.parametrize("which", ["a HEAD", "a commit inside its retention"])
def test_an_active_commit_that_is_missing_is_seen(which: str, lab: Lab) -> None:
    head = lab.heads["main"]
    parent = lab.server.recording.commits[head]["parents"][0]
    lost = head if which == "a HEAD" else parent
    changes = {("active_commits", "data"): lambda rows: [r for r in rows if r["commit_id"] != lost]}
    # So soon after the last commit its parent is inside any retention.
    at = lab.server.recording.commits[head]["creation_date"] + 60
    start = datetime.fromtimestamp(at, timezone.utc).isoformat()
    marked = lab.mark(changes=changes, start=start)
    assert lost in fails(invariants.active_commits_complete(marked.case()))


def test_a_mark_without_any_active_commit_is_seen(lab: Lab) -> None:
    """No repository is without a HEAD."""
    none: Changes = dict.fromkeys(
        [("active_commits", "heads"), ("active_commits", "data")], lambda _: []
    )
    assert "every one" in fails(invariants.active_commits_complete(lab.mark(changes=none).case()))


def test_a_commit_that_the_mark_was_to_retain_is_seen(lab: Lab) -> None:
    lost = lab.server.recording.refs["v1"]
    changes = {("active_commits", "data"): lambda rows: [r for r in rows if r["commit_id"] != lost]}
    # By then no rule of lakeFS's keeps it.
    marked = lab.mark(changes=changes, start=(lab.now + timedelta(days=9999)).isoformat())
    manifest = marked.manifest("active_commits")
    settings = {**manifest.settings, "retain": {"tags": ["v1"]}}
    chain = {"active_commits": replace(manifest, settings=settings)}
    assert invariants.active_commits_complete(marked.case()).passed
    assert lost in fails(invariants.active_commits_complete(marked.case(chain=chain)))


@pytest.mark.parametrize("version", [0, 1])
def test_a_server_that_logs_all_ancestors_hides_no_main_parent(version: int) -> None:
    """Those before lakeFS knew first parents: a log is left where it comes to a known commit."""
    # The newest first: "merge" is of "fork" into main, whose commit before is "old".
    merged = ("old", "fork") if version else ("fork", "old")
    parents = {"merge": merged, "fork": ("root",), "old": ("root",), "root": ()}
    logs = {"merge": list(parents), "fork": ["fork", "root"], "old": ["old", "root"]}

    def log(_repository: str, ref: str, *, first_parent: bool) -> Iterator[Commit]:
        assert first_parent
        for age, name in enumerate(logs[ref]):
            yield Commit(
                id=name, parents=parents[name], committer="", message="", creation_date=-age,
                meta_range_id="", version=version,
            )  # fmt: skip

    client = cast("LakeFSClient", SimpleNamespace(log=log))
    heads = {"topic": "fork", "main": "merge"}
    for refs in (list(heads.values()), list(heads.values())[::-1]):
        commits = main_ancestries(client, "repo", refs)
        now = datetime.now(timezone.utc)
        assert naive_active_commits(commits, heads, Rules(MAX_DAYS), now) == parents.keys()
    last = Retain(branches={"main": OfBranches(last_commits=2)})
    assert kept_commits(client, "repo", heads, {}, last) == {"merge", "old"}


def test_a_tagged_commit_that_loses_an_object_is_a_warning(lab: Lab) -> None:
    inactive = {("active_commits", "tags"): lambda rows: [{**r, "active": False} for r in rows]}
    marked = lab.mark(changes=inactive)
    tagged = lab.server.recording.refs["v1"]
    held = sorted(lab.held(tagged))

    def losing(addresses: list[str]) -> CheckResult:
        return invariants.tagged_commits_whole(marked.case(addresses, only=True))

    losses = losing([*held[:2], "data/another"])
    assert "tagged commits lose objects" in fails(losses, blocking=False)
    assert losses.facts["tags"]["v1"] == 2
    assert losing(["data/another"]).passed
    # What is only a warning does not stop a run.
    others = [check for check in evaluate(lab.mark("run2").ctx) if check.name != losses.name]
    require_passed([*others, losses])


def test_no_report_without_a_check_that_passed_about_these_candidates(lab: Lab) -> None:
    marked = lab.mark()
    check_candidates(marked.ctx)
    manifest, store = marked.manifest("deletion_candidates"), marked.attempt.store()
    key = "deletion_candidates/checks.json"
    record = json.loads(store.get(key))
    assert record["candidates"] == manifest.sha256

    def refuse(kind: type[Exception], match: str) -> None:
        with pytest.raises(kind, match=match):
            report(marked.ctx)
        assert not marked.attempt.has("gc_report")

    def keep(**changes: Any) -> None:
        store.put(key, json.dumps({**record, **changes}).encode())

    for index, result in enumerate(record["results"]):
        others = [r for i, r in enumerate(record["results"]) if i != index]
        keep(results=others)
        refuse(RefusedError, f"these checks were not evaluated: {result['name']}")
        if result["blocking"]:
            keep(results=[*others, {**result, "passed": False, "summary": "planted"}])
            refuse(RefusedError, f"{result['name']}: planted")
    keep(candidates="0" * 64)
    refuse(RefusedError, "are of other candidates")
    for damaged in (
        "",
        "{",
        "[]",
        "{}",
        '{"candidates": 1, "results": [{"name": 1}]}',
        "[" * 100_000,
    ):
        store.put(key, damaged.encode())
        refuse(IntegrityError, "is damaged")
        assert requests_of(marked.attempt) == 0
    store.delete_many([key])
    refuse(RefusedError, "were not run: nothing is published without them")


def test_results_are_read_as_they_were_kept(lab: Lab) -> None:
    marked = lab.mark()
    results = check_candidates(marked.ctx)
    assert read_results(marked.attempt, marked.manifest("deletion_candidates")) == results
