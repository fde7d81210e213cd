"""Each invariant fails on a planted fault and on nothing else; a failed one stops publication."""

from __future__ import annotations

import ast
import dataclasses
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lakegc_assets.checks.evaluation import (
    INVARIANTS,
    NAMES,
    WARNINGS,
    check_candidates,
    read_results,
    require_passed,
)
from lakegc_assets.checks.invariants import Case, CheckResult
from lakegc_assets.checks.listing_check import listing_holds_heads
from lakegc_assets.checks.second_opinion import entries_of_ranges

import lakegc_assets
from lakegc_assets.errors import IntegrityError, RefusedError
from lakegc_assets.mark import invariants
from lakegc_assets.mark.report import report
from lakegc_assets.run.artifacts import Manifest
from lakegc_assets_tests import recorded
from lakegc_assets_tests.mark.conftest import Goldens
from lakegc_assets_tests.recorded import Marked

COLUMNS = "address string, size long, last_modified timestamp, etag string"
LONG_AGO = datetime(2020, 1, 1, tzinfo=timezone.utc)


def case_of(marked: Marked, planted: Iterable[str] = (), **changes: Any) -> Case:
    """What the invariants get: the candidates of a mark, and some more that are none of it.

    Planted addresses that are listed come with their listed size, time and etag.
    """
    ctx, attempt = marked.ctx, marked.attempt
    client, connections = ctx.connect()
    candidates = attempt.read(ctx.spark, "deletion_candidates").select(
        "address", "size", "last_modified", "etag"
    )
    planted = list(planted)
    if planted:
        listing = attempt.read(ctx.spark, "store_listing")
        listed = listing.where(listing["address"].isin(planted)).select(candidates.columns)
        known = {row["address"] for row in listed.collect()}
        rows = [(a, 1, LONG_AGO, "0" * 32) for a in planted if a not in known]
        candidates = candidates.unionByName(listed)
        candidates = candidates.unionByName(ctx.spark.createDataFrame(rows, COLUMNS))
    chain = attempt.chain("deletion_candidates", connections.namespace_url)
    given = {"chain": chain, "candidates": candidates, **changes}
    return Case(ctx=ctx, client=client, connections=connections, attempt=attempt, **given)


def fails(result: CheckResult, *, blocking: bool = True) -> str:
    assert (result.passed, result.blocking) == (False, blocking)
    return result.summary


@pytest.fixture
def marked(golden: Goldens) -> Marked:
    return golden("retention").marked


def test_all_but_the_warnings_block(marked: Marked) -> None:
    assert {check.name for check in marked.checks if not check.blocking} == {
        function.__name__ for function in WARNINGS
    }
    assert {f.__name__ for f in WARNINGS} == {"tagged_commits_whole"}
    assert len(marked.checks) == len(INVARIANTS) == len(set(NAMES))


OUTSIDE = [
    "other/never-looked-at",
    "data/",
    "data/a/../b",
    "data/./b",
    "../small/data/b",
    "s3://lab/retention/data/b",
    "",
]


@pytest.mark.parametrize("address", OUTSIDE)
def test_a_candidate_outside_of_the_namespace_is_seen(address: str, marked: Marked) -> None:
    assert repr(address) in fails(invariants.inside_namespace(case_of(marked, [address])))


LAKEFS_OWN = ["_lakefs/dummy", "dummy", "_lakefs", "data/a\nb", "data/a\rb"]
LAKEFS_OWN += ["data/team/_lakefs/0123abcd", "data/_lakefs/x", "data/team/dummy", "data/dummy"]


@pytest.mark.parametrize("address", LAKEFS_OWN)
def test_a_candidate_that_is_lakefs_own_is_seen(address: str, marked: Marked) -> None:
    assert repr(address) in fails(invariants.not_special(case_of(marked, [address])))


def test_a_candidate_that_was_not_listed_is_seen(marked: Marked) -> None:
    case = case_of(marked, ["data/never-listed"])
    assert "'data/never-listed'" in fails(invariants.older_than_cutoff(case))


