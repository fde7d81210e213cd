"""The expected outcomes of a sweep, in one place for all tests."""

from __future__ import annotations

from collections.abc import Mapping

from lakegc_assets_tests.lake import REPOSITORY, RUN, Marked, SmallLake


def check_swept(lake: SmallLake, marked: Marked, spared: Mapping[str, str]) -> None:
    """One outcome for each candidate; the spared ones, with these reasons, and all else remain."""
    rows = lake.root.attempt(REPOSITORY, RUN).read("swept_set").to_pylist()
    assert sorted(row["address"] for row in rows) == sorted(marked.candidates)
    assert {r["address"]: r["detail"] for r in rows if r["outcome"] == "spared"} == dict(spared)
    others = {r["outcome"] for r in rows if r["address"] not in spared}
    assert others <= {"deleted", "already_missing"}
    assert lake.keys() == marked.live | spared.keys()
