"""A repository with thousands of marked objects in a bucket of a real S3 server."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3

from lakegc_assets.embedded.objects import objects
from lakegc_assets.graveler.entry import Entry
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.opening import open_store
from lakegc_assets.sweep.lease_record import FOLDER
from lakegc_assets_tests.lake import REPOSITORY, SmallLake, running
from lakegc_assets_tests.lake import mark as mark_all
from lakegc_assets_tests.sessions import Session
from lakegc_assets_tests.storage.servers import Server

_GIVEN_UP = 2400
_REPLACED = 500
_ORPHANS = 300
_KEPT = 100
_STAGED = 50
#: In the same bucket, and none of the repository's.
_NEIGHBOURS = (f"{REPOSITORY}-2/data/a", f"{REPOSITORY}.txt", "data/a", "z")


@dataclass
class S3Lake:
    """The lake, and its bucket.

    Attributes:
        lake: the lakeFS server and the artifacts.
        server: versitygw.
        bucket: its name.
    """

    lake: SmallLake
    server: Server
    bucket: str

    @property
    def folder(self) -> Path:
        """The folder of the objects of the repository."""
        return self.server.log.parent / "objects" / self.bucket / REPOSITORY

    @property
    def store(self) -> ObjectStore:
        """Rooted at the repository's namespace."""
        config = StoreConfig(endpoint_url=self.server.endpoint)
        return open_store(f"s3://{self.bucket}/{REPOSITORY}", config)

    def keys(self) -> set[str]:
        """The objects of the repository, but for lakeFS's own, as they are on disk."""
        # Folders may go while they are walked: a store removes those that became empty.
        walked = os.walk(self.folder / "data", onerror=lambda _: None)
        return {
            os.path.relpath(os.path.join(place, name), self.folder)  # noqa: PTH118 - it is quicker
            for place, _, names in walked
            for name in names
        }

    def contents(self, without: Iterable[str] = ()) -> Mapping[str, bytes]:
        """All keys of the bucket with their content; not those of leases, nor some addresses."""
        client = boto3.client("s3", endpoint_url=self.server.endpoint)
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket)
        keys = {found["Key"] for page in pages for found in page.get("Contents", [])}
        keys -= {f"{REPOSITORY}/{address}" for address in without}
        wanted = sorted(key for key in keys if not key.startswith(f"{REPOSITORY}/{FOLDER}"))

        def read(key: str) -> bytes:
            body: bytes = client.get_object(Bucket=self.bucket, Key=key)["Body"].read()
            return body

        with ThreadPoolExecutor(4) as pool:
            return dict(zip(wanted, pool.map(read, wanted), strict=True))

    def put(self, addresses: Iterable[str]) -> Mapping[str, str]:
        """Write objects that are as old as the lakeFS server's clock says; their etags."""
        wanted, now = list(addresses), self.lake.calendar()

        def put(address: str) -> str:
            etag = self.store.put(address, f"content of {address}".encode())
            os.utime(self.folder / address, (now, now))
            return etag

        with ThreadPoolExecutor(4) as pool:
            return dict(zip(wanted, pool.map(put, wanted), strict=True))

    def stage(self, branch: str, paths: Iterable[str]) -> set[str]:
        """Write an object for each path, and stage them; their addresses."""
        lakefs, now = self.lake.server.lake, self.lake.calendar()
        staged = {
            lakefs.slices.new_address(REPOSITORY, now, backdated=True): path for path in paths
        }
        for address, etag in self.put(staged).items():
            entry = Entry(address, size=len(f"content of {address}"), e_tag=etag)
            objects.stage_entry(lakefs, REPOSITORY, branch, staged[address], entry)
        return set(staged)


@contextmanager
def s3_lake(folder: Path, server: Server, **settings: Any) -> Iterator[S3Lake]:
    """An empty repository in a new bucket."""
    bucket = f"bucket-{uuid.uuid4().hex}"
    client = boto3.client("s3", endpoint_url=server.endpoint)
    client.create_bucket(Bucket=bucket)
    config = StoreConfig(endpoint_url=server.endpoint)
    with running(folder, store=f"s3://{bucket}", store_config=config, **settings) as lake:
        lake.client.create_repository(REPOSITORY, f"s3://{bucket}/{REPOSITORY}")
        for key in _NEIGHBOURS:
            client.put_object(Bucket=bucket, Key=key, Body=key.encode())
        yield S3Lake(lake, server, bucket)


def mark(found: S3Lake, spark: Session) -> frozenset[str]:
    """Tell a history with thousands of objects that nobody needs, and mark it; their addresses.

    Rule: 20 days. What is given up is held by a deleted branch, what is replaced by an old commit,
    orphans by nothing.
    """
    lake = found.lake
    lake.rules(20)
    lake.calendar.days_ago = 100
    replaced = found.stage("main", (f"a/{n}" for n in range(_REPLACED)))
    kept = found.stage("main", (f"keep/{n}" for n in range(_KEPT)))
    lake.commit("main")
    lake.client.create_branch(REPOSITORY, "given-up", "main")
    given_up = found.stage("given-up", (f"try/{n}" for n in range(_GIVEN_UP)))
    lake.commit("given-up")
    orphans = found.put(f"data/slice é/{n:03d} %41+" for n in range(_ORPHANS)).keys()
    lake.calendar.days_ago = 90
    lake.client.delete_branch(REPOSITORY, "given-up")
    kept |= found.stage("main", (f"a/{n}" for n in range(_REPLACED)))
    lake.commit("main")
    lake.client.create_branch(REPOSITORY, "dev", "main")
    kept |= found.stage("dev", (f"s/{n}" for n in range(_STAGED)))
    lake.calendar.days_ago = 0
    dead = replaced | given_up | orphans
    assert found.keys() == dead | kept
    mark_all(lake.context(spark))
    return frozenset(dead)
