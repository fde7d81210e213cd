"""What lakeFS serves without listing it is found, or spared where it cannot be asked for."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from hashlib import md5
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame

from lakegc_assets.engine.datasets import read_parts, write_part
from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.decode import decode_paths
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.lakefs.errors import NotFoundError
from lakegc_assets.mark import etags, lookups, signatures
from lakegc_assets.mark.candidates import find_candidates
from lakegc_assets.mark.etags import EtagFiles, etag_files
from lakegc_assets.mark.ranges import range_frame
from lakegc_assets.mark.served_candidates import (
    inquire,
    read_compared,
    served_candidates,
)
from lakegc_assets.mark.signature_relations import UNVERIFIED
from lakegc_assets.mark.signatures import CANDIDATES, MATCHES, SIGNATURES, HeadMatches, HeadRanges
from lakegc_assets.run.context import RunContext
from lakegc_assets_tests import recorded
from lakegc_assets_tests.listings import listing_of
from lakegc_assets_tests.mark.conftest import Goldens
from lakegc_assets_tests.recorded import Marked


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


def test_what_may_be_served_at_a_path_that_nobody_can_ask_for_is_spared(
    golden: Goldens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths need not be UTF-8 to lakeFS, and its API tells none that is not."""
    first = golden("identical").marked
    four = {address for address, why in first.spared.items() if why == "lakeFS serves it"}
    marked = recorded.rewind(first, tmp_path, "deletion_candidates")

    def in_latin_1(data: bytes, name: str) -> tuple[pa.RecordBatch, Any]:
        entries, paths = decode_paths(data, name)
        return entries, SimpleNamespace(take=lambda at: [b"\xe9" + p for p in paths.take(at)])

    monkeypatch.setattr(lookups, "decode_paths", in_latin_1)
    find_candidates(marked.ctx)
    assert marked.candidates < recorded.expected("identical")
    assert four <= marked.spared.keys()
    assert set(marked.spared.values()) == {UNVERIFIED}


def encrypted(rows: pa.Table) -> pa.Table:
    """As a store lists them that encrypts with managed keys: etags are no MD5 of the content."""
    return listing_of(
        {**row, "etag": md5(f"{row['address']}key".encode()).hexdigest()}
        for row in rows.to_pylist()
    )


def test_etags_that_are_no_checksums_are_not_compared(golden: Goldens, tmp_path: Path) -> None:
    marked = recorded.rewind(golden("identical").marked, tmp_path, "deletion_candidates")
    store = marked.attempt.store()
    listing = encrypted(marked.attempt.read("store_listing"))
    wanted = pa.array(
        sorted(golden("identical").marked.candidates | set(golden("identical").marked.spared))
    )
    dead = listing.filter(pc.is_in(listing["address"], wanted))
    found, _ = served_candidates(
        marked.ctx.connect(),
        lookups.Inquiry(store.url, "test/", time.time() + 60),
        marked.attempt.read("active_commits", "heads"),
        [write_part(store, "test/", dead)],
        EtagFiles([write_part(store, "test/", listing)]),
    )
    told = {row["address"]: row["why"] for row in found.to_pylist()}
    assert told == golden("identical").marked.spared


