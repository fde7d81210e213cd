"""Reads of other runs by a mark and its sweep: of each one, so that one too many is seen."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lakegc_assets.mark.listing import ASSET, seen_in
from lakegc_assets.run.history import Earlier
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.files import age
from lakegc_assets_tests.lake import REPOSITORY, mark, running
from lakegc_assets_tests.left import begun, manifest_of, root_at
from lakegc_assets_tests.sessions import Session

#: Of a run that is neither the last one nor the last clean one, by what is read of it.
_READ = {
    # Once where the listing begins, and twice around the HEADs of commits: there may be others.
    "attempt.json": 3,
    "store_listing/manifest.json": 1,
    "active_commits/manifest.json": 1,
    # Whether it was swept or restored since the listing that is carried forward.
    "swept_set/manifest.json": 1,
    "restored_set/": 1,
}
#: The same for a sweep.
_READ_BY_SWEEP = {
    # Once for its settings, and once in the delta mark and in the last look: there may be others.
    "attempt.json": 3,
    "active_commits/manifest.json": 1,
}


def test_uploads_in_parts_are_searched_in_the_last_listings_before_the_cutoff(
    tmp_path: Path,
) -> None:
    """Whatever was seen later may be on its way still."""
    root = root_at(tmp_path)

    def listed(run: str, day: float, **settings: str) -> Earlier:
        attempt = begun(root, "repo", run, day)
        return Earlier(attempt, replace(manifest_of(attempt, ASSET, day, {}), settings=settings))

    listings = [
        listed("too late", 9),
        listed("of names", 7, mode="committed"),
        listed("of names before", 6, mode="committed"),
        listed("whole", 5),
        listed("whole before", 4),
    ]
    cutoff = listings[0].manifest.finished
    assert [run for run, _ in seen_in(listings, cutoff)] == ["whole", "of names"]
    assert [run for run, _ in seen_in(listings[3:], cutoff)] == ["whole"]
    assert seen_in(listings[:1], cutoff) == []


def test_a_mark_and_its_sweep_read_so_much_of_each_other_run(
    tmp_path: Path, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it reads more now, what that is for is to be known; if less, all the better."""
    asked: Counter[str] = Counter()

    def count(name: str) -> None:
        told = getattr(LocalStore, name)

        def counted(store: LocalStore, key: str = "", *more: Any, **named: Any) -> Any:
            if of_second := re.search(
                r"/second/(?:[0-9TZ]+-[0-9a-f]{8}/)?(.+)", f"{store.url}/{key}"
            ):
                asked[of_second[1]] += 1
            return told(store, key, *more, **named)

        monkeypatch.setattr(LocalStore, name, counted)

    with running(tmp_path) as lake:
        lake.client.create_repository(REPOSITORY, f"local://{REPOSITORY}")
        lake.rules(20)
        for run in ("first", "second", "third", "fourth"):
            for days in (90, 70):
                lake.calendar.days_ago = days
                lake.upload("main", "a/x", f"{run} {days}")
                lake.commit("main")
            lake.calendar.days_ago = 0
            age(lake.objects / "data", days=1)
            # By the age of the other tests, a second, runs would or would not be old enough for
            # what they saw of uploads to be read, as fast as the machine is.
            ctx = lake.context(spark, run, min_age_hours=1)
            if run == "fourth":
                for name in ("get", "head", "list_prefixes"):
                    count(name)
            mark(ctx)
            by_mark = Counter(asked)
            asked.clear()
            if run in {"first", "fourth"}:
                sweep(ctx)
    assert by_mark == _READ
    assert asked == _READ_BY_SWEEP