def test_a_candidate_as_old_as_the_cutoff_is_seen(marked: Marked) -> None:
    case = case_of(marked)
    rows = case.candidates.orderBy("last_modified").collect()
    newest: datetime = rows[-1]["last_modified"].astimezone(timezone.utc)

    def at(cutoff: datetime) -> CheckResult:
        listing = replace(case.chain["store_listing"], cutoff=cutoff)
        return invariants.older_than_cutoff(
            case_of(marked, chain={**case.chain, "store_listing": listing})
        )

    assert "is not older than the cutoff" in fails(at(newest))
    assert at(newest + timedelta(microseconds=1)).passed


def test_a_share_above_the_limit_is_seen(marked: Marked) -> None:
    listed = marked.manifests["store_listing"].rows
    share = len(marked.candidates) / listed

    def limited(now: float, at_the_mark: float = 0.0) -> CheckResult:
        ctx = marked.ctx
        ctx = replace(ctx, settings=replace(ctx.settings, max_candidate_share=now))
        case = case_of(replace(marked, ctx=ctx))
        manifest = case.chain["deletion_candidates"]
        settings = {**manifest.settings, "max_candidate_share": at_the_mark}
        chain = {**case.chain, "deletion_candidates": replace(manifest, settings=settings)}
        return invariants.candidate_share(replace(case, chain=chain))

    assert limited(share).passed
    assert "max_candidate_share" in fails(limited(share - 0.001))
    assert limited(0.0, at_the_mark=share).passed, "the sweep of an approved mark is approved"


def test_a_candidate_that_a_head_holds_is_seen(marked: Marked) -> None:
    case = case_of(marked)
    held = sorted(row[0] for row in case.head_entries.select("address").collect() if row[0])
    case.close()
    case = case_of(marked, [held[0]])
    assert repr(held[0]) in fails(invariants.none_head_reachable(case))
    case.close()


def test_a_candidate_that_is_staged_is_seen(marked: Marked) -> None:
    staged = sorted(marked.addresses("uncommitted_snapshot"))
    inside = next(address for address in staged if address.startswith("data/"))
    assert repr(inside) in fails(invariants.none_staged(case_of(marked, [inside])))


@pytest.mark.parametrize("relative", ["data/a b", "data/a%20b", "data/plain"])
def test_a_candidate_that_is_staged_under_its_full_address_is_seen(
    relative: str, marked: Marked
) -> None:
    sink = pa.BufferOutputStream()
    full = ["s3a://lab/retention/data/a%20b", "s3://lab/retention/data/plain", "s3://lab/other/x"]
    pq.write_table(pa.table({"physical_address": full}), sink)
    (key,) = marked.manifests["uncommitted_snapshot"].facts["files"]
    with recorded.preserved("retention"):
        recorded.plant("retention", key, sink.getvalue().to_pybytes())
        case = case_of(marked, [relative])
        assert repr(relative) in fails(invariants.none_staged(case))
        assert invariants.none_staged(case_of(marked)).passed


def test_a_candidate_that_lakefs_serves_is_seen(golden: Goldens) -> None:
    marked = golden("identical").marked
    served = [address for address, why in marked.spared.items() if why == "lakeFS serves it"]
    assert len(served) == 4
    for address in served:
        case = case_of(marked, [address])
        assert repr(address) in fails(invariants.none_shadowed(case))
        assert invariants.none_staged(case).passed, "no list names it"
        case.close()


def head_and_other(marked: Marked) -> tuple[str, str]:
    frame = marked.attempt.read(marked.ctx.spark, "active_commits")
    kinds = {row["kind"]: row["commit_id"] for row in frame.collect()}
    return kinds["head"], kinds["replaced inside"]


@pytest.mark.parametrize("which", [0, 1], ids=["a HEAD", "a commit inside its retention"])
def test_an_active_commit_that_is_missing_is_seen(
    which: int, marked: Marked, tmp_path: Path
) -> None:
    lost = head_and_other(marked)[which]
    chain = case_of(marked).chain
    copy = recorded.rewind(marked, tmp_path)
    recorded.rewrite(
        copy.ctx, "active_commits", "data", lambda rows: [r for r in rows if r["commit_id"] != lost]
    )
    ctx = copy.ctx
    client, connections = ctx.connect()
    frame = ctx.spark.createDataFrame([], COLUMNS)
    case = Case(ctx, client, connections, copy.attempt, chain, frame)
    assert lost in fails(invariants.active_commits_complete(case))


