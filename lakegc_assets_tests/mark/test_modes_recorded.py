"""The modes on what a real lakeFS recorded: each names its part of what may go, and no more."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from lakegc_assets.graveler.ranges import read_range
from lakegc_assets.graveler.sstable import table_kind
from lakegc_assets.run.settings import Mode
from lakegc_assets.sweep.lease_record import LEASE
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests import recorded
from lakegc_assets_tests.mark.conftest import Goldens
from lakegc_assets_tests.mark.test_recorded import ORPHAN
from lakegc_assets_tests.recorded import Marked
from lakegc_assets_tests.replay import GOLDEN, ReplayServer
from lakegc_assets_tests.sessions import Session

PARTS: tuple[Mode, ...] = ("committed", "uncommitted")


def named_by_ranges(repository: str) -> set[str]:
    """What any recorded range names, whoever holds it."""
    files = (GOLDEN / repository / "raw" / "_lakefs").iterdir()
    tables = {path.name: path.read_bytes() for path in files if len(path.name) == 64}
    ranges = [i for i, data in tables.items() if table_kind(data, i) == "ranges"]
    assert ranges
    return {entry.address for i in ranges for _, entry in read_range(tables[i], i)}


def in_mode(
    mode: Mode, server: ReplayServer, endpoint: str, folder: Path, spark: Session, *, publish: bool
) -> Marked:
    ctx = recorded.context(server, endpoint, folder, spark, f"of-{mode}", mode=mode)
    return recorded.mark(ctx, publish=publish)


@pytest.mark.conformance
@pytest.mark.parametrize("repository", ["retention", "identical", "small", "orderhz"])
def test_each_mode_names_its_part_of_what_may_go(
    repository: str, golden: Goldens, s3_server: str, tmp_path: Path, spark: Session
) -> None:
    server = golden(repository).server
    found = {
        mode: in_mode(mode, server, s3_server, tmp_path, spark, publish=False).candidates
        for mode in PARTS
    }
    expected, committed = recorded.expected(repository), named_by_ranges(repository)
    assert found == {"committed": expected & committed, "uncommitted": expected - committed}


def test_without_rules_nothing_that_was_committed_goes(
    s3_server: str, tmp_path: Path, spark: Session
) -> None:
    recorded.load("norules")
    recorded.plant("norules", ORPHAN)
    with ReplayServer("norules") as server:
        unified = recorded.mark(recorded.context(server, s3_server, tmp_path, spark))
        parts = {
            mode: in_mode(mode, server, s3_server, tmp_path, spark, publish=False) for mode in PARTS
        }
    assert parts["committed"].candidates == set()
    assert ORPHAN in parts["uncommitted"].candidates
    assert parts["uncommitted"].candidates == unified.candidates


@pytest.mark.parametrize(
    "mode", ["uncommitted", pytest.param("committed", marks=pytest.mark.conformance)]
)
def test_a_last_page_without_location_marks_no_staged_object(
    mode: Mode, s3_server: str, tmp_path: Path, spark: Session
) -> None:
    recorded.load("paged", "prepare_interval_9ms")
    recorded.plant("paged", ORPHAN)
    with ReplayServer("paged", prepare="prepare_interval_9ms") as server:
        marked = in_mode(mode, server, s3_server, tmp_path, spark, publish=True)
    staged = json.loads((GOLDEN / "paged" / "staged.json").read_text())
    assert not marked.candidates & {a for names in staged.values() for a in names}
    assert marked.candidates == ({ORPHAN} if mode == "uncommitted" else set())


def test_what_was_looked_at_one_by_one_is_swept(
    golden: Goldens, s3_server: str, tmp_path: Path, spark: Session
) -> None:
    """HEAD gives whole seconds, and the listing before a batch more: still the same object."""
    repository = "retention"
    server, before = golden(repository).server, set(recorded.keys(repository))
    with recorded.preserved(repository):
        marked = in_mode("committed", server, s3_server, tmp_path, spark, publish=True)
        rows = marked.attempt.read("store_listing")
        assert {moment.microsecond for moment in rows["last_modified"].to_pylist()} == {0}
        sweep(marked.ctx)
        gone = before - set(recorded.keys(repository))
        assert (
            gone == marked.candidates == recorded.expected(repository) & named_by_ranges(repository)
        )
        assert gone
        assert LEASE in recorded.keys(repository)


# Where committed and uncommitted are not unified: docs/operations.md names these, too


@pytest.mark.parametrize(
    "earlier", ["unified", pytest.param("committed", marks=pytest.mark.conformance)]
)
def test_an_upload_in_parts_ages_from_the_first_look_of_any_mode(
    earlier: Mode, golden: Goldens, s3_server: str, tmp_path: Path, spark: Session
) -> None:
    """If there are committed marks alone, that is the first one after it expired."""
    server = golden("retention").server
    upload = min(recorded.expected("retention") & named_by_ranges("retention"))

    def marked(mode: Mode, run: str, days: int) -> Marked:
        ctx = recorded.context(server, s3_server, tmp_path, spark, run, mode=mode)
        moment = recorded.mark_time("retention") + timedelta(days=days)
        return recorded.mark(replace(ctx, clocks=recorded.FixedClocks(moment)))

    with recorded.preserved("retention"):
        recorded.plant(
            "retention",
            upload,
            recorded.content("retention", upload),
            recorded.mark_time("retention") - timedelta(minutes=1),
            f"{'a' * 32}-2",
        )
        before = marked(earlier, "before", 0)
        assert "uploaded in parts" in before.spared[upload]
        assert upload in marked("committed", "after", 1).candidates
        assert upload in marked("unified", "last", 1).candidates
