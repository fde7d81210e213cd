"""Needed objects that a sweep of a versioned bucket deleted are put back from versions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakegc_assets.sweep.hold import HOLD
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.lake import REPOSITORY, mark
from lakegc_assets_tests.recovery.restore.test_histories import World, new_bucket, world
from lakegc_assets_tests.sessions import Session


@pytest.fixture(
    params=[
        pytest.param("s3", marks=pytest.mark.conformance),
        pytest.param("minio", marks=pytest.mark.stores),
    ]
)
def here(request: pytest.FixtureRequest, tmp_path: Path, spark: Session) -> Iterator[World]:
    with world(tmp_path, spark, 0, *new_bucket(request.param, request)) as found:
        yield found


def test_what_came_back_to_life_is_put_back_and_reads(here: World) -> None:
    here.tell()
    time.sleep(1.1)  # Buckets tell times in whole seconds.
    ctx = here.context("one")
    mark(ctx)
    before, attempt = here.contents(), ctx.root.attempt(REPOSITORY, "one")
    dead = set(attempt.read("deletion_candidates")["address"].to_pylist())
    revived, store = min(dead), here.store
    commits: list[str] = []

    def commit_what_is_gone(_method: str, _path: str) -> None:
        if not commits and not store.exists(revived):
            commits.append("begun")
            here.lake.stage("main", "too/late", revived)
            commits.append(here.lake.commit("main"))

    here.lake.on_request = commit_what_is_gone
    manifest = sweep(ctx)

    recovery = manifest.facts["recovery"]
    assert isinstance(recovery, dict)
    assert recovery["kind"] == "versions"
    rows = attempt.read("swept_set").to_pylist()
    put_back = {row["address"]: row["detail"] for row in rows if row["outcome"] == "put_back"}
    assert put_back.keys() == {revived}
    assert f"branch 'main', path 'too/late', commit '{commits[1]}'" in put_back[revived]
    assert not store.exists(HOLD)
    after = here.contents()
    assert {key for key in after if key.startswith("data/")} == {
        key for key in before if key.startswith("data/")
    } - dead | {revived}
    assert after[revived] == before[revived]
    assert here.lake.client.get_object(REPOSITORY, "main", "too/late") == before[revived]