@pytest.mark.parametrize(
    "name", ["identical", pytest.param("small", marks=pytest.mark.conformance)]
)
def test_a_sweep_compares_only_ranges_that_its_mark_has_not_compared(
    name: str, golden: Goldens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marked = recorded.rewind(golden(name).marked, tmp_path, "gc_report")
    attempt, store = marked.attempt, marked.attempt.store()
    compared = read_compared(attempt, attempt.manifest("deletion_candidates"))
    heads, dead = attempt.read("active_commits", "heads"), attempt.read("deletion_candidates")
    half = [write_part(store, "test/", dead.select(CANDIDATES.names).slice(0, len(dead) // 2))]
    read: list[str] = []

    def counted(*args: Any) -> DataFrame:
        read.extend(args[2]["range_id"].to_pylist())
        return range_frame(*args)

    monkeypatch.setattr(signatures, "range_frame", counted)

    def matches(known: HeadMatches) -> tuple[set[str], set[tuple[Any, ...]]]:
        read.clear()
        etags = etag_files(attempt.manifest("store_listing"))
        inquiry = lookups.Inquiry(store.url, "test/", time.time() + 60)
        found = inquire(marked.ctx.connect(), inquiry, heads, half, etags, known)
        rows = pa.concat_tables(
            [MATCHES.empty_table(), *read_parts(store, found.signatures.matches)]
        )
        return {*read}, {tuple(row.values()) for row in rows.to_pylist()}

    every, expected = matches(HeadMatches())
    assert every == compared.ranges
    assert expected
    assert matches(compared) == (set(), expected)
    for new in sorted(every):
        others = replace(compared, ranges=compared.ranges - {new})
        again, found = matches(others)
        assert again == {new}
        assert found == expected
    # Where the mark had no etags to compare, the sweep compares anew.
    assert matches(replace(compared, by_etag=not compared.by_etag)) == (every, expected)


# What is read where HEADs do not tell


@dataclass(frozen=True)
class Planted:
    """Dead objects of the size of what a HEAD holds; all but two are younger than all of that."""

    marked: Marked
    dead: set[str]


@pytest.fixture
def twins(golden: Goldens, tmp_path: Path) -> Iterator[Planted]:
    marked = recorded.rewind(golden("small").marked, tmp_path, "store_listing")
    ctx = replace(marked.ctx, settings=marked.ctx.settings.changed(max_served_lookups=0))
    listing = golden("small").marked.attempt.read("store_listing")
    written = max(listing["last_modified"].to_pylist()).replace(microsecond=0)
    ctx = replace(ctx, clocks=recorded.FixedClocks(written + timedelta(seconds=10)), run="twins")
    heads = golden("small").marked.addresses("store_listing") - recorded.expected("small")
    sizes = {row["address"]: row["size"] for row in listing.to_pylist()}
    size = max(sizes[address] for address in heads if address.startswith("data/"))
    is_dead = pc.is_in(listing["address"], pa.array(sorted(recorded.expected("small"))))
    with recorded.preserved("small"):
        # What was recorded are etags and sizes: contents have other etags.
        for row in listing.filter(is_dead).to_pylist():
            body = recorded.content("small", row["address"])
            recorded.plant("small", row["address"], body, row["last_modified"])
        dead = {
            recorded.plant(
                "small", f"twin-{n}", bytes([66 + n]) * size, written + timedelta(seconds=n)
            )
            for n in range(-1, 8)
        }
        yield Planted(replace(marked, ctx=ctx), dead)


def find(marked: Marked) -> Marked:
    for stage in recorded.STAGES:
        stage(marked.ctx)
    return marked


def test_contents_prove_etags_where_heads_do_not(twins: Planted) -> None:
    found = find(twins.marked)
    assert twins.dead <= found.candidates, "no path may be looked up, and none needs to be"
    assert twins.dead.isdisjoint(found.spared)


def test_one_etag_that_is_no_checksum_disproves_all(twins: Planted) -> None:
    """Older ones, too, which the objects at HEADs alone would prove."""
    size = len(recorded.content("small", "twin-7"))
    written = twins.marked.ctx.clocks.now() - timedelta(seconds=3)
    recorded.plant("small", "twin-7", b"Z" * size, written, etag="0" * 32)
    found = find(twins.marked)
    assert twins.dead.isdisjoint(found.candidates)
    assert {found.spared[address] for address in twins.dead} == {UNVERIFIED}


def test_what_lies_in_an_archive_proves_nothing_and_stops_no_mark(twins: Planted) -> None:
    """Life-cycle rules move old objects, dead ones among them, to where nobody can read them."""
    archived = recorded.backend().buckets[recorded.BUCKET].keys["small/twin-7"]
    archived.set_storage_class("DEEP_ARCHIVE")
    found = find(twins.marked)
    assert twins.dead.isdisjoint(found.candidates)
    assert {found.spared[address] for address in twins.dead} == {UNVERIFIED}


def test_an_object_that_was_written_again_gives_no_evidence(twins: Planted) -> None:
    listing = find(twins.marked).attempt.read("store_listing")
    wanted = pa.array(sorted(twins.dead))
    objects = listing.filter(pc.is_in(listing["address"], wanted))
    store = twins.marked.ctx.connect().connections.store()
    newest = max(objects["last_modified"].cast(pa.int64()).to_pylist())
    assert etags.agreement(store, objects) == (True, newest)
    size = len(recorded.content("small", "twin-7"))
    recorded.plant("small", "twin-7", b"Z" * size)
    recorded.remove("small", "twin-6")
    assert etags.agreement(store, objects) == (True, newest - 2_000_000)
    assert etags.agreement(store, objects.filter(pc.equal(objects["address"], "twin-7"))) == (
        None,
        0,
    )


# Asking by pages


class Listing:
    """A server with paths, in pages."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = sorted(set(paths), key=str.encode)
        self.calls = 0
        self.refs: set[str] = set()
        self.shown = len(self.paths)
        self.stats: list[str] = []
        self.lost = {"gone"}

    def stat(self, _: str, branch: str, path: str) -> SimpleNamespace:
        self.stats.append(path)
        if branch in self.lost or path not in self.paths:
            raise NotFoundError("not found")
        return SimpleNamespace(path=path, physical_address=f"at {path}")

    def objects_page(
        self, _: str, branch: str, after: str, amount: int
    ) -> tuple[list[SimpleNamespace], bool]:
        self.calls += 1
        self.refs.add(branch)
        if branch in self.lost:
            raise NotFoundError("branch not found")
        rest = [path for path in self.paths[: self.shown] if path > after]
        page = [SimpleNamespace(path=p, physical_address=f"at {p}") for p in rest[:amount]]
        return page, len(rest) > amount

    def repository(self, repository: str) -> SimpleNamespace:
        if repository in self.lost:
            raise NotFoundError("repository not found")
        return SimpleNamespace(id=repository)

    def branch(self, _: str, branch: str) -> SimpleNamespace:
        if branch in self.lost:
            raise NotFoundError("branch not found")
        return SimpleNamespace(id=branch)


@pytest.mark.parametrize(("objects", "tasks"), [(0, 2), (100_000, 2), (5_000_000, 7)])
def test_reading_diffs_is_as_much_work_as_there_are_staged_objects(
    objects: int, tasks: int
) -> None:
    """By that it is decided whether Spark is worth its start, and how many tasks there are."""
    heads = HeadRanges(
        [], np.empty(0, np.int64), {f"b{n}": np.empty(0, np.int32) for n in range(1000)}
    )
    orders: list[tuple[int, float]] = []

    def run(_what: str, _task: object, inputs: Sequence[object], seconds: float) -> list[object]:
        orders.append((len(inputs), seconds))
        return []

    tasks_of_run = SimpleNamespace(run=run)
    ctx = SimpleNamespace(repository="repo", connections=None, tasks=tasks_of_run)
    inquiry = lookups.Inquiry("", "", 0.0, objects, heads)
    lookups.ask(cast("RunContext", ctx), inquiry)
    [(count, seconds)] = orders
    assert count == tasks
    assert seconds == pytest.approx(5 + objects * 2e-6)


def page_of(listing: Listing) -> lookups.Page:
    return lookups.Page(cast("LakeFSClient", listing), "repo")


PATHS = st.lists(st.text("ab\0\uffff/", min_size=1, max_size=4), max_size=20)


@settings(max_examples=200)
@given(PATHS, PATHS, st.integers(1, 4))
def test_each_path_is_answered_as_a_stat_would(
    paths: list[str], asked: list[str], amount: int
) -> None:
    listing = Listing(paths)
    page = page_of(listing)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lookups, "FIRST_PAGE", amount)
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
    page = page_of(Listing(["a", "b"]))
    assert [page.address("main", "a"), page.address("gone", "b")] == ["at a", None]


def test_a_page_does_not_tell_what_lies_before_it() -> None:
    page = page_of(Listing(["a", "b"]))
    assert [page.address("main", path) for path in "ba"] == ["at b", "at a"]


def test_of_an_address_that_nobody_resolves_its_end_is_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listing, place = Listing([]), StorageNamespace.parse("s3://lab/repo")
    page = [SimpleNamespace(path="a", physical_address="minio://lab/repo/data/x")]
    monkeypatch.setattr(listing, "objects_page", lambda *_, **__: (page, False))
    unit = lookups.Unit("main", 0, pa.array(["a"]), SIGNATURES.empty_table())
    served, _ = lookups.ask_paths(cast("LakeFSClient", listing), "repo", place, math.inf, unit)
    assert served == {"x"}


def test_what_a_diff_names_is_asked_for_where_the_list_lacks_it() -> None:
    """A list that ends early looks like a whole one."""
    listing = Listing(["a", "b", "c"])
    listing.shown = 1
    page = page_of(listing)
    assert [page.staged("main", path) for path in "abd"] == ["at a", "at b", None]
    assert page.address("main", "c") is None
    assert listing.stats == ["b", "d"]


def test_a_page_that_ends_early_says_nothing_about_later_paths() -> None:
    """Not even if it says that nothing follows."""
    listing = Listing(["a", "b", "c"])
    listing.shown = 1
    page = page_of(listing)
    assert page.address("main", "a") == "at a"
    listing.shown = 3
    assert [page.address("main", path) for path in "bcde"] == ["at b", "at c", None, None]
    assert listing.calls == 3


def test_of_a_branch_that_is_gone_nothing_is_asked_for_alone() -> None:
    listing = Listing(["a"])
    assert page_of(listing).staged("gone", "a") is None
    assert not listing.stats


def test_of_a_branch_that_goes_behind_its_list_one_path_is_asked_for() -> None:
    listing = Listing(["a", "b"])
    listing.shown = 0
    page = page_of(listing)
    page.address("main", "a")
    listing.lost.add("main")
    assert [page.staged("main", path) for path in "ab"] == [None, None]
    assert listing.stats == ["a"]


def test_of_a_repository_that_is_gone_nothing_counts_as_reset() -> None:
    listing = Listing([])
    page = page_of(listing)
    page.address("main", "a")
    listing.lost |= {"main", "repo"}
    with pytest.raises(NotFoundError, match="repository not found"):
        page.staged("main", "a")


def test_staged_paths_are_asked_for_alone_where_the_list_lacks_them() -> None:
    """Those of HEADs are not: who deletes there shows in no list."""
    listing = Listing(["a", "b"])
    listing.shown = 0
    served = {}
    for turn in (lookups.STAGED_TURN, 0):
        unit = lookups.Unit("main", turn, pa.array(["a"]), SIGNATURES.empty_table())
        place = StorageNamespace.parse("s3://lab/repo")
        client = cast("LakeFSClient", listing)
        served[turn], _ = lookups.ask_paths(client, "repo", place, math.inf, unit)
    assert served == {lookups.STAGED_TURN: {"at a"}, 0: set()}


def test_after_the_deadline_only_what_is_staged_is_asked_for() -> None:
    """All else is in doubt: what looks like it is spared."""
    listing, place = Listing(["a", "b"]), StorageNamespace.parse("s3://lab/repo")
    doubts = pa.table([[7, 8], [1, 2]], schema=SIGNATURES)
    asked = {}
    for turn, of in ((lookups.STAGED_TURN, SIGNATURES.empty_table()), (0, doubts)):
        unit = lookups.Unit("main", turn, pa.array(["a", "b"]), of)
        client = cast("LakeFSClient", listing)
        asked[turn] = lookups.ask_paths(client, "repo", place, -math.inf, unit)
    assert asked[lookups.STAGED_TURN] == ({"at a", "at b"}, SIGNATURES.empty_table())
    assert asked[0] == (set(), doubts)


def test_a_page_that_ends_before_the_path_for_which_it_was_asked_stops_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More is to come, and the path may be in it."""
    listing = Listing(["a", "b"])
    page = [SimpleNamespace(path="a", physical_address="at a")]
    monkeypatch.setattr(listing, "objects_page", lambda *_, **__: (page, True))
    with pytest.raises(IntegrityError, match=r"listing branch 'main' .* skipped 'b'"):
        page_of(listing).address("main", "b")


def test_not_found_from_a_branch_that_exists_stops_the_run() -> None:
    listing = Listing(["a"])
    listing.branch = lambda _, branch: SimpleNamespace(id=branch)  # type: ignore[method-assign]
    with pytest.raises(IntegrityError, match="exists, but listing its objects says not found"):
        page_of(listing).address("gone", "a")


@pytest.mark.parametrize("branch", ["1", "add", "20240115", "F" * 64])
def test_a_branch_with_the_name_of_a_commit_is_asked_for_as_a_branch(branch: str) -> None:
    """To lakeFS such a ref is the commit whose id begins so; with a ``$`` it is not."""
    listing = Listing(["a"])
    page_of(listing).address(branch, "a")
    page_of(listing).address("main", "a")
    assert listing.refs == {f"{branch}$", "main"}
