"""A sharded repository in a bucket, ``data/!ab/c/<partition>/<id>``: marked and swept exactly."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import boto3
import pyarrow.compute as pc
import pytest

from lakegc_assets.embedded.lake.layouts import Layout
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.opening import open_store
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.lake import REPOSITORY, STAGES, SmallLake, running
from lakegc_assets_tests.sessions import Session
from lakegc_assets_tests.storage.servers import Server

OBJECTS = 80
SERVERS = [
    pytest.param("s3_server", marks=pytest.mark.conformance),
    pytest.param("minio_server", marks=pytest.mark.stores),
    pytest.param("versitygw_server", marks=pytest.mark.stores),
]


@dataclass(frozen=True)
class Sharded:
    """On main some objects, half of which were overwritten long ago.

    Attributes:
        lake: the lakeFS server.
        store: rooted at the repository's namespace.
    """

    lake: SmallLake
    store: ObjectStore

    def stored(self) -> set[str]:
        pages = self.store.list("data/")
        return {key for page in pages for key in page["key"].to_pylist()}

    def served(self) -> set[str]:
        """The address of each path of main."""
        paths = (f"a/{number}" for number in range(OBJECTS))
        stat = self.lake.client.stat
        found = (stat(REPOSITORY, "main", path).physical_address for path in paths)
        return {address.partition(f"/{REPOSITORY}/")[2] for address in found}


@pytest.fixture(params=SERVERS)
def sharded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Sharded]:
    server: str | Server = request.getfixturevalue(request.param)
    endpoint = server if isinstance(server, str) else server.endpoint
    bucket, config = f"bucket-{uuid.uuid4().hex}", StoreConfig(endpoint_url=endpoint)
    boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket=bucket)
    url = f"s3://{bucket}"
    with running(tmp_path, layout=Layout.SHARDED, store=url, store_config=config) as lake:
        lake.client.create_repository(REPOSITORY, f"{url}/{REPOSITORY}")
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
        store = open_store(f"{url}/{REPOSITORY}", config)
        newest = max(pc.max(page["last_modified"]).as_py() for page in store.list("data/"))
        while store.server_time() <= newest + timedelta(seconds=1):
            time.sleep(0.1)
        yield Sharded(lake, store)


def test_it_is_swept_exactly_by_the_first_run_and_by_the_next(
    sharded: Sharded, spark: Session
) -> None:
    live, before = sharded.served(), sharded.stored()
    assert all(address.startswith("data/!") for address in before)
    assert len({address[: len("data/!ab/c/")] for address in before}) > OBJECTS
    for run in ("first", "second"):
        ctx = sharded.lake.context(spark, run)
        for stage in STAGES:
            stage(ctx)
        attempt = ctx.root.attempt(REPOSITORY, run)
        # Many small folders are listed by few requests, most of which ask lakeFS, and try what the
        # store can do.
        listing = attempt.manifest("store_listing")
        assert listing.rows == len(before)
        assert int(listing.facts["requests"]) <= OBJECTS // 2
        rows = attempt.read("deletion_candidates")
        assert set(rows["address"].to_pylist()) == before - live
        assert len(before - live) == OBJECTS // 2
    sweep(ctx)
    assert sharded.stored() == sharded.served() == live
    get = sharded.lake.client.get_object
    contents = [get(REPOSITORY, "main", f"a/{number}") for number in range(OBJECTS)]
    half = OBJECTS // 2
    assert contents[:half] == [b"another object %d" % n for n in range(half)]
    assert contents[half:] == [b"object %d" % n for n in range(half, OBJECTS)]