def test_a_tagged_commit_that_loses_an_object_is_a_warning(
    golden: Goldens, marked: Marked, tmp_path: Path
) -> None:
    copy = recorded.rewind(marked, tmp_path)
    chain = case_of(marked).chain
    recorded.rewrite(
        copy.ctx, "active_commits", "tags", lambda rows: [{**r, "active": False} for r in rows]
    )
    log = golden("retention").server.recording
    tagged = log.commits[log.refs["v1"]]["meta_range_id"]
    ctx = copy.ctx
    ranges = copy.attempt.read(ctx.spark, "committed_addresses", "metaranges")
    ids = [r["range_id"] for r in ranges.collect() if r["metarange_id"] == tagged]
    client, connections = ctx.connect()
    entries = entries_of_ranges(
        connections, ctx.spark.createDataFrame([(i,) for i in ids], "range_id string"), 1
    )
    held = [row["address"] for row in entries.collect() if row["address"]]

    def losing(addresses: list[str]) -> CheckResult:
        rows = [(address, 1, LONG_AGO, "") for address in addresses]
        frame = ctx.spark.createDataFrame(rows, COLUMNS)
        return invariants.tagged_commits_whole(
            Case(ctx, client, connections, copy.attempt, chain, frame)
        )

    assert "{'v1': 2}" in fails(losing([*held[:2], "data/another"]), blocking=False)
    assert losing(["data/another"]).passed
    # What is only a warning does not stop a run.
    others = [check for check in marked.checks if check.name != "tagged_commits_whole"]
    require_passed([*others, losing(held[:1])])


# The listing


@dataclasses.dataclass
class Incomplete:
    """A mark whose listing lacks objects that HEADs hold."""

    marked: Marked
    chain: Any
    lost: list[str]

    def judge(self, **settings: Any) -> CheckResult:
        ctx = self.marked.ctx
        ctx = replace(ctx, settings=replace(ctx.settings, **settings))
        client, connections = ctx.connect()
        empty = ctx.spark.createDataFrame([], COLUMNS)
        case = Case(ctx, client, connections, self.marked.attempt, self.chain, empty)
        try:
            return listing_holds_heads(case)
        finally:
            case.close()


@pytest.fixture
def incomplete(golden: Goldens, tmp_path: Path) -> Iterator[Incomplete]:
    marked = golden("small").marked
    case = case_of(marked)
    held = sorted({row[0] for row in case.head_entries.select("address").collect()})
    case.close()
    lost = held[:2]
    copy = recorded.rewind(marked, tmp_path)
    recorded.rewrite(
        copy.ctx,
        "store_listing",
        "data",
        lambda rows: [r for r in rows if r["address"] not in lost],
    )
    with recorded.preserved("small"):
        yield Incomplete(copy, case.chain, lost)


def test_a_listing_that_lacks_what_the_store_has_is_seen(incomplete: Incomplete) -> None:
    summary = fails(incomplete.judge())
    assert "2 objects that branch HEADs name are not in the listing" in summary
    assert "the store has them" in summary
    digest = incomplete.judge().facts["digest"]
    assert "the store has them" in fails(incomplete.judge(accept_missing=digest))


def test_objects_that_are_lost_can_be_accepted_once(incomplete: Incomplete) -> None:
    for address in incomplete.lost:
        recorded.remove("small", address)
    result = incomplete.judge()
    digest = result.facts["digest"]
    assert f"accept_missing={digest}" in fails(result)
    assert not incomplete.judge(accept_missing="2-0").passed
    assert incomplete.judge(accept_missing=digest).passed
    assert incomplete.judge().passed, "what was accepted is remembered"


def test_what_lakefs_collected_before_is_not_missed(incomplete: Incomplete) -> None:
    for address in incomplete.lost:
        recorded.remove("small", address)
    table = pa.table({"address": incomplete.lost})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    key = "_lakefs/retention/gc/unified/theirs/deleted/part-00000-x.c000.snappy.parquet"
    recorded.plant("small", key, sink.getvalue().to_pybytes())
    assert incomplete.judge().passed
    # The lists of this very mark excuse nothing.
    recorded.remove("small", key)
    recorded.plant("small", key.replace("theirs", "run1"), sink.getvalue().to_pybytes())
    assert not incomplete.judge().passed


