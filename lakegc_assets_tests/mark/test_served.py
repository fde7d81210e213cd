"""What lakeFS serves without listing it is found, or spared where it cannot be asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.decode import etag_hash
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.lakefs.errors import NotFoundError
from lakegc_assets.mark import served
from lakegc_assets.mark.candidates import find_candidates
from lakegc_assets.mark.served import UNVERIFIED, comparable_until, served_candidates
from lakegc_assets_tests import recorded
from lakegc_assets_tests.mark.conftest import Goldens


def test_what_exceeds_the_budget_is_spared(golden: Goldens, tmp_path: Path) -> None:
    first = golden("identical").marked
    four = {address for address, why in first.spared.items() if why == "lakeFS serves it"}
    assert len(four) == 4
    marked = recorded.rewind(first, tmp_path, "deletion_candidates", max_served_lookups=0)
    asked = len(golden("identical").server.asked("GET", r".*/objects/.*"))
    manifest = find_candidates(marked.ctx)
    # What a diff names is asked for in any case: here one page for the one staged path.
    assert len(golden("identical").server.asked("GET", r".*/objects/.*")) == asked + 1
    assert marked.candidates < recorded.expected("identical")
    assert four <= marked.spared.keys()
    assert set(marked.spared.values()) == {UNVERIFIED}
    assert manifest.facts["spared"] == {UNVERIFIED: len(marked.spared)}


def keeper(spark: SparkSession, folder: Path) -> Callable[[DataFrame, str], DataFrame]:
    def keep(frame: DataFrame, name: str) -> DataFrame:
        frame.write.parquet(str(folder / name))
        return spark.read.parquet(str(folder / name))

    return keep


def test_etags_that_are_no_checksums_are_not_compared(
    golden: Goldens, spark: SparkSession, tmp_path: Path
) -> None:
    marked = golden("identical").marked
    attempt = marked.attempt
    # A store that encrypts with managed keys gives etags that are no MD5 of the content.
    encrypted = F.md5(F.concat(F.col("address"), F.lit("key")))
    listing = attempt.read(spark, "store_listing").withColumn("etag", encrypted)
    unlisted = attempt.read(spark, "deletion_candidates", "unlisted").withColumn("etag", encrypted)
    heads = attempt.read(spark, "active_commits", "heads")
    _, connections = marked.ctx.connect()
    keep = keeper(spark, tmp_path)
    found = served_candidates(marked.ctx, connections, unlisted, listing, heads, keep).collect()
    assert {row["address"]: row["why"] for row in found} == marked.spared


def test_etags_are_comparable_only_if_all_agree(spark: SparkSession) -> None:
    columns = "address string, size long, last_modified timestamp, etag string"
    rows = [
        ("data/1", 1, recorded.mark_time("small"), "a" * 32),
        ("data/2", 1, recorded.mark_time("retention"), "b" * 32),
        ("data/not-at-a-head", 1, recorded.mark_time("identical"), "c" * 32),
    ]
    listing = spark.createDataFrame(rows, columns)

    def until(*entries: tuple[str, bool, str]) -> float | None:
        hashed = [(address, known, etag_hash(etag)) for address, known, etag in entries]
        frame = spark.createDataFrame(hashed, "address string, resolved boolean, etag_hash long")
        found = comparable_until(listing, frame)
        return None if found is None else found.timestamp()

    first, second = ("data/1", True, "a" * 32), ("data/2", True, "b" * 32)
    times = [row[2].timestamp() for row in rows[:2]]
    assert until(first, second) == pytest.approx(max(times))
    assert until(first) == pytest.approx(times[0])
    assert until(first, ("data/2", True, "x" * 32)) is None
    assert until(first, ("data/2", False, "x" * 32)) == pytest.approx(times[0])
    assert until(("data/elsewhere", True, "a" * 32)) is None
    assert until() is None


# Asking by pages


class Listing:
    """A server with paths, in pages."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = sorted(set(paths), key=str.encode)
        self.calls = 0
        self.refs: set[str] = set()

    def objects_page(
        self, _: str, branch: str, after: str, amount: int
    ) -> tuple[list[SimpleNamespace], bool]:
        self.calls += 1
        self.refs.add(branch)
        if branch == "gone":
            raise NotFoundError("branch not found")
        rest = [path for path in self.paths if path > after]
        page = [SimpleNamespace(path=p, physical_address=f"at {p}") for p in rest[:amount]]
        return page, len(rest) > amount

    def branches(self, _: str) -> list[SimpleNamespace]:
        return [SimpleNamespace(id="main")]


def page_of(listing: Listing) -> served._Page:
    return served._Page(cast("LakeFSClient", listing), "repo")


PATHS = st.lists(st.text("ab\0\uffff/", min_size=1, max_size=4), max_size=20)


@settings(max_examples=200)
@given(PATHS, PATHS, st.integers(1, 4))
def test_each_path_is_answered_as_a_stat_would(
    paths: list[str], asked: list[str], amount: int
) -> None:
    listing = Listing(paths)
    page = page_of(listing)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(served, "_PAGE", amount)
        for path in sorted({*asked, *paths[::2]}):
            expected = f"at {path}" if path in paths else None
            assert page.address("main", path) == expected


def test_one_call_answers_for_many_paths() -> None:
    paths = [f"{number:03}" for number in range(200)]
    listing = Listing(paths)
    page = page_of(listing)
    assert [page.address("main", path) for path in paths] == [f"at {path}" for path in paths]
    assert listing.calls == 2


def test_a_branch_that_is_gone_serves_nothing() -> None:
    assert page_of(Listing(["a"])).address("gone", "a") is None


def test_not_found_from_a_branch_that_exists_stops_the_run() -> None:
    listing = Listing(["a"])
    listing.branches = lambda _: [SimpleNamespace(id="gone")]  # type: ignore[method-assign]
    with pytest.raises(IntegrityError, match="exists, but listing its objects says not found"):
        page_of(listing).address("gone", "a")


@pytest.mark.parametrize("branch", ["1", "add", "20240115", "F" * 64])
def test_a_branch_with_the_name_of_a_commit_is_asked_for_as_a_branch(branch: str) -> None:
    """To lakeFS such a ref is the commit whose id begins so; with a ``$`` it is not."""
    listing = Listing(["a"])
    page_of(listing).address(branch, "a")
    page_of(listing).address("main", "a")
    assert listing.refs == {f"{branch}$", "main"}
