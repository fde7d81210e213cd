"""A listing that lacks what HEADs name stops a run, unless it is known to be gone."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakegc_assets.checks.context import CheckResult
from lakegc_assets.checks.listing_check import listing_holds_heads
from lakegc_assets_tests.checks.conftest import Labs
from lakegc_assets_tests.checks.handmade import Lab, Marked, fails


@dataclasses.dataclass
class Incomplete:
    """A mark whose listing lacks objects that HEADs hold."""

    lab: Lab
    marked: Marked
    lost: list[str]

    def judge(self, **settings: Any) -> CheckResult:
        case = self.marked.case(only=True, **settings)
        try:
            return listing_holds_heads(case)
        finally:
            case.close()


@pytest.fixture
def incomplete(labs: Labs) -> Incomplete:
    lab = labs("small")
    lost = sorted(lab.held(lab.heads["main"]))[:2]
    changes = {
        ("store_listing", "data"): lambda rows: [r for r in rows if r["address"] not in lost]
    }
    return Incomplete(lab, lab.mark(changes=changes), lost)


def test_a_listing_that_lacks_what_the_store_has_is_seen(incomplete: Incomplete) -> None:
    summary = fails(incomplete.judge())
    assert "2 objects that branch HEADs name are not in the listing" in summary
    assert "the store has them" in summary
    digest = incomplete.judge().facts["digest"]
    assert "the store has them" in fails(incomplete.judge(accept_missing=digest))


def test_objects_that_are_lost_can_be_accepted_once(incomplete: Incomplete) -> None:
    for address in incomplete.lost:
        incomplete.lab.remove(address)
    result = incomplete.judge()
    digest = result.facts["digest"]
    assert f"--accept-missing {digest} (setting accept_missing)" in fails(result)
    assert result.facts["examples"] == incomplete.lost
    assert not incomplete.judge(accept_missing="2-0").passed
    assert incomplete.judge(accept_missing=digest).passed
    result = incomplete.judge()
    assert result.passed, "what was accepted is remembered"
    assert "earlier runs" not in result.summary


def test_what_lakefs_collected_before_is_not_missed(incomplete: Incomplete) -> None:
    for address in incomplete.lost:
        incomplete.lab.remove(address)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"address": incomplete.lost}), sink)
    key = "_lakefs/retention/gc/unified/theirs/deleted/part-00000-x.c000.snappy.parquet"
    incomplete.lab.put(key, sink.getvalue().to_pybytes())
    result = incomplete.judge()
    assert result.passed
    assert f"{incomplete.lost[0]!r} (run theirs)" in result.summary
    # The lists of this very mark excuse nothing.
    incomplete.lab.remove(key)
    incomplete.lab.put(key.replace("theirs", "run1"), sink.getvalue().to_pybytes())
    assert not incomplete.judge().passed


def test_what_a_sweep_deleted_before_is_not_missed(incomplete: Incomplete) -> None:
    for address in incomplete.lost:
        incomplete.lab.remove(address)
    first, second = incomplete.lost
    incomplete.lab.sweep("earlier", {first: "deleted", second: "already_missing"})
    result = incomplete.judge()
    assert result.passed
    assert (
        f"2 objects that branch HEADs name were deleted by earlier runs, for example {first!r} "
        f"(run earlier), {second!r} (run earlier): restore" in result.summary
    )
    assert result.facts["deleted_before"] == 2
    incomplete.lab.sweep("earlier", {first: "deleted", second: "spared"})
    result = incomplete.judge()
    assert repr(second) in fails(result)
    assert "1 object that branch HEADs name was deleted by earlier runs" in result.summary


def test_a_young_entry_need_not_be_listed(incomplete: Incomplete) -> None:
    assert incomplete.judge(clock_skew_seconds=365 * 86_400).passed


def test_what_is_in_an_unlisted_slice_need_not_be_listed(incomplete: Incomplete) -> None:
    folders = sorted({address.rsplit("/", 1)[0] + "/" for address in incomplete.lost})

    def judged(skipped: list[str]) -> CheckResult:
        manifest = incomplete.marked.manifest("store_listing")
        facts = {**manifest.facts, "skipped_slices": skipped}
        case = incomplete.marked.case(chain={"store_listing": replace(manifest, facts=facts)})
        return listing_holds_heads(case)

    assert judged(folders).passed
    assert not judged(["data/another/"]).passed