def test_a_young_entry_need_not_be_listed(incomplete: Incomplete) -> None:
    assert incomplete.judge(clock_skew=timedelta(days=365)).passed


# What stands on the results


def publishable(marked: Marked, folder: Path) -> tuple[Marked, Manifest, Path]:
    copy = recorded.rewind(marked, folder)
    manifest = copy.attempt.manifest("deletion_candidates")
    return copy, manifest, recorded.folder_of(copy.ctx, "deletion_candidates") / "checks.json"


def refuse(copy: Marked, kind: type[Exception], match: str) -> None:
    with pytest.raises(kind, match=match):
        report(copy.ctx)
    assert not copy.attempt.has("gc_report")


def test_no_report_without_a_check_that_passed_about_these_candidates(
    marked: Marked, tmp_path: Path
) -> None:
    copy, manifest, path = publishable(marked, tmp_path)
    record = json.loads(path.read_text())
    assert record["candidates"] == manifest.sha256

    def store(**changes: Any) -> None:
        path.write_text(json.dumps({**record, **changes}))

    for index, result in enumerate(record["results"]):
        others = [r for i, r in enumerate(record["results"]) if i != index]
        store(results=others)
        refuse(copy, RefusedError, f"these checks were not evaluated: {result['name']}")
        if result["blocking"]:
            store(results=[*others, {**result, "passed": False, "summary": "planted"}])
            refuse(copy, RefusedError, f"{result['name']}: planted")
    store(candidates="0" * 64)
    refuse(copy, RefusedError, "about other candidates")
    for damaged in ("", "{", "[]", "{}", '{"candidates": 1, "results": [{"name": 1}]}'):
        path.write_text(damaged)
        refuse(copy, IntegrityError, "is damaged")
    path.unlink()
    refuse(copy, RefusedError, "were not run: nothing is published without them")


def test_results_are_read_as_they_were_kept(marked: Marked) -> None:
    manifest = marked.attempt.manifest("deletion_candidates")
    assert read_results(marked.attempt, manifest) == marked.checks


def test_changed_candidates_are_neither_checked_nor_published(
    marked: Marked, tmp_path: Path
) -> None:
    copy, _, _ = publishable(marked, tmp_path)
    recorded.rewrite(
        copy.ctx,
        "deletion_candidates",
        "data",
        lambda rows: [{**rows[0], "address": "data/another"}, *rows[1:]],
    )
    for stage in (report, check_candidates):
        with pytest.raises(IntegrityError, match="are not those that its manifest names"):
            stage(copy.ctx)


# Independence


SECOND = [
    "mark.invariants",
    "mark.second_opinion",
    "mark.listing_check",
    "retention.naive",
    "graveler.sstable",
    "graveler.entry",
    "graveler.ranges",
]
FAST = {
    "mark.ranges",
    "mark.cache",
    "mark.candidates",
    "mark.served",
    "mark.commits",
    "mark.committed",
    "mark.addresses",
    "mark.uncommitted",
    "graveler.decode",
    "graveler.decode_kernels",
    "retention.active_commits",
}
PACKAGE = Path(lakegc_assets.__file__).parent


def imported(module: str) -> set[str]:
    """Modules of this package that a module names in an import, in functions too."""
    tree = ast.parse((PACKAGE / f"{module.replace('.', '/')}.py").read_text())
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    found = {name.removeprefix("lakegc_assets.") for name in names if "lakegc_assets." in name}
    return {n for n in found if (PACKAGE / f"{n.replace('.', '/')}.py").is_file()}


def reached(module: str) -> set[str]:
    found: set[str] = set()
    waiting = {module}
    while waiting:
        found |= waiting
        waiting = {name for each in waiting for name in imported(each)} - found
    return found


@pytest.mark.parametrize("module", SECOND)
def test_the_second_opinion_shares_nothing_with_the_mark(module: str) -> None:
    assert reached(module) & FAST == set()


def test_the_walk_over_imports_sees_what_is_there() -> None:
    assert reached("mark.served") >= {"graveler.decode", "graveler.decode_kernels", "mark.ranges"}
    assert {m for m in FAST if (PACKAGE / f"{m.replace('.', '/')}.py").is_file()} == FAST
