"""The requests of a sweep of a few objects, by kind, so that one too many is seen."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import boto3
import pytest

from lakegc_assets.recovery.backup_creation import make_backup
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.run.context import RunContext
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests import recorded
from lakegc_assets_tests.http_server import Asked
from lakegc_assets_tests.lake import REPOSITORY, SmallLake, mark, running
from lakegc_assets_tests.reliability.proxy import Proxy, proxied
from lakegc_assets_tests.sessions import Session

_OBJECTS = 10
#: Requests by place and kind.
_ASKED = {
    "namespace": {
        "time": 15, "list": 7, "read": 9, "head": 5, "put": 15, "delete": 2, "delete many": 6,
        "versioning": 2, "object-lock": 1, "lifecycle": 1,
    },
    # One put and one read are of the rows of the backup, for the anti-join of what it lacks; two
    # reads count its copies by another join, right before the deletes; a put and the delete of it
    # are of the checks' pairs of HEADs and ranges. Two reads are of the HEADs and of the further
    # dates of the mark, which tell until when commits stay; two lists ask what follows the last
    # run, so that none hides what only a mark knows, and one what follows the last note of a task,
    # so that none hides a request that may be on its way. One read is of what addresses the checks
    # have cached beside the entries of a file.
    "artifacts": {"time": 1, "list": 39, "read": 54, "head": 2, "put": 15, "delete many": 1},
    "backups": {"list": 1, "read": 5, "lifecycle": 1},
}  # fmt: skip


def _kind(asked: Asked) -> tuple[str, str]:
    """The target and the kind of a request."""
    place = asked.path.split("/")[1].partition("-")[0]
    query = asked.query
    if "list-type" in query:
        return place, "time" if query["max-keys"] == "1" else "list"
    if asked.method == "POST" and "delete" in query:
        return place, "delete many"
    for setting in ("versioning", "object-lock", "lifecycle"):
        if setting in query:
            return place, setting
    return place, {"GET": "read"}.get(asked.method, asked.method.lower())


@pytest.fixture
def proxy(s3_server: str) -> Iterator[Proxy]:
    """Requests of the collector go through it; those of lakeFS do not."""
    with proxied(s3_server.removeprefix("http://")) as one:
        yield one


@pytest.fixture
def backed_up(s3_server: str, proxy: Proxy, tmp_path: Path, spark: Session) -> Iterator[RunContext]:
    """A mark of ten objects, with a finished backup; all of it in buckets of its own."""
    client, name = boto3.client("s3", endpoint_url=s3_server), uuid.uuid4().hex
    buckets = {place: f"{place}-{name}" for place in ("namespace", "artifacts", "backups")}
    for bucket in buckets.values():
        client.create_bucket(Bucket=bucket)
    where = f"s3://{buckets['namespace']}"
    direct = StoreConfig(endpoint_url=s3_server)
    with running(tmp_path, store=where, store_config=direct) as lake:
        lake.client.create_repository(REPOSITORY, f"{where}/{REPOSITORY}")
        _tell(lake)
        for stored in recorded.backend().buckets[buckets["namespace"]].keys.values():
            stored.last_modified = datetime.now(timezone.utc) - timedelta(minutes=1)
        # No renewal of the lease comes in between, however slow this machine is.
        settings: dict[str, Any] = {"lease_duration_seconds": 3600, "sweep_batch": _OBJECTS}
        ctx = lake.context(spark, backup_url=f"s3://{buckets['backups']}/all", **settings)
        root = ArtifactRoot(f"s3://{buckets['artifacts']}/all", direct)
        ctx = replace(ctx, root=root)
        mark(ctx)
        make_backup(ctx)
        stores = replace(direct, endpoint_url=proxy.endpoint)
        yield replace(ctx, root=replace(root, stores=stores))


def _tell(lake: SmallLake) -> None:
    """Ten objects that an expired commit holds, and ten that took their places.

    No two have one size, so that none may be another's copy, and be looked at for that.
    """
    lake.rules(20)
    for days_ago in (90, 70):
        lake.calendar.days_ago = days_ago
        for number in range(_OBJECTS):
            lake.upload("main", f"a/{number}", "x" * (days_ago + number))
        lake.commit("main")
    lake.calendar.days_ago = 0


def test_a_sweep_with_a_backup_asks_so_much(backed_up: RunContext, proxy: Proxy) -> None:
    """If it asks for more now, what that is for is to be known; if for less, all the better."""
    manifest = sweep(backed_up)
    assert manifest.facts["outcomes"]["deleted"]["objects"] == _OBJECTS
    known = {(place, kind): n for place, kinds in _ASKED.items() for kind, n in kinds.items()}
    assert Counter(map(_kind, proxy.asked)) == known
