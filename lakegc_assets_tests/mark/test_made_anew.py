"""A repository that was made anew: what was read of the earlier one is not taken for its own."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import requests

from lakegc_assets.embedded.objects import objects
from lakegc_assets.graveler.entry import AddressType, Entry, Timestamp
from lakegc_assets_tests.lake import REPOSITORY, SECRET_KEY, STAGES, SmallLake, running
from lakegc_assets_tests.sessions import Session

_THEN = 1_700_000_000
#: Both repositories have this import. To the first it lies elsewhere, to the second in its own
#: namespace.
IMPORTED = Entry(
    address="local://later/data/imported",
    last_modified=Timestamp(_THEN),
    size=4,
    e_tag="0" * 32,
    address_type=AddressType.FULL,
    content_type="text/plain",
)


def _make(lake: SmallLake, namespace: str) -> None:
    """Make a repository whose last commit but one holds the import."""
    lake.client.create_repository(REPOSITORY, namespace)
    lake.rules(20)
    objects.stage_entry(lake.server.lake, REPOSITORY, "main", "imported", IMPORTED)
    lake.commit("main")
    lake.client.delete_object(REPOSITORY, "main", "imported")
    lake.commit("main")


def _remove(lake: SmallLake) -> None:
    answer = requests.delete(
        f"{lake.server.endpoint}/api/v1/repositories/{REPOSITORY}",
        auth=(lake.server.access_key, SECRET_KEY),
        timeout=60,
    )
    answer.raise_for_status()


def _mark(lake: SmallLake, spark: Session, run: str, **settings: Any) -> set[str]:
    ctx = lake.context(spark, run, max_candidate_share=1.0, **settings)
    for stage in STAGES:
        stage(ctx)
    found = ctx.root.attempt(REPOSITORY, run).read("deletion_candidates")
    return set(found["address"].to_pylist())


def test_full_addresses_mean_something_else_at_another_namespace(
    tmp_path: Path, spark: Session
) -> None:
    with running(tmp_path / "lake") as lake:
        _make(lake, f"local://{REPOSITORY}")
        assert _mark(lake, spark, "first") == set()
        _remove(lake)
        _make(lake, "local://later")
        folder = lake.server.objects_dir / "later" / "data"
        folder.mkdir(exist_ok=True)
        for name in ("imported", "garbage"):
            (folder / name).write_bytes(b"here")
            os.utime(folder / name, (_THEN, _THEN))
        assert _mark(lake, spark, "second") == {"data/garbage"}


@pytest.mark.parametrize("rules", [True, False], ids=["with rules", "without"])
def test_of_one_made_anew_in_the_same_place_the_commits_of_the_first_are_not_asked_for(
    tmp_path: Path,
    spark: Session,
    rules: bool,  # noqa: FBT001 - a parameter
) -> None:
    namespace = f"local://{REPOSITORY}"
    with running(tmp_path / "lake") as lake:
        for run in ("first", "second"):
            lake.client.create_repository(REPOSITORY, namespace)
            if rules:
                lake.rules(20)
            lake.upload("main", "x", run)
            lake.commit("main", run)
            settings = {"retain": {"metadata": {"hold": "yes"}}}
            _mark(lake, spark, run, **settings)
            _mark(lake, spark, f"{run}-again", **settings)
            _remove(lake)
            shutil.rmtree(lake.objects)
            # Creation dates are whole seconds.
            time.sleep(1.1)
