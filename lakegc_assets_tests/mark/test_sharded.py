"""A sharded repository in a bucket, ``data/!ab/c/<partition>/<id>``: marked and swept exactly."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from lakegc_assets.embedded.lake.layouts import Layout
from lakegc_assets.run.artifacts import Manifest
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests import recorded
from lakegc_assets_tests.lake import REPOSITORY, STAGES, SmallLake, running
from lakegc_assets_tests.sessions import Session

OBJECTS = 120


@pytest.fixture
def sharded(s3_server: str, s3_bucket: str, tmp_path: Path) -> Iterator[SmallLake]:
    """On main 120 objects, half of which were overwritten long ago; all are an hour old."""
    where: dict[str, Any] = {
        "store": f"s3://{s3_bucket}",
        "store_config": StoreConfig(endpoint_url=s3_server),
    }
    with running(tmp_path, layout=Layout.SHARDED, **where) as lake:
        lake.client.create_repository(REPOSITORY, f"s3://{s3_bucket}/{REPOSITORY}")
        lake.rules(20)
        lake.calendar.days_ago = 90
        for number in range(OBJECTS):
            lake.upload("main", f"a/{number}", f"object {number}")
        lake.commit("main")
        lake.calendar.days_ago = 60
        for number in range(OBJECTS // 2):
            lake.upload("main", f"a/{number}", f"another object {number}")
        lake.commit("main")
        lake.calendar.days_ago = 0
        written = datetime.now(timezone.utc) - timedelta(hours=1)
        for key in recorded._backend().buckets[s3_bucket].keys.values():
            key.last_modified = written
        yield lake


def stored(bucket: str) -> set[str]:
    keys = (key.removeprefix(f"{REPOSITORY}/") for key in recorded._backend().buckets[bucket].keys)
    return {key for key in keys if key.startswith("data/")}


def served(lake: SmallLake) -> set[str]:
    """The address of each path of main."""
    paths = (f"a/{number}" for number in range(OBJECTS))
    found = (lake.client.stat(REPOSITORY, "main", path).physical_address for path in paths)
    return {address.partition(f"/{REPOSITORY}/")[2] for address in found}


def listing(lake: SmallLake, run: str) -> Manifest:
    return lake.root.attempt(REPOSITORY, run).manifest("store_listing")


def test_it_is_swept_exactly_by_the_first_run_and_by_the_next(
    sharded: SmallLake, s3_bucket: str, spark: Session
) -> None:
    live = served(sharded)
    before = stored(s3_bucket)
    assert all(address.startswith("data/!") for address in before)
    for run in ("first", "second"):
        ctx = sharded.context(spark, run)
        for stage in STAGES:
            stage(ctx)
        rows = ctx.root.attempt(REPOSITORY, run).read("deletion_candidates")
        assert set(rows["address"].to_pylist()) == before - live
        assert len(before - live) == OBJECTS // 2
    sweep(ctx)
    assert stored(s3_bucket) == served(sharded) == live
    contents = (sharded.client.get_object(REPOSITORY, "main", f"a/{n}") for n in range(OBJECTS))
    assert all(b"object" in content for content in contents)


def test_its_many_small_folders_are_listed_by_few_requests(
    sharded: SmallLake, s3_bucket: str, spark: Session
) -> None:
    shards = {address[: len("data/!ab/c/")] for address in stored(s3_bucket)}
    assert len(shards) > OBJECTS
    STAGES[0](sharded.context(spark, "first"))
    found = listing(sharded, "first")
    assert found.rows == len(stored(s3_bucket))
    # Most of them ask lakeFS, and try what the store can do.
    assert int(found.facts["requests"]) <= OBJECTS // 3
