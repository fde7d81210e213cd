"""Marks, sweeps and restores in buckets of real servers that lock or hold what is in them.

Artifacts, lease, probes and ledger lie in the same bucket.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import boto3
import pytest

from lakegc_assets.errors import RefusedError
from lakegc_assets.recovery.restore.restored_set import restore
from lakegc_assets.recovery.restore.selection import Choice
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.run.context import RunContext
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.opening import open_store
from lakegc_assets.sweep.lease import repository_lease
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.lake import REPOSITORY, SmallLake, mark, running
from lakegc_assets_tests.sessions import Session
from lakegc_assets_tests.storage.servers import Server

pytestmark = pytest.mark.stores

_OBJECTS = 10
_SETTINGS: dict[str, Any] = {"min_age_hours": 0, "max_candidate_share": 1.0, "sweep_batch": 4}


@dataclass(frozen=True)
class Protected:
    """A repository in a bucket with Object Lock, marked.

    Attributes:
        lake: the lakeFS server.
        store: rooted at the repository's namespace.
        client: of boto3.
        bucket: its name.
        ctx: of the mark.
        dead: addresses that the mark names.
    """

    lake: SmallLake
    store: ObjectStore
    client: Any
    bucket: str
    ctx: RunContext
    dead: frozenset[str]

    def stored(self) -> dict[str, str]:
        """The objects that readers see, by their etags."""
        pages = list(self.store.list("data/"))
        return {
            key: etag
            for page in pages
            for key, etag in zip(page["key"].to_pylist(), page["etag"].to_pylist(), strict=True)
        }

    def versions(self) -> set[str]:
        """The addresses of which the bucket has a version."""
        prefix = f"{REPOSITORY}/data/"
        pages = self.client.get_paginator("list_object_versions").paginate(
            Bucket=self.bucket, Prefix=prefix
        )
        keys = {one["Key"] for page in pages for one in page.get("Versions", ())}
        return {key.removeprefix(f"{REPOSITORY}/") for key in keys}

    def outcomes(self) -> dict[str, tuple[str, str]]:
        rows = self.ctx.root.attempt(REPOSITORY, self.ctx.run).read("swept_set").to_pylist()
        return {row["address"]: (row["outcome"], row["detail"]) for row in rows}


@contextmanager
def protected(
    folder: Path, endpoint: str, spark: Session, *, default_days: int
) -> Iterator[Protected]:
    bucket, client = f"lake-{uuid.uuid4().hex}", boto3.client("s3", endpoint_url=endpoint)
    client.create_bucket(Bucket=bucket, ObjectLockEnabledForBucket=True)
    if default_days:
        default: Any = {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": default_days}}
        client.put_object_lock_configuration(
            Bucket=bucket,
            ObjectLockConfiguration={"ObjectLockEnabled": "Enabled", "Rule": default},
        )
    config, url = StoreConfig(endpoint_url=endpoint), f"s3://{bucket}/{REPOSITORY}"
    with running(folder, store=f"s3://{bucket}", store_config=config) as lake:
        lake.client.create_repository(REPOSITORY, url)
        lake.rules(20)
        dead: list[str] = []
        for days_ago in (90, 60):
            lake.calendar.days_ago = days_ago
            wrote = [
                lake.client.upload_object(
                    REPOSITORY, "main", f"a/{n}", b"x" * (days_ago + n)
                ).physical_address.removeprefix(f"{url}/")
                for n in range(_OBJECTS)
            ]
            lake.commit("main")
            dead = dead or wrote
        lake.calendar.days_ago = 0
        store = open_store(url, config)
        newest = max(store.head(key).last_modified for key in dead)
        while store.server_time() < newest + timedelta(seconds=2):
            time.sleep(0.1)
        ctx = lake.context(spark, **_SETTINGS)
        ctx = replace(ctx, root=ArtifactRoot(f"s3://{bucket}/artifacts", config))
        mark(ctx)
        yield Protected(lake, store, client, bucket, ctx, frozenset(dead))


@pytest.mark.parametrize("server", ["minio_server", "versioned_gateway"])
def test_a_bucket_with_versions_and_a_default_lock(
    server: str, request: pytest.FixtureRequest, tmp_path: Path, spark: Session
) -> None:
    """All that is dead is deleted, its space is held, and all of it comes back."""
    found: Server = request.getfixturevalue(server)
    with protected(tmp_path, found.endpoint, spark, default_days=2) as one:
        before = one.stored()
        manifest = sweep(one.ctx)
        assert one.stored().keys() == before.keys() - one.dead
        assert one.versions() == before.keys()
        told = one.outcomes()
        assert told.keys() == one.dead
        assert set(told.values()) == {("deleted", "space held, until when is not known")}
        space: Any = manifest.facts["space"]
        assert space["held"]["objects"] == _OBJECTS
        assert space["freed"]["objects"] == space["not_known"]["objects"] == 0
        assert "each object is locked for 2 days" in space["notice"]
        restore(one.ctx, Choice(everything=True))
        assert one.stored() == before


def test_locked_objects_where_there_are_no_versions(
    versitygw_server: Server, tmp_path: Path, spark: Session
) -> None:
    """They were locked behind the mark: one whole batch, and one in the middle of another."""
    with protected(tmp_path, versitygw_server.endpoint, spark, default_days=0) as one:
        before = one.stored()
        addresses = sorted(one.dead)
        until = datetime.now(timezone.utc) + timedelta(days=2)
        locked = {*addresses[:4], addresses[5]}
        for address in locked:
            one.client.put_object_retention(
                Bucket=one.bucket, Key=f"{REPOSITORY}/{address}",
                Retention={"Mode": "GOVERNANCE", "RetainUntilDate": until},
            )  # fmt: skip
        manifest = sweep(one.ctx)
        told = one.outcomes()
        assert {a for a, (outcome, _) in told.items() if outcome == "locked"} == locked
        gone = {a for a, one in told.items() if one == ("deleted", "space freed")}
        assert gone == one.dead - locked
        assert one.stored().keys() == before.keys() - gone
        outcomes: Any = manifest.facts["outcomes"]
        assert outcomes.keys() == {"deleted", "locked"}


def test_a_default_lock_without_versions_is_refused(versitygw_server: Server) -> None:
    """New objects can be neither replaced nor removed there: no lease, no sweep."""
    client, bucket = boto3.client("s3", endpoint_url=versitygw_server.endpoint), uuid.uuid4().hex
    client.create_bucket(Bucket=bucket, ObjectLockEnabledForBucket=True)
    default: Any = {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 1}}
    client.put_object_lock_configuration(
        Bucket=bucket,
        ObjectLockConfiguration={"ObjectLockEnabled": "Enabled", "Rule": default},
    )
    config = StoreConfig(endpoint_url=versitygw_server.endpoint)
    store = open_store(f"s3://{bucket}/{REPOSITORY}", config)
    with (
        pytest.raises(RefusedError, match="locks each object that is written there"),
        repository_lease(store, {"host": "here"}, duration=timedelta(minutes=3)),
    ):
        pass
    assert not store.exists("_lakefs/retention/gc/lakegc/lease.json")
