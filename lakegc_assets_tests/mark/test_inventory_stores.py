"""A mark and its sweep from a report of a real server's bucket, while people go on writing."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import boto3
import pyarrow.compute as pc
import pytest

from lakegc_assets.errors import RefusedError
from lakegc_assets.mark.listing import list_store
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.manifest import Manifest
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.opening import open_store
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.inventories import S3Reports, listed, s3_row
from lakegc_assets_tests.lake import REPOSITORY, STAGES, SmallLake, running
from lakegc_assets_tests.sessions import Session
from lakegc_assets_tests.storage.servers import Server

pytestmark = pytest.mark.stores

OBJECTS = 30
SETTINGS = {"min_age_hours": 0, "max_candidate_share": 1.0, "clean": True}
PREFIX = f"a+folder of lakes/{REPOSITORY}/"


@dataclass(frozen=True)
class Inventoried:
    """A bucket, and the place of the reports about it.

    Attributes:
        lake: the lakeFS server.
        store: rooted at the repository's namespace.
        bucket: that holds it.
        reports: in a bucket of their own.
        dead: addresses of objects that were overwritten long ago.
        lone: one more, which a branch at the commit ``old`` would bring back.
        old: the commit.
    """

    lake: SmallLake
    store: ObjectStore
    bucket: str
    reports: S3Reports
    dead: frozenset[str]
    lone: str
    old: str

    def report(self, began: datetime, encoding: str = "CSV") -> None:
        """Write a report of what is there now, as if its scan had begun then."""
        rows = [s3_row(self.bucket, PREFIX, one) for one in listed(self.store)]
        others = [
            s3_row(self.bucket, "a+folder of lakes/repo-2/", one) for one in listed(self.store)
        ]
        self.reports.write(began, [*rows, *others], encoding)

    def upload(self, branch: str, path: str, content: str) -> str:
        found = self.lake.client.upload_object(REPOSITORY, branch, path, content.encode())
        return found.physical_address.removeprefix(f"{self.store.url}/")

    def stored(self) -> set[str]:
        keys = {one.key for one in listed(self.store)}
        return {key for key in keys if key.startswith("data/")}

    def context(self, spark: Session, run: str, **settings: Any) -> RunContext:
        place = {"listing": "inventory", "inventory_place": self.reports.place}
        return self.lake.context(spark, run, **{**SETTINGS, **place, **settings})

    def listing(self, run: str) -> Manifest:
        return self.lake.root.attempt(REPOSITORY, run).manifest("store_listing")


@pytest.fixture(params=["versitygw_server"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Inventoried]:
    server: Server = request.getfixturevalue(request.param)
    endpoint = server.endpoint
    name, client = f"lake-{uuid.uuid4().hex}", boto3.client("s3", endpoint_url=endpoint)
    for one in (name, f"{name}-reports"):
        client.create_bucket(Bucket=one)
    config = StoreConfig(endpoint_url=endpoint)
    url = f"s3://{name}/{PREFIX.rstrip('/')}"
    with running(tmp_path, store=f"s3://{name}", store_config=config) as lake:
        lake.client.create_repository(REPOSITORY, url)
        reports = S3Reports(open_store(f"s3://{name}-reports", config), name)
        lake.rules(20)
        store = open_store(url, config)
        made = Inventoried(lake, store, name, reports, frozenset(), "", "")
        lake.calendar.days_ago = 100
        lone = made.upload("main", "a/0", "alone in the oldest commit")
        old = lake.commit("main")
        lake.calendar.days_ago = 90
        dead = [made.upload("main", f"a/{n}", f"object {n}") for n in range(OBJECTS)]
        lake.commit("main")
        lake.calendar.days_ago = 60
        for n in range(OBJECTS):
            made.upload("main", f"a/{n}", f"another object, which is number {n}")
        lake.commit("main")
        lake.calendar.days_ago = 0
        _wait_until_old(store)
        yield Inventoried(lake, store, name, reports, frozenset(dead), lone, old)


def _wait_until_old(store: ObjectStore) -> None:
    """Wait until a report that is begun now counts all that is there as older than itself."""
    newest = max(pc.max(page["last_modified"]).as_py() for page in store.list())
    while store.server_time() <= newest + timedelta(seconds=2):
        time.sleep(0.1)


def candidates(ctx: RunContext) -> set[str]:
    rows = ctx.root.attempt(REPOSITORY, ctx.run).read("deletion_candidates")
    return set(rows["address"].to_pylist())


def now() -> datetime:
    return datetime.now(timezone.utc)


@pytest.mark.parametrize(
    ("bucket", "encoding"),
    [("minio_server", "CSV"), ("versitygw_server", "Parquet")],
    indirect=["bucket"],
)
def test_what_is_written_after_the_scan_began_is_seen_and_the_rest_is_swept(
    encoding: str, bucket: Inventoried, spark: Session
) -> None:
    gone, again, staged_again, *_ = sorted(bucket.dead)
    staged_before = bucket.upload("main", "staged before", "it is staged when the scan begins")
    _wait_until_old(bucket.store)
    bucket.report(now(), encoding)
    # All of this happens after the scan began: the report knows nothing of it.
    bucket.lake.commit("main", "what was staged before is committed behind it")
    staged_after = bucket.upload("main", "staged after", "it is in no report")
    bucket.lake.stage("main", "staged again", staged_again)
    bucket.lake.client.create_branch(REPOSITORY, "back", bucket.old)
    ctx = bucket.context(spark, "first")
    for stage in STAGES:
        stage(ctx)
    assert candidates(ctx) == bucket.dead - {staged_again}
    facts = bucket.listing("first").facts
    assert (facts["mode"], facts["named_twice"]) == ("inventory", 0)
    assert bucket.listing("first").cutoff <= datetime.fromisoformat(str(facts["inventory_begun"]))
    before = bucket.stored()
    bucket.store.delete_many([gone])
    bucket.store.put(again, b"somebody else's, at an address that was used")
    outcomes = {name: of["objects"] for name, of in sweep(ctx).facts["outcomes"].items()}
    assert outcomes == {"deleted": OBJECTS - 3, "already_missing": 1, "spared": 1}
    assert bucket.stored() == before - bucket.dead | {staged_again, again}
    assert {bucket.lone, staged_before, staged_after} <= bucket.stored()


def test_a_report_that_is_too_old_is_refused_though_an_older_limit_would_take_it(
    bucket: Inventoried, spark: Session
) -> None:
    bucket.report(now() - timedelta(days=4))
    with pytest.raises(RefusedError, match="more than 3 days before"):
        list_store(bucket.context(spark, "stale"))
    with pytest.raises(RefusedError, match="there is no mark"):
        bucket.lake.root.attempt(REPOSITORY, "stale")
    # Nothing is older than a scan of four days ago.
    ctx = bucket.context(spark, "taken", inventory_max_age_days=5)
    for stage in STAGES:
        stage(ctx)
    assert candidates(ctx) == set()


def test_a_listing_is_held_against_a_report(
    bucket: Inventoried, spark: Session, caplog: pytest.LogCaptureFixture
) -> None:
    gone = min(bucket.dead)
    skew = timedelta(seconds=5)
    # Only what is older than the scan by twice the skew is compared.
    time.sleep(2 * skew.total_seconds() + 1)
    bucket.report(now())
    bucket.store.delete_many([gone])
    settings = {
        "listing": "store",
        "listing_check": "inventory",
        "clock_skew_seconds": skew.total_seconds(),
    }
    with caplog.at_level(logging.WARNING, "lakegc"):
        ctx = bucket.context(spark, "listed", **settings)
        for stage in STAGES:
            stage(ctx)
    check = bucket.listing("listed").facts["inventory_check"]
    assert check["listing_lacks"]["objects"] == 1
    assert check["listing_lacks"]["example"] == gone
    assert check["inventory_lacks"]["objects"] == 0
    assert gone in caplog.text
    assert candidates(ctx) == bucket.dead - {gone} | {bucket.lone}


def test_a_report_costs_requests_for_its_files_and_not_for_its_keys(
    bucket: Inventoried, spark: Session
) -> None:
    there = listed(bucket.store)
    named = [replace(there[0], key=f"data/nowhere/{n:06d}") for n in range(50_000)]
    rows = [s3_row(bucket.bucket, PREFIX, one) for one in [*there, *named]]
    bucket.reports.write(now(), rows, parts=3)
    list_store(bucket.context(spark, "large"))
    found = bucket.listing("large")
    assert found.rows == len(rows) - sum(one.key.startswith("_lakefs/") for one in there)
    # A listing would take fifty for the keys alone.
    assert int(found.facts["requests"]) <= 30
