"""Reads of earlier runs by a mark: of each one that is there, so that one too many is seen."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lakegc_assets.storage.local import LocalStore
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.files import age
from lakegc_assets_tests.lake import REPOSITORY, mark, running
from lakegc_assets_tests.sessions import Session

#: Of a run that is neither the last one nor the last clean one, by what is read of it.
_READ = {
    # Twice where the listing begins and around the HEADs of commits, once for uploads in parts.
    "attempt.json": 5,
    "store_listing/manifest.json": 3,
    "active_commits/manifest.json": 2,
    # Whether it was swept or restored since the listing that is carried forward.
    "swept_set/manifest.json": 1,
    "restored_set/": 1,
}


def test_a_mark_reads_so_much_of_each_earlier_run(
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
            if run == "first":
                sweep(ctx)
    assert asked == _READ
