"""Whatever happened to swept objects meanwhile, a restore does what a model says, on any store."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import pytest

from lakegc_assets.recovery.backup_creation import make_backup
from lakegc_assets.recovery.restore.restored_set import restore
from lakegc_assets.recovery.restore.selection import Choice
from lakegc_assets.run.context import RunContext
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.trash import TRASH
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.lake import REPOSITORY, SmallLake, mark, running
from lakegc_assets_tests.sessions import Session
from lakegc_assets_tests.storage.servers import Server

#: What may become of an object that a sweep has deleted.
FATES = ("untouched", "written", "written in its size", "written and deleted", "pruned")
OURS = "_lakefs/retention/gc/lakegc/"


@dataclass
class World:
    """A repository on some store, with all that may happen to it.

    Attributes:
        lake: the server, and the artifacts.
        spark: the session.
        chance: decides.
        bucket: a client of S3 and the bucket's name; None for local files.
        settings: of all runs.
        marked: contents of what was marked.
    """

    lake: SmallLake
    spark: Session
    chance: random.Random
    bucket: tuple[Any, str] | None
    settings: dict[str, Any] = field(default_factory=dict)
    marked: dict[str, bytes] = field(default_factory=dict)

    def context(self, run: str) -> RunContext:
        ages = {"min_age_hours": 0, "max_candidate_share": 1.0}
        return self.lake.context(self.spark, run, **{**ages, **self.settings})

    @property
    def store(self) -> ObjectStore:
        return self.context("x").connect().connections.store()

    def tell(self) -> None:
        """Commits that expire, a branch that is given up, uploads that nobody commits."""
        lake, chance = self.lake, self.chance
        lake.rules(20)
        for day in range(90, 40, -10):
            lake.calendar.days_ago = day
            for _ in range(chance.randint(1, 5)):
                path = f"{chance.choice('abc')}/{chance.randint(0, 5)}"
                lake.upload("main", path, f"{chance.random()}" * chance.randint(1, 30))
            if chance.random() < 0.7:
                lake.commit("main")
        lake.commit("main")
        lake.calendar.days_ago = 0

    def contents(self) -> dict[str, bytes]:
        store = self.store
        keys = [key for page in store.list() for key in page["key"].to_pylist()]
        return {key: store.get(key) for key in keys if not key.startswith(OURS)}

    def suffer(self, address: str, fate: str) -> None:
        """Let something become of an object that was deleted."""
        store = self.store
        if fate.startswith("written"):
            size = None if fate != "written in its size" else len(self.marked[address])
            store.put(address, f"new at {address * 30}".encode()[:size])
        if fate == "written and deleted":
            store.delete_many([address])
        if fate == "pruned" and self.bucket is None:
            keys = [key for page in store.list(TRASH) for key in page["key"].to_pylist()]
            store.delete_many([key for key in keys if key.endswith(address)])
        elif fate == "pruned" and self.bucket is not None:
            client, bucket = self.bucket
            key = f"{REPOSITORY}/{address}"
            for one in client.list_object_versions(Bucket=bucket, Prefix=key)["Versions"]:
                client.delete_object(Bucket=bucket, Key=key, VersionId=one["VersionId"])

    def comes_back(self, fate: str, *, backed_up: bool) -> tuple[str, str | None]:
        """The outcome and the source of an object that is asked for."""
        if fate in {"written", "written in its size"}:
            return "already_there", None
        # In a bucket, what somebody else deleted since lies above it; the trash is ours alone.
        if fate == "untouched" or (fate == "written and deleted" and self.bucket is None):
            return "restored", "store"
        return ("restored", "backup") if backed_up else ("not_kept", None)


@contextmanager
def world(
    folder: Path, spark: Session, seed: int, endpoint: str | None, bucket: str | None
) -> Iterator[World]:
    stores: dict[str, Any] = {}
    client = None
    if endpoint is not None and bucket is not None:
        client = boto3.client("s3", endpoint_url=endpoint)
        client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
        config = StoreConfig(endpoint_url=endpoint)
        stores = {"store": f"s3://{bucket}", "store_config": config}
    with running(folder / "lake", **stores) as lake:
        url = f"local://{REPOSITORY}" if bucket is None else f"s3://{bucket}/{REPOSITORY}"
        lake.client.create_repository(REPOSITORY, url)
        pair = None if bucket is None else (client, bucket)
        yield World(lake, spark, random.Random(seed), pair)


def new_bucket(kind: str, request: pytest.FixtureRequest) -> tuple[str, str] | tuple[None, None]:
    """A server's URL and the name of a new bucket there; nothing for local files."""
    if kind == "local":
        return None, None
    server: Server | str = request.getfixturevalue(f"{kind}_server")
    endpoint = server if isinstance(server, str) else server.endpoint
    bucket = f"bucket-{uuid.uuid4().hex}"
    boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket=bucket)
    return endpoint, bucket


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        ("local", 0),
        *(pytest.param("local", seed, marks=pytest.mark.conformance) for seed in (1, 2)),
        *(pytest.param("minio", seed, marks=pytest.mark.stores) for seed in range(2)),
    ],
)
def test_a_restore_does_what_the_model_says(
    request: pytest.FixtureRequest, tmp_path: Path, spark: Session, kind: str, seed: int
) -> None:
    with world(tmp_path, spark, seed, *new_bucket(kind, request)) as here:
        backed_up = seed % 2 == 0
        if backed_up:
            here.settings["backup_url"] = str(tmp_path / "backups")
        here.tell()
        # Buckets tell times in whole seconds.
        time.sleep(0 if kind == "local" else 1.1)
        ctx = here.context("one")
        mark(ctx)
        before = here.contents()
        dead = set(
            ctx.root.attempt(REPOSITORY, "one").read("deletion_candidates")["address"].to_pylist()
        )
        assert dead
        here.marked = {address: before[address] for address in dead}
        if backed_up:
            make_backup(ctx)
        recovery = sweep(ctx).facts["recovery"]
        assert recovery["kind"] == ("trash" if kind == "local" else "versions")
        assert not dead & here.contents().keys()

        fates = {address: here.chance.choice(FATES) for address in sorted(dead)}
        for address, fate in fates.items():
            here.suffer(address, fate)
        swept = here.contents()
        some = {address for address in sorted(dead) if here.chance.random() < 0.6} or dead
        manifest = restore(ctx, Choice(addresses=tuple(sorted(some))))

        rows = ctx.root.attempt(REPOSITORY, "one").read(manifest.asset).to_pylist()
        found = {row["address"]: (row["outcome"], row["source"]) for row in rows}
        expected = {a: here.comes_back(fates[a], backed_up=backed_up) for a in some}
        assert found == expected, fates
        # A store whose etags are checksums tells of what has the size, too.
        told = {"written"} | (set() if kind == "local" else {"written in its size"})
        other = {row["address"] for row in rows if row["detail"] and "another" in row["detail"]}
        named = {address for address, (outcome, _) in found.items() if outcome == "already_there"}
        assert other & named == {address for address in some if fates[address] in told}
        (warned,) = [w for w in manifest.facts["warnings"] if "something else" in w] or [""]
        assert warned[:1] == (str(len(other & named))[:1] if other & named else "")
        back = {a for a, (outcome, _) in expected.items() if outcome == "restored"}
        assert here.contents() == swept | {address: before[address] for address in back}
        answers = {(one["before"], one["after"]) for one in manifest.facts["sample"]}
        assert answers <= {("gone (410)", "reads")}
        # Once more, in whatever way: nothing changes any more.
        again = restore(ctx, Choice(everything=True)).facts["outcomes"]
        assert again.get("already_there", {"objects": 0})["objects"] >= len(back)
        after = here.contents()
        rest = {
            a
            for a in dead - some
            if here.comes_back(fates[a], backed_up=backed_up)[0] == "restored"
        }
        assert after == swept | {address: before[address] for address in back | rest}
        # And the next mark leaves all of it alone.
        later = here.context("later")
        mark(later)
        candidates = later.root.attempt(REPOSITORY, "later").read("deletion_candidates")
        assert not set(candidates["address"].to_pylist()) & dead
